"""The positions of the boxes of a graph.

In layers from top to bottom, without overlap, and the paths of its lines.

Lines lead from the bottom of a box to the top of a box further down. A line over several layers gets a
separate lane in the layers between. A layer wider than a page continues in further rows. The steps are those
of Sugiyama: https://en.wikipedia.org/wiki/Layered_graph_drawing
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

LAYER_GAP = 34.0  # in pixels, as all lengths here: room for lines
ROW_GAP = 12.0  # between rows of one layer
COLUMN_GAP = 14.0
LANE = 10.0  # width of a lane
SWEEPS = 3  # over the layers, to have less lines cross

Point = tuple[float, float]


class Size(Struct, frozen=True):
    """The size of a box; both values are greater than 0."""

    width: float
    height: float


class Line(Struct, frozen=True, kw_only=True):
    """A line from one box to another, given by their numbers. `points` go down: two for each section to draw."""

    start: int
    end: int
    points: tuple[Point, ...]


class Layout(Struct, frozen=True, kw_only=True):
    """The upper left corners of the boxes, in order, and the lines, within `width` × `height`."""

    corners: tuple[Point, ...]
    lines: tuple[Line, ...]
    width: float
    height: float


def reduced(count: int, edges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Remove edges that a longer path implies. Each edge leads from a lower number to a higher one.

    Takes time and memory in count × edges / 64.
    """
    after: list[set[int]] = [set() for _ in range(count)]
    for start, end in edges:
        after[start].add(end)
    reach = [0] * count  # bits: the reachable nodes, itself included
    kept: list[tuple[int, int]] = []
    for start in reversed(range(count)):
        known = 1 << start
        for end in sorted(after[start]):  # nearer ones first: an edge to a node that they reach is not needed
            if not known >> end & 1:
                kept.append((start, end))
            known |= reach[end]
        reach[start] = known
    return sorted(kept)


def lay_out(sizes: Sequence[Size], edges: Sequence[tuple[int, int]], *, wide: float) -> Layout:
    """Place boxes. Each edge leads from a lower number to a higher one.

    Rows are at most `wide`, or one box, wide.
    """
    if not sizes:
        return Layout(corners=(), lines=(), width=0.0, height=0.0)
    return _Sketch(sizes, tuple(dict.fromkeys(edges)), wide).layout()


class _Sketch:
    """Intermediate data. Boxes have numbers from 0; lanes have the numbers after the boxes."""

    def __init__(self, sizes: Sequence[Size], edges: Sequence[tuple[int, int]], wide: float) -> None:
        self._sizes, self._edges, self._wide = sizes, edges, wide
        self._layer_of = [0] * len(sizes)
        for start, end in sorted(edges):
            self._layer_of[end] = max(self._layer_of[end], self._layer_of[start] + 1)
        self._layers: list[list[int]] = [[] for _ in range(1 + max(self._layer_of))]
        for place, layer in enumerate(self._layer_of):
            self._layers[layer].append(place)
        self._lanes = self._make_lanes()
        self._corners: dict[int, Point] = {}
        self._lane_spans: dict[int, tuple[float, float, float]] = {}  # x, top and bottom

    def layout(self) -> Layout:
        self._order()
        rows = [self._rows(layer) for layer in self._layers]
        widths = [
            max((self._row_width(row) for row in own), default=0.0) + LANE * self._lane_count(layer, own)
            for layer, own in zip(self._layers, rows, strict=True)
        ]
        top = 0.0
        for layer, own, width in zip(self._layers, rows, widths, strict=True):
            top = self._place(layer, own, (max(widths) - width) / 2, top) + LAYER_GAP
        return Layout(
            corners=tuple(self._corners[place] for place in range(len(self._sizes))),
            lines=tuple(Line(start=start, end=end, points=self._points(start, end)) for start, end in self._edges),
            width=max(widths),
            height=top - LAYER_GAP,
        )

    def _make_lanes(self) -> dict[tuple[int, int], int]:
        """The lane of edges from a box through a layer, by (box, layer). Edges from the same box share a lane."""
        furthest: dict[int, int] = {}
        for start, end in self._edges:
            furthest[start] = max(furthest.get(start, 0), self._layer_of[end])
        lanes: dict[tuple[int, int], int] = {}
        for start, last in sorted(furthest.items()):
            for layer in range(self._layer_of[start] + 1, last):
                lanes[start, layer] = len(self._sizes) + len(lanes)
                self._layers[layer].append(lanes[start, layer])
        return lanes

    def _way(self, start: int, end: int) -> list[int]:
        between = range(self._layer_of[start] + 1, self._layer_of[end])
        return [start, *(self._lanes[start, layer] for layer in between), end]

    def _order(self) -> None:
        """Sort each layer by the middle of the linked boxes, in the layer below and above in turn."""
        before: dict[int, list[int]] = {}
        after: dict[int, list[int]] = {}
        for start, end in self._edges:
            way = self._way(start, end)
            for upper, lower in pairwise(way):
                before.setdefault(lower, []).append(upper)
                after.setdefault(upper, []).append(lower)
        place = {item: (at + 0.5) / len(layer) for layer in self._layers for at, item in enumerate(layer)}
        for sweep in range(SWEEPS):
            linked = after if sweep % 2 else before
            for layer in reversed(self._layers) if sweep % 2 else self._layers:
                middle = {
                    item: sum(place[other] for other in others) / len(others)
                    for item in layer
                    if (others := linked.get(item))
                }
                layer.sort(key=lambda item: (middle.get(item, place[item]), item))
                place |= {item: (at + 0.5) / len(layer) for at, item in enumerate(layer)}

    def _is_lane(self, item: int) -> bool:
        return item >= len(self._sizes)

    def _width(self, item: int) -> float:
        return LANE if self._is_lane(item) else self._sizes[item].width

    def _row_width(self, row: Sequence[int]) -> float:
        return sum(self._width(item) for item in row) + COLUMN_GAP * (len(row) - 1)

    def _lane_count(self, layer: Sequence[int], rows: Sequence[Sequence[int]]) -> int:
        """Lanes next to the rows; in a layer of one row they are between the boxes."""
        return sum(map(self._is_lane, layer)) if len(rows) > 1 else 0

    def _rows(self, layer: Sequence[int]) -> list[list[int]]:
        """Split a layer into rows: a single row with its lanes if it fits, else several rows without lanes."""
        if self._row_width(layer) <= self._wide:
            return [list(layer)]
        boxes = [item for item in layer if not self._is_lane(item)]
        rows: list[list[int]] = []
        for item in boxes:
            if not rows or self._row_width([*rows[-1], item]) > self._wide:
                rows.append([])
            rows[-1].append(item)
        return rows if len(rows) > 1 else [list(layer)]

    def _place(self, layer: Sequence[int], rows: Sequence[Sequence[int]], left: float, top: float) -> float:
        """Set the position of each box and lane of a layer; return the lower edge of the layer."""
        y, rows_width = top, max(self._row_width(row) for row in rows)
        lane_xs: dict[int, float] = {}
        for row in rows:
            x, height = left + (rows_width - self._row_width(row)) / 2, 0.0
            for item in row:
                if self._is_lane(item):
                    lane_xs[item] = x + LANE / 2
                else:
                    self._corners[item] = (x, y)
                    height = max(height, self._sizes[item].height)
                x += self._width(item) + COLUMN_GAP
            y += height + ROW_GAP
        bottom = y - ROW_GAP
        beside = [item for item in layer if self._is_lane(item) and item not in lane_xs]
        lane_xs |= {item: left + rows_width + LANE * (at + 0.5) for at, item in enumerate(beside)}
        for item, lane_x in lane_xs.items():
            self._lane_spans[item] = (lane_x, top, bottom)
        return bottom

    def _points(self, start: int, end: int) -> tuple[Point, ...]:
        (start_x, start_y), (end_x, end_y) = self._corners[start], self._corners[end]
        points = [(start_x + self._sizes[start].width / 2, start_y + self._sizes[start].height)]
        for lane in self._way(start, end)[1:-1]:
            x, top, bottom = self._lane_spans[lane]
            points += [(x, top), (x, bottom)]
        points.append((end_x + self._sizes[end].width / 2, end_y))
        return tuple(points)
