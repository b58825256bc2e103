"""Whether a run has reached the goal that a user waits for."""

from __future__ import annotations

from enum import StrEnum

from moorage.decide.runs.state import State


class Goal(StrEnum):
    """The goal of a wait."""

    ENDED = "ended"
    SUCCEEDED = "succeeded"
    RUNNING = "running"


def is_reached(goal: Goal, state: State) -> bool | None:
    """True: reached; False: it cannot be reached any more; None: not yet.

    For the goal `ended`, only a run that succeeded has reached it, so that failures are reported.
    """
    if goal is Goal.RUNNING and state is State.RUNNING:
        return True
    if not state.ended:
        return None
    return goal is not Goal.RUNNING and state is State.SUCCEEDED


def is_map_reached(goal: Goal, state: str, *, dead: int) -> bool | None:
    """The same for a map; its state is running, paused, cancelled or finished. `dead`: items that failed."""
    if goal is Goal.RUNNING and state == "running":
        return True
    if state not in ("finished", "cancelled"):
        return None
    return goal is not Goal.RUNNING and state == "finished" and not dead
