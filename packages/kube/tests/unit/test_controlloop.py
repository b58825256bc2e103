"""The control loop, freshness, shared informers: the machinery under every controller."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from moorage_kube.api import ObjList, WatchEvent
from moorage_kube.controlloop import ControlLoop
from moorage_kube.errors import Conflict, ServerError
from moorage_kube.informer import Informer, index_by_label
from moorage_kube.meta import Key
from moorage_kube.resources import CONFIGMAPS, NODES, PODS
from moorage_kube.testing import builders
from moorage_local.controllers.freshness import Freshness
from moorage_local.informers import InformerSet

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def running(loop, until):
    task = asyncio.create_task(loop.run())
    try:
        await asyncio.wait_for(until, 120)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_loop_ends_when_a_pass_answers_its_cancellation_with_an_error():
    """As `asyncio.gather` does where one of what it waits for failed in the same moment."""
    begun, answered = asyncio.Event(), asyncio.Event()

    async def reconcile(_key):
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if answered.is_set():
                raise
            answered.set()
            raise ServerError("the lease is no longer ours") from None

    loop = ControlLoop("test", reconcile)
    loop.queue.add("a")
    task = asyncio.create_task(loop.run())
    await begun.wait()
    task.cancel()
    _, pending = await asyncio.wait({task}, timeout=120)
    assert not pending


async def test_a_key_that_fails_is_tried_again_until_it_succeeds(caplog):
    tries, over = [], asyncio.Event()

    async def reconcile(key):
        tries.append(key)
        if len(tries) < 4:
            raise ServerError("no answer")
        over.set()

    loop = ControlLoop("test", reconcile)
    loop.queue.add("a")
    with caplog.at_level(logging.WARNING):
        await running(loop, over.wait())
    assert tries == ["a"] * 4
    assert len(caplog.records) == 1  # once, not at every try
    assert caplog.records[0].key == "a"


async def test_conflicts_are_retried_without_a_word(caplog):
    tries, over = [], asyncio.Event()

    async def reconcile(key):
        tries.append(key)
        if len(tries) < 3:
            raise Conflict("changed")
        over.set()

    loop = ControlLoop("test", reconcile)
    loop.queue.add("a")
    await running(loop, over.wait())
    assert not caplog.records


async def test_a_bug_is_logged_with_its_trace_and_does_not_end_the_loop(caplog):
    over = asyncio.Event()

    async def reconcile(key):
        if key == "bad":
            raise KeyError("oops")
        over.set()

    loop = ControlLoop("test", reconcile, workers=1)
    loop.queue.add("bad")
    loop.queue.add("good")
    await running(loop, over.wait())
    assert "KeyError" in caplog.text
    assert caplog.records[0].exc_info


async def test_a_pass_may_ask_to_look_again():
    seen, over = [], asyncio.Event()

    async def reconcile(key):
        seen.append(key)
        if len(seen) == 3:
            over.set()
            return None
        return timedelta(milliseconds=1)

    loop = ControlLoop("test", reconcile)
    loop.queue.add("a")
    await running(loop, over.wait())
    assert seen == ["a"] * 3


async def test_one_key_is_never_worked_on_twice_at_a_time():
    busy, worst, passes, over = set(), [], [], asyncio.Event()

    async def reconcile(key):
        if key in busy:
            worst.append(key)
        busy.add(key)
        loop.queue.add(key)
        await asyncio.sleep(0)
        busy.discard(key)
        passes.append(key)
        if len(passes) > 50:
            over.set()

    loop = ControlLoop("test", reconcile, workers=8)
    for key in "ab":
        loop.queue.add(key)
    await running(loop, over.wait())
    assert not worst


class OneList:
    """An API that answers one list and then streams what is put into `events`."""

    def __init__(self, *objects, version="10"):
        self.objects = list(objects)
        self.version = version
        self.events = asyncio.Queue()
        self.lists = 0

    async def list(self, *_args, **_options):
        self.lists += 1
        return ObjList(self.objects, self.version)

    async def watch(self, *_args, **_options):
        while True:
            yield await self.events.get()


def an_object(name, version, *, uid=None, **more):
    return builders.an_object(PODS, name, uid=uid or name, resource_version=version, **more)


async def until(test):
    async with asyncio.timeout(120):
        while not test():  # noqa: ASYNC110 - any change of a cache may be the one
            await asyncio.sleep(0)


async def test_a_key_is_stale_until_the_cache_shows_what_was_written():
    api = OneList(an_object("a", "5"))
    informer = Informer(api, PODS)
    task = asyncio.create_task(informer.run())
    await informer.synced.wait()
    fresh = Freshness()
    key = Key("lab", "job")
    assert fresh.is_fresh(key)
    fresh.wrote(key, informer, an_object("b", "12"))
    fresh.deleted(key, informer, an_object("a", "5"))
    assert not fresh.is_fresh(key)
    api.events.put_nowait(WatchEvent("ADDED", an_object("b", "12")))
    await until(lambda: informer.resource_version == "12")
    assert not fresh.is_fresh(key)  # the deletion is not seen yet
    api.events.put_nowait(WatchEvent("MODIFIED", an_object("a", "13", deleting=True)))
    await until(lambda: informer.resource_version == "13")
    assert fresh.is_fresh(key)
    fresh.outdated(key, informer, an_object("a", "13"))
    assert not fresh.is_fresh(key)
    assert fresh.is_fresh(Key("lab", "other"))
    api.events.put_nowait(WatchEvent("DELETED", an_object("a", "14")))
    await until(lambda: informer.resource_version == "14")
    assert fresh.is_fresh(key)
    fresh.wrote(key, informer, an_object("c", "99"))
    fresh.forget(key)
    assert fresh.is_fresh(key)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_deleted_object_that_came_back_under_its_name_is_another():
    api = OneList(an_object("a", "5", uid="new"))
    informer = Informer(api, PODS)
    task = asyncio.create_task(informer.run())
    await informer.synced.wait()
    fresh = Freshness()
    fresh.deleted(Key("", "k"), informer, an_object("a", "3", uid="old"))
    assert fresh.is_fresh(Key("", "k"))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_each_collection_is_listed_once_however_many_share_it():
    api = OneList(an_object("a", "5", labels={"x": "1"}))
    informers = InformerSet(api)
    one = informers.of(PODS)
    assert informers.of(PODS, byx=index_by_label("x")) is one
    task = asyncio.create_task(informers.run())
    await informers.synced()
    assert api.lists == 1
    assert [obj["metadata"]["name"] for obj in one.by_index("byx", "1")] == ["a"]
    late = informers.of(NODES)  # asked for while running
    await late.synced.wait()
    assert api.lists == 2
    informers.of(PODS, late=index_by_label("x"))
    assert len(one.by_index("late", "1")) == 1
    assert set(informers.known()) == {PODS, NODES}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_dropped_collection_reports_its_objects_as_deleted():
    informers = InformerSet(OneList(an_object("a", "5")))
    heard = []
    informers.of(CONFIGMAPS).on_change(lambda before, after: heard.append((before is None, after is None)))
    task = asyncio.create_task(informers.run())
    await informers.synced()
    await informers.drop(CONFIGMAPS)
    await informers.drop(CONFIGMAPS)
    assert heard == [(True, False), (False, True)]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_handler_that_raises_ends_the_set_instead_of_going_blind():
    informers = InformerSet(OneList(an_object("a", "5")))

    def broken(_before, _after):
        raise RuntimeError("a bug")

    informers.of(PODS).on_change(broken)
    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(informers.run(), 120)
