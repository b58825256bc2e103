"""Whether a run that somebody waits for has come so far."""

from __future__ import annotations

from enum import StrEnum

from moorage.decide.runs.state import State


class Goal(StrEnum):
    """What is waited for."""

    ENDED = "ended"
    SUCCEEDED = "succeeded"
    RUNNING = "running"


def is_reached(goal: Goal, state: State) -> bool | None:
    """True: reached; False: it cannot be reached any more; None: it may yet be.

    A run that ended is reached for `ended` only if it succeeded: who waits wants to know.
    """
    if goal is Goal.RUNNING and state is State.RUNNING:
        return True
    if not state.ended:
        return None
    return goal is not Goal.RUNNING and state is State.SUCCEEDED


def is_map_reached(goal: Goal, state: str, *, dead: int) -> bool | None:
    """The same of a map, whose state is running, paused, cancelled or finished. `dead`: items that failed."""
    if goal is Goal.RUNNING and state == "running":
        return True
    if state not in ("finished", "cancelled"):
        return None
    return goal is not Goal.RUNNING and state == "finished" and not dead
