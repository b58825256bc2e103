"""What the web page shows, as values: the templates only lay them out. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from urllib.parse import quote

from moorage.apimachinery.moments import rfc3339
from moorage.decide.explain.types import Explanation
from moorage.decide.runs.forecast import Usual
from moorage.decide.runs.state import STALE_CHECKPOINT, RunView, State
from moorage.decide.usage.gpus import NOBODY, Counts, Gpu, GpuState, GpuView, Holder, NodeGpus
from moorage.decide.usage.intervals import UsageRow
from moorage.present.explanation import about, short_reason, usual_text

HUES = 9  # owner colours in moorage.css
QUEUE_SHOWN = 25
RUNS_SHOWN = 50
USERS_SHOWN = 10
_RUN_TONES = {
    State.RUNNING: "good",
    State.RESTARTING: "busy",
    State.WAITING: "wait",
    State.SUCCEEDED: "done",
    State.CANCELLED: "done",
}
_WHY = {  # Kubernetes' reasons of waiting
    "Unschedulable": "no node has room for it now",
    "SchedulingGated": "it is held back for now",
    "ContainerCreating": "its container is being created",
}
RUN_ORDER = {State.RUNNING: 0, State.RESTARTING: 1, State.WAITING: 2}  # what has ended comes after


@dataclass(frozen=True, slots=True)
class When:
    """A moment as people read it, and as machines do."""

    words: str
    iso: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One GPU."""

    index: int
    state: str
    owner: str = ""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCard:
    name: str
    status: str  # empty: all is well
    counts: Counts
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeGroup:
    """The nodes of one GPU type."""

    name: str
    counts: Counts
    nodes: tuple[NodeCard, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits for a place: why, as everybody may know it, and since when."""

    explanation: Explanation
    since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    place: int
    name: str
    namespace: str
    href: str  # its page, or where it is explained if it is of no run
    owner: str
    hue: int
    asks: str
    since: When | None
    reason: str
    start: str  # the forecast; empty: none


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
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
    stale: bool
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRow:
    name: str
    hue: int
    hours: str
    percent: float  # of the largest
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardModel:
    counts: Counts
    groups: tuple[TypeGroup, ...]
    queue: tuple[QueueRow, ...]
    queue_more: int
    runs: tuple[RunRow, ...]
    runs_more: int
    users: tuple[UserRow, ...]
    spoken: str


def lay_out(
    *,
    view: GpuView,
    waiting: Sequence[Waiting],
    waiting_more: int,
    runs: Sequence[RunView],
    users: Sequence[UsageRow],
    now: datetime,
    usuals: Mapping[tuple[str, str], Usual] | None = None,
) -> BoardModel:
    """Everything on the page at one moment. `waiting` are the first of the line, `waiting_more` the rest of it.

    `usuals`: how long past runs like a pod took, by its namespace and name.
    """
    shown = sorted(runs, key=lambda run: RUN_ORDER.get(run.state, 3))[:RUNS_SHOWN]
    hues = owner_hues(
        [
            *view.by_user,
            *(row.explanation.owner for row in waiting),
            *(run.owner for run in shown),
            *(row.name for row in users[:USERS_SHOWN]),
        ]
    )
    queue = tuple(_queue_row(place, row, hues, now) for place, row in enumerate(waiting, start=1))
    return BoardModel(
        counts=view.totals,
        groups=_groups(view, hues, now, usuals or {}),
        queue=queue,
        queue_more=waiting_more,
        runs=tuple(_run_row(run, hues, now) for run in shown),
        runs_more=len(runs) - len(shown),
        users=_user_rows(users[:USERS_SHOWN], hues),
        spoken=spoken(view.totals, len(queue) + waiting_more),
    )


def node_cards(nodes: Iterable[NodeGpus], now: datetime) -> tuple[NodeCard, ...]:
    """Nodes on their own, apart from the board."""
    known = list(nodes)
    hues = owner_hues(gpu.holder.owner for node in known for gpu in node.gpus if gpu.holder is not None)
    return tuple(_node_card(node, hues, now, {}) for node in known)


def why_words(run: RunView) -> str:
    """Why a run waits or ended, in words; empty: its state says all."""
    if run.reason == str(run.state):
        return ""
    return _WHY.get(run.reason, run.reason)


def run_tone(state: State) -> str:
    """How the state of a run is coloured; one that went wrong is bad."""
    return _RUN_TONES.get(state, "bad")


def spoken(counts: Counts, waiting: int) -> str:
    """The sentence that a screen reader hears when it changes."""
    if not counts.total:
        return "No node has GPUs."
    runs = "1 run waits" if waiting == 1 else f"{waiting or 'no'} runs wait"
    return f"{counts.free} of {counts.total} GPUs free, {runs}."


def owner_hues(owners: Iterable[str]) -> dict[str, int]:
    """A colour for each owner: the same on every page as long as no two want one; then the next that is free."""
    hues: dict[str, int] = {}
    for owner in sorted(set(owners)):
        first = zlib.crc32(owner.encode()) % HUES
        taken = set(hues.values())
        hues[owner] = next((hue % HUES for hue in range(first, first + HUES) if hue % HUES not in taken), first)
    return hues


def type_name(kind: str) -> str:
    """A GPU type as people say it: "NVIDIA-A100-SXM4-80GB" → "A100 SXM4 80GB"."""
    return kind.removeprefix("NVIDIA-").replace("-", " ").replace("_", " ") or kind


def span(time: timedelta) -> str:
    """A span for a page that is looked at, not calculated with: 45s, 6m, 4h 12m, 9h, 3d 4h."""
    seconds = max(0, int(time.total_seconds()))
    if seconds < 60:
        return f"{seconds}s"
    minutes = seconds // 60
    if minutes < 60:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h {minutes}m" if minutes and hours < 5 else f"{hours}h"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h" if hours and days < 10 else f"{days}d"


def _groups(
    view: GpuView, hues: dict[str, int], now: datetime, usuals: Mapping[tuple[str, str], Usual]
) -> tuple[TypeGroup, ...]:
    by_type: dict[str, list[NodeGpus]] = {}
    for node in view.nodes:
        by_type.setdefault(node.type, []).append(node)
    groups = []
    for name, nodes in sorted(by_type.items()):
        counts = Counts()
        for node in nodes:
            for gpu in node.gpus:
                counts = counts.plus(gpu)
        counts = replace(counts, together=max(node.counts.together for node in nodes))
        cards = tuple(_node_card(node, hues, now, usuals) for node in nodes)
        groups.append(TypeGroup(name=type_name(name), counts=counts, nodes=cards))
    return tuple(groups)


def _node_card(
    node: NodeGpus, hues: dict[str, int], now: datetime, usuals: Mapping[tuple[str, str], Usual]
) -> NodeCard:
    return NodeCard(
        name=node.name,
        status="" if node.ready and not node.cordoned else "cordoned" if node.ready else "not ready",
        counts=node.counts,
        tiles=tuple(_tile(gpu, hues, now, usuals) for gpu in node.gpus),
    )


def _tile(gpu: Gpu, hues: dict[str, int], now: datetime, usuals: Mapping[tuple[str, str], Usual]) -> Tile:
    holder = gpu.holder
    if gpu.state is not GpuState.USED or holder is None:
        return Tile(index=gpu.index, state=str(gpu.state), why=gpu.why)
    left, percent, overdue = None, None, False
    if holder.expected_until is not None and holder.since is not None:
        overdue = holder.expected_until <= now
        words = "past its limit" if overdue else f"{span(holder.expected_until - now)} left"
        left = When(words, rfc3339(holder.expected_until))
        whole = holder.expected_until - holder.since
        percent = min(100, max(0, round(100 * ((now - holder.since) / whole)))) if whole else 100
    usual, ground = usuals.get((holder.namespace, holder.pod)), ""
    if usual is not None and usual.total is not None and holder.since is not None:
        end = holder.since + usual.total
        if holder.expected_until is None or end < holder.expected_until:
            left, ground = When(f"~{span(end - now)} left", rfc3339(end)), f"usually: {usual_text(usual)}"
            percent = None
    return Tile(
        ground=ground,
        index=gpu.index,
        state=str(gpu.state),
        owner="no owner" if holder.owner == NOBODY else holder.owner,
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
    """The page of the run or workflow; empty: the pod is of neither."""
    if holder.run:
        return f"/jobs/{holder.namespace}/{holder.run}"
    return f"/workflows/{holder.namespace}/{holder.step.partition('/')[0]}" if holder.step else ""


def _queue_row(place: int, waiting: Waiting, hues: dict[str, int], now: datetime) -> QueueRow:
    explanation, start = waiting.explanation, ""
    page, name = ("jobs", explanation.run) if explanation.run else ("explain", explanation.name)
    if explanation.likely is not None and explanation.likely.at > now:
        usual = explanation.likely.usual
        start = f"usually starts by {about(explanation.likely.at, now)}"
        start += f" ({usual.done} of {usual.of} like what it waits for)" if usual else ""
    elif explanation.earliest is not None and explanation.earliest.at > now:
        start = f"can start in {span(explanation.earliest.at - now)} or sooner"
    elif explanation.state == "never":
        start = "cannot run here as it is"
    return QueueRow(
        place=place,
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


def _run_row(run: RunView, hues: dict[str, int], now: datetime) -> RunRow:
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
        checkpoint_words="none yet" if run.checkpoint else "not kept",
        stale=stale,
        restarts=run.restarts,
    )


def _user_rows(rows: Sequence[UsageRow], hues: dict[str, int]) -> tuple[UserRow, ...]:
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
    """Two digits after the point below one hour, so that a short run is not shown as none."""
    if hours < 0.005:
        return "< 0.01"
    digits = 2 if hours < 1 else 1 if hours < 100 else 0
    return f"{hours:,.{digits}f}"


def _asks(gpus: int, kind: str) -> str:
    if not gpus:
        return "no GPU"
    return f"{gpus} × {type_name(kind)}" if kind else f"{gpus} GPU" if gpus == 1 else f"{gpus} GPUs"


def ago(moment: datetime | None, now: datetime) -> When | None:
    """How long a moment is over."""
    return When(span(now - moment), rfc3339(moment)) if moment else None
