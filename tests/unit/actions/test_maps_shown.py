"""A map as its owner sees it."""

from __future__ import annotations

import pytest

from moorage.actions.maps import map_of
from moorage.decide.maps.leasing import Counts, Map, MapState, Policy
from moorage.queue.store import Stored


@pytest.mark.parametrize(
    ("state", "rate", "left"),
    [(MapState.RUNNING, 2.0, 4.0), (MapState.PAUSED, 2.0, 4.0), (MapState.CANCELLED, None, None)],
)
def test_a_cancelled_map_has_no_rate_and_no_time_left(state, rate, left):
    stored_map = Map(id=1, policy=Policy(), state=state, counts=Counts(total=10, done=2))
    stored = Stored(map=stored_map, namespace="lab", name="m", uid="u", owner="ada", created_at=0)
    shown = map_of(stored, rate=2.0)
    assert (shown.items_per_second, shown.seconds_left) == (rate, left)
