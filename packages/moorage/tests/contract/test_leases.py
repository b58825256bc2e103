"""Which server does what only one may do: one suite for SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.sql.leases import (
    LEASE_SECONDS,
    RENEW_DEADLINE_SECONDS,
    RETRY_SECONDS,
    SCHEMA,
    Leader,
    Lease,
    LeaseTable,
    Seen,
    check,
    may_take,
    observe,
)
from moorage.sql.opening import open_database
from moorage.sql.thread import StoreThread
from moorage_kube.errors import StorageError
from moorage_kube.testing.clock import FakeClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def tables(database: Path | str) -> Iterator[tuple[LeaseTable, LeaseTable]]:
    first, second = (LeaseTable(open_database(database, SCHEMA)) for _ in range(2))
    yield first, second
    first.close()
    second.close()


A_LEASE = Lease("t", "a", 3, 7)


@pytest.mark.parametrize(
    ("seen", "now", "taken"),
    [
        pytest.param(Seen(None, 0.0), 0.0, True, id="nobody ever had it"),
        pytest.param(Seen(Lease("t", "", 3, 7), 0.0), 0.0, True, id="it was given back"),
        pytest.param(Seen(Lease("t", "me", 3, 7), 0.0), 0.0, True, id="ours already"),
        pytest.param(Seen(A_LEASE, 0.0), LEASE_SECONDS - 0.1, False, id="another's, a moment ago"),
        pytest.param(Seen(A_LEASE, 0.0), LEASE_SECONDS, True, id="another's, that stands still"),
    ],
)
def test_a_task_is_taken_when_its_row_stands_still(seen: Seen, now: float, taken: bool) -> None:
    assert may_take("me", seen, now=now) is taken


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_only_an_unchanged_row_keeps_its_age(beats: list[int]) -> None:
    seen: Seen | None = None
    for now, beat in enumerate(beats):
        before, seen = seen, observe(seen, Lease("t", "a", 1, beat), now=float(now))
        unchanged = before is not None and before.lease is not None and before.lease.beat == beat
        assert seen.since == (before.since if unchanged and before else float(now))


def test_of_two_that_take_it_at_once_one_has_it(tables: tuple[LeaseTable, LeaseTable]) -> None:
    first, second = tables
    assert first.read("t") is None
    lease = first.take("t", "a", None)
    assert lease == Lease("t", "a", 1, 1)
    assert second.take("t", "b", None) is None
    seen = second.read("t")
    assert seen == lease
    assert first.renew(lease)
    assert second.take("t", "b", seen) is None  # it was renewed since
    taken = second.take("t", "b", second.read("t"))
    assert taken == Lease("t", "b", 2, 3)
    assert not first.renew(lease)
    first.release(lease.name, lease.holder)  # no longer its own
    assert second.read("t") == taken
    second.release(taken.name, taken.holder)
    assert first.read("t") == Lease("t", "", 2, 4)


def test_a_term_that_is_over_is_refused_before_anything_is_written(database: Path | str) -> None:
    db = open_database(database, SCHEMA)
    table = LeaseTable(db)
    lease = table.take("t", "a", None)
    with db.transaction():
        check(db, "t", 1)
    table.take("t", "b", lease)
    with pytest.raises(StorageError, match="another server has taken over 't'"), db.transaction():
        check(db, "t", 1)
    db.close()


class Server:
    """Counts in `busy` how many lead at once, and how often this one did in `times`."""

    busy = 0

    def __init__(self, database: Path | str, name: str, clock: FakeClock) -> None:
        self.table = StoreThread(name, lambda: LeaseTable(open_database(database, SCHEMA)))
        self.leader = Leader(self.table, "t", holder=name, clock=clock)
        self.times = 0
        self.task = asyncio.create_task(self.leader.run(self.lead))

    async def lead(self) -> None:
        self.times += 1
        Server.busy += 1
        assert Server.busy == 1
        try:
            await asyncio.Event().wait()
        finally:
            Server.busy -= 1

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


async def until(condition: object, clock: FakeClock, *tables: StoreThread[Any], seconds: float = 60.0) -> float:
    """Let the fake clock run until something holds; how many of its seconds that took.

    It stands still while the servers of these tables are at their databases, however slow this machine is.
    """
    passed = 0.0
    while not condition():  # type: ignore[operator]
        assert passed < seconds
        clock.advance(0.25)
        passed += 0.25
        for table in tables * 4:  # a pass reads and takes: each is done before what is queued after it
            await asyncio.sleep(0)
            await table.do(lambda _: None)
        await asyncio.sleep(0)
    return passed


async def test_a_server_that_stops_is_replaced_at_once_and_one_that_dies_within_seconds(
    database: Path | str,
) -> None:
    clock = FakeClock()
    first, second = Server(database, "a", clock), Server(database, "b", clock)
    try:
        await until(lambda: Server.busy == 1, clock, first.table, second.table)
        one, other = (first, second) if first.leader.leading else (second, first)
        term = one.leader.term
        await one.stop()
        assert await until(lambda: other.leader.leading, clock, other.table) <= RETRY_SECONDS + 0.5
        assert (other.leader.term or 0) > (term or 0)
        lease = await one.table.do(lambda table: table.read("t"))
        await other.stop()
        # as after kill -9: the row names a holder that renews no more
        await one.table.do(lambda table: table.take("t", "dead", table.read("t")))
        third = Server(database, "c", clock)
        waited = await until(lambda: third.leader.leading, clock, third.table)
        assert LEASE_SECONDS <= waited <= LEASE_SECONDS + 2 * RETRY_SECONDS + 1
        assert lease is not None
        await third.stop()
        third.table.close()
    finally:
        for server in (first, second):
            await server.stop()
            server.table.close()


async def test_a_leader_that_cannot_renew_stops_before_another_may_begin(tmp_path: Path) -> None:
    clock = FakeClock()

    class Table(LeaseTable):
        away = False

        def renew(self, lease: Lease) -> bool:
            if self.away:
                raise StorageError("the database is away")
            return super().renew(lease)

        def read(self, name: str) -> Lease | None:
            if self.away:
                raise StorageError("the database is away")
            return super().read(name)

    table = Table(open_database(tmp_path / "leases.db", SCHEMA))
    thread = StoreThread("leases", lambda: table)
    leader = Leader(thread, "t", holder="a", clock=clock)
    led = asyncio.Event()

    async def lead() -> None:
        led.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(leader.run(lead))
    try:
        await until(led.is_set, clock, thread)
        table.away = True
        assert (
            await until(lambda: not leader.leading, clock, thread) <= RENEW_DEADLINE_SECONDS + 0.5 < LEASE_SECONDS
        )
        table.away = False
        led.clear()
        await until(led.is_set, clock, thread)
        assert leader.term == 2
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        thread.close()


async def test_a_task_is_given_back_although_the_answer_to_taking_it_was_not_awaited(tmp_path: Path) -> None:
    taken = asyncio.Event()

    class Thread(StoreThread[LeaseTable]):
        async def do(self, work: Callable[[LeaseTable], Any]) -> Any:
            answer = await super().do(work)
            if answer is not None and not taken.is_set():
                taken.set()
                await asyncio.Event().wait()
            return answer

    async def lead() -> None: ...

    thread = Thread("leases", lambda: LeaseTable(open_database(tmp_path / "leases.db", SCHEMA)))
    task = asyncio.create_task(Leader(thread, "t", holder="a", clock=FakeClock()).run(lead))
    try:
        await taken.wait()
        task.cancel()
        await asyncio.wait({task})
        assert await thread.do(lambda table: table.read("t")) == Lease("t", "", 1, 2)
    finally:
        thread.close()


async def test_who_shares_with_nobody_always_leads() -> None:
    leader, led = Leader(None, "t", holder="a", clock=FakeClock()), asyncio.Event()

    async def lead() -> None:
        led.set()

    await leader.run(lead)
    assert (led.is_set(), leader.leading, leader.term) == (True, True, None)
