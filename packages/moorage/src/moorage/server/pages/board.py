"""The content of the front page as values: the templates only lay them out. Pure."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from urllib.parse import quote

from msgspec import Struct

from moorage.decide.explain.types import Explanation
from moorage.decide.runs.forecast import Usual
from moorage.decide.runs.state import STALE_CHECKPOINT, RunView, State
from moorage.decide.usage.gpus import NOBODY, Counts, Gpu, GpuState, GpuView, Holder, NodeGpus
from moorage.decide.usage.intervals import UsageRow
from moorage.present.explanation import about, short_reason, usual_text
from moorage.present.reasons import reason_words
from moorage.server.pages.texts import say
from moorage_kube.moments import rfc3339

COLORS = 9  # of owners in moorage.css
HUES = 27  # each colour plain, striped and dotted
QUEUE_SHOWN = 25
RUNS_SHOWN = 50
ENDED_SHOWN = 5  # of them: the newest that ended
USERS_SHOWN = 10
OWNERS_SHOWN = 12  # in the legend
DENSE_FROM = 97  # GPUs: from here on a tile is a small square with the initials of its owner
_RUN_TONES = {
    State.RUNNING: "good",
    State.RESTARTING: "busy",
    State.WAITING: "wait",
    State.SUSPENDED: "wait",
    State.SUCCEEDED: "done",
    State.CANCELLED: "done",
}
RUN_ORDER = {
    State.RUNNING: 0,
    State.RESTARTING: 1,
    State.WAITING: 2,
    State.SUSPENDED: 3,
}  # ended ones come after


class When(Struct, frozen=True):
    """A moment in two forms: for people, and for machines."""

    words: str
    iso: str


class Tile(Struct, frozen=True, kw_only=True):
    """One GPU."""

    index: int
    state: str
    owner: str = ""
    initials: str = ""
    hue: int = 0
    owner_href: str = ""  # the runs of its owner
    run: str = ""
    href: str = ""  # the page of its run
    since: When | None = None
    left: When | None = None
    overdue: bool = False
    percent: int | None = None  # of the expected time that is over
    why: str = ""
    ground: str = ""  # past runs that `left` is estimated by; empty: its limit


class NodeCard(Struct, frozen=True, kw_only=True):
    name: str
    status: str  # empty: all is well
    counts: Counts
    tiles: tuple[Tile, ...]


class TypeGroup(Struct, frozen=True, kw_only=True):
    """The nodes of one GPU type."""

    key: str  # for names of parts
    name: str
    counts: Counts
    nodes: tuple[str, ...]  # their names


class Waiting(Struct, frozen=True):
    """A pod or run that waits for a place: the public reason, and since when."""

    explanation: Explanation
    since: datetime | None


class QueueRow(Struct, frozen=True, kw_only=True):
    pod: str
    name: str
    namespace: str
    href: str  # its page, or where it is explained if it is of no run
    owner: str
    hue: int
    asks: str
    since: When | None
    reason: str
    start: str  # the forecast; empty: none


class RunRow(Struct, frozen=True, kw_only=True):
    name: str
    namespace: str
    state: str
    tone: str  # good, busy, wait, bad or done
    reason: str
    owner: str
    hue: int
    gpus: str
    node: str
    age: When | None
    checkpoint: When | None
    checkpoint_words: str  # without a moment: "none yet", "not kept"
    keeps: bool  # checkpoints
    stale: bool
    restarts: int


class UserRow(Struct, frozen=True, kw_only=True):
    name: str
    hue: int
    hours: str
    percent: float  # of the largest
    running: int


class LegendRow(Struct, frozen=True, kw_only=True):
    """An owner who holds GPUs now."""

    name: str  # empty: pods without an owner
    hue: int
    initials: str
    gpus: int


class BoardModel(Struct, frozen=True, kw_only=True):
    """The parts below the tiles, except the runs."""

    queue: tuple[QueueRow, ...]
    queue_more: int
    users: tuple[UserRow, ...]
    teams: tuple[UserRow, ...]


def lay_out(
    *,
    waiting: Sequence[Waiting],
    waiting_more: int,
    users: Sequence[UsageRow],
    teams: Sequence[UsageRow],
    now: datetime,
    hues: Mapping[str, int],
) -> BoardModel:
    """The parts that are slow to compute. `waiting`: the first of the queue, `waiting_more`: the number
    after them.
    """
    return BoardModel(
        queue=tuple(_queue_row(row, hues, now) for row in waiting),
        queue_more=waiting_more,
        users=_use_rows(users[:USERS_SHOWN], hues),
        teams=_use_rows(teams[:USERS_SHOWN], {}),
    )


def run_rows(runs: Sequence[RunView], hues: Mapping[str, int], now: datetime) -> tuple[tuple[RunRow, ...], int]:
    """The rows of the listed runs, and the number of runs that are not listed."""
    shown = shown_runs(runs)
    return tuple(_run_row(run, hues, now) for run in shown), len(runs) - len(shown)


def shown_runs(runs: Sequence[RunView]) -> list[RunView]:
    """The first RUNS_SHOWN runs, sorted by RUN_ORDER, with the newest that ended at their end."""
    live = [run for run in runs if not run.state.ended]
    ended = [run for run in runs if run.state.ended]
    return [*sorted(live, key=lambda run: RUN_ORDER[run.state]), *ended[:ENDED_SHOWN]][:RUNS_SHOWN]


def legend(view: GpuView, hues: Mapping[str, int]) -> tuple[tuple[LegendRow, ...], int]:
    """The owners with GPUs, most first, and the number of owners after them."""
    rows = [
        LegendRow(
            name="" if owner == NOBODY else owner, hue=hues.get(owner, 0), initials=initials(owner), gpus=gpus
        )
        for owner, gpus in view.by_user.items()
    ]
    return tuple(rows[:OWNERS_SHOWN]), max(0, len(rows) - OWNERS_SHOWN)


def initials(owner: str) -> str:
    """Two letters for a person: "ada.lovelace" → "AL", "mika" → "MI", "" → "?"."""
    if numbered := re.fullmatch(r"(\w).*?(\d{1,2})", owner, re.ASCII):
        return f"{numbered[1].upper()}{numbered[2]}"
    words = [word for word in re.split(r"[^\w]+|_", owner.partition("@")[0]) if word]
    if not words:
        return "?"
    return (words[0][0] + words[-1][0] if len(words) > 1 else words[0][:2]).upper()


def type_key(kind: str) -> str:
    """A GPU type as part of an HTML name: "-" replaces characters except letters, digits, "." and "-"."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", kind)


def node_cards(nodes: Iterable[NodeGpus], now: datetime) -> tuple[NodeCard, ...]:
    """The cards of nodes outside the board."""
    known = list(nodes)
    hues = owner_hues(gpu.holder.owner for node in known for gpu in node.gpus if gpu.holder is not None)
    return tuple(node_card(node, hues, now, {}) for node in known)


def why_words(run: RunView) -> str:
    """The reason why a run waits or ended, in words; "" if its state says it already."""
    if run.reason == str(run.state):
        return ""
    return reason_words(run.reason)


def run_tone(state: State) -> str:
    """The colour of a run's state; "bad" for a failure."""
    return _RUN_TONES.get(state, "bad")


def spoken(counts: Counts, waiting: int) -> str:
    """The sentence that a screen reader speaks when the counts change."""
    if not counts.total:
        return say("There are no GPUs.")
    if not waiting:
        return say("{free} of {total} GPUs free, no runs wait.", free=counts.free, total=counts.total)
    if waiting == 1:
        return say("{free} of {total} GPUs free, 1 run waits.", free=counts.free, total=counts.total)
    return say(
        "{free} of {total} GPUs free, {runs} runs wait.", free=counts.free, total=counts.total, runs=waiting
    )


def owner_hues(owners: Iterable[str], kept: Mapping[str, int] | None = None) -> dict[str, int]:
    """A colour and pattern for each owner: the same on every page unless it is taken, else the next.

    Plain colours come first. Owners in `kept` have the same as before, so that tiles do not change
    colour when new owners come.
    """
    hues: dict[str, int] = {}
    known = kept or {}
    wanted = sorted(set(owners))
    taken = {known[owner] for owner in wanted if owner in known}
    for owner in wanted:
        if owner in known:
            hues[owner] = known[owner]
            continue
        first = zlib.crc32(owner.encode()) % COLORS
        free = (hue for hue in (*_turned(first, 0), *_turned(first, 1), *_turned(first, 2)) if hue not in taken)
        hues[owner] = next(free, first)
        taken.add(hues[owner])
    return hues


def _turned(first: int, pattern: int) -> list[int]:
    return [pattern * COLORS + (first + step) % COLORS for step in range(COLORS)]


def type_name(kind: str) -> str:
    """A GPU type as a readable name: "NVIDIA-A100-SXM4-80GB" → "A100 SXM4 80GB"."""
    return kind.removeprefix("NVIDIA-").replace("-", " ").replace("_", " ") or kind


def span(time: timedelta) -> str:
    """A rounded duration for a page: 45s, 6m, 4h 12m, 9h, 3d 4h."""
    seconds = max(0, int(time.total_seconds()))
    if seconds < 60:
        return say("{seconds}s", seconds=seconds)
    minutes = seconds // 60
    if minutes < 60:
        return say("{minutes}m", minutes=minutes)
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        is_fine = minutes and hours < 5
        return (
            say("{hours}h {minutes}m", hours=hours, minutes=minutes) if is_fine else say("{hours}h", hours=hours)
        )
    days, hours = divmod(hours, 24)
    return say("{days}d {hours}h", days=days, hours=hours) if hours and days < 10 else say("{days}d", days=days)


def time_left(end: datetime, now: datetime, *, about: bool = False) -> str:
    """The time until a moment: "2h left", "~2h left"."""
    words = span(end - now)
    return say("~{span} left", span=words) if about else say("{span} left", span=words)


def groups(view: GpuView) -> tuple[TypeGroup, ...]:
    """The nodes grouped by GPU type, with the sums of each type."""
    by_type: dict[str, list[NodeGpus]] = {}
    for node in view.nodes:
        by_type.setdefault(node.type, []).append(node)
    made = []
    for name, nodes in sorted(by_type.items()):
        summed = {
            field: sum(getattr(node.counts, field) for node in nodes)
            for field in ("total", "used", "free", "unavailable", "reserved", "fragmented", "stranded")
        }
        counts = Counts(**summed, together=max(node.counts.together for node in nodes))
        names = tuple(node.name for node in nodes)
        made.append(TypeGroup(key=type_key(name), name=type_name(name), counts=counts, nodes=names))
    return tuple(made)


def node_card(
    node: NodeGpus, hues: Mapping[str, int], now: datetime, usuals: Mapping[tuple[str, str], Usual]
) -> NodeCard:
    """The card of one node with its tiles.

    `usuals`: usual durations of similar runs, by namespace and name of the pod.
    """
    return NodeCard(
        name=node.name,
        status="" if node.ready and not node.cordoned else "cordoned" if node.ready else "not ready",
        counts=node.counts,
        tiles=tuple(_tile(gpu, hues, now, usuals) for gpu in node.gpus),
    )


def _tile(gpu: Gpu, hues: Mapping[str, int], now: datetime, usuals: Mapping[tuple[str, str], Usual]) -> Tile:
    holder = gpu.holder
    if gpu.state is not GpuState.USED or holder is None:
        return Tile(index=gpu.index, state=str(gpu.state), why=gpu.why)
    left, percent, overdue = None, None, False
    if holder.expected_until is not None and holder.since is not None:
        overdue = holder.expected_until <= now
        words = say("past its limit") if overdue else time_left(holder.expected_until, now)
        left = When(words, rfc3339(holder.expected_until))
        whole = holder.expected_until - holder.since
        percent = min(100, max(0, round(100 * ((now - holder.since) / whole)))) if whole else 100
    usual, ground = usuals.get((holder.namespace, holder.pod)), ""
    if usual is not None and usual.total is not None and holder.since is not None:
        end = holder.since + usual.total
        if holder.expected_until is None or end < holder.expected_until:
            left = When(time_left(end, now, about=True), rfc3339(end))
            ground = say("usually: {usual}", usual=usual_text(usual))
            percent = None
    return Tile(
        ground=ground,
        index=gpu.index,
        state=str(gpu.state),
        owner=say("no owner") if holder.owner == NOBODY else holder.owner,
        initials=initials(holder.owner),
        hue=hues.get(holder.owner, 0),
        owner_href="" if holder.owner == NOBODY else f"/jobs?owner={quote(holder.owner)}",
        run=holder.title,
        href=_page_of(holder),
        since=ago(holder.since, now),
        left=left,
        overdue=overdue,
        percent=percent,
    )


def _page_of(holder: Holder) -> str:
    """The page of the pod's run or workflow; "" if the pod belongs to neither."""
    if holder.run:
        return f"/jobs/{holder.namespace}/{holder.run}"
    return f"/workflows/{holder.namespace}/{holder.step.partition('/')[0]}" if holder.step else ""


def _queue_row(waiting: Waiting, hues: Mapping[str, int], now: datetime) -> QueueRow:
    explanation, start = waiting.explanation, ""
    page, name = ("jobs", explanation.run) if explanation.run else ("explain", explanation.name)
    if explanation.likely is not None and explanation.likely.at > now:
        usual = explanation.likely.usual
        when = about(explanation.likely.at, now)
        start = say("usually starts by {when}", when=when)
        if usual:
            start += say(" ({done} of {all} similar runs ended in time)", done=usual.done, all=usual.of)
    elif explanation.earliest is not None and explanation.earliest.at > now:
        start = say("can start in {span} or sooner", span=span(explanation.earliest.at - now))
    elif explanation.state == "never":
        start = say("cannot run here as it is")
    return QueueRow(
        pod=explanation.name,
        name=explanation.step or name,
        namespace=explanation.namespace,
        href=f"/{page}/{explanation.namespace}/{name}",
        owner=explanation.owner,
        hue=hues.get(explanation.owner, 0),
        asks=_asks(explanation.gpus, ", ".join(explanation.gpu_types)),
        since=ago(waiting.since, now),
        reason=short_reason(explanation, typed=False),
        start=start,
    )


def _run_row(run: RunView, hues: Mapping[str, int], now: datetime) -> RunRow:
    stale = (
        run.state is State.RUNNING and run.checkpoint_at is not None and now - run.checkpoint_at > STALE_CHECKPOINT
    )
    return RunRow(
        name=run.name,
        namespace=run.namespace,
        state=str(run.state),
        tone=run_tone(run.state),
        reason=why_words(run),
        owner=run.owner,
        hue=hues.get(run.owner, 0),
        gpus=_asks(run.gpus, run.gpu_type),
        node=run.node,
        age=ago(run.created, now),
        checkpoint=ago(run.checkpoint_at, now),
        checkpoint_words=say("none yet") if run.checkpoint else say("not kept"),
        keeps=run.checkpoint != "",
        stale=stale,
        restarts=run.restarts,
    )


def _use_rows(rows: Sequence[UsageRow], hues: Mapping[str, int]) -> tuple[UserRow, ...]:
    most = max((row.gpu_time for row in rows), default=timedelta())
    return tuple(
        UserRow(
            name=row.name,
            hue=hues.get(row.name, 0),
            hours=_hours(row.gpu_hours),
            percent=round(100 * (row.gpu_time / most), 1) if most else 0.0,
            running=row.running_gpus,
        )
        for row in rows
        if row.gpu_time
    )


def _hours(hours: float) -> str:
    """Format hours. Below one hour there are two decimals, so that a short run is not shown as 0."""
    if hours < 0.005:
        return "< 0.01"
    digits = 2 if hours < 1 else 1 if hours < 100 else 0
    return f"{hours:,.{digits}f}"


def _asks(gpus: int, kind: str) -> str:
    if not gpus:
        return say("no GPU")
    if kind:
        return f"{gpus} × {type_name(kind)}"
    return say("1 GPU") if gpus == 1 else say("{gpus} GPUs", gpus=gpus)


def ago(moment: datetime | None, now: datetime) -> When | None:
    """The time since a moment; None for None."""
    return When(span(now - moment), rfc3339(moment)) if moment else None
