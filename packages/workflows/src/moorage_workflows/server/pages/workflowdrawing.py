"""Draw the graph of a workflow: boxes inside frames, lines, and their labels. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from msgspec import Struct

from moorage.present.layering import Point, Size, lay_out, reduced
from moorage.server.pages.board import span
from moorage.server.pages.texts import say
from moorage_kube.moments import moment
from moorage_workflows.decide.workflows.folding import Box
from moorage_workflows.model.workflow import NodePhase, NodeRecord, NodeType

WIDE = 720.0  # width of a row of boxes at most, in pixels, within all frames
STEP = Size(168, 46)
GROUP = Size(208, 62)
PADDING = 12.0  # of a frame
HEAD = 30.0  # of a frame: its name
MARGIN = 4.0  # around all, for thick borders
LETTERS, GROUP_LETTERS = 19, 20  # that a name may have
NOTE_LETTERS, GROUP_NOTE_LETTERS = 22, 35  # that the words below it may have
LETTERS_OF_FRAME = 7.2  # pixels of a letter in the head of a frame
BAR = 188.0

Tone = str  # done, bad, busy, wait, none
TONES: Mapping[NodePhase, Tone] = {
    NodePhase.SUCCEEDED: "done",
    NodePhase.FAILED: "bad",
    NodePhase.ERROR: "bad",
    NodePhase.RUNNING: "busy",
    NodePhase.PENDING: "wait",
    NodePhase.SKIPPED: "none",
    NodePhase.OMITTED: "none",
}
SIGNS: Mapping[NodePhase, str] = {
    NodePhase.SUCCEEDED: "✓",
    NodePhase.FAILED: "✕",
    NodePhase.ERROR: "!",
    NodePhase.RUNNING: "●",
    NodePhase.PENDING: "○",
    NodePhase.SKIPPED: "–",
    NodePhase.OMITTED: "–",
}
PART_WORDS: Mapping[NodePhase, str] = {
    NodePhase.FAILED: "failed",
    NodePhase.ERROR: "with an error",
    NodePhase.RUNNING: "running",
    NodePhase.PENDING: "pending",
    NodePhase.SUCCEEDED: "done",
    NodePhase.SKIPPED: "skipped",
    NodePhase.OMITTED: "omitted",
}
SUSPENDED = "Waits for approval"


class Links(Struct, frozen=True):
    """Functions for addresses of the page: with another box selected, or with a box opened or closed."""

    choose: Callable[[str], str]
    open: Callable[[str], str]
    close: Callable[[str], str]


class Part(Struct, frozen=True):
    """A part of a bar, in pixels."""

    tone: Tone
    x: float
    width: float


class Shape(Struct, frozen=True, kw_only=True):
    """A box or a frame. Lengths in pixels; `toggle` "": the shape cannot be opened."""

    key: str  # for the ids of elements
    x: float
    y: float
    width: float
    height: float
    is_frame: bool
    is_group: bool
    is_chosen: bool
    tone: Tone
    sign: str
    name: str  # as long as there is room
    full_name: str
    note: str
    spoken: str
    href: str
    toggle: str
    parts: tuple[Part, ...]


class Drawing(Struct, frozen=True, kw_only=True):
    """Shapes and lines in the order of painting. A line is SVG path data."""

    width: float
    height: float
    parts: tuple[Shape | str, ...]


def draw(root: Box, links: Links, *, chosen: str = "") -> Drawing:
    """Draw the boxes inside `root`. A single outermost frame is left out, because the page has its name."""
    artist = _Artist(links, chosen)
    whole = root.inside[0] if len(root.inside) == 1 and root.inside[0].is_open else root
    width, height = artist.draw_inside(whole, (MARGIN, MARGIN), WIDE)
    return Drawing(
        width=width + 2 * MARGIN,
        height=height + 2 * MARGIN,
        parts=tuple(artist.parts),
    )


class _Artist:
    def __init__(self, links: Links, chosen: str) -> None:
        self._links, self._chosen = links, chosen
        self._sizes: dict[tuple[str, float], Size] = {}
        self.parts: list[Shape | str] = []

    def draw_inside(self, box: Box, corner: Point, wide: float, room: float = 0.0) -> Point:
        """Draw the content of a box, in the middle of its room; return its width and height."""
        layout = lay_out(
            [self._size(inner, wide) for inner in box.inside], reduced(len(box.inside), box.edges), wide=wide
        )
        corner = (corner[0] + max(0.0, room - layout.width) / 2, corner[1])
        for line in layout.lines:
            self.parts.append(_path([(x + corner[0], y + corner[1]) for x, y in line.points]))
        for inner, (x, y) in zip(box.inside, layout.corners, strict=True):
            at, size = (x + corner[0], y + corner[1]), self._size(inner, wide)
            self.parts.append(self._shape(inner, at, size))
            if inner.is_open:
                inside = (at[0] + PADDING, at[1] + HEAD)
                self.draw_inside(inner, inside, _narrower(wide), size.width - 2 * PADDING)
        return layout.width, layout.height

    def _size(self, box: Box, wide: float) -> Size:
        if not box.is_open:
            return GROUP if box.members else STEP
        key = (box.id, wide)
        if key not in self._sizes:
            inner = _narrower(wide)
            layout = lay_out(
                [self._size(each, inner) for each in box.inside], reduced(len(box.inside), box.edges), wide=inner
            )
            width = max(layout.width + 2 * PADDING, GROUP.width + 2 * PADDING)
            self._sizes[key] = Size(width, layout.height + HEAD + PADDING)
        return self._sizes[key]

    def _shape(self, box: Box, corner: Point, size: Size) -> Shape:
        toggle = ""
        if box.members:
            toggle = (self._links.close if box.is_open else self._links.open)(box.id)
        letters = GROUP_LETTERS if box.members else LETTERS
        if box.is_open:
            letters = int((size.width - 60) / LETTERS_OF_FRAME)
        words = words_of(box)
        return Shape(
            key=key_of(box.id),
            x=round(corner[0], 1),
            y=round(corner[1], 1),
            width=round(size.width, 1),
            height=round(size.height, 1),
            is_frame=box.is_open,
            is_group=bool(box.members),
            is_chosen=box.id == self._chosen,
            tone=tone_of(box),
            sign=SIGNS[box.phase],
            name=shortened(box.label, letters),
            full_name=box.label,
            note=_cut(words, GROUP_NOTE_LETTERS if box.members else NOTE_LETTERS),
            spoken=f"{box.label}: {words}",
            href=self._links.choose(box.id),
            toggle=toggle,
            parts=() if box.is_open else tuple(parts_of(box.counts, BAR)),
        )


def tone_of(box: Box) -> Tone:
    return "wait" if is_waiting(box.node) else TONES[box.phase]


def is_waiting(node: NodeRecord | None) -> bool:
    """Whether a node is a suspended step that waits for a user."""
    return node is not None and node.type is NodeType.SUSPEND and node.phase is NodePhase.RUNNING


def words_of(box: Box) -> str:
    """The text of a box below its name. Times of running steps are left out: they change each second."""
    if box.members:
        return count_words(box.counts)
    if is_waiting(box.node):
        return SUSPENDED
    words = say(str(box.phase))
    begin, end = when(box.started_at), when(box.finished_at)
    if box.phase.is_completed and begin is not None and end is not None:
        words += f", {span(end - begin)}"
    if len(box.attempts) > 1:
        words += say(", {count} tries", count=len(box.attempts))
    return words


def count_words(counts: Mapping[NodePhase, int]) -> str:
    """Return counts as text, such as "3 failed, 97 running, 1,900 done"."""
    return ", ".join(f"{counts[phase]:,} {say(words)}" for phase, words in PART_WORDS.items() if counts.get(phase))


def parts_of(counts: Mapping[NodePhase, int], width: float) -> Iterable[Part]:
    """The parts of a bar; each part that is not empty is wide enough to be seen."""
    total, x = sum(counts.values()), 0.0
    tones: dict[Tone, int] = {}
    for phase in (NodePhase.SUCCEEDED, NodePhase.FAILED, NodePhase.ERROR, NodePhase.RUNNING, NodePhase.PENDING):
        tones[TONES[phase]] = tones.get(TONES[phase], 0) + counts.get(phase, 0)
    for tone, count in tones.items():
        if count:
            length = max(2.0, width * count / total)
            yield Part(tone, round(min(x, width - length), 1), round(length, 1))
            x += length


def when(text: str) -> datetime | None:
    """A time of a record; None for an empty or invalid one."""
    try:
        return moment(text)
    except ValueError:
        return None


def shortened(text: str, letters: int) -> str:
    """Shorten a long text to its beginning and end: names of loop items differ at their ends."""
    if len(text) <= letters:
        return text
    end = max(1, letters // 3)
    return f"{text[: letters - end - 1]}…{text[-end:]}"


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"


def key_of(box_id: str) -> str:
    """Return the HTML id of a box: only letters, digits and hyphens remain."""
    return "".join(letter if letter.isascii() and letter.isalnum() else f"-{ord(letter):x}-" for letter in box_id)


def _narrower(wide: float) -> float:
    return max(GROUP.width, wide - 2 * PADDING)


def _path(points: list[Point]) -> str:
    """Return the SVG path of a line: straight inside lanes, curved between them."""
    words = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for at in range(len(points) - 1):
        (x, y), (to_x, to_y) = points[at], points[at + 1]
        if at % 2 or x == to_x:
            words.append(f"L{to_x:.1f} {to_y:.1f}")
        else:
            bend = (to_y - y) / 2
            words.append(f"C{x:.1f} {y + bend:.1f} {to_x:.1f} {to_y - bend:.1f} {to_x:.1f} {to_y:.1f}")
    return "".join(words)
