"""The content of the pages of workflows: from objects and records to words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from moorage.api.storedrecords import StoredPod
from moorage.server.pages.board import When, ago, owner_hues, span
from moorage.server.pages.jobboard import Fact, peak_fact
from moorage_kube.moments import rfc3339
from moorage_kube.quantity import format_bytes
from moorage_workflows.decide.workflows.folding import Box, natural
from moorage_workflows.decide.workflows.views import ENDED, PHASES, WorkflowView
from moorage_workflows.decide.workflows.waiting import WaitKind
from moorage_workflows.model.workflow import Artifact, NodePhase, NodeRecord, NodeType, Outputs
from moorage_workflows.present.workflowwaits import HOLDERS_SHOWN, Explained, holder_text, wait_hint, wait_line
from moorage_workflows.server.pages.workflowdrawing import (
    Drawing,
    Links,
    Tone,
    count_words,
    is_waiting,
    key_of,
    tone_of,
    when,
    words_of,
)

SUSPENDED = "Suspended"  # a state of the list: it runs, and no step begins
DELETED = "Deleted"  # a state of the list: its object was deleted before it ended
STATES = (*PHASES, SUSPENDED)
PILLS: Mapping[str, str] = {
    "Pending": "wait", "Running": "busy", "Succeeded": "good", "Failed": "bad", "Error": "bad",
    "Suspended": "wait", "Skipped": "done", "Omitted": "done",
}  # fmt: skip
LISTED = 20  # members of a group that its panel names
VALUE_CHARACTERS = 2000  # of a parameter or a result
TIMELINE_ROWS = 150
STEPS_OF_TIME = 200  # precision of a bar; running ones grow in such steps
SPANS = (10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400)  # seconds of an axis


class WorkflowRow(Struct, frozen=True, kw_only=True):
    """One workflow in a list. `is_gone`: its object was deleted, and its record exists."""

    namespace: str
    name: str
    owner: str
    hue: int
    state: str
    tone: str
    why: str
    done: int
    total: int
    age: When | None
    started: When | None  # while it is active
    took: str  # once it has ended
    cron: str
    is_gone: bool
    has_ended: bool


class Ready(Struct, frozen=True, kw_only=True):
    """A button on the page of a workflow."""

    key: str
    words: str
    asks: bool  # whether it leads to a page that asks first


class Value(Struct, frozen=True, kw_only=True):
    """A parameter. `is_cut`: the value is cut to its beginning."""

    name: str
    text: str
    is_cut: bool = False


class ArtifactRow(Struct, frozen=True, kw_only=True):
    """An artifact. `href` "": it cannot be downloaded here; `why` has the reason."""

    name: str
    size: str
    href: str
    file: str
    why: str


class WaitRow(Struct, frozen=True, kw_only=True):
    """Why steps wait. `href`: the page that explains the pod of the first one; empty for other waits."""

    text: str
    more: tuple[str, ...]
    href: str


class NodeLink(Struct, frozen=True, kw_only=True):
    """A table row for a node or an attempt."""

    id: str
    name: str
    state: str
    tone: str
    href: str
    took: str
    message: str
    pod: str


class Panel(Struct, frozen=True, kw_only=True):
    """The details of the selected box. `node`: None for a group. `asks_for`: outputs that a user must supply."""

    id: str
    key: str
    name: str
    kind: str
    state: str
    pill: str
    counts: str
    message: str
    facts: tuple[Fact, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    result: Value | None
    artifacts: tuple[ArtifactRow, ...]
    members: tuple[NodeLink, ...]
    members_more: int
    attempts: tuple[NodeLink, ...]
    is_waiting: bool
    asks_for: tuple[Value, ...]
    can_retry: bool
    goes_on: bool


class TimeRow(Struct, frozen=True, kw_only=True):
    """A box on the time axis. `x` and `width`: in units of 1/STEPS_OF_TIME of the axis."""

    key: str
    depth: int
    name: str
    href: str
    toggle: str
    is_open: bool
    is_chosen: bool
    state: str
    tone: Tone
    x: int
    width: int
    began: str
    took: str
    since: When | None  # while it runs


class Timeline(Struct, frozen=True, kw_only=True):
    rows: tuple[TimeRow, ...]
    more: int
    ticks: tuple[str, ...]


class WorkflowModel(Struct, frozen=True, kw_only=True):
    """The data of one workflow's page."""

    row: WorkflowRow
    message: str
    failed: int
    running: int
    steps: str
    facts: tuple[Fact, ...]
    arguments: tuple[Value, ...]
    outputs: tuple[Value, ...]
    artifacts: tuple[ArtifactRow, ...]
    buttons: tuple[Ready, ...]
    can_take_over: bool  # a new one may take over successful steps
    note: str
    drawing: Drawing | None
    timeline: Timeline


# -- the list


def wait_rows(explained: Sequence[Explained], namespace: str, now: datetime) -> tuple[WaitRow, ...]:
    """The reasons why steps wait, for the page; hints that its buttons replace are left out."""
    rows = []
    for each in explained:
        more = [f"held by {holder_text(holder)}" for holder in each.holders[:HOLDERS_SHOWN]]
        if each.wait.kind in (WaitKind.REFUSED, WaitKind.BEGINNING, WaitKind.POD) and (hint := wait_hint(each)):
            more.append(hint.replace("`", ""))
        href = f"/explain/{quote(namespace)}/{quote(each.wait.pod)}" if each.explanation is not None else ""
        line = wait_line(each, now)  # it begins with the names of steps, which keep their letters
        text = line if each.wait.steps else line[:1].upper() + line[1:]
        rows.append(WaitRow(text=text, more=tuple(more), href=href))
    return tuple(rows)


def workflow_rows(views: Sequence[WorkflowView], now: datetime) -> tuple[WorkflowRow, ...]:
    """Return the rows of workflows: running ones first, then the newest."""
    order = sorted(views, key=lambda view: view.has_ended)
    hues = owner_hues(view.owner for view in order)
    return tuple(workflow_row(view, hues[view.owner], now) for view in order)


def workflow_row(view: WorkflowView, hue: int, now: datetime) -> WorkflowRow:
    state = SUSPENDED if view.is_suspended and not view.has_ended else view.phase
    if view.is_cut_off:
        state = DELETED
    took = view.duration(now)
    return WorkflowRow(
        namespace=view.namespace,
        name=view.name,
        owner=view.owner,
        hue=hue,
        state=state,
        tone=PILLS.get(state, "wait"),
        why=view.message if view.phase in ("Failed", "Error") else "",
        done=view.done,
        total=view.total,
        age=ago(view.created, now),
        started=ago(view.started, now) if not view.has_ended and not view.is_gone else None,
        took=span(took) if took is not None and (view.has_ended or view.is_gone) else "",
        cron=view.cron,
        is_gone=view.is_gone,
        has_ended=view.has_ended,
    )


# -- one workflow


def workflow_model(
    view: WorkflowView,
    root: Box,
    drawing: Drawing | None,
    timeline: Timeline,
    now: datetime,
    *,
    waits: bool,
) -> WorkflowModel:
    """Return the data of a workflow's page. `waits`: a suspended step waits for a user."""
    row = workflow_row(view, owner_hues([view.owner])[view.owner], now)
    counts = root.counts
    return WorkflowModel(
        row=row,
        message=view.message,
        failed=counts.get(NodePhase.FAILED, 0) + counts.get(NodePhase.ERROR, 0),
        running=counts.get(NodePhase.RUNNING, 0),
        steps=count_words(counts),
        facts=tuple(_facts(view, now)),
        arguments=values_of(view.arguments),
        outputs=values_of(view.outputs.parameters),
        artifacts=tuple(
            ArtifactRow(
                name=artifact.name,
                size=format_bytes(artifact.size_bytes) if artifact.size_bytes else "",
                href="",
                file="",
                why="see the step that left it",
            )
            for artifact in view.outputs.artifacts
        ),
        buttons=tuple(buttons_of(view)),
        can_take_over=view.phase in ("Failed", "Error"),
        note=_note(view, waits=waits),
        drawing=drawing,
        timeline=timeline,
    )


def buttons_of(view: WorkflowView) -> Iterable[Ready]:
    """The possible actions on the workflow now, for users who may change it."""
    if not view.is_gone:
        if not view.has_ended:
            if view.is_suspended:
                yield Ready(key="resume", words="Resume", asks=False)
            else:
                yield Ready(key="suspend", words="Suspend", asks=False)
            if not view.shutdown:
                yield Ready(key="stop", words="Stop", asks=True)
            if view.shutdown != "Terminate":
                yield Ready(key="terminate", words="Terminate", asks=True)
        elif view.phase != "Succeeded":
            yield Ready(key="retry", words="Retry failed steps", asks=False)


def _note(view: WorkflowView, *, waits: bool) -> str:
    if view.unreadable:
        return f"Its steps cannot be shown: {view.unreadable}"
    if view.is_gone:
        return "This workflow was deleted. Its record is shown; it can be submitted again."
    if view.has_ended:
        return ""
    if view.shutdown:
        return "It is being stopped." if view.shutdown == "Stop" else "It is being terminated."
    if view.is_suspended:
        return "It is suspended: running steps end, and no other step begins."
    return "A step waits for approval. Choose it to resume it." if waits else ""


def _facts(view: WorkflowView, now: datetime) -> Iterable[Fact]:
    if view.cron:
        yield Fact(name="Schedule", text=view.cron, href=f"/crons/{view.namespace}/{view.cron}")
        if view.scheduled:
            yield Fact(name="Scheduled for", text=view.scheduled)
    if view.template:
        yield Fact(name="Template", text=view.template)
    yield Fact(name="Created", when=ago(view.created, now), note="ago") if view.created else Fact(name="Created")
    if view.started:
        yield Fact(name="Started", text=rfc3339(view.started))
    if view.finished:
        yield Fact(name="Finished", text=rfc3339(view.finished))
    took = view.duration(now)
    if took is not None and view.has_ended:
        yield Fact(name="Duration", text=span(took))


def values_of(parameters: Mapping[str, Any]) -> tuple[Value, ...]:
    return tuple(_value(str(name), str(text)) for name, text in parameters.items())


def _value(name: str, text: str) -> Value:
    return Value(name=name, text=text[:VALUE_CHARACTERS], is_cut=len(text) > VALUE_CHARACTERS)


# -- the panel of a box


def panel_of(
    box: Box,
    view: WorkflowView,
    links: Links,
    now: datetime,
    *,
    template: Mapping[str, Any] | None = None,
    kept: Mapping[str, StoredPod] | None = None,
) -> Panel:
    """Return the details of a box. `template`: that of a suspended step; `kept`: data of pods by name."""
    node, newest = box.node, newest_of(box)
    outputs = (newest.outputs if newest is not None else None) or (node.outputs if node is not None else None)
    outputs = outputs or Outputs()
    shown = sorted(box.nodes, key=_worth_a_look)[:LISTED]
    waits = is_waiting(node) and not view.has_ended and not view.is_gone
    owner = newest.id if newest is not None else ""
    return Panel(
        id=box.id,
        key=key_of(box.id),
        name=box.label,
        kind=_kind(box),
        state="Waits for approval" if is_waiting(node) else str(box.phase),
        pill="wait" if is_waiting(node) else PILLS.get(str(box.phase), "done"),
        counts=count_words(box.counts),
        message=node.message if node is not None else "",
        facts=tuple(_node_facts(box, node, newest, now, kept or {})),
        inputs=values_of(_mapping(node.inputs.get("parameters"))) if node is not None else (),
        outputs=values_of(outputs.parameters),
        result=None if outputs.result is None else _value("result", outputs.result),
        artifacts=tuple(artifact_row(view, owner, artifact) for artifact in outputs.artifacts),
        members=tuple(_link(member, links, now) for member in shown),
        members_more=max(0, len(box.nodes) - LISTED),
        attempts=tuple(_link(attempt, links, now) for attempt in box.attempts) if not box.members else (),
        is_waiting=waits,
        asks_for=_asked_for(template) if waits else (),
        can_retry=node is not None and view.has_ended and not view.is_gone and node.phase.is_completed,
        goes_on=not box.phase.is_fulfilled,
    )


def newest_of(box: Box) -> NodeRecord | None:
    """Return the node whose pod is shown: the newest attempt of a retried step."""
    return box.attempts[-1] if box.attempts and not box.members else box.node


def artifact_row(view: WorkflowView, node_id: str, artifact: Artifact) -> ArtifactRow:
    why = ""
    if artifact.is_deleted:
        why = "deleted"
    elif artifact.location:
        why = f"stored by {', '.join(artifact.location)}"
    elif not artifact.key:
        why = "not stored"
    parts = (view.namespace, view.name, "artifacts", node_id, artifact.name)
    suffix = ".tar" if artifact.files else {"tar": ".tgz", "zip": ".zip"}.get(artifact.archive, "")
    return ArtifactRow(
        name=artifact.name,
        size=format_bytes(artifact.size_bytes) if artifact.size_bytes else "",
        href="" if why else f"/api/v1/workflows/{'/'.join(quote(part, safe='') for part in parts)}?uid={view.uid}",
        file=artifact.name + suffix,
        why=why,
    )


_KINDS: Mapping[NodeType, str] = {
    NodeType.POD: "Step",
    NodeType.STEPS: "Steps",
    NodeType.DAG: "DAG",
    NodeType.TASK_GROUP: "Loop",
    NodeType.RETRY: "Step with retries",
    NodeType.SKIPPED: "Step that did not run",
    NodeType.SUSPEND: "Suspended step",
    NodeType.HTTP: "HTTP request",
    NodeType.CONTAINER: "Container",
    NodeType.STEP_GROUP: "Group of steps",
}


def _kind(box: Box) -> str:
    return _KINDS[box.node.type] if box.node is not None else "Group of equal steps"


def _node_facts(
    box: Box, node: NodeRecord | None, newest: NodeRecord | None, now: datetime, kept: Mapping[str, StoredPod]
) -> Iterable[Fact]:
    if node is not None and node.template:
        of = f" of {node.template_ref}" if node.template_ref else ""
        yield Fact(name="Template", text=node.template + of)
    if newest is not None and newest.pod_name and newest.type.has_pod:
        yield Fact(name="Pod", text=newest.pod_name)
    if newest is not None and newest.host:
        yield Fact(name="Node", text=newest.host, href=f"/nodes/{quote(newest.host)}")
    begin, end = when(box.started_at), when(box.finished_at)
    if begin is not None:
        yield Fact(name="Started", text=rfc3339(begin))
    if begin is not None and end is not None:
        yield Fact(name="Duration", text=span(end - begin))
    elif begin is not None and not box.phase.is_fulfilled:
        yield Fact(name="Runs for", when=ago(begin, now))
    if node is None:
        return
    exit_code = newest.outputs.exit_code if newest is not None and newest.outputs is not None else None
    if exit_code is not None:
        yield Fact(name="Exit code", text=exit_code)
    pod = kept.get(newest.pod_name) if newest is not None else None
    if pod is not None and pod.peak_memory_bytes is not None:
        yield peak_fact(pod.peak_memory_bytes, pod.memory_limit_bytes)
    if newest is not None and newest.infrastructure_retries:
        yield Fact(name="Pods lost with their nodes", text=f"{newest.infrastructure_retries:,}")
    if node.is_memoized:
        yield Fact(name="Memoized", text="its outputs are those of an earlier step")
    if node.is_daemon:
        yield Fact(name="Daemon", text="it runs in parallel to the steps after it")
    if node.locks:
        yield Fact(name="Locks", text=", ".join(node.locks))
    names = sorted(_mapping(node.inputs.get("artifacts")))
    if names:
        yield Fact(name="Input artifacts", text=", ".join(str(name) for name in names))


def _asked_for(template: Mapping[str, Any] | None) -> tuple[Value, ...]:
    """Return the output parameters that a suspended step's template declares as supplied, with their defaults."""
    declared = _mapping(_mapping(template).get("outputs")).get("parameters")
    asked = []
    for parameter in declared if isinstance(declared, list) else ():
        source = _mapping(_mapping(parameter).get("valueFrom"))
        if "supplied" in source and parameter.get("name"):
            asked.append(Value(name=str(parameter["name"]), text=str(source.get("default") or "")))
    return tuple(asked)


def _link(node: NodeRecord, links: Links, now: datetime) -> NodeLink:
    begin, end = when(node.started_at), when(node.finished_at)
    took = span((end or now) - begin) if begin is not None and node.phase.is_completed else ""
    return NodeLink(
        id=key_of(node.id),
        name=node.display_name or node.name,
        state=str(node.phase),
        tone=PILLS.get(str(node.phase), "done"),
        href=links.choose(node.id),
        took=took,
        message=node.message,
        pod=node.pod_name,
    )


_ORDER = (NodePhase.ERROR, NodePhase.FAILED, NodePhase.RUNNING, NodePhase.PENDING, NodePhase.SUCCEEDED)


def _worth_a_look(node: NodeRecord) -> tuple[object, ...]:
    return (_ORDER.index(node.phase) if node.phase in _ORDER else len(_ORDER), natural(node.name))


# -- the time axis


def timeline_of(root: Box, links: Links, now: datetime, *, chosen: str = "") -> Timeline:
    """The visible boxes as rows: each below its parent, in the order of their start."""
    start = when(root.started_at)
    if start is None:
        return Timeline(rows=(), more=0, ticks=())
    whole = root.inside[0] if len(root.inside) == 1 and root.inside[0].is_open else root
    length = _axis((when(root.finished_at) or now) - start)
    rows = [_time_row(box, depth, start, length, links, now, chosen) for box, depth in _in_order(whole)]
    ticks = tuple(span(length * fifth / 5) for fifth in range(6))
    return Timeline(rows=tuple(rows[:TIMELINE_ROWS]), more=max(0, len(rows) - TIMELINE_ROWS), ticks=ticks)


def _in_order(root: Box) -> Iterable[tuple[Box, int]]:
    waiting = [(box, 0) for box in reversed(_by_start(root.inside))]
    while waiting:
        box, depth = waiting.pop()
        yield box, depth
        waiting += [(inner, depth + 1) for inner in reversed(_by_start(box.inside))]


def _by_start(boxes: Sequence[Box]) -> list[Box]:
    return sorted(boxes, key=lambda box: box.started_at or "~")


def _axis(length: timedelta) -> timedelta:
    """Return the shortest round duration that is long enough for the time axis."""
    seconds = max(1.0, length.total_seconds())
    days = -(-seconds // 86400)
    return timedelta(seconds=next((each for each in SPANS if each >= seconds), days * 86400))


def _time_row(
    box: Box, depth: int, start: datetime, length: timedelta, links: Links, now: datetime, chosen: str
) -> TimeRow:
    begin, end = when(box.started_at), when(box.finished_at)
    goes_on = begin is not None and not box.phase.is_fulfilled
    until = end or (now if goes_on else begin)
    x = width = 0
    if begin is not None and until is not None:
        x = min(STEPS_OF_TIME - 1, max(0, int(STEPS_OF_TIME * ((begin - start) / length))))
        width = max(1, min(STEPS_OF_TIME - x, round(STEPS_OF_TIME * ((until - begin) / length))))
    toggle = ""
    if box.members:
        toggle = (links.close if box.is_open else links.open)(box.id)
    return TimeRow(
        key=key_of(box.id),
        depth=min(depth, 6),
        name=box.label,
        href=links.choose(box.id),
        toggle=toggle,
        is_open=box.is_open,
        is_chosen=box.id == chosen,
        state=words_of(box) if box.members or is_waiting(box.node) else str(box.phase),
        tone=tone_of(box),
        x=x,
        width=width,
        began=span(begin - start) if begin is not None else "",
        took=span(end - begin) if begin is not None and end is not None else "",
        since=ago(begin, now) if goes_on else None,
    )


def has_ended(view: WorkflowView) -> bool:
    """Whether the page of the workflow cannot change any more."""
    return view.phase in ENDED or view.is_gone


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
