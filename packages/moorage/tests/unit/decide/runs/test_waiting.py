"""When `moor wait` goes on, and with which exit code."""

from __future__ import annotations

import pytest

from moorage.decide.runs.state import State
from moorage.decide.runs.waiting import Goal, is_map_reached, is_reached

MISSED = dict.fromkeys((State.FAILED, State.OOM_KILLED, State.CANCELLED, State.DELETED), False)
WANTED = {
    Goal.ENDED: MISSED | {State.SUCCEEDED: True},
    Goal.SUCCEEDED: MISSED | {State.SUCCEEDED: True},
    Goal.RUNNING: MISSED | {State.RUNNING: True, State.SUCCEEDED: False},
}


@pytest.mark.parametrize("goal", Goal)
@pytest.mark.parametrize("state", State)
def test_every_state_of_a_run_reaches_misses_or_may_yet_reach_a_goal(goal, state):
    assert is_reached(goal, state) is WANTED[goal].get(state)


@pytest.mark.parametrize(
    ("goal", "state", "dead", "want"),
    [
        (Goal.ENDED, "running", 0, None),
        (Goal.ENDED, "paused", 3, None),
        (Goal.ENDED, "finished", 0, True),
        (Goal.ENDED, "finished", 1, False),
        (Goal.SUCCEEDED, "cancelled", 0, False),
        (Goal.RUNNING, "running", 0, True),
        (Goal.RUNNING, "paused", 0, None),
        (Goal.RUNNING, "finished", 0, False),
    ],
)
def test_a_map_with_failed_items_has_not_succeeded(goal, state, dead, want):
    assert is_map_reached(goal, state, dead=dead) is want
