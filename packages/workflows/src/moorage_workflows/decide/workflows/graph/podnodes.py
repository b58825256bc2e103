"""Run a node with a pod: create the pod, apply its timeouts, record its containers, and replace a lost pod."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from moorage.decide.evaluation import TextError
from moorage_kube.moments import moment, span_of
from moorage_workflows.decide.workflows.collection import with_collection
from moorage_workflows.decide.workflows.graph.coroutines import Future
from moorage_workflows.decide.workflows.graph.events import CreatePod, EndPod
from moorage_workflows.decide.workflows.graph.frames import Attempt, Awaited, Call, Cut
from moorage_workflows.decide.workflows.graph.inputs import Inputs
from moorage_workflows.decide.workflows.graph.measures import uses_result
from moorage_workflows.decide.workflows.graph.naming import pod_name
from moorage_workflows.decide.workflows.graph.outcomes import Ended, Ready, ended_by_itself, members_of
from moorage_workflows.decide.workflows.graph.podwaits import end_pod, look_at, note_members, pod_gone
from moorage_workflows.decide.workflows.graph.state import State
from moorage_workflows.decide.workflows.graph.stops import LATE, check_cut, reason_to_end, while_suspended
from moorage_workflows.decide.workflows.graph.tasks import stamp, type_of, whole_number, with_fixed_values
from moorage_workflows.decide.workflows.repository import REPOSITORY, with_location
from moorage_workflows.decide.workflows.templates import Resolved
from moorage_workflows.decide.workflows.text.durations import parse_duration
from moorage_workflows.decide.workflows.text.tags import substitute
from moorage_workflows.model.workflow import NodePhase, NodeRecord, NodeType, is_strict

# pods of one attempt that nodes may take away before it fails; Argo's maxRestarts has this default
LOST_PODS_MAX = 3
LOST_PODS_ANNOTATION = "moorage.dev/infrastructure-retries"  # on a Workflow: another number; "0": none


async def run_pod(
    state: State,
    call: Call,
    resolved: Resolved,
    template: Mapping[str, Any],
    inputs: Inputs,
    attempt: Attempt,
) -> NodeRecord:
    """Run one attempt of a step as a pod. If a Kubernetes node took the pod away, start another. Raises Cut."""
    node = state.node(call, resolved, inputs, type_of(template), NodePhase.PENDING)
    has_place = bool(node.pod_name)
    # a new pod takes a place within the parallelism of the workflow
    try:
        if not has_place:
            await while_suspended(state, is_exit=call.is_exit)
            check_cut(state, is_exit=call.is_exit)
            await state.pods.slots.take()
            has_place = True
            check_cut(state, is_exit=call.is_exit)
        # limits of time, which may have been tags
        timeout = parse_duration(str(template["timeout"])) if template.get("timeout") else None
        patience = parse_duration(str(template["pendingTimeout"])) if template.get("pendingTimeout") else None
        seconds = whole_number(template.get("activeDeadlineSeconds"), "activeDeadlineSeconds")
        if not node.pod_name:
            node = msgspec.structs.replace(node, started_at=stamp(state.now), message="")
        # one pass for each pod: the name has the number of lost ones
        while True:
            name = pod_name(
                state.workflow.name,
                call.name,
                resolved.name,
                identity=node.id,
                retries=state.workflow.retries,
                lost=node.infrastructure_retries,
            )
            node = state.save(msgspec.structs.replace(node, pod_name=name))
            # fill the tags that are known only now
            known = {**attempt.local, "pod.name": name}
            final = substitute(template, known)
            if (repository := state.workflow.document.get(REPOSITORY)) is not None:
                whole = {**state.globals, **inputs.scope, **known}
                final = with_location(final, substitute(repository, whole), state.spec)
            # the order to create the pod, and the wait for its end
            order = CreatePod(
                record=node,
                template=final,
                artifacts=inputs.artifacts,
                wants_result=call.wants_result or uses_result(final),
                longest=None if seconds is None else span_of(seconds),
                ends_by=_ends_by(state, attempt, node, timeout, is_exit=call.is_exit),
                excluded_hosts=attempt.excluded,
            )
            members = _member_nodes(state, node, final)
            ids = tuple(member.id for member in members)
            ended = await _carry_out(state, order, timeout, patience, ids, is_exit=call.is_exit)
            node = state.records[node.id]
            if isinstance(ended, Ended) and ended.is_stuck:
                state.draft.end[name] = EndPod(name)
            # a daemon is ready: its node keeps running, and later nodes may start
            if isinstance(ended, Ready):
                if call.frame is not None:
                    call.frame.daemons.append(name)
                return state.save(
                    msgspec.structs.replace(node, is_daemon=True, phase=NodePhase.RUNNING, host=ended.host)
                )
            # a pod that its node lost is started again
            if (
                ended.is_lost
                and node.infrastructure_retries < _lost_pods_max(state)
                and name not in state.pods.cut
            ):
                state.draft.release.append(name)
                check_cut(state, is_exit=call.is_exit)
                node = msgspec.structs.replace(
                    node,
                    phase=NodePhase.PENDING,
                    infrastructure_retries=node.infrastructure_retries + 1,
                    message=f"started again: {ended.message}",
                )
                continue
            # the end is saved with the outputs, and the pod is released
            state.draft.release.append(name)
            note_members(state, members, state.pods.seen.get(name), ended)
            return state.save(
                msgspec.structs.replace(
                    node,
                    phase=ended.phase,
                    message=ended.message,
                    outputs=with_collection(final, state.spec, with_fixed_values(final, ended.outputs)),
                    host=ended.host or node.host,
                    started_at=node.started_at,
                    finished_at=ended.finished_at or stamp(state.now),
                    resources_seconds=dict(ended.resources_seconds),
                )
            )
    except TextError as error:
        return _end_pod_node(state, state.save(node), template, NodePhase.ERROR, error.message)
    except Cut as cut:
        if node.id in state.records:  # it held its lock already, or an earlier pod was lost
            return _end_pod_node(state, node, template, NodePhase.FAILED, cut.message)
        raise
    finally:
        if has_place:
            state.pods.slots.give()


def _end_pod_node(
    state: State, node: NodeRecord, template: Mapping[str, Any], phase: NodePhase, message: str
) -> NodeRecord:
    """End the node of a pod that does not exist, and the nodes of its containers."""
    ids = [state.ids.of(f"{node.name}.{name}") for name in members_of(template)]
    members = [state.records[member] for member in ids if member in state.records]
    note_members(state, members, None, Ended(phase=phase, message=message))
    return state.end_node(node, phase, message)


def _member_nodes(state: State, node: NodeRecord, template: Mapping[str, Any]) -> list[NodeRecord]:
    """Return the new or stored nodes of the containers of a container set; empty for other templates."""
    containers = (template.get("containerSet") or {}).get("containers") or ()
    ids = {row["name"]: state.ids.of(f"{node.name}.{row['name']}") for row in containers}
    return [
        state.save(
            state.records.get(ids[row["name"]])
            or NodeRecord(
                id=ids[row["name"]],
                name=f"{node.name}.{row['name']}",
                display_name=str(row["name"]),
                type=NodeType.CONTAINER,
                phase=NodePhase.PENDING,
                template=node.template,
                template_ref=node.template_ref,
                boundary_id=node.id,
                parents=tuple(ids[other] for other in row.get("dependencies") or ()) or (node.id,),
                started_at=stamp(state.now),
            )
        )
        for row in containers
    ]


async def _carry_out(
    state: State,
    order: CreatePod,
    timeout: timedelta | None,
    patience: timedelta | None,
    members: tuple[str, ...],
    *,
    is_exit: bool,
) -> Ended | Ready:
    """Create the pod if necessary and wait for its result.

    `timeout`: of the step as a whole. `patience`: how long the step may wait until its pod runs.
    """
    # a ready daemon needs no wait
    record, name = order.record, order.record.pod_name
    seen = state.pods.seen.get(name)
    if record.is_daemon:  # it was ready, and later nodes may have begun
        return Ready(seen.host if seen else record.host, seen.address if seen else "")
    # the limits that apply, and whether one has passed
    begun = moment(record.started_at) or state.now
    due = begun + timeout if timeout is not None else None
    pends_until = begun + patience if patience is not None and record.phase is NodePhase.PENDING else None
    reason = reason_to_end(state, is_exit=is_exit)
    late = [] if reason or state.deadline is None or is_exit else [state.deadline]
    late += [due] if due is not None else []
    late += [pends_until] if pends_until is not None and not (seen and seen.has_run) else []
    passed = [at for at in late if at <= state.now]
    reason = reason or (LATE if passed else "")
    # a pod that was never created ends without one
    if seen is None and record.phase is NodePhase.PENDING and reason:
        return Ended(phase=NodePhase.FAILED, message=reason)  # it is not there, and is not created any more
    # wait for the pod, with a timer for each limit
    future: Future[Ended | Ready] = state.scheduler.future()
    state.pods.awaited[name] = Awaited(record.id, future, order.template.get("daemon") is True, is_exit, members)
    if due is not None and due > state.now:
        state.scheduler.start(_time_out(state, name, future, due))
    if pends_until is not None and pends_until > state.now:
        state.scheduler.start(_time_out(state, name, future, pends_until, while_pending=True))
    # the first action depends on the pod: missing, new, late or running
    if seen is None and record.phase is NodePhase.RUNNING:
        pod_gone(state, name)  # it ran when it was last seen, and is not there
    elif seen is None:
        state.draft.create.append(order)
    elif reason and not ended_by_itself(seen, min(passed, default=None)):
        end_pod(state, name, reason)  # or an operator ended it already, and could not note it
    else:
        look_at(state, name)
    return await future


async def _time_out(
    state: State, name: str, future: Future[Ended | Ready], at: datetime, *, while_pending: bool = False
) -> None:
    await state.until(at)
    waiting = state.pods.awaited.get(name)
    if future.is_done or waiting is None:
        return
    if while_pending and state.records[waiting.node].phase is not NodePhase.PENDING:
        return
    end_pod(state, name, LATE)


def _lost_pods_max(state: State) -> int:
    """Return how many lost pods of one attempt are replaced."""
    annotations = (state.workflow.document.get("metadata") or {}).get("annotations") or {}
    text = str(annotations.get(LOST_PODS_ANNOTATION, ""))
    usual = 0 if is_strict(state.workflow.document) else LOST_PODS_MAX
    return int(text) if text.isdigit() else usual


def _ends_by(
    state: State, attempt: Attempt, node: NodeRecord, timeout: timedelta | None, *, is_exit: bool
) -> datetime | None:
    """Return the first deadline of a step: its own, that of the workflow, or that of all its attempts."""
    moments: list[datetime] = []
    if timeout is not None:
        moments.append((moment(node.started_at) or state.now) + timeout)
    if state.deadline is not None and not is_exit:
        moments.append(state.deadline)
    longest = ((attempt.strategy or {}).get("backoff") or {}).get("maxDuration")
    if longest and attempt.first is not None:
        moments.append((moment(attempt.first.started_at) or state.now) + parse_duration(str(longest)))
    return min(moments, default=None)
