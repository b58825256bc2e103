"""Run a child of a steps or DAG template, with its condition, its loop and its hooks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.graph.coroutines import Future
from moorage_workflows.decide.workflows.graph.frames import Call, Cut, Frame
from moorage_workflows.decide.workflows.graph.hooks import run_exit_hook, watch_hooks
from moorage_workflows.decide.workflows.graph.loops import has_loop, item_scope, items_of
from moorage_workflows.decide.workflows.graph.naming import item_text
from moorage_workflows.decide.workflows.graph.outputs import given_artifacts
from moorage_workflows.decide.workflows.graph.results import seen_of
from moorage_workflows.decide.workflows.graph.scopes import Seen, aggregated, all_parameters
from moorage_workflows.decide.workflows.graph.state import State
from moorage_workflows.decide.workflows.graph.stops import check_cut, while_suspended
from moorage_workflows.decide.workflows.graph.tasks import Scope, resolve_step, without_absent
from moorage_workflows.decide.workflows.text.tags import substitute, substitute_text
from moorage_workflows.decide.workflows.text.when import holds
from moorage_workflows.model.workflow import NodePhase, NodeRecord, NodeType, Outputs

_ITEM = re.compile(r"\bitem\b")


def child_call(frame: Frame, step: Mapping[str, Any], name: str, display: str, parents: tuple[str, ...]) -> Call:
    """Return the call of a step or task before its tags are resolved."""
    return Call(
        name=name,
        display_name=display,
        step=step,
        artifacts={},
        frame=frame,
        scope=frame.scope,
        depth=frame.depth + 1,
        parents=parents,
        wants_result=frame.used is None or str(step.get("name")) in frame.used,
        is_exit=frame.is_exit,
        local={f"{frame.prefix}.name": str(step.get("name"))},
    )


def way_of(
    state: State,
    frame: Frame,
    step: Mapping[str, Any],
    scope: Scope,
    prefix: str,
    parents: tuple[str, ...],
) -> Callable[[], Any]:
    """Resolve the tags of a step or task, and return a function that starts it. Raises TextError."""
    # a skipped step stays skipped when the run is loaded again
    name = str(step.get("name"))
    call = child_call(frame, step, prefix + name, name, parents)
    stored = state.records.get(state.ids.of(call.name))
    if stored is not None and stored.type is NodeType.SKIPPED and stored.phase.is_fulfilled:
        return lambda: _known(state, frame, step, stored)
    # a condition on the item is evaluated for each item instead
    strict = (f"{frame.prefix}.",)
    when = step.get("when")
    if when and not ("{{item" in str(when) or "{{ item" in str(when) or _names_item(str(when))):
        if stored is None:  # else it was true when the step began
            text = substitute_text(str(when), scope.with_absent, strict=strict)
            try:
                is_due = holds(text)
            except TextError as error:
                record = state.fail(call, error.message)
                return lambda: _known(state, frame, step, record)
            if not is_due:
                record = state.skip(call, NodePhase.SKIPPED, f"when '{text}' evaluated false")
                return lambda: _known(state, frame, step, record)
        step = {key: value for key, value in step.items() if key != "when"}
    # arguments with absent outputs are removed, so that defaults of the template apply
    step, absent = without_absent(step, scope)
    # without a loop: one child
    if not has_loop(step):
        artifacts = given_artifacts(state, step.get("arguments") or {}, scope)
        resolved = resolve_step(step, scope.with_absent, strict)
        if not state.has_begun(call.name):
            state.budget.add_nodes(1)
        call = msgspec.structs.replace(call, step=resolved, artifacts=artifacts, absent=absent)
        return lambda: _run_child(state, frame, resolved, call)
    # with a loop: the budget counts its items before the first one starts
    loop = {key: step[key] for key in ("withItems", "withParam", "withSequence") if step.get(key) is not None}
    items = items_of(substitute(loop, scope.with_absent, allow_unresolved=False))
    if items and not state.has_begun(f"{call.name}(0:{item_text(items[0])})"):
        state.budget.add_nodes(len(items))
    if not items:
        record = state.skip(call, NodePhase.SKIPPED, "Skipped, empty params")
        return lambda: _known(state, frame, step, record)
    body = {key: value for key, value in step.items() if key not in loop}
    return lambda: _run_loop(state, frame, body, items, scope, call, absent)


async def _known(state: State, frame: Frame, step: Mapping[str, Any], record: NodeRecord) -> Seen:
    """Return a child that ended before it started: it was skipped, or it is invalid."""
    return seen_of(state, frame, step, record)


async def _run_loop(
    state: State,
    frame: Frame,
    step: Mapping[str, Any],
    items: Sequence[Any],
    scope: Scope,
    call: Call,
    absent: frozenset[str],
) -> Seen | TextError | Cut:
    """Run every item of a loop; in a DAG under a separate node, which ends in Error where the loop cannot
    continue.

    Returns when every item has ended.
    """
    # items of a DAG are below a group node, which later tasks see as their parent
    parents = call.parents
    if frame.prefix == "tasks":
        parents = (state.ids.of(call.name),)
    # resolve the tags of all items before the first one starts
    ways = []
    try:
        for number, item in enumerate(items):
            child = msgspec.structs.replace(
                call,
                name=f"{call.name}({number}:{item_text(item)})",
                display_name=f"{call.display_name}({number}:{item_text(item)})",
                parents=parents,
                absent=absent,
            )
            ways.append(_way_of_item(state, frame, step, item, scope, child))
    except TextError as error:  # the loop has no items then
        return error if frame.prefix != "tasks" else seen_of(state, frame, step, state.fail(call, error.message))
    # run all items at once; the template's parallelism limits them
    group: NodeRecord | None = None
    if frame.prefix == "tasks":
        group = state.save(
            msgspec.structs.replace(
                state.node(call, None, None, NodeType.TASK_GROUP, NodePhase.RUNNING),
                template=str(step.get("template") or ""),
            )
        )
    works: list[Future[Seen | TextError | Cut]] = [state.scheduler.start(way()) for way in ways]
    results = [await work for work in works]
    # a fault of one item is the fault of the loop
    children = [result.record for result in results if isinstance(result, Seen)]
    fault = next((result for result in results if not isinstance(result, Seen)), None)
    outputs = Outputs()
    try:
        if fault is None:
            outputs = aggregated(children)
    except TextError as error:
        fault = error
    if isinstance(fault, Cut):
        if group is not None:
            state.end_node(group, NodePhase.FAILED, fault.message)
        return fault
    if fault is not None:
        if group is None:
            return fault
        return Seen(state.end_node(group, NodePhase.ERROR, fault.message), children=children, is_loop=True)
    # the phase of the last failed item is the phase of the loop
    phase = NodePhase.SUCCEEDED
    for record in children:
        if record.phase in (NodePhase.FAILED, NodePhase.ERROR):
            phase = record.phase
    if group is not None:
        summary = state.end_node(group, phase)
    else:
        summary = msgspec.structs.replace(state.node(call, None, None, NodeType.TASK_GROUP, phase), id="")
    seen = Seen(msgspec.structs.replace(summary, outputs=outputs), children=children, is_loop=True)
    seen.values["outputs.parameters"] = all_parameters(children)
    return seen


def _way_of_item(
    state: State, frame: Frame, step: Mapping[str, Any], item: Any, scope: Scope, call: Call
) -> Callable[[], Any]:
    """Resolve the tags of one item of a loop, and return a function that starts it. Raises TextError."""
    strict = (f"{frame.prefix}.", "item")
    state.budget.spend(len(scope.values) // 16)
    own = msgspec.structs.replace(scope, values={**scope.values, **item_scope(item)})
    values = own.with_absent
    stored = state.records.get(state.ids.of(call.name))
    if stored is not None and stored.type is NodeType.SKIPPED and stored.phase.is_fulfilled:
        return lambda: _known(state, frame, step, stored)
    if (when := step.get("when")) and stored is None:  # else it was true when the item began
        text = substitute_text(str(when), values, strict=strict)
        try:
            is_due = holds(text)
        except TextError as error:
            message = error.message
            return lambda: _not_begun(state, frame, step, call, NodePhase.ERROR, message)
        if not is_due:
            message = f"when '{text}' evaluated false"
            return lambda: _not_begun(state, frame, step, call, NodePhase.SKIPPED, message)
    body = {key: value for key, value in step.items() if key != "when"}
    artifacts = given_artifacts(state, body.get("arguments") or {}, own)
    resolved = resolve_step(body, values, strict)
    return lambda: _run_child(
        state, frame, resolved, msgspec.structs.replace(call, step=resolved, artifacts=artifacts)
    )


async def _not_begun(
    state: State, frame: Frame, step: Mapping[str, Any], call: Call, phase: NodePhase, message: str
) -> Seen:
    """The result of an item that is skipped, or has an unreadable condition."""
    is_skipped = phase is NodePhase.SKIPPED
    record = state.skip(call, phase, message) if is_skipped else state.fail(call, message)
    return seen_of(state, frame, step, record)


async def _run_child(state: State, frame: Frame, step: Mapping[str, Any], call: Call) -> Seen | TextError | Cut:
    """Run one child with its hooks, when the parallelism of its template allows it."""
    is_new = not state.has_begun(call.name)
    is_known = not is_new and state.records[state.ids.of(call.name)].phase.is_fulfilled
    if is_new:
        await frame.slots.take()
    try:
        if is_new:
            if frame.is_failing:
                return Cut("template has failed or errored children and failFast enabled")
            await while_suspended(state, is_exit=call.is_exit)
            check_cut(state, is_exit=call.is_exit)
        hooks = watch_hooks(state, frame, step, call)
        try:
            record = await state.execute(call)
        except (Cut, TextError):
            for future in hooks:
                await future
            raise
        for future in hooks:
            await future
        if frame.template.get("failFast") is True and record.phase in (NodePhase.FAILED, NodePhase.ERROR):
            frame.is_failing = True
        await run_exit_hook(state, frame, step, call, record)
        return seen_of(state, frame, step, record)
    except Cut as cut:
        return cut
    finally:
        if not is_known:
            frame.slots.give()


def _names_item(when: str) -> bool:
    """Whether an expression in a condition reads the item of the loop."""
    tags = (line.partition("{{=")[2] for line in when.split("\n"))
    return any(_ITEM.search(tag) for tag in tags)
