"""Suspended nodes: they wait for a user, for values, or for a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from moorage.decide.evaluation import TextError
from moorage_kube.moments import moment
from moorage_workflows.decide.workflows.graph.coroutines import Future
from moorage_workflows.decide.workflows.graph.frames import Call
from moorage_workflows.decide.workflows.graph.inputs import Inputs
from moorage_workflows.decide.workflows.graph.state import State
from moorage_workflows.decide.workflows.graph.stops import reason_to_end
from moorage_workflows.decide.workflows.graph.tasks import is_meant
from moorage_workflows.decide.workflows.templates import Resolved
from moorage_workflows.decide.workflows.text.durations import parse_duration
from moorage_workflows.model.workflow import NodePhase, NodeRecord, NodeType, Outputs, Resume

_TIME_IS_OVER = Resume()  # the duration of a suspended node


async def wait_suspended(
    state: State, call: Call, resolved: Resolved, template: Mapping[str, Any], inputs: Inputs
) -> NodeRecord:
    """Wait until a user resumes the node with the values that it needs, or its duration is over."""
    # a suspended node runs, without a pod
    node = state.node(call, resolved, inputs, NodeType.SUSPEND, NodePhase.RUNNING)
    node = state.save(msgspec.structs.replace(node, phase=NodePhase.RUNNING))
    if reason := reason_to_end(state, is_exit=call.is_exit):
        return state.end_node(node, NodePhase.FAILED, reason)
    # a duration resumes it without a user
    try:
        duration = (template.get("suspend") or {}).get("duration")
        wait = parse_duration(str(duration)) if duration not in (None, "") else None
    except TextError as error:
        return state.end_node(node, NodePhase.ERROR, error.message)
    # outputs that a user supplies, and those of earlier answers
    declared = [
        parameter
        for parameter in (template.get("outputs") or {}).get("parameters") or ()
        if (parameter.get("valueFrom") or {}).get("supplied") is not None
    ]
    given = dict(node.outputs.parameters) if node.outputs is not None else {}
    if wait is not None:
        state.scheduler.start(_resume_later(state, node.id, (moment(node.started_at) or state.now) + wait))
    # each answer may supply some of them; the node ends when all are known
    while True:
        future: Future[Resume] = state.scheduler.future()
        state.waits.suspended[node.id] = (node, call.is_exit, future)
        if state.waits.resumed.get(node.id):
            future.set(state.waits.resumed[node.id].pop(0))
        asked = await future
        is_over = asked is _TIME_IS_OVER
        del state.waits.suspended[node.id]
        given |= {name: value for name, value in asked.parameters.items()}
        if asked.is_failure:
            return state.end_node(node, NodePhase.FAILED, asked.message or "stopped")
        # defaults count only after an answer
        for parameter in declared:
            default = parameter["valueFrom"].get("default")
            if default is not None:
                given.setdefault(str(parameter["name"]), str(default))
        missing = [str(parameter["name"]) for parameter in declared if str(parameter["name"]) not in given]
        if missing and is_over:
            message = f"output parameters were not given within {duration}, and have no default: "
            return state.end_node(state.records[node.id], NodePhase.ERROR, message + ", ".join(missing))
        names = {str(parameter["name"]) for parameter in declared}
        values = {name: value for name, value in given.items() if name in names}
        outputs = Outputs(parameters=values) if values else None
        # with missing outputs it waits again, and shows their names
        if missing:
            message = f"waits for output parameters: {', '.join(missing)}"
            node = state.save(msgspec.structs.replace(node, message=message, outputs=outputs))
            continue
        return state.end_node(state.records[node.id], NodePhase.SUCCEEDED, asked.message, outputs)


async def _resume_later(state: State, identity: str, at: datetime) -> None:
    await state.until(at)
    if identity in state.waits.suspended:
        state.waits.suspended[identity][2].set(_TIME_IS_OVER)


def resume(state: State, asked: Resume) -> None:
    """Resume the suspended nodes that the request selects."""
    for record, _, future in list(state.waits.suspended.values()):
        if is_meant(record, asked.selector):
            future.set(asked)
    for record in state.records.values():  # a run that was loaded again has not reached them yet
        waits = record.type is NodeType.SUSPEND and record.phase is NodePhase.RUNNING
        if waits and record.id not in state.waits.suspended and is_meant(record, asked.selector):
            state.waits.resumed.setdefault(record.id, []).append(asked)
