"""A map as its owner sees it."""

from __future__ import annotations

import pytest

from moorage.actions.maps import map_of, output
from moorage.decide.maps.leasing import Counts, Map, MapState, Policy
from moorage.queue.outputs import Part
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


class Outputs:
    """One part, which comes after the last item has ended and before its worker leaves."""

    def __init__(self):
        self.parts, self.looks = [], 0

    async def page(self, _map, *, item, after):  # noqa: ARG002
        return [part for part in self.parts if part.id > after]

    async def news(self, _map, *, after):
        self.looks += 1
        if self.looks == 2:
            self.parts.append(Part(id=1, item=0, lease=1, at=0, pod="p", output=b"the last line"))
        if not await self.page(_map, item=None, after=after):
            raise TimeoutError


class Ended:
    """All items are done; the second look finds that the worker has left too, or that the map is gone."""

    def __init__(self, *found):
        self.found = list(found)

    async def read(self, _what):
        return self.found.pop(0)


def a_stored(**counts):
    ended = Map(id=1, policy=Policy(), closed=True, counts=Counts(total=1, done=1, **counts))
    return Stored(map=ended, namespace="lab", name="m", uid="u", owner="ada", created_at=0)


@pytest.mark.anyio
@pytest.mark.parametrize("then", [a_stored(), None])
async def test_a_map_is_followed_until_its_workers_have_left(then):
    pages = output(Ended(a_stored(workers=1), then), Outputs(), a_stored(), item=None, after=0, follow=True)
    assert [part.output async for page in pages for part in page] == [b"the last line"]
