"""Heartbeats of workflows reach a real HTTP server: once, in order, over restarts and failures."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from aiohttp import web

from moorage.controllers.base import Shared
from moorage.model.argo import CRON_LABEL, CRON_WORKFLOWS, WORKFLOWS
from moorage.model.names import BEATS_FINALIZER
from moorage.notify import Outbound
from moorage_kube.errors import Conflict
from moorage_kube.meta import Key
from moorage_kube.moments import rfc3339
from moorage_kube.resources import EVENTS
from moorage_kube.testing.builders import an_object
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.controllers import running
from moorage_workflows.controllers.monitor.controller import RunMonitorController, SlotMonitorController

pytestmark = pytest.mark.anyio

KEY = Key("lab", "n-1")
MINUTE = timedelta(minutes=1)
LOCAL = Outbound(networks=(ipaddress.ip_network("127.0.0.0/8"),), plain_http=True, seconds=60.0)
OURS = {"workflows.argoproj.io/controller-instanceid": "moorage"}


class Receiver:
    """A monitoring service: what it got, and the statuses that it answers, 200 after them."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.statuses: list[int] = []
        self.address = ""

    async def answer(self, request: web.Request) -> web.Response:
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 200:
            self.got.append(request.path)
        return web.Response(status=status)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", receiver.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.address = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
    yield receiver
    await runner.cleanup()


def a_status(phase: str):
    ended = {"finishedAt": rfc3339(NOON)} if phase in ("Succeeded", "Failed") else {}
    return {"phase": phase, "startedAt": rfc3339(NOON)} | ended


def a_workflow(address: str, phase: str = "", **more: str):
    annotations = {"moorage.dev/monitor": f"{address}/abc"} | more
    meta = {"uid": "u1", "labels": OURS, "created": NOON, "annotations": annotations}
    return an_object(WORKFLOWS, "n-1", spec={}, status=a_status(phase) if phase else {}, **meta)


def with_phase(api: FakeApi, obj, phase: str):
    return api.put(WORKFLOWS, {**obj, "status": a_status(phase)})


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def api(clock: FakeClock) -> FakeApi:
    return FakeApi(clock=clock)


def a_monitor(api: FakeApi, clock: FakeClock, kind=RunMonitorController, outbound: Outbound = LOCAL):
    return running(kind(Shared(api=api, clock=clock, outbound=outbound)))


async def settle(api: FakeApi, clock: FakeClock, **more):
    """One operator's life: a few passes."""
    async with a_monitor(api, clock, **more) as controller:
        wait = None
        for _ in range(3):
            with contextlib.suppress(Conflict):
                wait = await controller.reconcile(KEY)
            for _ in range(20):
                await asyncio.sleep(0)
        return wait


async def test_a_run_sends_its_life_once_and_in_order(receiver, api, clock) -> None:
    api.put(WORKFLOWS, a_workflow(receiver.address))
    await settle(api, clock)
    assert receiver.got == []
    for phase in ("Running", "Running", "Succeeded", "Succeeded"):
        with_phase(api, await api.get(WORKFLOWS, "n-1", "lab"), phase)
        await settle(api, clock)  # each time another operator
    assert receiver.got == ["/abc/start", "/abc"]
    assert (await api.get(WORKFLOWS, "n-1", "lab"))["metadata"]["finalizers"] == []


async def test_a_receiver_that_fails_is_tried_again_and_the_order_is_kept(receiver, api, clock) -> None:
    api.put(WORKFLOWS, a_workflow(receiver.address, "Running"))
    receiver.statuses = [503, 503]
    async with a_monitor(api, clock) as controller:
        assert await controller.reconcile(KEY) == timedelta(seconds=5)
        assert await controller.reconcile(KEY) == timedelta(seconds=5)  # it is left alone meanwhile
        with_phase(api, await api.get(WORKFLOWS, "n-1", "lab"), "Failed")
        clock.advance(5)
        await asyncio.sleep(0)
        assert await controller.reconcile(KEY) == timedelta(seconds=10)
        assert receiver.got == []
    await settle(api, clock)
    assert receiver.got == ["/abc/start", "/abc/fail"]


async def test_a_receiver_that_is_away_for_a_day_is_given_up(receiver, api, clock) -> None:
    api.put(WORKFLOWS, a_workflow(receiver.address, "Failed"))
    receiver.statuses = [500] * 9
    await settle(api, clock)
    clock.advance(timedelta(hours=25))
    api.put(WORKFLOWS, (await api.get(WORKFLOWS, "n-1", "lab")))
    with_state = await api.get(WORKFLOWS, "n-1", "lab")
    with_state["metadata"]["annotations"]["moorage.dev/beats"] = '{"sent":["start"]}'
    api.put(WORKFLOWS, with_state)
    await settle(api, clock)
    assert "HeartbeatLost" in [event["reason"] for event in (await api.list(EVENTS)).items]
    assert (await api.get(WORKFLOWS, "n-1", "lab"))["metadata"]["finalizers"] == []


async def test_a_private_address_is_refused_unless_the_administrator_allows_it(receiver, api, clock) -> None:
    api.put(WORKFLOWS, a_workflow(receiver.address, "Running"))
    await settle(api, clock, outbound=Outbound(plain_http=True))
    assert receiver.got == []
    (event,) = (await api.list(EVENTS)).items
    assert event["message"].startswith("a heartbeat was abandoned: 127.0.0.1 is not a public address")


async def test_a_deleted_run_waits_for_its_last_heartbeat(receiver, api, clock) -> None:
    api.put(WORKFLOWS, a_workflow(receiver.address, "Running"))
    await settle(api, clock)
    assert (await api.get(WORKFLOWS, "n-1", "lab"))["metadata"]["finalizers"] == [BEATS_FINALIZER]
    await api.delete(WORKFLOWS, "n-1", "lab")
    await settle(api, clock)
    assert receiver.got == ["/abc/start", "/abc/fail"]
    assert (await api.list(WORKFLOWS)).items == []


async def test_an_overdue_run_is_told_once(receiver, api, clock) -> None:
    more = {
        "moorage.dev/monitor-after": "2h",
        "moorage.dev/monitor-overdue": f"{receiver.address}/overdue",
        "moorage.dev/notify": f"{receiver.address}/people",
    }
    api.put(WORKFLOWS, a_workflow(receiver.address, "Running", **more))
    assert await settle(api, clock) == timedelta(hours=2)
    clock.advance(timedelta(hours=2))
    await settle(api, clock)
    await settle(api, clock)
    assert receiver.got == ["/abc/start", "/people", "/overdue"]


async def test_people_are_told_of_a_run_that_should_have_ended_by_its_usual_time(receiver, api, clock) -> None:
    state = {"moorage.dev/cron-state": '{"seconds": [3600, 3500, 3400]}'}
    api.put(CRON_WORKFLOWS, {"metadata": {"name": "n", "namespace": "lab", "annotations": state}, "spec": {}})
    run = a_workflow("", "Running")
    run["metadata"]["annotations"] = {"moorage.dev/notify": f"{receiver.address}/people"}
    run["metadata"]["labels"][CRON_LABEL] = "n"
    api.put(WORKFLOWS, run)
    assert await settle(api, clock) == timedelta(hours=1.5)
    assert receiver.got == []
    clock.advance(timedelta(hours=1.5))
    await settle(api, clock)
    await settle(api, clock)
    assert receiver.got == ["/people"]


async def test_a_run_of_long_ago_sends_nothing(receiver: Receiver) -> None:
    clock = FakeClock(NOON + timedelta(days=1))
    api = FakeApi(clock=clock)
    api.put(WORKFLOWS, a_workflow(receiver.address, "Succeeded"))
    await settle(api, clock)
    assert receiver.got == []


async def test_wrong_annotations_are_an_event(receiver, api, clock) -> None:
    api.put(WORKFLOWS, a_workflow(receiver.address, **{"moorage.dev/monitor-after": "soon"}))
    await settle(api, clock)
    assert [event["reason"] for event in (await api.list(EVENTS)).items] == ["InvalidMonitor"]


async def test_a_missed_slot_is_told_once(receiver, api, clock) -> None:
    annotations = {
        "moorage.dev/cron-state": f'{{"missed": {int(NOON.timestamp())}}}',
        "moorage.dev/monitor-overdue": f"{receiver.address}/overdue",
        "moorage.dev/notify": f"{receiver.address}/people",
    }
    meta = {"name": "n-1", "namespace": "lab", "labels": OURS, "annotations": annotations}
    api.put(CRON_WORKFLOWS, {"metadata": meta, "spec": {}})
    await settle(api, clock, kind=SlotMonitorController)
    await settle(api, clock, kind=SlotMonitorController)
    assert receiver.got == ["/people", "/overdue"]
