"""Why the steps of a workflow wait, from its object and its nodes: pure.

For a step whose pod waits for a node, only the pod is named here: `decide.explain` explains it as that
of a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from msgspec import Struct

from moorage.decide.evaluation import TextError
from moorage.model.argo import INSTANCE_LABEL, OUR_INSTANCE, is_step, step_path
from moorage_kube.moments import format_duration, moment
from moorage_workflows.decide.workflows.graph.locks import LIMITS_CONFIGMAP
from moorage_workflows.decide.workflows.graph.tasks import locks_of, positive
from moorage_workflows.decide.workflows.text.durations import parse_duration
from moorage_workflows.decide.workflows.views import WorkflowView, is_suspended_node
from moorage_workflows.model.workflow import NodePhase, NodeRecord, NodeType

MANY_PENDING = (
    "many pods of this template wait for a node already"  # the message of a step whose pod is made later
)
STEPS_NAMED = 5  # of those that wait for the same thing
SAVING_TIME = timedelta(seconds=10)  # that is not worth a word
_LOCK = re.compile(r"^Waiting for (.+?) lock(?:: (.+))?$", re.DOTALL)  # texts that the graph writes into a node
_BACKOFF = re.compile(r"^Backoff until (\S+)$")


class WaitKind(StrEnum):
    """The reason why a step waits."""

    POD = "pod"  # its pod has no node yet, or its containers do not run yet
    REFUSED = "refused"  # its pod is not created for now: by a quota, or because others of its template wait
    LOCK = "lock"  # a mutex or semaphore
    BACKOFF = "backoff"  # the pause before its next attempt
    PERSON = "person"  # a step of the type suspend
    SUSPENDED = "suspended"  # the whole workflow is
    PARALLELISM = "parallelism"
    EARLIER = "earlier"  # steps that come before it
    BEGINNING = "beginning"  # the workflow has no controller yet


class Wait(Struct, frozen=True, kw_only=True):
    """The reason why some steps wait. `message`: a sentence without a full stop."""

    kind: WaitKind
    steps: tuple[str, ...] = ()  # paths, at most STEPS_NAMED; empty: those that have not begun
    count: int = 0  # of all such steps
    message: str
    hint: str = ""  # advice
    until: datetime | None = None
    pod: str = ""  # of the first of them
    locks: tuple[str, ...] = ()  # as records name them


class RunningStep(Struct, frozen=True, kw_only=True):
    """A step whose pod runs."""

    step: str
    pod: str
    node: str  # host; empty: not known
    since: datetime | None
    note: str = ""  # why it still runs


class Waits(Struct, frozen=True, kw_only=True):
    """The running and the waiting steps of a workflow, or of one step. `ended`: the selected final nodes."""

    running: tuple[RunningStep, ...] = ()
    waits: tuple[Wait, ...] = ()
    ended: tuple[NodeRecord, ...] = ()


def waits_of(view: WorkflowView, spec: Mapping[str, Any], step: str = "") -> Waits | None:
    """The running and the waiting steps; with `step` (as `is_step` reads it), only those. None: there is no
    such step.

    `spec`: that of the object; templates in other objects are not considered.
    """
    nodes = [node for node in view.nodes if not step or is_step(step_path(node.name, view.name), step)]
    if step and not nodes:
        return _not_begun(view, spec, step)
    live = [] if view.has_ended else [node for node in nodes if not node.phase.is_fulfilled]
    return Waits(
        running=tuple(_running(view, node) for node in live if _has_pod_that_runs(node)),
        waits=tuple(_of_workflow(view, spec, is_whole=not step)) + tuple(_of_nodes(view, spec, live)),
        ended=tuple(node for node in nodes if node.phase.is_fulfilled) if step else (),
    )


def step_names(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of steps and tasks in the templates of a spec."""
    return tuple(dict.fromkeys(str(entry.get("name") or "") for _, group in _groups(spec) for entry in group))


# -- the whole


def _of_workflow(view: WorkflowView, spec: Mapping[str, Any], *, is_whole: bool) -> Iterable[Wait]:
    """The reasons why steps without a record have not begun."""
    if view.has_ended:
        return
    if view.started is None and not view.nodes:
        yield _unbegun(view)
        return
    if view.is_suspended:
        yield Wait(
            kind=WaitKind.SUSPENDED,
            message="the workflow is suspended: further steps do not begin",
            hint=f"resume it: moor workflow resume {view.name}",
        )
    locks = _locks_of_workflow(view, spec)
    if locks and not view.nodes and not view.unreadable:
        lock = _LOCK.match(view.message)
        yield _lock_wait(locks, (lock[2] if lock is not None else "") or "")
    if is_whole:
        yield from _parallelism(view, spec)


def _unbegun(view: WorkflowView) -> Wait:
    owner = view.labels.get(INSTANCE_LABEL, "")
    if owner and owner != OUR_INSTANCE:
        message = f"it belongs to the controller with the instance id {owner!r}"
        hint = f"to let Moorage run it, remove its label {INSTANCE_LABEL}"
    elif owner:
        message, hint = "the operator has not begun it yet", "see whether the operator runs: moor status"
    else:
        message = "it has no controller yet"
        hint = "see whether Moorage's operator, or Argo's controller, runs: moor status"
    return Wait(kind=WaitKind.BEGINNING, message=message, hint=hint)


def _locks_of_workflow(view: WorkflowView, spec: Mapping[str, Any]) -> tuple[str, ...]:
    try:
        return locks_of(_mapping(spec.get("synchronization")), {"workflow.namespace": view.namespace})
    except (TextError, AttributeError, TypeError):  # the object may have values that submission would refuse
        return ()


def _parallelism(view: WorkflowView, spec: Mapping[str, Any]) -> Iterable[Wait]:
    """Yield a wait for each parallelism limit that is reached.

    Waiting steps have no records, so they are not counted.
    """
    limit = _limit(spec.get("parallelism"))
    pods = sum(node.type is NodeType.POD and not node.phase.is_fulfilled for node in view.nodes)
    if limit is not None and pods >= limit:
        yield Wait(
            kind=WaitKind.PARALLELISM,
            message=f"at most {limit} pods of the workflow exist at once (spec.parallelism), and {pods} do:"
            " further steps wait until one ends",
        )
    limits = {str(each.get("name")): _limit(each.get("parallelism")) for each in _templates(spec)}
    if not any(limits.values()):
        return
    inside: dict[str, int] = {}
    groups = {node.id: node.boundary_id for node in view.nodes if node.type is NodeType.STEP_GROUP}
    for node in view.nodes:
        if node.phase.is_fulfilled or node.type in (NodeType.STEP_GROUP, NodeType.TASK_GROUP):
            continue
        within = groups.get(node.boundary_id, node.boundary_id)
        inside[within] = inside.get(within, 0) + 1
    for node in view.nodes:
        most = limits.get(node.template)
        if node.type not in (NodeType.STEPS, NodeType.DAG) or node.phase.is_fulfilled or most is None:
            continue
        if inside.get(node.id, 0) >= most:
            yield Wait(
                kind=WaitKind.PARALLELISM,
                message=f"at most {most} steps of the template {node.template} run at once (parallelism):"
                f" further steps of {step_path(node.name, view.name)} wait until one ends",
            )


def _limit(value: Any) -> int | None:
    try:
        return positive(value, "parallelism")
    except TextError:
        return None


# -- nodes


def _of_nodes(view: WorkflowView, spec: Mapping[str, Any], live: Sequence[NodeRecord]) -> Iterable[Wait]:
    """Yield the waits of nodes. Nodes of one template with the same reason share one wait."""
    together: dict[tuple[object, ...], tuple[Wait, list[str]]] = {}
    for node in live:
        wait = _of_node(view, spec, node)
        if wait is None:
            continue
        is_alone = wait.kind in (WaitKind.BACKOFF, WaitKind.PERSON)
        message = wait.message if wait.kind is WaitKind.REFUSED else ""
        key = (wait.kind, node.template, wait.locks, message, node.id if is_alone else "")
        together.setdefault(key, (wait, []))[1].append(step_path(node.name, view.name))
    for wait, steps in together.values():
        yield Wait(
            kind=wait.kind,
            steps=tuple(steps[:STEPS_NAMED]),
            count=len(steps),
            message=wait.message,
            hint=wait.hint,
            until=wait.until,
            pod=wait.pod,
            locks=wait.locks,
        )


def _of_node(view: WorkflowView, spec: Mapping[str, Any], node: NodeRecord) -> Wait | None:
    """The reason why one node that is not final waits; None: it does not wait."""
    # waits that need no pod: a pause, or a person
    if backoff := _BACKOFF.match(node.message):
        until = moment(backoff[1])
        return Wait(kind=WaitKind.BACKOFF, message="it pauses before its next attempt", until=until)
    if is_suspended_node(node):
        until = _end_of_suspension(spec, node)
        hint = f"moor workflow resume {view.name} --node-field-selector displayName={node.display_name}"
        if node.message:
            hint = f"moor workflow node set {view.name} --output-parameter NAME=VALUE"
        message = (
            "it waits for a person"
            if until is None
            else "it continues after its duration, or when a person resumes it"
        )
        return Wait(
            kind=WaitKind.PERSON,
            message=node.message or message,
            hint=f"resume it: {hint}",
            until=until,
        )
    # then a lock, by the node's message
    if node.phase is not NodePhase.PENDING:
        return None
    if lock := _LOCK.match(node.message):
        locks = tuple(_lock_of(name) for name in lock[1].split(", "))
        return _lock_wait(locks, lock[2] or "")
    # then the pod: refused by a quota, held back, or not started
    if node.type is NodeType.POD and node.pod_name:
        if "exceeded quota" in node.message:
            return Wait(
                kind=WaitKind.REFUSED,
                message=f"its pod is not created yet: {node.message}",
                hint="it is tried again until there is room in the quota",
                pod=node.pod_name,
            )
        if node.message == MANY_PENDING:
            return Wait(
                kind=WaitKind.REFUSED,
                message=f"its pod is not created yet: {MANY_PENDING}",
                hint="it is created when fewer of them wait; see why they do: moor explain POD",
                pod=node.pod_name,
            )
        return Wait(kind=WaitKind.POD, message=node.message or "its pod has not started yet", pod=node.pod_name)
    return None


def _end_of_suspension(spec: Mapping[str, Any], node: NodeRecord) -> datetime | None:
    template = next((each for each in _templates(spec) if each.get("name") == node.template), {})
    duration, started = _mapping(template.get("suspend")).get("duration"), moment(node.started_at or None)
    if duration in (None, "") or started is None:
        return None
    try:
        return started + parse_duration(str(duration))
    except (TextError, OverflowError):
        return None


def _has_pod_that_runs(node: NodeRecord) -> bool:
    return node.type is NodeType.POD and node.phase is NodePhase.RUNNING


def _running(view: WorkflowView, node: NodeRecord) -> RunningStep:
    return RunningStep(
        step=step_path(node.name, view.name),
        pod=node.pod_name,
        node=node.host,
        since=moment(node.started_at or None),
    )


def saving_note(running: RunningStep, pod: Mapping[str, Any], workflow: str, now: datetime) -> str:
    """Return a note if a step's command has ended but its outputs are not saved yet; "" if saving is not late."""
    statuses = _mapping(pod.get("status")).get("containerStatuses") or ()
    rows = {row.get("name"): _mapping(row.get("state")) for row in statuses}
    ended, saver = _mapping(_mapping(rows.get("main")).get("terminated")), _mapping(rows.get("wait"))
    at = moment(ended.get("finishedAt"))
    if at is None or not saver.get("running") or now - at < SAVING_TIME:
        return ""
    ago = format_duration(now - at)
    return (
        f"its command ended with {ended.get('exitCode')} {ago} ago, and its outputs are not saved"
        f" yet; see why: moor workflow logs {workflow} --step '{running.step}' --container wait"
    )


def _lock_of(name: str) -> str:
    """The lock as records name it, from its name in a message: the inverse of `lock_name`."""
    first, _, rest = name.partition("/")
    second, _, last = rest.partition("/")
    match second:
        case "Mutex":
            return f"Mutex/{first}/{last}"
        case "ConfigMap":
            return f"Semaphore/{first}/{last}"
    return f"DatabaseMutex/{rest}" if first == "mtx" else f"Semaphore/{second}/{LIMITS_CONFIGMAP}/{last}"


def _lock_wait(locks: tuple[str, ...], fault: str) -> Wait:
    """`fault`: why they are not available at all."""
    message = f"it waits for {_named(locks)}" + (f": {fault}" if fault else "")
    hint = "it continues when the ConfigMap of the namespace has the limit" if fault else ""
    return Wait(kind=WaitKind.LOCK, message=message, hint=hint, locks=locks)


def _named(locks: Sequence[str]) -> str:
    """Return locks for a message: "the mutex lab/gpu and the semaphore lab/limits/train"."""
    words = []
    for lock in locks:
        kind, _, name = lock.partition("/")
        words.append(f"the {'semaphore' if kind == 'Semaphore' else 'mutex'} {name}")
    return " and ".join(words)


# -- steps without a record


def _not_begun(view: WorkflowView, spec: Mapping[str, Any], step: str) -> Waits | None:
    for template, group in _groups(spec):
        for entry in group:
            if str(entry.get("name") or "") != step:
                continue
            if view.has_ended:
                return Waits()
            whole = tuple(_of_workflow(view, spec, is_whole=True))
            return Waits(waits=(*_earlier(view, template, entry, step), *whole))
    return None


def _earlier(
    view: WorkflowView, template: Mapping[str, Any], entry: Mapping[str, Any], step: str
) -> tuple[Wait, ...]:
    """Return the steps before a step that have not ended."""
    live = {node.display_name.partition("(")[0] for node in view.nodes if not node.phase.is_fulfilled}
    known = {node.display_name.partition("(")[0] for node in view.nodes}
    before = [name for name in _before(template, entry) if name in live or name not in known]
    if not before:
        return (Wait(kind=WaitKind.EARLIER, steps=(step,), count=1, message="it has not begun yet"),)
    names = ", ".join(before[:STEPS_NAMED]) + (
        f" and {len(before) - STEPS_NAMED} more" if len(before) > STEPS_NAMED else ""
    )
    message = f"it comes after {names}"
    return (Wait(kind=WaitKind.EARLIER, steps=(step,), count=1, message=message),)


def _before(template: Mapping[str, Any], entry: Mapping[str, Any]) -> list[str]:
    """The names of the steps directly before a step."""
    if "dag" in template:
        tasks = [str(task.get("name")) for task in _list(_mapping(template.get("dag")).get("tasks"))]
        named = [str(name) for name in _list(entry.get("dependencies"))]
        named += [
            name
            for name in re.findall(r"[A-Za-z0-9][A-Za-z0-9_-]*", str(entry.get("depends") or ""))
            if name in tasks
        ]
        return list(dict.fromkeys(named))
    before: list[str] = []
    for group in _list(template.get("steps")):
        steps = _list(group) if isinstance(group, list) else [group]
        if entry in steps:
            return before
        before = [str(_mapping(each).get("name")) for each in steps]
    return []


def _groups(spec: Mapping[str, Any]) -> Iterable[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    for template in _templates(spec):
        for group in _list(template.get("steps")):
            entries = _list(group) if isinstance(group, list) else [group]
            yield template, [_mapping(entry) for entry in entries]
        tasks = _list(_mapping(template.get("dag")).get("tasks"))
        if tasks:
            yield template, [_mapping(task) for task in tasks]


def _templates(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [_mapping(template) for template in _list(spec.get("templates"))]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
