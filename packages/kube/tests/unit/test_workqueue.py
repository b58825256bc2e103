"""The work queue: nothing lost, nothing twice at a time."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage_kube.testing.examples import examples
from moorage_kube.workqueue import RETRIES, QueueClosed, WorkQueue

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_keys_come_out_in_order_and_once():
    queue = WorkQueue()
    for key in "abab":
        queue.add(key)
    assert len(queue) == 2
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert len(queue) == 0


async def test_a_key_added_while_worked_on_comes_again_afterwards():
    queue = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_waiting_workers_are_woken_one_each():
    queue = WorkQueue()
    waiting = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    for key in "abc":
        queue.add(key)
    assert sorted(await asyncio.gather(*waiting)) == ["a", "b", "c"]


async def test_a_worker_cancelled_as_it_was_woken_loses_no_key():
    queue = WorkQueue()
    first = asyncio.create_task(queue.get())
    second = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 120) == "a"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_of_several_delays_the_earliest_counts():
    queue = WorkQueue()
    queue.add_after("a", 3600)
    queue.add_after("a", 0.001)
    queue.add_after("a", 7200)
    assert await asyncio.wait_for(queue.get(), 120) == "a"
    queue.add_after("b", 0)
    assert await queue.get() == "b"
    queue.close()


async def test_retries_wait_longer_and_longer_until_success():
    queue = WorkQueue()
    delays = [queue.retry("a") for _ in range(30)]
    assert delays[:3] == [RETRIES.first, 2 * RETRIES.first, 4 * RETRIES.first]
    assert delays == sorted(delays)
    assert delays[-1] == RETRIES.most
    queue.forget("a")
    assert queue.retry("a") == RETRIES.first
    queue.close()


async def test_a_closed_queue_ends_its_workers_and_takes_nothing():
    queue = WorkQueue()
    waiting = [asyncio.create_task(queue.get()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.close()
    assert all(
        isinstance(answer, QueueClosed) for answer in await asyncio.gather(*waiting, return_exceptions=True)
    )
    queue.add("a")
    queue.add_after("a", 1)
    with pytest.raises(QueueClosed):
        await queue.get()


@settings(max_examples=examples(25, full=100), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "get", "done"]), st.sampled_from("abc")), max_size=60))
def test_every_key_added_is_handed_out_after_it_was_added(steps):
    async def play():
        queue, working, owed = WorkQueue(), [], set()
        for what, key in steps:
            if what == "add":
                queue.add(key)
                owed.add(key)
            elif what == "get" and len(queue):
                got = await queue.get()
                assert got not in working
                working.append(got)
                owed.discard(got)
            elif what == "done" and working:
                queue.done(working.pop(0))
        while owed or working:
            while working:
                queue.done(working.pop())
            if len(queue):
                got = await queue.get()
                working.append(got)
                owed.discard(got)
            else:
                assert not owed
        assert len(queue) == 0

    asyncio.run(play())


async def test_after_a_sleep_all_that_waits_is_looked_at_now():
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 3600)
    queue.add_after("b", 7200)
    queue.fire_all()
    assert {await queue.get(), await queue.get()} == {"a", "b"}
    queue.done("a")
    queue.done("b")
    queue.fire_all()
    assert len(queue) == 0
