"""At most one leads, whatever the clocks read; a leader that cannot renew steps down; a clean end hands over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage_kube.errors import AlreadyExists, Conflict, LeaseLost, ServerError
from moorage_kube.remote.leader import (
    LEASE_SECONDS,
    RENEW_DEADLINE_SECONDS,
    Elector,
    Seen,
    Take,
    Times,
    Wait,
    decide,
    make_lease,
    observe,
)
from moorage_kube.resources import LEASES, Obj, Resource
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_kube.testing.examples import examples
from moorage_local.testing.fakeapi import FakeApi


def seen(holder: str, since: float = 0.0, seconds: float = 15.0) -> Seen:
    return Seen(holder, seconds, "1", since)


@pytest.mark.parametrize(
    ("lease", "now", "want"),
    [
        pytest.param(None, 0.0, Take(), id="no lease"),
        pytest.param(seen(""), 0.0, Take(), id="given back"),
        pytest.param(seen("me"), 0.0, Take(), id="our own name"),
        pytest.param(seen("other"), 14.9, Wait(), id="another's, still running"),
        pytest.param(seen("other"), 15.0, Take(), id="another's, unchanged for its whole time"),
        pytest.param(seen("other", since=10.0), 15.0, Wait(), id="seen for the first time a moment ago"),
        pytest.param(seen("other", seconds=60.0), 30.0, Wait(), id="the holder's own length counts"),
    ],
)
def test_a_lease_is_taken_only_when_it_has_run_out_before_our_eyes(
    lease: Seen | None, now: float, want: Any
) -> None:
    assert decide("me", lease, now=now) == want


def test_an_unchanged_lease_keeps_the_time_since_which_it_is_known() -> None:
    lease = make_lease("l", "ns", holder="other", now=NOON)
    lease["metadata"]["resourceVersion"] = "1"
    first = observe(None, lease, now=3.0)
    assert first == Seen("other", LEASE_SECONDS, "1", 3.0)
    assert observe(first, lease, now=9.0) == first
    lease["metadata"]["resourceVersion"] = "2"
    assert observe(first, lease, now=9.0) == Seen("other", LEASE_SECONDS, "2", 9.0)
    assert observe(first, None, now=9.0) is None


def test_a_renewal_keeps_the_start_and_a_takeover_counts() -> None:
    made = make_lease("l", "ns", holder="a", now=NOON)
    renewed = make_lease("l", "ns", holder="a", now=NOON + timedelta(seconds=2), before=made, taking=False)
    taken = make_lease("l", "ns", holder="b", now=NOON + timedelta(seconds=20), before=renewed)
    assert [one["spec"]["acquireTime"] for one in (made, renewed, taken)] == [
        "2026-11-21T12:00:00.000000Z",
        "2026-11-21T12:00:00.000000Z",
        "2026-11-21T12:00:20.000000Z",
    ]
    assert [one["spec"]["leaseTransitions"] for one in (made, renewed, taken)] == [0, 0, 1]


# --- a world of candidates whose clocks differ in reading and in speed


@dataclass
class Store:
    version: int = 0
    lease: Obj | None = None

    def write(self, holder: str, expected: str | None) -> None:
        current = None if self.lease is None else self.lease["metadata"]["resourceVersion"]
        if current != expected:
            raise Conflict("stale")
        self.version += 1
        self.lease = {
            "metadata": {"resourceVersion": str(self.version)},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": int(LEASE_SECONDS)},
        }


@dataclass
class Candidate:
    name: str
    offset: float
    rate: float  # how fast its clock runs
    seen: Seen | None = None
    sent: float | None = None  # of the last renewal known to have arrived, on its own clock
    looked: bool = field(default=False)

    def clock(self, now: float) -> float:
        return self.offset + now * self.rate

    def leads(self, now: float) -> bool:
        return self.sent is not None and self.clock(now) - self.sent < RENEW_DEADLINE_SECONDS

    def look(self, store: Store, now: float) -> None:
        self.seen = observe(self.seen, store.lease, now=self.clock(now))
        self.looked = True

    def write(self, store: Store, now: float, *, sent: float, answered: bool) -> None:
        """What it decided at `sent` arrives at `now`; the answer may be lost."""
        expected = None if self.seen is None else self.seen.resource_version
        try:
            store.write(self.name, expected)
        except Conflict:
            if answered:
                self.sent = None
            return
        if answered:
            self.sent = sent
            self.seen = observe(self.seen, store.lease, now=self.clock(now))


candidates = st.lists(
    st.tuples(st.floats(-1e6, 1e6), st.floats(1.0, LEASE_SECONDS / RENEW_DEADLINE_SECONDS - 0.01)),
    min_size=2,
    max_size=3,
)
steps = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(("look", "write", "write, answer lost", "write, late")),
        st.floats(0.0, 6.0),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=examples(75, full=300))
@given(clocks=candidates, story=steps)
def test_at_most_one_leads_whatever_the_clocks_read(
    clocks: list[tuple[float, float]], story: list[tuple[int, str, float]]
) -> None:
    store, now = Store(), 0.0
    everybody = [Candidate(f"c{number}", *one) for number, one in enumerate(clocks)]
    for who, what, wait in story:
        candidate = everybody[who % len(everybody)]
        if what == "look":
            candidate.look(store, now)
        elif candidate.looked and isinstance(
            decide(candidate.name, candidate.seen, now=candidate.clock(now)), Take
        ):
            sent = candidate.clock(now)
            if what == "write, late":
                now += wait
            candidate.write(store, now, sent=sent, answered=what != "write, answer lost")
        assert sum(one.leads(now) for one in everybody) <= 1
        now += wait
        assert sum(one.leads(now) for one in everybody) <= 1


# --- the elector itself


class LeaseApi(FakeApi):
    """A fake whose updates, and whose answers to writes, can be held back."""

    def __init__(self) -> None:
        super().__init__()
        self.hang: asyncio.Event | None = None
        self.mute = False  # the next write arrives, and its answer does not
        self.broken = False  # likewise, and the connection ends

    async def update(self, resource: Resource, obj: Obj, *, subresource: str | None = None) -> Obj:
        if self.hang is not None:
            await self.hang.wait()
        return await self._answer(await super().update(resource, obj, subresource=subresource))

    async def create(
        self, resource: Resource, obj: Obj, namespace: str | None = None, *, dry_run: bool = False
    ) -> Obj:
        return await self._answer(await super().create(resource, obj, namespace, dry_run=dry_run))

    async def _answer(self, obj: Obj) -> Obj:
        if self.mute:
            self.mute = False
            await asyncio.Event().wait()
        if self.broken:
            self.broken = False
            raise ServerError("no answer", status=0)
        return obj


class Work:
    """What a leader does: notes that it runs, and that it ended."""

    def __init__(self) -> None:
        self.running = 0
        self.starts = 0

    async def lead(self) -> None:
        self.running += 1
        self.starts += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.running -= 1


async def pass_time(clock: FakeClock, seconds: float) -> None:
    for _ in range(int(seconds * 4)):
        clock.advance(0.25)
        for _ in range(20):
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def campaign(api: FakeApi, clock: FakeClock, identity: str, work: Work) -> AsyncIterator[Elector]:
    elector = Elector(api, clock=clock, name="op", namespace="sys", identity=identity)
    running = asyncio.create_task(elector.run(work.lead))
    try:
        yield elector
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def holder(api: FakeApi) -> str:
    lease = api._objects[LEASES][next(iter(api._objects[LEASES]))]
    return str(lease["spec"]["holderIdentity"])


@pytest.mark.anyio
async def test_the_first_leads_and_the_second_takes_over_as_soon_as_it_ends() -> None:
    api, clock, one, two = LeaseApi(), FakeClock(), Work(), Work()
    async with contextlib.AsyncExitStack() as stack:
        first = contextlib.AsyncExitStack()
        await first.enter_async_context(campaign(api, clock, "one", one))
        await pass_time(clock, 3)
        await stack.enter_async_context(campaign(api, clock, "two", two))
        await pass_time(clock, 60)
        assert (one.running, two.running, holder(api)) == (1, 0, "one")
        await first.aclose()
        assert (one.running, holder(api)) == (0, "")
        await pass_time(clock, 3)
        assert (two.running, holder(api)) == (1, "two")
    assert (two.running, holder(api)) == (0, "")


@pytest.mark.anyio
@pytest.mark.parametrize("write", ["that takes it", "that renews it"])
async def test_a_lease_is_given_back_although_the_answer_to_the_last_write_was_not_awaited(write: str) -> None:
    api, clock, work = LeaseApi(), FakeClock(), Work()
    api.mute = write == "that takes it"
    async with campaign(api, clock, "one", work):
        await pass_time(clock, 3)
        assert work.running == (write == "that renews it")
        api.mute = work.running > 0
        await pass_time(clock, 3)
        assert (holder(api), api.mute) == ("one", False)
    assert (work.running, holder(api)) == (0, "")


@pytest.mark.anyio
async def test_a_lease_is_given_back_although_the_answer_to_taking_it_was_lost() -> None:
    api, clock, work = LeaseApi(), FakeClock(), Work()
    api.broken = True
    async with campaign(api, clock, "one", work):
        await pass_time(clock, 1)
        assert (work.running, holder(api), api.broken) == (0, "one", False)
    assert holder(api) == ""


@pytest.mark.anyio
async def test_a_leader_that_was_killed_is_followed_when_its_lease_has_run_out() -> None:
    api, clock, work = LeaseApi(), FakeClock(), Work()
    api.put(LEASES, make_lease("op", "sys", holder="dead", now=NOON))
    async with campaign(api, clock, "two", work):
        await pass_time(clock, LEASE_SECONDS - 1)
        assert work.running == 0
        await pass_time(clock, 4)
        assert work.running == 1


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["refused", "silent"])
async def test_a_leader_that_cannot_renew_stops_before_its_lease_runs_out(how: str) -> None:
    api, clock, work = LeaseApi(), FakeClock(), Work()
    async with campaign(api, clock, "one", work):
        await pass_time(clock, 5)
        assert work.running == 1
        if how == "refused":
            api.failing = ServerError("the API is away", status=0)
        else:
            api.hang = asyncio.Event()
        await pass_time(clock, RENEW_DEADLINE_SECONDS + 0.5)
        assert work.running == 0
        api.failing = None
        if api.hang is not None:
            api.hang.set()
            api.hang = None
        await pass_time(clock, 5)
        assert (work.running, work.starts) == (1, 2)


@pytest.mark.anyio
async def test_a_short_outage_costs_no_leadership() -> None:
    api, clock, work = LeaseApi(), FakeClock(), Work()
    async with campaign(api, clock, "one", work):
        await pass_time(clock, 5)
        api.failing = ServerError("the API is away", status=0)
        await pass_time(clock, RENEW_DEADLINE_SECONDS / 2)
        api.failing = None
        await pass_time(clock, 60)
        assert (work.running, work.starts) == (1, 1)


@pytest.mark.anyio
async def test_a_leader_whose_lease_was_taken_stops() -> None:
    api, clock, work = LeaseApi(), FakeClock(), Work()
    async with campaign(api, clock, "one", work):
        await pass_time(clock, 5)
        lease = await api.get(LEASES, "op", "sys")
        api.put(LEASES, make_lease("op", "sys", holder="thief", now=NOON, before=lease))
        await pass_time(clock, 3)
        assert work.running == 0
        assert holder(api) == "thief"


@pytest.mark.anyio
async def test_a_leader_that_was_held_may_write_no_more_before_its_campaign_hears_of_it() -> None:
    api, clock, work = LeaseApi(), FakeClock(), Work()
    async with campaign(api, clock, "one", work) as elector:
        with pytest.raises(LeaseLost, match="the lease sys/op is no longer ours: nothing was written"):
            elector.check()  # not yet
        await pass_time(clock, 5)
        elector.check()
        clock.advance(RENEW_DEADLINE_SECONDS)  # nobody here runs meanwhile
        assert (work.running, elector.leading) == (1, True)
        with pytest.raises(LeaseLost):
            elector.check()
        await pass_time(clock, 5)
        assert (work.running, work.starts) == (1, 2)  # it took the lease again: nobody else did
        elector.check()


@pytest.mark.anyio
async def test_work_that_loses_its_cancellation_is_cancelled_again() -> None:
    cancelled, begun = 0, asyncio.Event()

    async def deaf() -> None:
        nonlocal cancelled
        begun.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled += 1
                if cancelled == 3:
                    raise

    elector = Elector(
        LeaseApi(), clock=FakeClock(), name="op", namespace="sys", identity="one", times=Times(cancel_again=0.01)
    )
    running = asyncio.create_task(elector.run(deaf))
    await begun.wait()
    running.cancel()
    _, pending = await asyncio.wait({running}, timeout=60)
    assert (pending, cancelled) == (set(), 3)


@pytest.mark.anyio
async def test_work_that_fails_ends_the_campaign_with_its_error() -> None:
    async def broken() -> None:
        raise AlreadyExists("something")

    elector = Elector(LeaseApi(), clock=FakeClock(), name="op", namespace="sys", identity="one")
    with pytest.raises(AlreadyExists):
        await elector.run(broken)
