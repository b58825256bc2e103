"""DAGs: each task starts when the tasks that it depends on have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.graph.children import child_call, way_of
from moorage_workflows.decide.workflows.graph.coroutines import Channel
from moorage_workflows.decide.workflows.graph.frames import Cut, Frame
from moorage_workflows.decide.workflows.graph.results import parents_of, scope_among, seen_of
from moorage_workflows.decide.workflows.graph.scopes import Seen
from moorage_workflows.decide.workflows.graph.state import State
from moorage_workflows.decide.workflows.graph.tasks import (
    ancestors,
    condition_of,
    continues,
    in_order,
    leaves,
    visible_to,
    words_of,
)
from moorage_workflows.decide.workflows.text.depends import Depends
from moorage_workflows.model.workflow import NodePhase


async def run_dag(state: State, frame: Frame) -> tuple[NodePhase, str]:
    """Run the tasks of a DAG in the order of their dependencies. Returns its phase and message.

    Raises TextError.
    """
    # read all conditions, and check the names in them
    dag = frame.template.get("dag") or {}
    tasks = {str(task.get("name")): task for task in dag.get("tasks") or ()}
    conditions = {name: condition_of(task) for name, task in tasks.items()}
    for name, condition in conditions.items():
        unknown = [other for other in condition.tasks if other not in tasks]
        if unknown:
            raise TextError(f"task {name} depends on {', '.join(unknown)}, and the DAG has no such task")
    # only targets and their ancestors run
    targets = str(dag.get("target") or "").split() or leaves(conditions)
    if missing := [name for name in targets if name not in tasks]:
        raise TextError(f"dag.target names {', '.join(missing)}, and the DAG has no such task")
    needed = ancestors(conditions, targets)
    # count open parents, so that the end of a task costs only its dependents
    open_parents = {name: len(set(conditions[name].tasks)) for name in tasks if name in needed}
    dependents: dict[str, list[str]] = {}
    for name in open_parents:
        for parent in set(conditions[name].tasks):
            dependents.setdefault(parent, []).append(name)
    channel: Channel[tuple[str, Seen | Cut]] = Channel(state.scheduler)
    pending, cut = len(open_parents), ""

    def start(name: str) -> None:
        state.scheduler.start(_run_task(state, frame, tasks[name], conditions, channel))

    # tasks without parents start; the end of each starts others
    for name in (name for name in tasks if name in open_parents and not open_parents[name]):
        start(name)
    words: dict[str, frozenset[str]] = {}
    while pending:
        name, result = await channel.take()
        pending -= 1
        if isinstance(result, Seen):
            frame.seen[name] = result
            words[name] = words_of(tasks[name], result)
        else:
            cut = cut or result.message
            words[name] = frozenset()
        # a dependent with all parents ended is started, skipped, or cut
        for dependent in dependents.get(name, ()):
            open_parents[dependent] -= 1
            if open_parents[dependent]:
                continue
            if any(parent not in frame.seen for parent in conditions[dependent].tasks):
                channel.put((dependent, Cut(cut)))  # a parent never started
            elif conditions[dependent].holds(words):
                start(dependent)
            else:
                call = child_call(frame, tasks[dependent], f"{frame.record.name}.{dependent}", dependent, ())
                call = msgspec.structs.replace(call, parents=parents_of(frame, conditions[dependent]))
                record = state.skip(call, NodePhase.OMITTED, "omitted: depends condition not met")
                channel.put((dependent, seen_of(state, frame, tasks[dependent], record)))
    # a cut is a failure, with its first message
    if cut:
        return NodePhase.FAILED, cut
    return _dag_phase(frame, tasks, conditions, targets)


def _dag_phase(
    frame: Frame,
    tasks: Mapping[str, Mapping[str, Any]],
    conditions: Mapping[str, Depends],
    targets: Sequence[str],
) -> tuple[NodePhase, str]:
    """Return the phase of a DAG from its target tasks: a failed target wins over successful ones.

    A target that was skipped or omitted has the phase of the failed tasks before it, if any failed.
    """
    if frame.is_failing:
        return NodePhase.FAILED, "template has failed or errored children and failFast enabled"
    branch: dict[str, NodePhase] = {}
    for name in in_order(conditions, frame.seen):
        own = frame.seen[name].record.phase
        if own in (NodePhase.OMITTED, NodePhase.SKIPPED):
            parents = [branch[parent] for parent in conditions[name].tasks if parent in branch]
            own = next((phase for phase in parents if phase in (NodePhase.FAILED, NodePhase.ERROR)), own)
        branch[name] = own
    for name in targets:
        phase = branch.get(name, NodePhase.SUCCEEDED)
        if phase in (NodePhase.FAILED, NodePhase.ERROR) and not continues(tasks[name], phase):
            return phase, ""
    return NodePhase.SUCCEEDED, ""


async def _run_task(
    state: State,
    frame: Frame,
    task: Mapping[str, Any],
    conditions: Mapping[str, Depends],
    channel: Channel[tuple[str, Seen | Cut]],
) -> None:
    """Run one task and put its result into the channel."""
    name = str(task.get("name"))
    parents = parents_of(frame, conditions[name])
    prefix = f"{frame.record.name}."
    try:
        visible = visible_to(frame, task, conditions)
        work = way_of(state, frame, task, scope_among(state, frame, visible), prefix, parents)
    except TextError as error:
        call = child_call(frame, task, prefix + name, name, parents)
        channel.put((name, seen_of(state, frame, task, state.fail(call, error.message))))
        return
    channel.put((name, await work()))
