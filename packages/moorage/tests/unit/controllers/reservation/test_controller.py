"""The reservation controller before an API: killed at every write, it grants once and deletes backfill only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from moorage.controllers.base import Shared
from moorage.controllers.machine.controller import MachineController
from moorage.controllers.reservation.controller import ReservationController
from moorage.model.machine import MACHINES
from moorage.model.reservation import RESERVATIONS
from moorage_kube.meta import Key, condition, is_condition_true
from moorage_kube.moments import rfc3339
from moorage_kube.resources import EVENTS, PODS, Obj
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_kube.testing.waiting import until
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.controllers import Killed, MortalApi, running

pytestmark = pytest.mark.anyio

KEY = Key("gpu", "big")
GROUP = {"moorage.dev/machine-group": "gpu"}
MACHINE: Obj = {
    "metadata": {"name": "m", "labels": GROUP, "generation": 1},
    "spec": {
        "nodePool": [],
        "machineTypes": [{"name": "big", "spec": {"cpu": "1", "memory": "1Gi"}, "available": 2}],
    },
}


def a_reservation(name: str = "course", *, hours: tuple[float, float] = (0, 1), **spec: Any) -> Obj:
    start, end = (rfc3339(NOON + timedelta(hours=hour)) for hour in hours)
    return {
        "metadata": {
            "name": name, "namespace": "lab", "generation": 1, "creationTimestamp": "2026-11-21T11:00:00Z"
        },
        "spec": {"machineGroup": "gpu", "machineType": "big", "count": 2, "from": start, "to": end} | spec,
    }  # fmt: skip


def a_guest(name: str, *, backfill: bool) -> Obj:
    labels = GROUP | {"moorage.dev/machine-type": "big"} | ({"moorage.dev/backfill": "true"} if backfill else {})
    return {
        "metadata": {
            "name": name,
            "namespace": "other",
            "labels": labels,
            "annotations": {"moorage.dev/machine-place": "n0"},
        },
        "spec": {"nodeName": "n0", "containers": [{"name": "main"}], "terminationGracePeriodSeconds": 30},
        "status": {"phase": "Running", "startTime": "2026-11-21T11:00:00Z"},
    }


@contextlib.asynccontextmanager
async def a_controller(api: FakeApi, clock: FakeClock) -> AsyncIterator[ReservationController]:
    shared = Shared(api=api, clock=clock)
    async with running(MachineController(shared)) as machines:
        yield ReservationController(shared, machines)


async def settle(api: MortalApi, clock: FakeClock) -> timedelta | None:
    """A fresh operator looks, and is killed at most once, until it has nothing more to write."""
    for _ in range(12):
        before, again = api.writes, None
        async with a_controller(api, clock) as controller:
            with contextlib.suppress(Killed):
                again = await controller.reconcile(KEY)
        if api.writes == before:
            return again
    raise AssertionError("never settled")


async def status_of(api: FakeApi, name: str = "course") -> Obj:
    status: Obj = (await api.get(RESERVATIONS, name, "lab")).get("status") or {}
    return status


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after it"])
@pytest.mark.parametrize("dies_at", range(10))
async def test_killed_at_any_write_one_of_two_is_granted_and_only_backfill_leaves(
    dies_at: int, after: bool
) -> None:
    api, clock = MortalApi(dies_at, after=after), FakeClock()
    api.put(MACHINES, MACHINE)
    api.put(RESERVATIONS, a_reservation("a-late") | {})
    early = a_reservation("early")
    early["metadata"]["creationTimestamp"] = "2026-11-21T10:00:00Z"
    api.put(RESERVATIONS, early)
    api.put(PODS, a_guest("worker", backfill=True))
    api.put(PODS, a_guest("training", backfill=False))
    await settle(api, clock)
    assert api.writes >= dies_at
    granted, refused = await status_of(api, "early"), await status_of(api, "a-late")
    assert (granted["phase"], granted["held"], granted["shortfall"]) == ("Active", 1, 1)
    assert [one["pod"] for one in granted["blockedBy"]] == ["training"]
    assert (refused["phase"], refused["conditions"][0]["reason"]) == ("Refused", "Conflict")
    assert "granted" not in refused
    assert [pod["metadata"]["name"] for pod in (await api.list(PODS, "other")).items] == ["training"]


async def test_what_leaves_is_marked_as_disrupted_first() -> None:
    api, clock = MortalApi(dies_at=5), FakeClock()  # status, two Events, condition, the delete that does not come
    api.put(MACHINES, MACHINE)
    api.put(RESERVATIONS, a_reservation())
    api.put(PODS, a_guest("worker", backfill=True))
    async with a_controller(api, clock) as controller:
        with contextlib.suppress(Killed):
            await controller.reconcile(KEY)
    worker = await api.get(PODS, "worker", "other")
    assert is_condition_true(worker, "DisruptionTarget")
    said = condition(worker, "DisruptionTarget") or {}
    assert (said["reason"], said["message"]) == (
        "MachineReserved",
        "Its machine is reserved from 2026-11-21T12:00:00Z for namespace lab (lab/course)",
    )


async def test_a_change_that_is_seen_before_the_answer_to_our_own_write_counts() -> None:
    stored, answer = asyncio.Event(), asyncio.Event()

    class SlowApi(FakeApi):
        async def patch(self, *args: Any, **options: Any) -> Obj:
            written = await super().patch(*args, **options)
            stored.set()
            await answer.wait()
            return written

    api, clock = SlowApi(), FakeClock()
    api.put(MACHINES, MACHINE)
    api.put(RESERVATIONS, a_reservation())
    async with a_controller(api, clock) as controller:
        reconciling = asyncio.create_task(controller.reconcile(KEY))
        await stored.wait()
        ours = await api.get(RESERVATIONS, "course", "lab")
        theirs = api.put(RESERVATIONS, ours | {"metadata": ours["metadata"] | {"generation": 2}})
        informer = controller._reservations

        async def is_seen() -> bool:
            return informer.get("course", "lab") == theirs

        await until("the change of the reservation", is_seen)
        answer.set()
        await reconciling
        await controller.reconcile(KEY)
    assert (await status_of(api))["observedGeneration"] == 2


async def test_it_looks_again_when_something_is_due_and_tells_each_phase_once() -> None:
    api, clock = MortalApi(), FakeClock()
    api.put(MACHINES, MACHINE)
    api.put(RESERVATIONS, a_reservation(hours=(0.1, 0.2), leadSeconds=300))
    phases, waits = [], []
    async with a_controller(api, clock) as controller:
        for _ in range(4):
            waits.append(await controller.reconcile(KEY))
            phases.append((await status_of(api))["phase"])
            assert await controller.reconcile(KEY) == waits[-1]
            clock.advance(waits[-1] or timedelta(hours=1))
    assert phases == ["Pending", "Preparing", "Active", "Expired"]
    assert waits == [timedelta(seconds=60), timedelta(seconds=300), timedelta(seconds=360), None]
    reasons = [event["reason"] for event in (await api.list(EVENTS, "lab")).items]
    assert sorted(reasons) == ["Active", "Expired", "Pending", "Preparing"]


async def test_what_it_granted_counts_before_the_watch_has_shown_it() -> None:
    api, clock = MortalApi(), FakeClock()
    api.put(MACHINES, MACHINE)
    api.put(RESERVATIONS, a_reservation("z"))
    async with a_controller(api, clock) as controller:
        await controller.reconcile(KEY)
        seen = controller._of_type(KEY)
        assert [one["status"]["granted"]["count"] for one in seen] == [2]


@pytest.mark.parametrize(
    ("spec", "machine", "reason"),
    [
        ({"to": "tomorrow"}, MACHINE, "Invalid"),
        ({"machineType": "big"}, None, "UnknownMachine"),
        ({"count": 3}, MACHINE, "Conflict"),
    ],
)
async def test_what_cannot_be_is_said_as_a_condition(spec: Obj, machine: Obj | None, reason: str) -> None:
    api, clock = MortalApi(), FakeClock()
    if machine is not None:
        api.put(MACHINES, machine)
    api.put(RESERVATIONS, a_reservation(**spec))
    await settle(api, clock)
    status = await status_of(api)
    assert (status["phase"], status["conditions"][0]["reason"]) == ("Refused", reason)
