"""The machine controller before an API: killed at every write, it hands a place over once, and to one guest."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta

import pytest

from moorage.controllers.base import Shared
from moorage.controllers.machine.controller import STATUS_AFTER_SECONDS, STATUS_EVERY_SECONDS, MachineController
from moorage.decide.admission.injection import inject
from moorage.model.machine import MACHINES, parse_machine
from moorage.model.manifests import make_machine_objects
from moorage.model.secondscheduler import make_scheduler_switch
from moorage_kube.meta import Key, annotations_of, condition, is_condition_true, labels_of
from moorage_kube.resources import CONFIGMAPS, NODES, PODS, Obj
from moorage_kube.testing.clock import FakeClock
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.controllers import Killed, MortalApi, running

pytestmark = pytest.mark.anyio

KEY = Key("", "m")
GROUP = {"moorage.dev/machine-group": "gpu"}
SIZE = {"cpu": "1", "memory": "1Gi", "gpu": {"type": "nvidia.com/gpu", "num": 1}}
MACHINE: Obj = {
    "metadata": {"name": "m", "labels": GROUP, "generation": 1, "uid": "um"},
    "spec": {
        "nodePool": [{"name": "n0", "mode": "ready", "machineType": [{"name": "big"}]}],
        "machineTypes": [{"name": "big", "spec": SIZE, "available": 1}],
    },
}


class Places(MortalApi):
    """An API with a Machine and its node."""

    def __init__(self, machine: Obj = MACHINE, dies_at: int = 0, *, after: bool = False) -> None:
        super().__init__(dies_at, after=after)
        self.put(MACHINES, machine)
        self.put(NODES, a_node())

    async def only_place(self) -> Obj:
        """The one pod that holds a place."""
        [place] = (await self.list(PODS, "moorage-system")).items
        return place


def a_node() -> Obj:
    labels = GROUP | {"type.machine.moorage.dev/big": "gpu", "moorage.dev/machine-mode": "ready"}
    return {
        "metadata": {"name": "n0", "labels": labels},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "8"}},
    }


def a_guest(name: str) -> Obj:
    pod = {
        "metadata": {
            "name": name,
            "namespace": "lab",
            "labels": GROUP | {"moorage.dev/machine-type": "big"},
            "creationTimestamp": f"2026-11-21T12:00:0{name[-1]}Z",
        },
        "spec": {"containers": [{"name": "main"}]},
    }
    return inject(pod, {"gpu": parse_machine(MACHINE)}).pod


def with_another_type(machine: Obj) -> Obj:
    """The node offers a second type, of which there is nothing to be had."""
    spec = machine["spec"]
    types = [*spec["machineTypes"], {"name": "other", "spec": SIZE, "available": 0}]
    pool = [one | {"machineType": [*one["machineType"], {"name": "other"}]} for one in spec["nodePool"]]
    return machine | {"spec": {"nodePool": pool, "machineTypes": types}}


def a_controller(
    api: FakeApi, clock: FakeClock | None = None
) -> contextlib.AbstractAsyncContextManager[MachineController]:
    return running(MachineController(Shared(api=api, clock=clock or FakeClock())))


async def reconcile(api: FakeApi) -> None:
    """One pass of a fresh operator."""
    async with a_controller(api) as controller:
        await controller.reconcile(KEY)


async def changed(api: FakeApi, controller: MachineController, pod: Obj) -> None:
    """Put a pod there, and wait until the controller has seen it and the Machine as it is now."""
    api.put(PODS, pod)
    machine = await api.get(MACHINES, "m")

    def is_seen() -> bool:
        name = pod["metadata"]["name"]
        return controller.pods.get(name, "lab") is not None and controller.machines.get("m") == machine

    async with asyncio.timeout(120):
        while not is_seen():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def bind_reservations(api: FakeApi) -> None:
    for pod in (await api.list(PODS, "moorage-system")).items:
        if not pod["spec"].get("nodeName"):
            api.put(PODS, pod | {"spec": pod["spec"] | {"nodeName": "n0"}})


async def settle(api: MortalApi) -> None:
    """A fresh operator looks, and is killed at most once, until it has nothing more to write."""
    for _ in range(12):
        before = api.writes
        clock = FakeClock()
        async with a_controller(api, clock) as controller:
            with contextlib.suppress(Killed):
                await controller.reconcile(KEY)
                clock.advance(STATUS_EVERY_SECONDS)
                await controller.reconcile(KEY)
        await bind_reservations(api)
        if api.writes == before:
            return
    raise AssertionError("never settled")


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after it"])
@pytest.mark.parametrize("dies_at", range(9))
@pytest.mark.parametrize("alone", [False, True], ids=["two types", "one type"])
async def test_killed_at_any_write_one_guest_gets_the_place_and_the_other_waits(
    dies_at: int, after: bool, alone: bool
) -> None:
    api = Places(MACHINE if alone else with_another_type(MACHINE), dies_at, after=after)
    api.put(PODS, a_guest("guest-1"))
    api.put(PODS, a_guest("guest-2"))
    await settle(api)
    guests = {pod["metadata"]["name"]: pod for pod in (await api.list(PODS, "lab")).items}
    assert guests["guest-1"]["spec"]["schedulingGates"] == []
    assert guests["guest-2"]["spec"]["schedulingGates"] == [{"name": "moorage.dev/machine"}]
    held = await api.only_place()
    promised = {
        "moorage.dev/promised-to": guests["guest-1"]["metadata"]["uid"],
        "moorage.dev/reservation": "promised",
    }
    wanted = {"moorage.dev/reservation": "alone"} if alone else promised
    assert {key: value for key, value in labels_of(held).items() if key in promised} == wanted
    assert is_condition_true(held, "DisruptionTarget") is not alone
    assert held["spec"]["terminationGracePeriodSeconds"] == 1
    usage = (await api.get(MACHINES, "m"))["status"]["availableMachines"][0]["usage"]
    assert {key: usage[key] for key in ("maximum", "reserved", "used", "waiting")} == {
        "maximum": 1,
        "reserved": 1,
        "used": 0,
        "waiting": 1,
    }


async def test_what_it_wrote_counts_before_the_watch_has_shown_it() -> None:
    api = Places()
    async with a_controller(api) as controller:
        await controller.reconcile(KEY)
        await controller.reconcile(KEY)
        made = [call for call in api.calls if call.verb == "create" and call.resource == "pods"]
        assert len(made) == 1


async def test_counts_are_told_when_a_hand_over_has_had_its_time_and_not_more_often_than_twice_a_second() -> None:
    api, clock = Places(), FakeClock()

    async def waiting() -> int:
        status = (await api.get(MACHINES, "m"))["status"]
        return int(status["availableMachines"][0]["usage"]["waiting"])

    async with a_controller(api, clock) as controller:
        await controller.reconcile(KEY)  # conditions are news that does not wait
        assert await waiting() == 0
        clock.advance(timedelta(hours=1))
        await changed(api, controller, a_guest("guest-1"))
        assert await controller.reconcile(KEY) == timedelta(seconds=STATUS_AFTER_SECONDS)
        assert await waiting() == 0
        clock.advance(STATUS_AFTER_SECONDS)
        await controller.reconcile(KEY)
        assert await waiting() == 1
        await changed(api, controller, a_guest("guest-2"))
        assert await controller.reconcile(KEY) == timedelta(seconds=STATUS_EVERY_SECONDS)
        clock.advance(STATUS_EVERY_SECONDS)
        await controller.reconcile(KEY)
        assert await waiting() == 2


async def test_a_node_of_processes_gets_reservations_that_are_processes() -> None:
    api = Places()
    node = a_node()
    node["status"]["nodeInfo"] = {"containerRuntimeVersion": "process://1"}
    api.put(NODES, node)
    await settle(api)
    held = await api.only_place()
    assert held["spec"]["containers"][0]["image"] == "localhost/host"
    assert held["spec"]["containers"][0]["command"] == ["sleep", "infinity"]


async def test_a_place_is_given_in_one_write_where_no_other_type_is_and_in_two_elsewhere() -> None:
    for machine, writes in (
        (MACHINE, ["patch lab"]),
        (with_another_type(MACHINE), ["patch moorage-system", "patch lab"]),
    ):
        api, clock = Places(machine), FakeClock()
        await settle(api)
        async with a_controller(api, clock) as controller:
            await changed(api, controller, a_guest("guest-1"))
            before = len(api.calls)
            await controller.reconcile(KEY)
            calls = [call for call in api.calls[before:] if call.resource == "pods" and call.verb != "get"]
            assert [f"{call.verb} {call.namespace}" for call in calls] == writes


async def test_a_promise_to_a_guest_that_went_is_taken_back_whole() -> None:
    api = Places(with_another_type(MACHINE))
    api.put(PODS, a_guest("guest-1"))
    await settle(api)
    api.remove(PODS, "guest-1", "lab")
    await settle(api)
    held = await api.only_place()
    assert labels_of(held)["moorage.dev/reservation"] == "kept"
    assert "moorage.dev/promised-to" not in labels_of(held)
    assert not is_condition_true(held, "DisruptionTarget")


def settings(**data: str) -> Obj:
    return {"metadata": {"name": "moorage", "namespace": "moorage-system"}, "data": data}


async def test_reservations_run_the_image_of_the_setting_and_take_a_new_one_when_theirs_cannot_be_pulled() -> None:
    api = Places()
    api.put(CONFIGMAPS, settings(pauseImage="mirror/pause:1"))
    await reconcile(api)
    made = await api.only_place()
    assert made["spec"]["containers"][0]["image"] == "mirror/pause:1"
    waiting = {"reason": "ErrImagePull", "message": "not found"}
    status = {"containerStatuses": [{"name": "place", "state": {"waiting": waiting}}]}
    api.put(PODS, made | {"spec": made["spec"] | {"nodeName": "n0"}, "status": status})
    api.put(CONFIGMAPS, settings(pauseImage="mirror/pause:2"))
    await reconcile(api)
    mended = await api.only_place()
    assert mended["metadata"]["uid"] == made["metadata"]["uid"]
    assert mended["spec"]["containers"][0]["image"] == "mirror/pause:2"
    ready = condition(await api.get(MACHINES, "m"), "Ready") or {}
    assert ready["reason"] == "NotStarting"
    assert ready["message"] == (
        "1 reservation pod does not start: image mirror/pause:1 cannot be pulled (ErrImagePull);"
        " set pauseImage in the ConfigMap moorage-system/moorage to one that nodes can pull"
    )


@pytest.mark.parametrize(("gpus", "want"), [(0, None), (1, "moorage-scheduler")])
async def test_places_with_gpus_are_of_the_scheduler_that_places_their_guests(gpus: int, want: str | None) -> None:
    size = {"cpu": "1", "memory": "1Gi"} | ({"gpu": {"type": "nvidia.com/gpu", "num": gpus}} if gpus else {})
    types = [entry | {"spec": size} for entry in MACHINE["spec"]["machineTypes"]]
    api = Places(MACHINE | {"spec": MACHINE["spec"] | {"machineTypes": types}})
    api.put(CONFIGMAPS, make_scheduler_switch())
    await reconcile(api)
    made = await api.only_place()
    assert made["spec"].get("schedulerName") == want


async def test_autoscalers_neither_empty_a_place_nor_take_it_for_expendable() -> None:
    """Cluster Autoscaler ignores pods below a priority of -10; so low may a reservation be and no lower."""
    api = Places()
    await reconcile(api)
    made = await api.only_place()
    assert annotations_of(made) == {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    }
    classes = {obj["metadata"]["name"]: obj for obj in make_machine_objects() if obj["kind"] == "PriorityClass"}
    assert classes[made["spec"]["priorityClassName"]]["value"] == -10
