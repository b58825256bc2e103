"""The workflow as a whole: its start, deadline, exit handler and end."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from moorage.decide.evaluation import TextError
from moorage_kube.moments import moment
from moorage_workflows.decide.workflows.graph.coroutines import Slots
from moorage_workflows.decide.workflows.graph.events import Locks, Refusal
from moorage_workflows.decide.workflows.graph.frames import Call, Cut
from moorage_workflows.decide.workflows.graph.hooks import start_workflow_hooks
from moorage_workflows.decide.workflows.graph.measures import measure_run
from moorage_workflows.decide.workflows.graph.outputs import given_artifacts
from moorage_workflows.decide.workflows.graph.podwaits import end_pod
from moorage_workflows.decide.workflows.graph.queries import release_locks, take_locks
from moorage_workflows.decide.workflows.graph.scopes import failures_of
from moorage_workflows.decide.workflows.graph.state import State
from moorage_workflows.decide.workflows.graph.stops import check_cut, reason_to_end
from moorage_workflows.decide.workflows.graph.tasks import limits_of, locks_of, stamp
from moorage_workflows.decide.workflows.text.tags import substitute
from moorage_workflows.model.workflow import NodePhase, Resume

LEFT_OVER = "the workflow ended before this node"


async def run_workflow(state: State) -> None:
    """Run the entrypoint and the exit handler, and record how the workflow ended."""
    # the first decision starts the run
    workflow = state.workflow
    if not workflow.started_at:
        workflow = msgspec.structs.replace(workflow, phase="Running", started_at=stamp(state.now))
        state.workflow = workflow
    # limits and locks may have tags; an error in them ends the run at once
    try:
        state.limits = limits_of(state.spec, state.globals)
        locks = locks_of(state.spec.get("synchronization"), state.globals)
    except TextError as error:
        await _finish(state, "Error", f"invalid spec: {error.message}")
        return
    # limits, metrics and hooks count from the start
    state.pods.slots = Slots(state.scheduler, state.limits.parallelism, held=state.places.get("", 0))
    _set_deadline(state)
    measure_run(state, None, since=state.workflow.started_at)
    start_workflow_hooks(state, "Running")
    entry: dict[str, Any] = {
        "template": state.spec.get("entrypoint"),
        "arguments": state.spec.get("arguments"),
    }
    # the workflow's locks come before its first node
    try:
        artifacts = given_artifacts(state, state.spec.get("arguments") or {})
        if locks and not workflow.locks:
            check_cut(state, is_exit=False)
            if refused := await take_locks(state, workflow.name, locks):
                await _finish(state, "Failed", f"the workflow's locks are not available: {refused}")
                return
            state.workflow = msgspec.structs.replace(state.workflow, locks=locks, message="")
            if (record := state.records.get(workflow.name)) is not None and not record.pod_name:
                state.save(msgspec.structs.replace(record, message=""))  # a retry keeps the first node
        # the entrypoint is the root node, with the name of the workflow
        root = await state.execute(
            Call(
                name=workflow.name, display_name=workflow.name, step=entry, artifacts=artifacts,
                wants_result=False,
            )
        )  # fmt: skip
    # an error or a shutdown still runs the exit handler
    except TextError as error:
        phase, message = await _run_exit_handler(state, "Error", error.message)
        await _finish(state, phase, message)
        return
    except Cut as cut:
        phase, message = await _run_exit_handler(state, "Failed", cut.message)
        await _finish(state, phase, message)
        return
    # the exit handler may change the phase
    is_well = root.phase in (NodePhase.SUCCEEDED, NodePhase.SKIPPED, NodePhase.OMITTED)
    phase, message = ("Succeeded", "") if is_well else (str(root.phase), root.message)
    phase, message = await _run_exit_handler(state, phase, message)
    if locks:
        release_locks(state, workflow.name)
    await _finish(state, phase, message)


async def _run_exit_handler(state: State, phase: str, message: str) -> tuple[str, str]:
    """Run the exit handler, and wait for the other hooks. Returns the phase and message after them."""
    state.is_exiting = True
    state.globals["workflow.status"] = phase
    state.globals["workflow.failures"] = failures_of(state.records.values())
    state.globals["workflow.duration"] = f"{state.seconds():.6f}"
    start_workflow_hooks(state, phase)
    hooks = state.spec.get("hooks") or {}
    step: dict[str, Any] | None = None
    if state.spec.get("onExit"):
        step = {"template": state.spec["onExit"], "arguments": state.spec.get("arguments")}
    elif hooks.get("exit"):
        step = dict(hooks["exit"])
        step.setdefault("arguments", state.spec.get("arguments"))
    name = f"{state.workflow.name}.onExit"
    if step is not None and (state.controls.shutdown != "Terminate" or state.has_begun(name)):
        try:
            step = substitute(step, state.globals)
            handler = await state.execute(
                Call(
                    name=name,
                    display_name=name,
                    step=step,
                    artifacts=given_artifacts(state, step.get("arguments") or {}),
                    is_exit=True,
                )
            )
            outcome, reason = handler.phase, handler.message
        except TextError as error:
            outcome, reason = NodePhase.ERROR, error.message
        except Cut as cut:
            outcome, reason = NodePhase.FAILED, cut.message
        if phase == "Succeeded" and outcome in (NodePhase.FAILED, NodePhase.ERROR):
            phase, message = str(outcome), reason
    for future in state.workflow_hooks.values():
        await future
    return phase, message


async def _finish(state: State, phase: str, message: str) -> None:
    for node in [node for node in state.records.values() if not node.phase.is_fulfilled]:
        # none should be left here; if one is, it would never end
        state.forget_pod(node)
        state.end_node(node, NodePhase.ERROR, LEFT_OVER)
    state.workflow = msgspec.structs.replace(
        state.workflow, phase=phase, message=message, finished_at=stamp(state.now), locks=()
    )
    state.globals["workflow.status"] = phase
    measure_run(state, state.records.get(state.ids.of(state.workflow.name)))


def _set_deadline(state: State) -> None:
    if state.limits.runs_for is None:
        return
    started = moment(state.workflow.started_at) or state.now
    state.deadline = started + state.limits.runs_for
    state.is_late = state.deadline <= state.now  # known before anything is looked at
    if not state.is_late:
        state.scheduler.start(_watch_deadline(state, state.deadline))


async def _watch_deadline(state: State, deadline: datetime) -> None:
    await state.until(deadline)
    if not state.is_exiting and not state.is_done:
        state.is_late = True
        cut_short(state)


def cut_short(state: State) -> None:
    """End every pod and every wait that has a reason to end now."""
    for name, waiting in list(state.pods.awaited.items()):
        if reason := reason_to_end(state, is_exit=waiting.is_exit):
            end_pod(state, name, reason)
    for _, is_exit, future in list(state.waits.suspended.values()):
        if reason := reason_to_end(state, is_exit=is_exit):
            future.set(Resume(is_failure=True, message=reason))
    goes_on, state.waits.go_on = [*state.waits.go_on, *state.waits.backoffs], []
    state.waits.backoffs = []
    for going in goes_on:
        going.set(None)
    for query in [query for query in state.waits.answers if isinstance(query, Locks)]:
        if reason := reason_to_end(state, is_exit=query.is_exit):
            state.waits.answers.pop(query).set(Refusal(reason))
