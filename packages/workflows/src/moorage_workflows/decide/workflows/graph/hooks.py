"""Hooks: templates that run when a step or the workflow reaches a state, or has ended."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.graph.coroutines import Future
from moorage_workflows.decide.workflows.graph.frames import Call, Cut, Frame
from moorage_workflows.decide.workflows.graph.outputs import given_artifacts
from moorage_workflows.decide.workflows.graph.results import scope_among, seen_of
from moorage_workflows.decide.workflows.graph.state import State
from moorage_workflows.decide.workflows.graph.tasks import Scope, is_true, without_absent, without_artifacts
from moorage_workflows.decide.workflows.text.tags import substitute
from moorage_workflows.model.workflow import NodeRecord


async def run_exit_hook(
    state: State, frame: Frame, step: Mapping[str, Any], call: Call, record: NodeRecord
) -> None:
    """Run `hooks.exit` (or the older `onExit`) of a step that has ended.

    A failed hook does not change the step.
    """
    hook = (step.get("hooks") or {}).get("exit")
    if hook is None and step.get("onExit"):
        hook = {"template": step["onExit"]}
    name = f"{call.name}.onExit"
    has_begun = state.has_begun(name)
    is_allowed = record.phase.is_completed and state.controls.shutdown != "Terminate"
    if hook is None or not (is_allowed or has_begun):
        return
    seen = seen_of(state, frame, step, record)
    try:
        scope = scope_among(state, frame, frame.seen | {str(step.get("name")): seen})
        condition = hook.get("expression")
        if condition and not has_begun and not is_true(str(condition), scope.with_absent):
            return
        display = f"{call.display_name}.onExit"
        await _run_hook(state, frame, hook, scope, name, display, record, is_exit=True)
    except (TextError, Cut):
        return


async def _run_hook(
    state: State,
    frame: Frame | None,
    hook: Mapping[str, Any],
    scope: Scope,
    name: str,
    display: str,
    record: NodeRecord | None,
    *,
    is_exit: bool,
) -> NodeRecord:
    hook, absent = without_absent(hook, scope)
    artifacts = given_artifacts(state, hook.get("arguments") or {}, scope)
    resolved = substitute(without_artifacts(hook), scope.with_absent)
    return await state.execute(
        Call(
            name=name,
            display_name=display,
            step=resolved,
            artifacts=artifacts,
            absent=absent,
            frame=frame,
            scope=frame.scope if frame is not None else "",
            depth=frame.depth + 1 if frame is not None else 1,
            parents=(record.id,) if record is not None else (),
            is_exit=is_exit,
        )
    )


def watch_hooks(state: State, frame: Frame, step: Mapping[str, Any], call: Call) -> list[Future[None]]:
    """Start the hooks of a step that have a condition, when it comes true.

    The returned list grows: it has the ends of the hooks that have started.
    """
    identity = state.ids.of(call.name)
    started: dict[str, Future[None]] = {}
    futures: list[Future[None]] = []
    hooks = {name: hook for name, hook in (step.get("hooks") or {}).items() if name != "exit"}

    def look(record: NodeRecord) -> None:
        seen = seen_of(state, frame, step, record)
        scope = scope_among(state, frame, frame.seen | {str(step.get("name")): seen})
        for name, hook in hooks.items():
            full = f"{call.name}.hooks.{name}"
            if name not in started and (state.has_begun(full) or _is_due(hook, scope.with_absent)):
                display = f"{call.display_name}.hooks.{name}"
                work = functools.partial(
                    _run_hook, state, frame, hook, scope, full, display, record, is_exit=call.is_exit
                )
                started[name] = state.scheduler.start(_quietly(work))
                futures.append(started[name])

    if hooks:
        state.watched[identity] = look
        if (stored := state.records.get(identity)) is not None:
            look(stored)
    return futures


async def _quietly(work: Callable[[], Awaitable[NodeRecord]]) -> None:
    """Run a hook and ignore its failure."""
    try:
        await work()
    except (TextError, Cut):
        return


def start_workflow_hooks(state: State, phase: str) -> None:
    """Start the workflow's hooks whose expression is true in this phase. Each hook starts once."""
    scope = state.globals | {"workflow.status": phase}
    for name, hook in (state.spec.get("hooks") or {}).items():
        if name == "exit" or name in state.workflow_hooks:
            continue
        full = f"{state.workflow.name}.hooks.{name}"
        if _is_due(hook, scope) or (state.is_exiting and state.has_begun(full)):
            values = Scope(scope, {}, frozenset())
            work = functools.partial(
                _run_hook, state, None, hook, values, full, full, None, is_exit=state.is_exiting
            )
            state.workflow_hooks[name] = state.scheduler.start(_quietly(work))


def _is_due(hook: Mapping[str, Any], scope: Mapping[str, str | None]) -> bool:
    """Whether a hook's condition is true. False for an unreadable condition."""
    try:
        return is_true(str(hook.get("expression") or "false"), scope)
    except TextError:
        return False
