"""Where boxes and lines of a graph are drawn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moorage.present.layering import LAYER_GAP, ROW_GAP, Layout, Line, Size, lay_out, reduced


@st.composite
def graphs(draw):
    sizes = draw(st.lists(st.builds(Size, st.integers(1, 300), st.integers(1, 90)), min_size=1, max_size=25))
    pairs = st.tuples(st.integers(0, len(sizes) - 1), st.integers(0, len(sizes) - 1))
    return sizes, [(min(pair), max(pair)) for pair in draw(st.lists(pairs, max_size=40)) if pair[0] != pair[1]]


def overlap(corner, size, other_corner, other_size):
    return (
        corner[0] < other_corner[0] + other_size.width
        and other_corner[0] < corner[0] + size.width
        and corner[1] < other_corner[1] + other_size.height
        and other_corner[1] < corner[1] + size.height
    )


@given(graphs(), st.integers(1, 800))
def test_no_box_lies_over_another_and_all_are_on_the_page(graph, wide):
    sizes, edges = graph
    layout = lay_out(sizes, edges, wide=wide)
    placed = list(zip(layout.corners, sizes, strict=True))
    for at, (corner, size) in enumerate(placed):
        assert corner[0] >= -1e-6
        assert corner[1] >= 0
        assert corner[0] + size.width <= layout.width + 1e-6
        assert corner[1] + size.height <= layout.height + 1e-6
        assert not any(overlap(corner, size, *other) for other in placed[at + 1 :])


@given(graphs(), st.integers(1, 800))
def test_lines_lead_down_from_box_to_box(graph, wide):
    sizes, edges = graph
    layout = lay_out(sizes, edges, wide=wide)
    assert {(line.start, line.end) for line in layout.lines} == set(edges)
    for line in layout.lines:
        heights = [y for _, y in line.points]
        assert heights == sorted(heights)
        assert line.points[0][1] == layout.corners[line.start][1] + sizes[line.start].height
        assert line.points[-1][1] == layout.corners[line.end][1]
        assert layout.corners[line.end][1] >= layout.corners[line.start][1] + sizes[line.start].height + LAYER_GAP


@given(graphs(), st.integers(1, 800))
def test_a_layer_is_as_wide_as_the_page_or_its_widest_box_apart_from_lanes(graph, wide):
    sizes, _ = graph
    layout = lay_out(sizes, [], wide=wide)
    assert layout.width <= max(wide, *(size.width for size in sizes)) + 1e-6


@given(graphs(), st.integers(1, 800))
def test_the_same_graph_is_drawn_the_same_way(graph, wide):
    assert lay_out(*graph, wide=wide) == lay_out(*graph, wide=wide)


def reached(count, edges):
    reach = [{at} for at in range(count)]
    for start, end in sorted(set(edges), reverse=True):
        reach[start] |= reach[end]
    return reach


@given(graphs())
def test_edges_that_say_nothing_new_are_left_out_and_no_other(graph):
    sizes, edges = graph
    kept = reduced(len(sizes), edges)
    assert set(kept) <= set(edges)
    assert reached(len(sizes), kept) == reached(len(sizes), edges)
    for edge in kept:
        assert reached(len(sizes), [other for other in kept if other != edge]) != reached(len(sizes), kept)


def test_a_chain_stands_below_itself_with_straight_lines():
    assert lay_out([Size(10, 4), Size(10, 4)], [(0, 1)], wide=100) == Layout(
        corners=((0.0, 0.0), (0.0, 4 + LAYER_GAP)),
        lines=(Line(start=0, end=1, points=((5.0, 4.0), (5.0, 4 + LAYER_GAP))),),
        width=10,
        height=8 + LAYER_GAP,
    )


def test_a_line_over_a_layer_passes_beside_its_box():
    layout = lay_out([Size(10, 4)] * 3, [(0, 1), (1, 2), (0, 2)], wide=100)
    x = layout.lines[2].points[1][0]
    assert len(layout.lines[2].points) == 4
    assert not layout.corners[1][0] < x < layout.corners[1][0] + 10


def test_a_wide_layer_goes_on_in_further_rows():
    layout = lay_out([Size(10, 4)] * 5, [], wide=40)
    assert [y for _, y in layout.corners] == [0, 0, 4 + ROW_GAP, 4 + ROW_GAP, 8 + 2 * ROW_GAP]


def test_nothing_is_drawn_of_nothing():
    assert lay_out([], [], wide=100) == Layout(corners=(), lines=(), width=0, height=0)
