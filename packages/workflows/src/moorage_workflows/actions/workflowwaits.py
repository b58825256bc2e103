"""Explain why a workflow or a step waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from difflib import get_close_matches

from msgspec import structs
from msgspec.structs import replace

from moorage.api.errors import ErrorCode
from moorage.api.explain import LockHolder, WorkflowExplanation
from moorage.decide.explain.starting import starting_of
from moorage.decide.explain.types import Explanation
from moorage.model.argo import step_path
from moorage.model.names import NAME_COMPARED
from moorage_kube.api import Api
from moorage_kube.errors import ApiError, NotFound
from moorage_kube.resources import EVENTS, PODS, Obj
from moorage_workflows.actions.workflows import Records, get_workflow
from moorage_workflows.decide.workflows.views import WorkflowView, view_workflow
from moorage_workflows.decide.workflows.waiting import Wait, WaitKind, Waits, saving_note, step_names, waits_of
from moorage_workflows.model.workflow import NodePhase
from moorage_workflows.present.workflowwaits import Explained, make_workflow_explanation

PODS_EXPLAINED = 5  # of the waits of one workflow: each looks at every node of the cluster

ExplainPod = Callable[[str], Awaitable[Explanation]]
"""Explains a pod of the workflow's namespace by its name. Raises NotFound."""
GOES_ON = "the operator creates it or ends the step, within 5 minutes"  # loop.FULL_LOOK_SECONDS
FindHolders = Callable[[Sequence[str]], Awaitable[Sequence[LockHolder]]]
"""Who holds these locks."""


async def no_holders(_locks: Sequence[str]) -> Sequence[LockHolder]:
    """Return no lock holders. For callers that cannot read the records of other workflows."""
    return ()


async def explain_workflow(
    api: Api,
    namespace: str,
    name: str,
    step: str = "",
    *,
    records: Records,
    explain_pod: ExplainPod,
    find_holders: FindHolders = no_holders,
    now: datetime,
) -> WorkflowExplanation:
    """The running steps, and the reasons why others wait; with `step`, all waits of that step.

    `name` may be `@latest`. Raises NotFound for a workflow or a step that does not exist.
    """
    obj = await get_workflow(api, namespace, name, records)
    view, spec = view_workflow(obj), obj.get("spec") or {}
    waits = waits_of(view, spec, step)
    if waits is None:
        raise _no_step(view, obj, step)
    waits = await _with_notes(api, view, waits, now)
    explained = await explain_waits(waits, explain_pod=explain_pod, find_holders=find_holders)
    return make_workflow_explanation(view, waits, explained, step=step, now=now)


async def _with_notes(api: Api, view: WorkflowView, waits: Waits, now: datetime) -> Waits:
    """Add a note to running steps whose command has ended: why they still run.

    At most PODS_EXPLAINED pods are read.
    """
    running = list(waits.running)
    for place, each in enumerate(running[:PODS_EXPLAINED]):
        with contextlib.suppress(ApiError):
            try:
                note = saving_note(each, await api.get(PODS, each.pod, view.namespace), view.name, now)
            except NotFound:
                note = f"its pod {each.pod} was deleted: {GOES_ON}"
            running[place] = replace(each, note=note)
    return replace(waits, running=tuple(running))


async def with_starts(api: Api, view: WorkflowView) -> WorkflowView:
    """The view with reasons why the pods of pending steps do not start, for at most PODS_EXPLAINED of them."""
    pending = [
        node for node in view.nodes if node.phase is NodePhase.PENDING and node.pod_name and not node.message
    ]
    reasons = await asyncio.gather(
        *(_why_not_started(api, view.namespace, node.pod_name) for node in pending[:PODS_EXPLAINED])
    )
    messages = {node.id: reason for node, reason in zip(pending, reasons, strict=False) if reason}
    nodes = tuple(structs.replace(node, message=messages.get(node.id, node.message)) for node in view.nodes)
    return replace(view, nodes=nodes) if messages else view


async def _why_not_started(api: Api, namespace: str, name: str) -> str:
    """Return why a pod does not start; "" if it has no problem, or the user may not read it."""
    try:
        pod, events = await asyncio.gather(
            api.get(PODS, name, namespace),
            api.list(EVENTS, namespace, field_selector=f"involvedObject.name={name}"),
        )
    except ApiError:
        return ""
    starting = starting_of(pod, events.items) if (pod.get("spec") or {}).get("nodeName") else None
    if starting is None or not starting.is_trouble:
        return ""
    return f"{starting.reason}: {' '.join(starting.message.split())}" if starting.message else starting.reason


async def explain_waits(
    waits: Waits, *, explain_pod: ExplainPod, find_holders: FindHolders = no_holders, most: int = PODS_EXPLAINED
) -> list[Explained]:
    """The waits with the reasons why their first pods wait (for `most` of them), and the holders of locks."""
    explained = []
    for wait in waits.waits:
        if wait.kind is WaitKind.POD and most > 0:
            most -= 1
            explained.append(await _of_pod(wait, explain_pod))
        else:
            holders = tuple(await find_holders(wait.locks)) if wait.locks else ()
            explained.append(Explained(wait=wait, holders=holders))
    return explained


async def _of_pod(wait: Wait, explain_pod: ExplainPod) -> Explained:
    """Explain why a pod waits. There is no explanation if the pod does not exist or the user may not read it."""
    try:
        return Explained(wait=wait, explanation=await explain_pod(wait.pod))
    except NotFound:
        return Explained(wait=replace(wait, message=f"its pod {wait.pod} does not exist: {GOES_ON}"))
    except ApiError:
        return Explained(wait=wait)


def _no_step(view: WorkflowView, obj: Obj, step: str) -> NotFound:
    names = {step_path(node.name, view.name) for node in view.nodes} - {view.name}
    near = get_close_matches(step[:NAME_COMPARED], sorted(names.union(step_names(obj.get("spec") or {}))), n=3)
    return NotFound(
        f"workflow {view.name!r} has no step {step!r}",
        hint=f"did you mean {' or '.join(near)}?" if near else f"list its steps: moor workflow get {view.name}",
        code=ErrorCode.NOT_FOUND,
    )
