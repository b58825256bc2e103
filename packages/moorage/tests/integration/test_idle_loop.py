"""The loop over idle work, with real receivers of notices: warned, reminded, snoozed, suspended, resumed.

Killed at any of its writes it does nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from aiohttp import web

from moorage.actions.idle import idle_work, snooze_work
from moorage.actions.suspension import resume_run
from moorage.decide.idle.evidence import Kernels
from moorage.decide.idle.states import read_record
from moorage.decide.usage.samples import GpuReading, Reading
from moorage.model.idle import IDLE_POLICIES
from moorage.model.mapjob import MAPJOBS
from moorage.model.workspace import WORKSPACES
from moorage.notify.outbound import MailServer, Outbound
from moorage.notify.send import send
from moorage.server.loops.idle import IdleLoop, Sources
from moorage.usage.samples import SampleStore
from moorage_kube.errors import ServerError, UsageError
from moorage_kube.informers import Informers
from moorage_kube.moments import rfc3339
from moorage_kube.remote.events import EventRecorder
from moorage_kube.resources import EVENTS, JOBS, PODS
from moorage_kube.testing.clock import FakeClock
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.controllers import Killed

pytestmark = pytest.mark.anyio

SLOT = timedelta(seconds=30)
HOUR = timedelta(hours=1)
SLOTS = 5  # between two looks


class MortalApi(FakeApi):
    """Dies before, or right after, its patch of that number."""

    dies_at, is_done, patches = 0, False, 0

    async def patch(self, *args, **named):
        self.patches += 1
        if self.patches != self.dies_at:
            return await super().patch(*args, **named)
        if self.is_done:
            await super().patch(*args, **named)
        raise Killed


@dataclass
class Mailbox:
    """Enough of RFC 5321 to take mail from smtplib."""

    mails: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 test\r\n")
        with contextlib.suppress(ConnectionError):
            while line := (await reader.readline()).decode().strip().upper():
                if line.startswith("DATA"):
                    writer.write(b"354 go\r\n")
                    self.mails.append((await reader.readuntil(b"\r\n.\r\n")).decode())
                writer.write(b"221 bye\r\n" if line.startswith("QUIT") else b"250 ok\r\n")
        writer.close()


@dataclass
class World:
    """A workspace and a run that hold GPUs, and a server that looks at them."""

    api: MortalApi
    clock: FakeClock
    store: SampleStore
    sources: Sources
    outbound: Outbound
    hooks: list[dict]
    mailbox: Mailbox
    loop: IdleLoop | None = None
    gpu: float = 0.0
    measured: bool = True
    kernels: Kernels | None = field(default_factory=Kernels)

    def start(self) -> None:
        events = EventRecorder(self.api, component="moorage-server", clock=self.clock)

        async def deliver(notice, targets):
            return await send(notice, targets, self.outbound, clock=self.clock)

        self.loop = IdleLoop(self.api, self.sources, send=deliver, events=events, clock=self.clock)

    async def pass_time(self, span: timedelta) -> int:
        """Let time pass, look every 2.5 minutes; how often the server died, and another took over."""
        deaths = 0
        for _ in range(int(span / (SLOTS * SLOT))):
            readings = []
            for _ in range(SLOTS):
                self.clock.advance(SLOT.total_seconds())
                gpu, now = (GpuReading(device="0", utilisation=self.gpu),), self.clock.now()
                readings += [Reading(pod_uid=uid, at=now, cpu_milli=10, gpus=gpu) for uid in ("p-lab", "p-train")]
            if self.measured:
                self.store.add(readings)
            try:
                await self.loop.look()
            except Killed:
                deaths += 1
                self.start()
            for _ in range(5):
                await asyncio.sleep(0)  # informers hear of the writes
        return deaths

    def titles(self) -> list[str]:
        """First lines of the notices that came by webhook, in order."""
        return [hook["text"].splitlines()[0].partition(" and ")[0].partition(":")[0] for hook in self.hooks]

    def workspace(self):
        return self.sources.workspaces.get("lab", "vision")

    def job(self):
        return self.sources.jobs.get("train", "vision")


WARNINGS = ["workspace vision/lab holds 1 GPU", "run vision/train holds 1 GPU"]
REMINDERS = ["workspace vision/lab still holds 1 GPU", "run vision/train still holds 1 GPU"]
REPORTS = ["workspace vision/lab was suspended", "run vision/train was suspended"]


def a_pod(name: str, clock: FakeClock, **labels: str):
    return {
        "metadata": {"name": name, "namespace": "vision", "uid": f"p-{name}", "labels": labels},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
        "status": {
            "phase": "Running",
            "containerStatuses": [{"state": {"running": {"startedAt": rfc3339(clock.now())}}}],
        },
    }


@pytest.fixture
async def world(tmp_path):
    clock = FakeClock()
    api = MortalApi(clock=clock)
    started = clock.now()
    notes = {"moorage.dev/owner": "ada"}
    meta = {"namespace": "vision", "annotations": notes}
    api.put(WORKSPACES, {"metadata": meta | {"name": "lab"}, "spec": {"running": True, "type": "jupyterlab"}})
    checkpoint = {
        "moorage.dev/checkpoint": "digits",
        "moorage.dev/checkpoint-at": rfc3339(started + timedelta(minutes=5)),
    }
    template = {"spec": {"containers": [{"name": "main"}]}}
    api.put(
        JOBS,
        {
            "metadata": meta
            | {"name": "train", "labels": {"moorage.dev/run": "train"}, "annotations": notes | checkpoint},
            "spec": {"template": template},
        },
    )
    api.put(PODS, a_pod("lab", clock, **{"moorage.dev/workspace": "lab"}))
    api.put(PODS, a_pod("train", clock, **{"moorage.dev/run": "train"}))
    hooks: list[dict] = []

    async def hook(request: web.Request) -> web.Response:
        hooks.append(json.loads(await request.text()) | {"key": request.headers["Idempotency-Key"]})
        return web.Response()

    app = web.Application()
    app.router.add_post("/hook", hook)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    mailbox = Mailbox()
    smtp = await asyncio.start_server(mailbox.serve, "127.0.0.1", 0)
    spec = {
        "warnAfter": "1h",
        "remindAfter": "1h",
        "suspendAfter": "2h",
        "snooze": {"longest": "4h", "times": 1},
        "notify": {"targets": [f"http://127.0.0.1:{port}/hook"], "mailDomain": "example.com"},
    }
    api.put(IDLE_POLICIES, {"metadata": {"name": "gpus"}, "spec": spec})
    outbound = Outbound(
        networks=(ipaddress.ip_network("127.0.0.0/8"),),
        plain_http=True,
        mail=MailServer(
            host="127.0.0.1", port=smtp.sockets[0].getsockname()[1], sender="m@example.com", security="none"
        ),
    )
    informers = Informers()
    pods, jobs, workspaces, maps, policies = (
        informers.of(api, resource) for resource in (PODS, JOBS, WORKSPACES, MAPJOBS, IDLE_POLICIES)
    )
    tasks = [asyncio.create_task(each.run()) for each in (pods, jobs, workspaces, maps, policies)]
    for each in (pods, jobs, workspaces, maps, policies):
        await each.synced.wait()
    store = SampleStore(tmp_path / "samples.db")

    async def tenants():
        return []

    async def kernels(_namespace, _name):
        if world.kernels is None:
            raise ServerError("its application does not answer", status=502)
        return world.kernels

    sources = Sources(
        pods=pods,
        jobs=jobs,
        workspaces=workspaces,
        maps=maps,
        policies=policies,
        tenants=tenants,
        samples=store,
        kernels=kernels,
        connection=lambda _namespace, _name, stored: stored,
    )
    world = World(api, clock, store, sources, outbound, hooks, mailbox)
    world.start()
    try:
        yield world
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        store.close()
        smtp.close()
        await runner.cleanup()


async def test_idle_work_is_warned_about_reminded_of_and_suspended_and_comes_back(world):
    await world.pass_time(4 * HOUR)
    assert sorted(world.titles()) == sorted(WARNINGS + REMINDERS + REPORTS)
    assert len(world.mailbox.mails) == 6
    assert all("To: ada@example.com" in mail for mail in world.mailbox.mails)
    assert world.workspace()["spec"]["running"] is False
    assert world.job()["spec"]["suspend"] is True
    events = (await world.api.list(EVENTS)).items
    assert {event["reason"] for event in events} == {"Idle", "IdleReminder", "Suspended"}
    assert not [event["message"] for event in events if ".;" in event["message"]], "sentences are one line"
    await resume_run(world.api, "vision", "train", clock=world.clock)
    assert (await world.api.get(JOBS, "train", "vision"))["spec"]["suspend"] is False


async def test_who_got_the_gpus_of_suspended_work_is_noted_until_it_runs_again(world):
    await world.pass_time(4 * HOUR)
    assert read_record(world.workspace()["metadata"]["annotations"]["moorage.dev/idle"]).node == "n1"
    await world.api.delete(PODS, "lab", "vision")
    await world.pass_time(0.1 * HOUR)

    async def rows():
        return {row.name: row for row in idle_work(await world.loop.held(), world.loop.policies())}

    assert (await rows())["lab"].went_to == ""
    after = a_pod("next", world.clock, **{"moorage.dev/run": "next"})
    after["metadata"]["annotations"] = {"moorage.dev/owner": "bob"}
    world.api.put(PODS, after)
    await world.pass_time(0.1 * HOUR)
    assert (await rows())["lab"].went_to == "run vision/next of bob"
    another = a_pod("another", world.clock, **{"moorage.dev/run": "another"})
    world.api.put(PODS, another)
    await world.pass_time(0.1 * HOUR)
    assert (await rows())["lab"].went_to == "run vision/next of bob"
    await world.api.patch(WORKSPACES, "lab", {"spec": {"running": True}}, "vision")
    await world.pass_time(0.1 * HOUR)
    assert "lab" not in await rows()


async def test_a_busy_gpu_or_readings_that_end_warn_nobody(world):
    world.gpu = 60.0
    await world.pass_time(2 * HOUR)
    world.measured = False
    await world.pass_time(6 * HOUR)
    assert world.hooks == []
    assert world.workspace()["spec"]["running"] is True


async def test_a_jupyter_server_that_does_not_answer_is_left_alone(world):
    world.kernels = None
    await world.pass_time(5 * HOUR)
    assert [title for title in world.titles() if "lab" in title] == []


async def test_a_snooze_is_kept_and_is_allowed_once(world):
    await world.pass_time(1.2 * HOUR)

    async def put_off(span):
        return await snooze_work(
            world.api, world.workspace(), "workspace", world.loop.policies(), span, by="ada", clock=world.clock
        )

    with pytest.raises(
        UsageError, match="workspace vision/lab: cannot snooze for 5h: policy gpus allows 4h at most"
    ):
        await put_off(5 * HOUR)
    assert (await put_off(4 * HOUR)).state == "snoozed"
    with pytest.raises(UsageError, match="it was snoozed 1 times in a row"):
        await put_off(HOUR)
    await world.pass_time(3.9 * HOUR)
    assert [title for title in world.titles() if "lab" in title] == WARNINGS[:1]
    held = [each for each in await world.loop.held() if each.work.kind == "workspace"]
    (row,) = idle_work(held, world.loop.policies())
    assert (row.state, row.next, row.snoozes) == ("snoozed", "end", 1)
    await world.pass_time(HOUR)
    assert [title for title in world.titles() if "lab" in title] == WARNINGS[:1] * 2


@pytest.mark.parametrize("is_done", [False, True], ids=["before a write", "after a write"])
@pytest.mark.parametrize("dies_at", range(1, 16))
async def test_a_server_killed_at_any_write_does_nothing_twice(world, dies_at, is_done):
    world.api.dies_at, world.api.is_done = dies_at, is_done
    assert await world.pass_time(9 * HOUR) == 1
    keys = [hook["key"] for hook in world.hooks]
    assert len(keys) == len(set(keys)), "a notice was sent twice"
    for kind, obj in (("lab", world.workspace()), ("train", world.job())):
        titles = [title for title in world.titles() if f"/{kind} " in title]
        assert any("holds" in title for title in titles), "suspended without a notice"
        assert sum("was suspended" in title for title in titles) <= 1
        assert read_record(obj["metadata"]["annotations"]["moorage.dev/idle"]).state == "suspended"
