"""The visible part of a workflow's graph: boxes within boxes, and equal ones folded into one.

A workflow has up to tens of thousands of nodes; a person reads some tens of boxes. So items of a loop,
and steps of the same template that come after the same steps, are one box with counts. A template is
opened where its steps are few. A long graph is folded by its layers. Users open and close boxes by their
ids, which follow from names.

Takes time in O(n log n) of the nodes and the parents they name.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct, field

from moorage_workflows.model.workflow import NodePhase, NodeRecord, NodeType

FOLD_MIN = 6  # equal steps that become one box
SHOWN_MAX = 120  # boxes of one level
RANGES = 60  # into which more are divided, or twice as many where layers are of unequal sizes
RANGE = 50  # items of a loop in one range, where there are not too many ranges
OPEN_AT_FIRST = 40  # boxes that are open without being asked for
_OWNERS = (NodeType.RETRY, NodeType.TASK_GROUP)  # of attempts and items: their names begin with the owner's
_ITEM = re.compile(r"(.*?)\((\d+):")  # name of an item of a loop
_NUMBERS = re.compile(r"(\d+)")
_WORST = (
    NodePhase.ERROR, NodePhase.FAILED, NodePhase.RUNNING, NodePhase.PENDING, NodePhase.SUCCEEDED,
    NodePhase.SKIPPED, NodePhase.OMITTED,
)  # fmt: skip

Counts = Mapping[NodePhase, int]


class Box(Struct, frozen=True, kw_only=True):
    """One box of the graph. `node` None: a group of boxes without a node.

    `inside` and `edges` are empty unless the box is open. An edge is a pair of indexes in `inside`, from an
    earlier step to a later one. `counts`: for a loop or a group, its items or members by phase; for a
    template, all steps in it. `nodes`: the direct children, also of a closed box. `attempts`: of a retried
    step, oldest first. Times are RFC 3339, "" if unknown.
    """

    id: str
    label: str
    phase: NodePhase
    node: NodeRecord | None = None
    members: int = 0  # boxes within when it is open; 0: it cannot be opened
    counts: Counts = field(default_factory=dict)
    inside: tuple[Box, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    nodes: tuple[NodeRecord, ...] = ()
    attempts: tuple[NodeRecord, ...] = ()
    started_at: str = ""
    finished_at: str = ""

    @property
    def is_open(self) -> bool:
        return bool(self.inside)


def fold(
    nodes: Sequence[NodeRecord], *, opened: Collection[str] = (), closed: Collection[str] = (), reveal: str = ""
) -> Box:
    """The boxes of a workflow within an open outermost one, which is empty if there are no nodes.

    `opened`, `closed`: ids of boxes that a user opened or closed; unknown ids are ignored. An opened box is
    shown with all boxes around it. `reveal`: the id of a node that is shown, unless it is in a closed box.
    """
    return _Folding(nodes, frozenset(opened), frozenset(closed), reveal).root()


@lru_cache(maxsize=1 << 16)
def natural(text: str) -> tuple[object, ...]:
    """Return a sort key that sorts numbers in a string by their value."""
    return tuple(int(part[:18]) if at % 2 else part for at, part in enumerate(_NUMBERS.split(text)))


class _Forest:
    """The parent of each node in the view: a template above its steps, a loop above its items."""

    def __init__(self, nodes: Sequence[NodeRecord]) -> None:
        in_order = sorted(nodes, key=lambda node: (node.started_at or "~", natural(node.name)))
        self.by_id = {node.id: node for node in in_order}
        by_name = {node.name: node for node in self.by_id.values()}
        self.above: dict[str, str] = {}
        for node in self.by_id.values():
            self.above[node.id] = self._above(node, by_name)
        self._cut_circles()
        self.below: dict[str, list[NodeRecord]] = {}
        for node in self.by_id.values():
            self.below.setdefault(self.above[node.id], []).append(node)

    def _above(self, node: NodeRecord, by_name: Mapping[str, NodeRecord]) -> str:
        at = node.name.rfind("(") if node.name.endswith(")") else -1
        while at > 0:
            owner = by_name.get(node.name[:at])
            if owner is not None and owner.type in _OWNERS and owner.boundary_id == node.boundary_id:
                return owner.id
            at = node.name.rfind("(", 0, at)
        seen = {node.id}
        above = node.boundary_id
        while above in self.by_id and self.by_id[above].type is NodeType.STEP_GROUP and above not in seen:
            seen.add(above)
            above = self.by_id[above].boundary_id
        return above if above in self.by_id and above not in seen else ""

    def _cut_circles(self) -> None:
        """Break cycles in the parents, which damaged records may have: one node of a cycle becomes a root."""
        done: set[str] = set()
        for start in self.above:
            path: list[str] = []
            at = start
            walked: set[str] = set()
            while at and at not in done and at not in walked:
                walked.add(at)
                path.append(at)
                at = self.above[at]
            if at in walked:
                self.above[at] = ""
            done.update(path)


class _Piece(Struct, frozen=True):
    """A box that is not yet decided to be open.

    `pieces`: the pieces of a group; those of a node are computed later.
    """

    id: str
    label: str
    node: NodeRecord | None
    pieces: tuple[_Piece, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()


class _Level(Struct, frozen=True):
    """Pieces of one level, and their order."""

    pieces: tuple[_Piece, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()


class _Folding:
    def __init__(
        self, nodes: Sequence[NodeRecord], opened: frozenset[str], closed: frozenset[str], reveal: str
    ) -> None:
        self._forest = _Forest(nodes)
        self._reveal = frozenset(self._way_up(reveal))
        self._closed = closed
        self._opened = opened
        self._levels: dict[str, _Level] = {}
        self._steps = self._counted()
        self._wanted = self._around_opened()

    def root(self) -> Box:
        level = self._level("")
        automatic = self._open_at_first(level)
        inside = tuple(self._box(piece, automatic) for piece in level.pieces)
        counts = self._steps[""]
        return Box(
            id="",
            label="",
            phase=worst(box.phase for box in inside),
            members=len(inside),
            counts=counts,
            inside=inside,
            edges=level.edges,
            started_at=_first(box.started_at for box in inside),
            finished_at=_last(inside),
        )

    # -- which are open

    def _around_opened(self) -> frozenset[str]:
        """The boxes that a user opened, with the nodes around them."""
        wanted: set[str] = set()
        for box_id in self._opened:
            parts = box_id.split("~")
            wanted.update("~".join(parts[:length]) for length in range(1, len(parts) + 1))
            wanted.update(self._way_up(parts[0])[1:])
        return frozenset(wanted)

    def _way_up(self, node_id: str) -> list[str]:
        """A node and the nodes around it, the innermost first; empty for an unknown id."""
        way: list[str] = []
        at = node_id if node_id in self._forest.by_id else ""
        while at:
            way.append(at)
            at = self._forest.above[at]
        return way

    def _open_at_first(self, level: _Level) -> frozenset[str]:
        """Return the ids of the boxes to open by default.

        These are templates and short loops, outermost first, while there are few boxes.
        """
        automatic: set[str] = set()
        left = OPEN_AT_FIRST - len(level.pieces)
        waiting = deque(level.pieces)
        while waiting:
            piece = waiting.popleft()
            if piece.node is None or not self._has_inside(piece.node) or piece.id in self._closed:
                continue
            inner = self._level(piece.id)
            is_loop = piece.node.type is NodeType.TASK_GROUP and len(inner.pieces) >= FOLD_MIN
            if piece.id == self._first_id() or (not is_loop and len(inner.pieces) <= left):
                automatic.add(piece.id)
                left -= len(inner.pieces)
                waiting.extend(inner.pieces)
        return frozenset(automatic)

    def _first_id(self) -> str:
        roots = self._forest.below.get("", [])
        return roots[0].id if roots else ""

    def _has_inside(self, node: NodeRecord) -> bool:
        """Whether a node contains other steps.

        A retried step counts as one step, unless its attempts contain steps.
        """
        within = self._within(node.id)
        return any(self._within(child.id) for child in within) if _is_retry(node) else bool(within)

    def _within(self, node_id: str) -> list[NodeRecord]:
        below = self._forest.below.get(node_id, ())
        return [child for child in below if child.type is not NodeType.STEP_GROUP]

    # -- boxes

    def _box(self, piece: _Piece, automatic: frozenset[str]) -> Box:
        level = self._level(piece.id) if piece.node is not None else _Level(piece.pieces, piece.edges)
        members = list(_nodes_of(piece))
        is_wanted = piece.id in self._wanted or any(self._is_revealed(piece, member) for member in members)
        is_open = piece.id not in self._closed and (is_wanted or piece.id in automatic)
        inside = tuple(self._box(inner, automatic) for inner in level.pieces) if is_open else ()
        node = piece.node
        if node is not None:
            attempts = tuple(sorted(self._within(node.id), key=_by_name)) if _is_retry(node) else ()
            return Box(
                id=piece.id,
                label=piece.label,
                phase=node.phase,
                node=node,
                members=len(level.pieces),
                counts=self._node_counts(node) if level.pieces else {},
                inside=inside,
                edges=level.edges if is_open else (),
                nodes=tuple(self._within(node.id)) if level.pieces else (),
                attempts=attempts,
                started_at=node.started_at,
                finished_at=node.finished_at,
            )
        return Box(
            id=piece.id,
            label=piece.label,
            phase=worst(member.phase for member in members),
            members=len(level.pieces),
            counts=Counter(member.phase for member in members),
            nodes=tuple(members),
            inside=inside,
            edges=level.edges if is_open else (),
            started_at=_first(member.started_at for member in members),
            finished_at=_last(members),
        )

    def _is_revealed(self, piece: _Piece, member: NodeRecord) -> bool:
        """Whether a box must be open to show a node that it contains, other than the box's own node."""
        if member.id not in self._reveal:
            return False
        return piece.node is None or any(child.id in self._reveal for child in self._within(member.id))

    def _node_counts(self, node: NodeRecord) -> Counts:
        if node.type is NodeType.TASK_GROUP:
            return Counter(child.phase for child in self._within(node.id))
        return self._steps[node.id]

    def _counted(self) -> dict[str, Counter[NodePhase]]:
        """Count the steps in each node by phase; key "": all steps. A retried step counts once."""
        below = self._forest.below
        counts: dict[str, Counter[NodePhase]] = {"": Counter()}
        order = [""]
        for at in order:  # grows: from the top down
            order.extend(child.id for child in below.get(at, ()))
        for at in reversed(order):
            total: Counter[NodePhase] = Counter()
            for child in self._within(at):
                if self._has_inside(child):
                    total.update(counts[child.id])
                else:
                    total[child.phase] += 1
            counts[at] = total
        return counts

    # -- one level

    def _level(self, above: str) -> _Level:
        if above not in self._levels:
            self._levels[above] = self._read_level(above)
        return self._levels[above]

    def _read_level(self, above: str) -> _Level:
        owner = self._forest.by_id.get(above)
        if owner is not None and not self._has_inside(owner):
            return _Level()
        children = self._forest.below.get(above, [])
        if owner is not None and owner.type is NodeType.TASK_GROUP:
            pieces = [self._piece(child) for child in sorted(self._within(above), key=_by_name)]
            return _limited(above, pieces, ())
        if owner is not None and _is_retry(owner):
            pieces = [self._piece(child) for child in sorted(self._within(above), key=_by_name)]
            return _limited(above, pieces, [(at, at + 1) for at in range(len(pieces) - 1)])
        return self._grouped(above, children, self._before(above, children))

    def _piece(self, node: NodeRecord) -> _Piece:
        return _Piece(node.id, node.display_name or node.name, node)

    def _before(self, above: str, children: Sequence[NodeRecord]) -> list[tuple[int, ...]]:
        """Return for each child the indexes of the children before it, without its own index."""
        places = {child.id: at for at, child in enumerate(children)}
        known: dict[tuple[str, ...], tuple[int, ...]] = {}
        before = []
        for at, child in enumerate(children):
            if child.parents not in known:
                lifted = (self._lifted(parent, above) for parent in child.parents)
                known[child.parents] = tuple(dict.fromkeys(places[each] for each in lifted if each in places))
            before.append(tuple(place for place in known[child.parents] if place != at))
        if not above and len(children) > 1:  # an exit handler comes after the rest
            rest = tuple(at for at, child in enumerate(children) if not child.name.endswith(".onExit"))
            for at, child in enumerate(children):
                if child.name.endswith(".onExit") and not before[at]:
                    before[at] = rest
        return before

    def _lifted(self, node_id: str, above: str) -> str:
        """Return the child of `above` that is or contains a node; "" if there is none."""
        at = node_id
        while at and (owner := self._forest.above.get(at)) is not None:
            if owner == above:
                return at
            at = owner
        return ""

    def _grouped(self, above: str, children: Sequence[NodeRecord], before: Sequence[tuple[int, ...]]) -> _Level:
        """Put equal children into one piece each, in the order of the graph. Groups of steps get no piece."""
        # pieces are numbered as they are made; groups of steps only pass their parents on
        ranks = _ranks(before)
        pieces: list[_Piece] = []
        edges: list[tuple[int, int]] = []
        piece_of: dict[int, int] = {}  # place of a child → of its piece
        passed: dict[int, tuple[int, ...]] = {}  # place of a group of steps → pieces that it comes after
        known: dict[tuple[int, ...], tuple[int, ...]] = {}
        used: Counter[str] = Counter()

        # the pieces before a child, through any groups of steps
        def pieces_before(place: int) -> tuple[int, ...]:
            key = before[place]
            if key not in known:
                reached: dict[int, None] = {}
                for each in key:
                    if each in passed:
                        reached.update(dict.fromkeys(passed[each]))
                    elif each in piece_of:  # else a circle of damaged records
                        reached[piece_of[each]] = None
                known[key] = tuple(sorted(reached))
            return known[key]

        # children of one rank cannot depend on each other, so equal ones may be folded
        by_rank: dict[int, list[int]] = {}
        for place, rank in enumerate(ranks):
            by_rank.setdefault(rank, []).append(place)
        for rank in sorted(by_rank):
            same: dict[tuple[str, tuple[int, ...]], list[int]] = {}
            for place in by_rank[rank]:
                child = children[place]
                if child.type is NodeType.STEP_GROUP:
                    passed[place] = pieces_before(place)
                else:
                    same.setdefault((_likeness(child), pieces_before(place)), []).append(place)
            # equal ones after the same pieces are one piece, from FOLD_MIN on
            for (likeness, after), places in same.items():
                places.sort(key=lambda place: natural(children[place].name))
                groups = [places] if len(places) >= FOLD_MIN and likeness else [[place] for place in places]
                for group in groups:
                    made = [self._piece(children[place]) for place in group]
                    if len(made) > 1:
                        used[likeness] += 1
                        suffix = f"#{used[likeness]}" if used[likeness] > 1 else ""
                        made = [_group_of(f"{above}~{likeness}{suffix}", likeness, made)]
                    for place in group:
                        piece_of[place] = len(pieces)
                    edges += [(each, len(pieces)) for each in after]
                    pieces += made
        return _limited(above, pieces, edges)


def worst(phases: Iterable[NodePhase]) -> NodePhase:
    """The phase that users want to see first: failed, running, waiting, done."""
    seen = set(phases)
    return next((phase for phase in _WORST if phase in seen), NodePhase.PENDING)


def _by_name(node: NodeRecord) -> tuple[object, ...]:
    return natural(node.name)


def _is_retry(node: NodeRecord) -> bool:
    return node.type is NodeType.RETRY


def _likeness(node: NodeRecord) -> str:
    """The label that equal steps share; empty: the step equals no other."""
    if node.name.endswith(")") and "(" in node.display_name:
        return node.display_name.partition("(")[0]
    return node.template


def _nodes_of(piece: _Piece) -> Iterable[NodeRecord]:
    waiting = [piece]
    while waiting:
        each = waiting.pop()
        if each.node is not None:
            yield each.node
        waiting.extend(each.pieces)


def _group_of(
    group_id: str, label: str, pieces: Sequence[_Piece], edges: Iterable[tuple[int, int]] = ()
) -> _Piece:
    level = _limited(group_id, pieces, edges)
    return _Piece(group_id, label, None, level.pieces, level.edges)


def _limited(above: str, pieces: Sequence[_Piece], edges: Iterable[tuple[int, int]]) -> _Level:
    """Return at most SHOWN_MAX pieces.

    If there are more, they are put into groups, by layer if the graph has layers.
    """
    pairs = tuple(dict.fromkeys(edges))
    if len(pieces) <= SHOWN_MAX:
        return _Level(tuple(pieces), pairs)
    before: list[list[int]] = [[] for _ in pieces]
    for start, end in pairs:
        before[end].append(start)
    layers = _ranks([tuple(each) for each in before])
    size = _round_size(-(-len(pieces) // RANGES))
    is_one_layer = len(set(layers)) == 1
    if is_one_layer and len(pieces) <= SHOWN_MAX * RANGE:
        size = RANGE
    by_layer: dict[int, list[int]] = {}
    for at, layer in enumerate(layers):
        by_layer.setdefault(layer, []).append(at)
    parts = [by_layer[layer] for layer in sorted(by_layer)]
    if is_one_layer:
        parts = [parts[0][at : at + size] for at in range(0, len(pieces), size)]
    groups: list[list[int]] = []
    for part in parts:  # whole layers: so a group comes after another, or before it
        if groups and len(groups[-1]) + len(part) <= size:
            groups[-1] += part
        else:
            groups.append(list(part))
    group_of = {at: number for number, group in enumerate(groups) for at in group}
    made = [
        pieces[group[0]] if len(group) == 1 else _range_of(above, pieces, group, pairs, group_of)
        for group in groups
    ]
    outer = dict.fromkeys(
        (group_of[start], group_of[end]) for start, end in pairs if group_of[start] != group_of[end]
    )
    return _Level(tuple(made), tuple(outer))


def _range_of(
    above: str,
    pieces: Sequence[_Piece],
    group: Sequence[int],
    edges: Iterable[tuple[int, int]],
    group_of: Mapping[int, int],
) -> _Piece:
    places = {at: place for place, at in enumerate(group)}
    number = group_of[group[0]]
    inner = [(places[start], places[end]) for start, end in edges if group_of[start] == group_of[end] == number]
    label = _range_label(pieces[group[0]].label, pieces[group[-1]].label)
    return _group_of(f"{above}~{group[0]}-{group[-1]}", label, [pieces[at] for at in group], inner)


def _range_label(first: str, last: str) -> str:
    """Return the label of a range: "fan 0–49" for items of a loop, else both labels."""
    begin, end = _ITEM.match(first), _ITEM.match(last)
    if begin is not None and end is not None and begin[1] == end[1]:
        return f"{begin[1]} {begin[2]}–{end[2]}"
    return f"{first} … {last}"


def _round_size(least: int) -> int:
    """Return the next of 1, 2, 5, 10, 20, 50, …: the ranges of a growing loop then rarely change their ids."""
    size = 1
    while True:
        for factor in (1, 2, 5):
            if size * factor >= least:
                return size * factor
        size *= 10


def _ranks(before: Sequence[Sequence[int]]) -> list[int]:
    """Return the length of the longest path to each index. Members of a cycle get the rank after all others."""
    after: list[list[int]] = [[] for _ in before]
    left = [len(starts) for starts in before]
    for place, starts in enumerate(before):
        for start in starts:
            after[start].append(place)
    ranks = [0] * len(before)
    ready = deque(place for place, count in enumerate(left) if not count)
    while ready:
        place = ready.popleft()
        for end in after[place]:
            ranks[end] = max(ranks[end], ranks[place] + 1)
            left[end] -= 1
            if not left[end]:
                ready.append(end)
    beyond = 1 + max(ranks, default=0)
    return [beyond if left[place] else ranks[place] for place in range(len(before))]


def _first(times: Iterable[str]) -> str:
    return min((time for time in times if time), default="")


def _last(parts: Iterable[NodeRecord | Box]) -> str:
    """When the last one ended; empty while one is active."""
    times = [(part.phase, part.finished_at) for part in parts]
    if any(not phase.is_fulfilled for phase, _ in times):
        return ""
    return max((time for _, time in times), default="")
