"""The part between requests and transactions: who waits, who is woken, what is measured."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import msgspec
import pytest

from moorage.decide.maps.leasing import Exchange, MapState, Outcome, Policy, Report
from moorage.queue.manager import Queue, is_waiting
from moorage.queue.store import QUEUE, NewItem, Store, open_store
from moorage.sql.opening import open_database
from moorage_kube.errors import MoorageError, NotFound, NotReady, StorageError, StorageFull, Unauthorized
from moorage_kube.reserve import NAME as RESERVE
from moorage_kube.reserve import RESERVE_BYTES, SLICE_BYTES, Reserve
from moorage_kube.testing.clock import FakeClock
from moorage_kube.testing.waiting import soon

pytestmark = pytest.mark.anyio


@pytest.fixture
async def clock():
    return FakeClock()


@pytest.fixture
async def queue(tmp_path, clock):
    made = Queue(lambda: open_store(tmp_path / "queue.db"), clock=clock)
    await made.start()
    yield made
    await made.close()


async def a_map(queue, items=0, name="m", **policy):
    found = await queue.create_map(
        namespace="lab", name=name, owner="ada", policy=Policy(**policy), request=name, limits={"db": 1}
    )
    if items:
        await queue.add_items(found.map.id, [NewItem(msgspec.Raw(b"1"))] * items)
    return found


async def ask(queue, of, session="w", **fields):
    asked = Exchange(session=session, **({"held": []} | fields))
    reply = await queue.exchange(of, asked)
    return await queue.wait_for_items(of, asked, reply) if is_waiting(asked, reply) else reply


def parked(queue):
    return sum(map(len, queue._parked.values()))


def done(item, lease):
    return Report(item=item, lease=lease, outcome=Outcome.DONE, seconds=0.1, value=msgspec.Raw(b"2"))


@contextlib.asynccontextmanager
async def a_queue(folder, clock, kind, *, reserve=None):
    """A queue whose stores are of this class."""
    made = Queue(lambda: kind(open_database(folder / "queue.db", QUEUE)), clock=clock, reserve=reserve)
    await made.start()
    yield made
    await made.close()


async def test_requests_that_come_during_a_transaction_go_together_into_the_next(tmp_path, clock):
    groups, gate = [], threading.Event()

    class Slow(Store):
        def exchange(self, calls, now):
            groups.append(len(calls))
            gate.wait(120)
            return super().exchange(calls, now)

    async with a_queue(tmp_path, clock, Slow) as queue:
        made = await a_map(queue, items=50)
        asking = [asyncio.create_task(ask(queue, made.map.id, f"w{at}", request=1, want=1)) for at in range(40)]
        await soon("a group of exchanges", lambda: groups)
        gate.set()
        replies = await asyncio.gather(*asking)
    assert len({reply.items[0][0] for reply in replies}) == 40
    assert sum(groups) == 40
    assert len(groups) <= 3


async def test_two_requests_of_one_session_never_share_a_transaction(queue):
    found = await a_map(queue, items=5)
    first, again = await asyncio.gather(*(ask(queue, found.map.id, request=1, want=1) for _ in range(2)))
    assert first.items == again.items


async def test_a_request_that_is_sent_again_takes_the_place_of_the_one_that_is_held(queue):
    found = await a_map(queue)
    first = asyncio.create_task(ask(queue, found.map.id, request=1, want=1, wait=30))
    await soon("parked requests", lambda: parked(queue) == 1)
    again = asyncio.create_task(ask(queue, found.map.id, request=1, want=1, wait=30))
    assert (await first).items == []
    await queue.add_items(found.map.id, [NewItem(msgspec.Raw(b"7"))])
    assert [bytes(value) for _, _, value in (await again).items] == [b"7"]


async def test_a_held_request_ends_when_its_time_is_over(queue, clock):
    found = await a_map(queue)
    reply = await ask(queue, found.map.id, request=1, want=1, wait=0.01)
    assert (reply.items, reply.state) == ([], "running")
    assert parked(queue) == 0


@pytest.mark.parametrize("state", [MapState.CANCELLED, MapState.PAUSED])
async def test_who_waits_hears_of_a_change_of_state(queue, state):
    found = await a_map(queue)
    waiting = asyncio.create_task(ask(queue, found.map.id, request=1, want=1, wait=0.2))
    await soon("parked requests", lambda: parked(queue) == 1)
    await queue.change_map(found.map.id, state=state)
    assert (await waiting).state == state.value


async def test_who_waits_for_a_deleted_map_is_told(queue):
    found = await a_map(queue)
    token = queue.token_of(found.uid)
    assert await queue.map_of_token(token) == found.map.id
    waiting = asyncio.create_task(ask(queue, found.map.id, request=1, want=1, wait=30))
    await soon("parked requests", lambda: parked(queue) == 1)
    await queue.delete_map(found.map.id)
    with pytest.raises(NotFound):
        await waiting
    with pytest.raises(NotFound):
        await queue.map_of_token(token)
    with pytest.raises(Unauthorized):
        await queue.map_of_token(token + "0")


async def test_before_the_start_a_worker_is_told_to_try_again_and_not_that_it_is_wrong(tmp_path):
    queue = Queue(lambda: open_store(tmp_path / "queue.db"), clock=FakeClock())
    with pytest.raises(NotReady):
        await queue.map_of_token("some.token")
    await queue.close()


async def test_a_back_off_that_ends_wakes_one_who_waits(queue, clock):
    found = await a_map(queue, items=1, backoff_seconds=5)
    await ask(queue, found.map.id, request=1, want=1)
    await ask(queue, found.map.id, request=2, reports=[Report(item=0, lease=1, outcome=Outcome.ERROR)])
    waiting = asyncio.create_task(ask(queue, found.map.id, "idle", request=1, want=1, wait=30))
    await soon("parked requests", lambda: parked(queue) == 1)
    clock.advance(4.9)
    await queue._tick()
    clock.advance(4.9)
    await queue._tick()
    assert [(item, lease) for item, lease, _ in (await waiting).items] == [(0, 2)]


async def test_a_rate_lets_those_who_wait_in_one_after_the_other(queue, clock):
    found = await a_map(queue, items=3, rate=1.0)
    running = asyncio.create_task(queue._pulses())
    waiting = [
        asyncio.create_task(ask(queue, found.map.id, f"w{at}", request=1, want=1, wait=600)) for at in range(3)
    ]
    await soon("parked requests", lambda: parked(queue) == 2)  # one token was there to begin with
    await soon("all items", lambda: all(each.done() for each in waiting), tick=lambda: clock.advance(0.1))
    running.cancel()
    assert sorted(one.result().items[0][0] for one in waiting) == [0, 1, 2]


async def test_the_rate_of_a_map_is_taken_between_two_looks(queue, clock):
    found = await a_map(queue, items=4)
    assert await queue.rate_of(found) is None
    for turn in range(1, 5):
        reply = await ask(queue, found.map.id, request=2 * turn - 1, want=1)
        await ask(queue, found.map.id, request=2 * turn, reports=[done(*reply.items[0][:2])])
    clock.advance(2)
    now = await queue.read(lambda store: store.find_map("lab", "m"))
    assert await queue.rate_of(now) == 2.0


async def test_a_failed_transaction_is_told_to_all_who_were_in_it(tmp_path, clock):
    full = [True]

    class Full(Store):
        def exchange(self, calls, now):
            if full[0]:
                raise StorageError("the disk is full")
            return super().exchange(calls, now)

    async with a_queue(tmp_path, clock, Full) as queue:
        made = await a_map(queue, items=2)
        got = await asyncio.gather(
            *(ask(queue, made.map.id, f"w{at}", request=1, want=1) for at in range(3)), return_exceptions=True
        )
        assert [type(each) for each in got] == [StorageError] * 3
        full[0] = False
        assert len((await ask(queue, made.map.id, "w0", request=1, want=1)).items) == 1


async def test_on_a_full_disk_a_map_ends_and_is_deleted_with_the_reserved_space(tmp_path, clock):
    class Full(Store):
        """Has room for a write after two slices of the reserved space."""

        def _check(self):
            if (tmp_path / RESERVE).stat().st_size > RESERVE_BYTES - 2 * SLICE_BYTES:
                raise StorageFull("full")

        def change_map(self, of, **fields):
            self._check()
            return super().change_map(of, **fields)

        def add_items(self, of, items, **fields):
            self._check()
            return super().add_items(of, items, **fields)

        def delete_map(self, of):
            raise StorageFull("full")

    async with a_queue(tmp_path, clock, Full, reserve=Reserve(tmp_path)) as queue:
        made = await a_map(queue)
        with pytest.raises(StorageFull):
            await queue.add_items(made.map.id, [NewItem(msgspec.Raw(b"7"))])
        assert (tmp_path / RESERVE).stat().st_size == RESERVE_BYTES, "new items get nothing of it"
        assert (await queue.change_map(made.map.id, state=MapState.CANCELLED)).map.state == MapState.CANCELLED
        with pytest.raises(StorageFull):  # all of the space is used up
            await queue.delete_map(made.map.id)
    assert (tmp_path / RESERVE).stat().st_size == 0


async def test_a_queue_that_stops_answers_who_waits_and_takes_no_more(queue):
    found = await a_map(queue)
    waiting = asyncio.create_task(ask(queue, found.map.id, request=1, want=1, wait=30))
    await soon("parked requests", lambda: parked(queue) == 1)
    await queue.close()
    assert (await waiting).items == []
    with pytest.raises(MoorageError, match="stopping"):
        await queue.exchange(found.map.id, Exchange(session="w", request=2))


async def test_a_store_that_is_being_opened_at_the_end_is_closed(tmp_path):
    began, gate, stores = threading.Event(), threading.Event(), []

    class Watched(Store):
        is_closed = False

        def close(self):
            self.is_closed = True
            super().close()

    def slowly():
        began.set()
        gate.wait(120)
        stores.append(Watched(open_database(tmp_path / "queue.db", QUEUE)))
        return stores[-1]

    queue = Queue(slowly)
    reading = asyncio.create_task(queue.read(lambda store: store.list_maps(None)))
    await soon("the start of the exchange", began.is_set)
    closing = threading.Thread(target=lambda: asyncio.run(queue.close()))
    closing.start()
    await soon("the end of the queue", lambda: queue._closed)
    gate.set()
    assert await reading == []
    await asyncio.to_thread(closing.join)
    assert [store.is_closed for store in stores] == [True]
