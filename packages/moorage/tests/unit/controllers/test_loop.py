"""The one loop: changes become keys, keys become passes, failures come back later."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest

from moorage.controllers.loop import FULL, MANY_WORKERS, NAMESPACE_WORKERS, Counters, Loop, shared_out
from moorage_kube.clock import SYSTEM
from moorage_kube.errors import Conflict, ServerError
from moorage_kube.informer import Informer
from moorage_kube.meta import Key, key_of
from moorage_kube.resources import PODS, Obj
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 180

FAILED = "a pass failed and will be repeated"


def a_pod(name: str, **labels: str) -> Obj:
    return {"metadata": {"name": name, "namespace": "lab", "labels": labels}, "spec": {}}


class Passes:
    """A reconcile that notes its keys and answers as told."""

    def __init__(self, answer: Callable[[int], timedelta | None] = lambda _: None) -> None:
        self.keys: list[Key] = []
        self._answer = answer
        self._changed = asyncio.Condition()

    async def __call__(self, key: Key) -> timedelta | None:
        self.keys.append(key)
        async with self._changed:
            self._changed.notify_all()
        return self._answer(len(self.keys))

    async def wait_for(self, count: int) -> None:
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(lambda: len(self.keys) >= count), PATIENCE_SECONDS)


class WaitedFor(Counters):
    """Counters that tell when a pass was done."""

    def __init__(self) -> None:
        super().__init__()
        self.done = asyncio.Event()

    def passed(self, controller: str, outcome: str, seconds: float) -> None:
        super().passed(controller, outcome, seconds)
        if outcome == "done":
            self.done.set()


@contextlib.asynccontextmanager
async def running(loop: Loop, *informers: Informer) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(informer.run()) for informer in informers] + [asyncio.create_task(loop.run())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_exists_and_what_changes_is_looked_at() -> None:
    api = FakeApi()
    api.put(PODS, a_pod("old"))
    passes, informer = Passes(), Informer(api, PODS)
    loop = Loop("test", passes, clock=SYSTEM)
    loop.hear(informer, lambda obj: [key_of(obj)])
    async with running(loop, informer):
        await passes.wait_for(1)
        api.put(PODS, a_pod("new"))
        await passes.wait_for(2)
        api.remove(PODS, "old", "lab")
        await passes.wait_for(3)
    assert passes.keys == [Key("lab", "old"), Key("lab", "new"), Key("lab", "old")]


async def test_a_change_concerns_what_the_object_named_before_and_after() -> None:
    api = FakeApi()
    api.put(PODS, a_pod("p", app="one"))
    passes, informer = Passes(), Informer(api, PODS)
    loop = Loop("test", passes, clock=SYSTEM, workers=1)
    loop.hear(informer, lambda obj: [Key("lab", obj["metadata"]["labels"]["app"])])
    async with running(loop, informer):
        await passes.wait_for(1)
        api.put(PODS, a_pod("p", app="two"))
        await passes.wait_for(3)
    assert passes.keys == [Key("lab", "one"), Key("lab", "one"), Key("lab", "two")]


async def test_nothing_is_looked_at_before_every_copy_is_full() -> None:
    api = FakeApi()
    passes, full, empty = Passes(), Informer(api, PODS), Informer(api, PODS)
    loop = Loop("test", passes, clock=SYSTEM)
    loop.hear(full, lambda obj: [key_of(obj)])
    loop.hear(empty, lambda _: [])
    api.put(PODS, a_pod("p"))
    async with running(loop, full):
        await asyncio.wait_for(full.synced.wait(), PATIENCE_SECONDS)
        for _ in range(50):
            await asyncio.sleep(0)
        assert passes.keys == []


@pytest.mark.parametrize(
    ("error", "outcome", "logged"),
    [
        pytest.param(Conflict("stale"), "conflict", [], id="conflict"),
        pytest.param(ServerError("away", status=0), "refused", [FAILED], id="API error"),
        pytest.param(KeyError("spec"), "failed", [FAILED], id="defect"),
    ],
)
async def test_a_pass_that_fails_is_tried_again_and_told_once(
    error: Exception, outcome: str, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def answer(count: int) -> None:
        if count == 1:
            raise error

    passes, counters = Passes(answer), WaitedFor()
    loop = Loop("test", passes, clock=SYSTEM, metrics=counters)
    loop.queue.add(Key("lab", "p"))
    async with running(loop):
        await passes.wait_for(2)
        await asyncio.wait_for(counters.done.wait(), PATIENCE_SECONDS)
    assert passes.keys == [Key("lab", "p")] * 2
    assert counters.passes == {("test", outcome): 1, ("test", "done"): 1}
    ours = [record.message for record in caplog.records if record.name == "moorage_kube.controlloop"]
    assert ours == logged
    assert all(vars(record)["key"] == "lab/p" for record in caplog.records if record.message in logged)


async def test_one_defect_does_not_stop_the_others() -> None:
    async def reconcile(key: Key) -> timedelta | None:
        if key.name == "bad":
            raise RuntimeError("defect")
        done.set()
        return None

    done = asyncio.Event()
    loop = Loop("test", reconcile, clock=SYSTEM, workers=1)
    loop.queue.add(Key("", "bad"))
    loop.queue.add(Key("", "good"))
    async with running(loop):
        await asyncio.wait_for(done.wait(), PATIENCE_SECONDS)


async def test_a_pass_says_when_to_look_again() -> None:
    passes = Passes(lambda count: timedelta(milliseconds=1) if count < 4 else None)
    loop = Loop("test", passes, clock=SYSTEM)
    loop.queue.add(Key("lab", "p"))
    async with running(loop):
        await passes.wait_for(4)
    assert passes.keys == [Key("lab", "p")] * 4


@pytest.mark.parametrize(("others_full", "passes"), [(False, NAMESPACE_WORKERS), (True, 0)])
async def test_a_namespace_has_a_share_of_the_workers_and_others_go_on(others_full: bool, passes: int) -> None:
    held = asyncio.Event()
    begun: list[str] = []

    async def reconcile(key: Key) -> timedelta | None:
        begun.append(key.namespace)
        if key.namespace == "mallory":
            await held.wait()
        return None

    one = shared_out(reconcile, lambda namespace: others_full and namespace == "mallory")
    waiting = [asyncio.ensure_future(one(Key("mallory", str(number)))) for number in range(MANY_WORKERS)]
    await asyncio.sleep(0)
    assert await one(Key("ada", "a")) is None
    assert begun == ["mallory"] * passes + ["ada"]
    held.set()
    assert (await asyncio.gather(*waiting)).count(FULL) == MANY_WORKERS - passes
    assert await one(Key("mallory", "later")) is (FULL if others_full else None)
