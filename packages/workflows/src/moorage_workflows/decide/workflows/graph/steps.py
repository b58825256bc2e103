"""Steps: groups of children that run one group after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.graph.children import way_of
from moorage_workflows.decide.workflows.graph.frames import Call, Cut, Frame
from moorage_workflows.decide.workflows.graph.results import scope_among
from moorage_workflows.decide.workflows.graph.scopes import Seen
from moorage_workflows.decide.workflows.graph.state import State
from moorage_workflows.decide.workflows.graph.tasks import continues, ends_of
from moorage_workflows.model.workflow import NodePhase, NodeRecord, NodeType


async def run_steps(state: State, frame: Frame) -> tuple[NodePhase, str]:
    """Run the groups of steps in order. Returns the phase of the template and its message.

    Raises TextError, Cut.
    """
    before: tuple[str, ...] = (frame.record.id,)
    for number, group in enumerate(frame.template.get("steps") or ()):
        name = f"{frame.record.name}[{number}]"
        call = Call(
            name=name, display_name=f"[{number}]", step={}, artifacts={}, frame=frame, scope=frame.scope,
            parents=before,
        )  # fmt: skip
        node = state.save(state.node(call, None, None, NodeType.STEP_GROUP, NodePhase.RUNNING))
        phase, message, before = await _run_group(state, frame, node, group)
        if not node.phase.is_fulfilled:
            state.end_node(node, phase, message)
        if phase in (NodePhase.FAILED, NodePhase.ERROR):
            return NodePhase.FAILED, message
        before = before or (node.id,)
    return NodePhase.SUCCEEDED, ""


async def _run_group(
    state: State, frame: Frame, node: NodeRecord, group: Sequence[Mapping[str, Any]]
) -> tuple[NodePhase, str, tuple[str, ...]]:
    """Run one group of steps. Returns its phase, its message, and the ids of its last nodes."""
    try:
        scope = scope_among(state, frame, frame.seen)
        starts = [way_of(state, frame, step, scope, node.name + ".", (node.id,)) for step in group]
    except TextError as error:
        return NodePhase.ERROR, error.message, ()
    works = [state.scheduler.start(start()) for start in starts]
    results = [await work for work in works]
    failed: tuple[NodePhase, str] | None = None
    for step, result in zip(group, results, strict=True):
        if isinstance(result, Cut):
            failed = failed or (NodePhase.FAILED, result.message)
            continue
        if isinstance(result, TextError):
            return NodePhase.ERROR, result.message, ()
        if result.is_loop:  # others see the group in the place of its loops
            result.values |= {"id": node.id, "status": str(NodePhase.SUCCEEDED)}
        frame.seen[str(step.get("name"))] = result
        for record in result.children or (result.record,):
            if record.phase is NodePhase.ERROR and record.type in (NodeType.SKIPPED, NodeType.SUSPEND):
                # it could not be carried out: `continueOn` says nothing of that
                return NodePhase.ERROR, f"child '{record.id}' could not be carried out: {record.message}", ()
            if record.phase in (NodePhase.FAILED, NodePhase.ERROR) and not continues(step, record.phase):
                failed = failed or (NodePhase.FAILED, f"child '{record.id}' failed")
    last = tuple(record.id for result in results if isinstance(result, Seen) for record in ends_of(result))
    if failed is not None:
        return failed[0], failed[1], last
    return NodePhase.SUCCEEDED, "", last
