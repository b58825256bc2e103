"""Whether running nodes must end, and whether new ones may start: shutdown, deadline, suspension."""

from __future__ import annotations

from moorage_workflows.decide.workflows.graph.coroutines import Future
from moorage_workflows.decide.workflows.graph.frames import Cut
from moorage_workflows.decide.workflows.graph.state import State

LATE = "Step exceeded its deadline"  # Argo's words, as those for a shutdown


def reason_to_end(state: State, *, is_exit: bool) -> str:
    """Why running nodes must end and new ones may not start; empty: they may. `is_exit`: of an exit handler."""
    shutdown = state.controls.shutdown
    if shutdown == "Terminate" or (shutdown and not is_exit):
        return f"workflow shutdown with strategy: {shutdown}"
    return LATE if state.is_late and not is_exit else ""


def check_cut(state: State, *, is_exit: bool) -> None:
    """Raises Cut if new nodes may not start. Nodes that have begun are still followed to their end."""
    if reason := reason_to_end(state, is_exit=is_exit):
        raise Cut(reason)


async def while_suspended(state: State, *, is_exit: bool) -> None:
    while state.controls.is_suspended:
        check_cut(state, is_exit=is_exit)
        future: Future[None] = state.scheduler.future()
        state.waits.go_on.append(future)
        await future
