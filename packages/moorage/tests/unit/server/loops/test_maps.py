"""The bridge between MapJobs and the queue, over a fake API and a real queue."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moorage.decide.maps.leasing import Exchange, MapState, Outcome, Policy, Report
from moorage.model.mapjob import MAPJOBS
from moorage.model.targets import Webhook
from moorage.queue.manager import Queue
from moorage.queue.store import NewItem, Store
from moorage.server.loops.maps import MapBridge
from moorage.server.service import open_store
from moorage_kube.informer import wait_synced
from moorage_kube.meta import Key, condition
from moorage_kube.moments import rfc3339
from moorage_kube.resources import CONFIGMAPS, SECRETS, Obj
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.controllers import Killed

pytestmark = pytest.mark.anyio

KEY = Key("lab", "features")


def a_mapjob(**spec: Any) -> Obj:
    return {
        "metadata": {
            "name": "features",
            "namespace": "lab",
            "generation": 1,
            "annotations": {"moorage.dev/owner": "ada"},
        },
        "spec": {
            "parallelism": 4,
            "command": ["true"],
            "template": {"spec": {"containers": [{"image": "python:3.12"}]}},
        }
        | spec,
    }


class Place:
    """A cluster with a server's address, a queue on a file, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.api, self.clock = FakeApi(), FakeClock()
        self.file = folder / "queue.db"
        info = {"metadata": {"name": "moorage", "namespace": "moorage-system"}, "data": {"serverUrl": "http://s/"}}
        self.api.put(CONFIGMAPS, info)
        self.queue = Queue(self.open, clock=self.clock)
        self.send: Callable[..., Awaitable[object]] | None = None  # for notices; None: they are sent

    def open(self) -> Store:
        return open_store(self.file)

    @contextlib.asynccontextmanager
    async def bridge(self) -> AsyncIterator[MapBridge]:
        """A server that has just started."""
        bridge = MapBridge(self.api, self.queue, clock=self.clock, send=self.send)
        task = asyncio.create_task(bridge.informer.run())
        try:
            await wait_synced(bridge.informer)
            yield bridge
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def settle(self) -> None:
        async with self.bridge() as bridge:
            await bridge.reconcile(KEY)
        async with self.bridge() as bridge:
            await bridge.tick()

    async def status(self) -> Obj:
        found: Obj = (await self.api.get(MAPJOBS, "features", "lab")).get("status") or {}
        return found

    async def accepted(self) -> Any:
        return condition(await self.api.get(MAPJOBS, "features", "lab"), "Accepted")

    async def the_map(self) -> Any:
        return await self.queue.read(lambda store: store.find_map("lab", "features"))

    async def work(self, outcome: Outcome, items: int = 1) -> None:
        """A worker takes items and answers."""
        of = (await self.the_map()).map.id
        asked = Exchange(session="w", request=self.clock.now().microsecond + 1, want=items, slots=items)
        reply = await self.queue.exchange(of, asked)
        reports = [Report(item=item, lease=lease, outcome=outcome, seconds=1.0) for item, lease, _ in reply.items]
        await self.queue.exchange(of, Exchange(session="w", request=asked.request + 1, reports=reports))
        self.clock.advance(3.000003)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    await place.queue.start()
    yield place
    await place.queue.close()


async def add(place: Place, count: int) -> None:
    of = (await place.the_map()).map.id
    await place.queue.add_items(of, [NewItem(value=msgspec.Raw(b"%d" % number)) for number in range(count)])


async def test_an_accepted_map_is_in_the_queue_with_its_token(place: Place) -> None:
    policy = {"retries": 1, "timeSeconds": 9}
    place.api.put(MAPJOBS, a_mapjob(priority=3, policy=policy, limits={"mysql": {"tokens": 2, "capacity": 9}}))
    await place.settle()
    found = await place.the_map()
    assert (found.owner, found.map.priority) == ("ada", 3)
    assert (found.map.policy.retries, found.map.policy.time_seconds) == (1, 9)
    status = await place.status()
    assert status["queue"]["uid"] == found.uid
    assert (status["queue"]["url"], status["state"]) == ("http://s", "running")
    assert status["items"]["atOnce"] == 4, "nine tokens, two for each item"
    secret = await place.api.get(SECRETS, status["queue"]["secret"], "lab")
    token = base64.b64decode(secret["data"]["token"]).decode()
    assert await place.queue.map_of_token(token) == found.map.id
    assert (await place.accepted())["status"] == "True"


@pytest.mark.parametrize(
    ("spec", "reason", "said"),
    [
        ({"command": []}, "Invalid", "spec.command: give one of"),
        ({"policy": {"backoffSeconds": 9, "maxBackoffSeconds": 1}}, "Invalid", "spec.policy.backoffSeconds"),
        ({"limits": {"mysql": {}}}, "BadLimits", "mysql"),
        ({"notify": {"targets": ["slack"]}}, "Invalid", "spec.notify.targets[0]"),
        ({"limits": {"my sql": {}}}, "Invalid", "spec.limits"),
        ({"template": {"spec": {}}}, "Invalid", "spec.template.spec.containers"),
        (
            {"template": {"spec": {"containers": [{"image": "i", "args": ["x"]}]}}},
            "Invalid",
            "spec.template.spec.containers[0].args: must be left out",
        ),
    ],
)
async def test_a_map_that_cannot_be_is_refused_with_the_field(
    place: Place, spec: Obj, reason: str, said: str
) -> None:
    place.api.put(MAPJOBS, a_mapjob(**spec))
    await place.settle()
    found = await place.accepted()
    assert (found["status"], found["reason"]) == ("False", reason)
    assert said in found["message"]
    assert await place.the_map() is None
    before = len(place.api.calls)
    await place.settle()
    assert [call.verb for call in place.api.calls[before:] if call.verb in ("patch", "create")] == []


async def test_a_name_that_is_taken_in_the_queue_is_refused(place: Place) -> None:
    await place.queue.create_map(namespace="lab", name="features", owner="g", policy=Policy(), request="other")
    place.api.put(MAPJOBS, a_mapjob())
    await place.settle()
    assert (await place.accepted())["reason"] == "NameTaken"


async def test_counts_are_told_when_they_changed_and_every_two_seconds_at_most(place: Place) -> None:
    place.api.put(MAPJOBS, a_mapjob())
    await place.settle()
    await add(place, 5)

    def told() -> int:
        return sum(call.verb == "patch" for call in place.api.calls)

    async with place.bridge() as bridge:
        before = told()
        await bridge.tick()
        assert told() == before + 1, "a server that has just started tells at once"
        await place.work(Outcome.DONE)
        await bridge.tick()
        assert told() == before + 2
        place.clock.advance(0.5)
        of = (await place.the_map()).map.id
        await place.queue.exchange(of, Exchange(session="v", request=1, want=1, slots=1))
        await bridge.tick()
        assert told() == before + 2, "too soon"
        place.clock.advance(2)
        await bridge.tick()
        await bridge.tick()
        assert told() == before + 3
        await place.queue.change_map(of, state=MapState.PAUSED)
        await bridge.tick()
        assert told() == before + 4, "another state is told at once"
    status = await place.status()
    assert (status["state"], status["items"]["done"], status["items"]["leased"]) == ("paused", 1, 1)
    assert status["queue"]["heardAt"]
    assert status["queue"]["progressAt"]


async def test_a_deleted_map_is_deleted_in_the_queue_before_it_goes(place: Place) -> None:
    obj = place.api.put(MAPJOBS, a_mapjob())
    await place.settle()
    obj = await place.api.get(MAPJOBS, "features", "lab")
    assert obj["metadata"]["finalizers"] == ["moorage.dev/map"]
    obj["metadata"] |= {"deletionTimestamp": rfc3339(NOON), "finalizers": ["a/b", "moorage.dev/map"]}
    place.api.put(MAPJOBS, obj)
    await place.settle()
    assert await place.the_map() is None
    assert (await place.api.get(MAPJOBS, "features", "lab"))["metadata"]["finalizers"] == ["a/b"]


async def test_a_map_that_was_made_and_not_written_down_is_deleted_too(place: Place) -> None:
    obj = a_mapjob()
    obj["metadata"] |= {"uid": "u1", "deletionTimestamp": rfc3339(NOON), "finalizers": ["moorage.dev/map"]}
    place.api.put(MAPJOBS, obj)
    await place.queue.create_map(namespace="lab", name="features", owner="ada", policy=Policy(), request="u1")
    await place.settle()
    assert await place.the_map() is None


@pytest.mark.parametrize("dies_at", range(1, 6))
async def test_killed_before_any_write_the_next_server_finishes(place: Place, dies_at: int) -> None:
    left = dies_at

    def mortal(real: Any) -> Any:
        async def write(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return await real(*args, **options)

        return write

    place.api.patch, place.api.create = mortal(place.api.patch), mortal(place.api.create)  # type: ignore[method-assign]
    place.api.put(MAPJOBS, a_mapjob())
    for _ in range(3):
        with contextlib.suppress(Killed):
            await place.settle()
    maps = await place.queue.read(lambda store: store.list_maps())
    status = await place.status()
    assert [one.uid for one in maps] == [status["queue"]["uid"]]
    assert (await place.api.get(SECRETS, status["queue"]["secret"], "lab"))["data"]["token"]


async def test_notices_are_marked_before_they_are_sent_and_sent_once(place: Place) -> None:
    sent: list[tuple[str, str]] = []

    async def send(notice: Any, targets: Any, *_: Any, **__: Any) -> tuple[()]:
        marks = (await place.status())["queue"]["marks"]
        assert any(notice.key.endswith(mark) for mark in marks), "marked before"
        assert targets == [Webhook("https://hooks.example.com/x")]
        sent.append((notice.event.value, notice.text))
        return ()

    place.send = send
    place.api.put(MAPJOBS, a_mapjob(policy={"retries": 0}, notify={"targets": ["https://hooks.example.com/x"]}))
    await place.settle()
    await add(place, 2)
    async with place.bridge() as bridge:
        await place.work(Outcome.ERROR)
        await bridge.tick()
        await asyncio.gather(*bridge._sending)
        assert [event for event, _ in sent] == ["first-failure"]
        assert "first failed item: 0" in sent[0][1]
    async with place.bridge() as again:  # a server that has just started
        await place.work(Outcome.DONE)
        await place.queue.change_map((await place.the_map()).map.id, closed=True)
        for _ in range(2):
            await again.tick()
            await asyncio.gather(*again._sending)
    assert [event for event, _ in sent] == ["first-failure", "ended"]
    assert json.dumps(sent[1]).count("1 of 2 items done, 1 failed") == 1


async def test_two_servers_send_a_notice_once(place: Place) -> None:
    sent: list[str] = []

    async def send(notice: Any, *_: Any, **__: Any) -> tuple[()]:
        sent.append(notice.event.value)
        return ()

    place.send = send
    place.api.put(MAPJOBS, a_mapjob(policy={"retries": 0}, notify={"targets": ["https://hooks.example.com/x"]}))
    await place.settle()
    await add(place, 2)
    async with place.bridge() as first, place.bridge() as second:
        for outcome in (Outcome.ERROR, Outcome.DONE):
            await place.work(outcome)
            await asyncio.gather(first.tick(), second.tick())
            for bridge in (first, second, second, first):
                await wait_for_version(bridge, place)
                await bridge.tick()
                await asyncio.gather(*bridge._sending)
        await place.queue.change_map((await place.the_map()).map.id, closed=True)
        place.clock.advance(3)
        for _ in range(2):
            await asyncio.gather(first.tick(), second.tick())
            for bridge in (first, second):
                await wait_for_version(bridge, place)
    await asyncio.gather(*first._sending, *second._sending)
    assert sent == ["first-failure", "ended"]
    assert (await place.status())["queue"]["marks"] == ["ended/1", "first-failure/1"]


async def wait_for_version(bridge: MapBridge, place: Place) -> None:
    """Return when the bridge's informer has the MapJob as it is stored."""
    stored = await place.api.get(MAPJOBS, KEY.name, KEY.namespace)
    async with asyncio.timeout(60):
        while bridge.informer.get(KEY.name, KEY.namespace) != stored:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_restored_mapjob_takes_up_the_map_of_the_one_before_it(place: Place) -> None:
    before = place.api.put(MAPJOBS, a_mapjob())
    await place.settle()
    await add(place, 3)
    map_before = await place.the_map()
    place.api.remove(MAPJOBS, "features", "lab")
    restored = a_mapjob()
    restored["metadata"] |= {"uid": "new", "generation": 1}
    place.api.put(MAPJOBS, restored)
    await place.settle()
    assert (await place.accepted())["reason"] == "NameTaken"
    restored["metadata"]["annotations"]["moorage.dev/map-request"] = before["metadata"]["uid"]
    place.api.put(MAPJOBS, restored)
    await place.settle()
    status = await place.status()
    assert (await place.accepted())["status"] == "True"
    assert (status["queue"]["uid"], status["items"]["total"]) == (map_before.uid, 3)
