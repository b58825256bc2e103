"""The scheduler against an API in memory, with a clock that stands still."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from moorage_kube.errors import ServerError
from moorage_kube.informer import Informer, wait_synced
from moorage_kube.meta import condition
from moorage_kube.resources import NODES, PODS, PVCS, STORAGECLASSES, Obj, Resource
from moorage_kube.testing import builders
from moorage_kube.testing.clock import FakeClock
from moorage_local.scheduler.scheduler import Scheduler
from moorage_local.testing.fakepods import FakePodApi


class SlowStatusApi(FakePodApi):
    """Keeps every change of a pod's status waiting until `answers` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()

    async def patch(self, resource: Resource, name: str, patch: Any, *args: Any, **options: Any) -> Obj:
        if options.get("subresource") == "status":
            await self.answers.wait()
        return await super().patch(resource, name, patch, *args, **options)


pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 180.0


def a_node(name: str, gpus: int = 2, **spec: Any) -> Obj:
    labels = {"kubernetes.io/hostname": name}
    return builders.a_node(name, gpus=gpus, cpu="16", memory="64Gi", labels=labels, spec=spec)


def a_pod(name: str, gpus: int = 1, *, minute: int = 0, **spec: Any) -> Obj:
    created = f"2026-11-21T12:{minute:02}:00Z"
    return builders.a_pod(name, gpus=gpus, created=created, phase="Pending", spec=spec)


class Recorded:
    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, str]] = []

    def event(self, obj: Mapping[str, Any], type: str, reason: str, message: str) -> None:
        self.events.append((obj["metadata"]["name"], type, reason, message))


class World:
    def __init__(self, api: FakePodApi, clock: FakeClock, recorded: Recorded) -> None:
        self.api, self.clock, self.recorded = api, clock, recorded
        self._pods = Informer(api, PODS)
        self._claims = Informer(api, PVCS)
        self._changed = asyncio.Event()
        for informer in (self._pods, self._claims):
            informer.on_change(lambda *_: self._changed.set())

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait for a state of the pods or claims, as the API tells of it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not done():
                self._changed.clear()
                await self._changed.wait()

    def pod(self, name: str) -> Obj:
        return self._pods.get(name, "lab") or {"spec": {}, "status": {}, "metadata": {"name": name}}

    def claim(self, name: str) -> Obj:
        return self._claims.get(name, "lab") or {"metadata": {}}

    def node_of(self, name: str) -> str | None:
        node: str | None = self.pod(name)["spec"].get("nodeName")
        return node

    def said(self, name: str) -> tuple[str, str]:
        told = condition(self.pod(name), "PodScheduled") or {}
        return told.get("reason", ""), told.get("message", "")

    async def bound(self, *names: str) -> None:
        await self.until(lambda: all(self.node_of(name) for name in names))

    async def refused(self, name: str, reason: str = "Unschedulable") -> str:
        await self.until(lambda: self.said(name)[0] == reason)
        return self.said(name)[1]

    async def quiet(self) -> None:
        """Let everything that needs no outside happen."""
        for _ in range(200):
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def a_world(*objects: Obj, api: FakePodApi | None = None, **options: Any) -> AsyncIterator[World]:
    api, clock, recorded = api or FakePodApi(), FakeClock(), Recorded()
    world = World(api, clock, recorded)
    for obj in objects:
        api.put(PODS if "containers" in obj["spec"] else NODES, obj)
    scheduler = Scheduler(api, clock=clock, recorder=recorded, **options)
    parts = (scheduler.run(), world._pods.run(), world._claims.run())
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        await wait_synced(world._pods, world._claims)
        yield world
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(outcome, asyncio.CancelledError):
                assert outcome is None, outcome


async def test_a_pod_is_bound_and_told_so():
    async with a_world(a_node("n"), a_pod("p")) as world:
        await world.bound("p")
        await world.quiet()
        assert ("p", "Normal", "Scheduled", "Successfully assigned lab/p to n") in world.recorded.events


async def test_without_nodes_the_pod_waits_for_one():
    async with a_world(a_pod("p")) as world:
        assert await world.refused("p") == "no nodes available to schedule pods"
        world.api.put(NODES, a_node("n"))
        await world.bound("p")


async def test_pods_of_other_schedulers_are_left_alone():
    async with a_world(a_node("n"), a_pod("other", schedulerName="mine"), a_pod("p")) as world:
        await world.bound("p")
        await world.quiet()
        assert world.node_of("other") is None
        assert world.said("other") == ("", "")


async def test_another_name_schedules_its_own_pods():
    async with a_world(a_node("n"), a_pod("other", schedulerName="mine"), name="mine") as world:
        await world.bound("other")


async def test_a_gated_pod_says_so_and_goes_when_the_gate_is_lifted():
    async with a_world(a_node("n"), a_pod("p", schedulingGates=[{"name": "moorage.dev/machine"}])) as world:
        message = await world.refused("p", "SchedulingGated")
        assert message == "Scheduling is blocked due to non-empty scheduling gates"
        pod = world.pod("p")
        world.api.put(PODS, pod | {"spec": {**pod["spec"], "schedulingGates": []}})
        await world.bound("p")


async def test_a_pod_that_ends_makes_room_for_one_that_waits():
    async with a_world(a_node("n"), a_pod("first", 2)) as world:
        await world.bound("first")
        world.api.put(PODS, a_pod("second", 2))
        message = await world.refused("second")
        assert message.startswith("0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption:")
        assert [one[2] for one in world.recorded.events if one[0] == "second"] == ["FailedScheduling"]
        first = world.pod("first")
        world.api.put(PODS, first | {"status": {"phase": "Succeeded"}})
        await world.bound("second")


async def test_a_pod_that_is_deleted_makes_room_too():
    async with a_world(a_node("n"), a_pod("first", 2)) as world:
        await world.bound("first")
        world.api.put(PODS, a_pod("second", 2))
        await world.refused("second")
        world.api.remove(PODS, "first", "lab")
        await world.bound("second")


async def test_an_uncordoned_node_wakes_the_pod():
    async with a_world(a_node("n", unschedulable=True), a_pod("p")) as world:
        assert (await world.refused("p")).startswith("0/1 nodes are available: 1 node(s) were unschedulable.")
        world.api.put(NODES, a_node("n"))
        await world.bound("p")


async def test_the_higher_priority_gets_the_room_then_the_older():
    async with a_world(a_node("n"), a_pod("first", 2)) as world:
        await world.bound("first")
        for pod in (
            a_pod("young", 1, minute=9, preemptionPolicy="Never"),
            a_pod("old", 1, minute=1, preemptionPolicy="Never"),
            a_pod("high", 1, minute=20, priority=5, preemptionPolicy="Never"),
        ):
            world.api.put(PODS, pod)
        for name in ("young", "old", "high"):
            await world.refused(name)
        world.clock.advance(20)
        world.api.remove(PODS, "first", "lab")
        await world.bound("high", "old")
        assert world.node_of("young") is None


async def test_sequential_decisions_never_overfill_a_node():
    pods = [a_pod(f"p{at}", 1) for at in range(7)]
    async with a_world(a_node("n"), a_node("m"), *pods) as world:
        await world.until(
            lambda: all(
                world.node_of(pod["metadata"]["name"]) or world.said(pod["metadata"]["name"])[0] for pod in pods
            )
        )
        homes = [world.node_of(pod["metadata"]["name"]) for pod in pods]
        assert sorted(home for home in homes if home) == ["m", "m", "n", "n"]


async def test_a_failed_binding_gives_the_place_back_and_is_tried_again():
    async with a_world() as world:
        world.api.refuse_binding = ServerError("etcd is away")
        world.api.put(NODES, a_node("n"))
        world.api.put(PODS, a_pod("p", 2))
        assert "etcd is away" in await world.refused("p", "SchedulerError")
        world.api.refuse_binding = None
        world.clock.advance(1)
        await world.bound("p")


async def test_an_important_pod_drives_out_a_lesser_one():
    async with a_world(a_node("n"), a_pod("low", 2, priority=-10)) as world:
        await world.bound("low")
        world.api.put(PODS, a_pod("high", 2, priority=0))
        await world.until(lambda: "deletionTimestamp" in world.pod("low")["metadata"])
        target = condition(world.pod("low"), "DisruptionTarget")
        assert target is not None
        assert (target["status"], target["reason"], target["message"]) == (
            "True",
            "PreemptionByScheduler",
            "default-scheduler: preempting to accommodate a higher priority pod",
        )
        await world.until(lambda: world.pod("high")["status"].get("nominatedNodeName") == "n")
        assert world.node_of("high") is None
        assert world.said("high")[1] == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
        world.api.put(PODS, a_pod("thief", 2, priority=-1, preemptionPolicy="Never"))
        await world.refused("thief")
        world.api.remove(PODS, "low", "lab")
        await world.bound("high")
        uid = world.pod("high")["metadata"]["uid"]
        assert ("low", "Normal", "Preempted", f"Preempted by pod {uid} on node n") in world.recorded.events
        assert world.node_of("thief") is None


async def test_while_its_victim_ends_the_pod_takes_no_other():
    nodes = a_node("n"), a_node("m")
    lesser = a_pod("low-1", 2, priority=-10), a_pod("low-2", 2, priority=-10)
    async with a_world(*nodes, *lesser) as world:
        await world.bound("low-1", "low-2")
        world.api.put(PODS, a_pod("high", 2, priority=0))
        await world.until(lambda: bool(world.pod("high")["status"].get("nominatedNodeName")))
        for serial in range(3):
            changed = a_node("m")
            changed["metadata"]["labels"]["changed"] = str(serial)
            world.api.put(NODES, changed)  # wakes the queue
            world.clock.advance(20)
            await world.quiet()
        going = [name for name in ("low-1", "low-2") if "deletionTimestamp" in world.pod(name)["metadata"]]
        assert len(going) == 1


async def test_a_pod_that_may_not_preempt_waits():
    async with a_world(a_node("n"), a_pod("low", 2, priority=-10)) as world:
        await world.bound("low")
        world.api.put(PODS, a_pod("polite", 2, priority=0, preemptionPolicy="Never"))
        assert (await world.refused("polite")).endswith("preemption: not eligible due to preemptionPolicy=Never.")
        assert "deletionTimestamp" not in world.pod("low")["metadata"]


async def test_a_deleted_pod_gives_up_the_room_made_for_it():
    async with a_world(a_node("n"), a_pod("low", 2, priority=-10)) as world:
        await world.bound("low")
        world.api.put(PODS, a_pod("high", 2, priority=5))
        await world.until(lambda: bool(world.pod("high")["status"].get("nominatedNodeName")))
        world.api.put(PODS, a_pod("next", 2, priority=0))
        await world.refused("next")
        world.api.remove(PODS, "high", "lab")
        world.api.remove(PODS, "low", "lab")
        await world.bound("next")


async def test_a_claim_is_bound_before_its_pod():
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    async with a_world(a_node("n"), a_pod("p", volumes=volumes)) as world:
        message = await world.refused("p")
        assert message.startswith('0/1 nodes are available: persistentvolumeclaim "data" not found. preemption:')
        claim = {"metadata": {"name": "data", "namespace": "lab"}, "spec": {}, "status": {"phase": "Pending"}}
        world.api.put(PVCS, claim)
        await world.until(lambda: "unbound immediate" in world.said("p")[1])
        world.api.put(PVCS, claim | {"spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}})
        await world.bound("p")


async def test_a_claim_that_waits_for_its_pod_is_made_for_the_chosen_node():
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    async with a_world(a_node("n")) as world:
        world.api.put(
            STORAGECLASSES,
            {"metadata": {"name": "late"}, "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"},
        )
        spec, status = {"storageClassName": "late"}, {"phase": "Pending"}
        world.api.put(PVCS, builders.an_object(PVCS, "data", spec=spec, status=status))
        await world.quiet()
        world.api.put(PODS, a_pod("p", volumes=volumes))
        chosen = "volume.kubernetes.io/selected-node"
        await world.until(lambda: (world.claim("data")["metadata"].get("annotations") or {}).get(chosen) == "n")
        await world.quiet()
        assert world.node_of("p") is None
        made = world.claim("data")
        world.api.put(PVCS, made | {"spec": {**made["spec"], "volumeName": "pv"}, "status": {"phase": "Bound"}})
        await world.bound("p")


async def test_a_pod_that_wants_company_is_woken_by_it():
    term = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    async with a_world(a_node("n"), a_pod("p", affinity=affinity)) as world:
        await world.refused("p")
        friend = a_pod("friend")
        world.api.put(PODS, friend | {"metadata": friend["metadata"] | {"labels": {"app": "db"}}})
        await world.bound("friend", "p")


async def test_an_object_that_cannot_be_read_stops_nobody_else(caplog):
    broken = a_pod("broken")
    broken["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "many"
    async with a_world(a_node("n"), broken, a_pod("p")) as world:
        await world.bound("p")
    assert [record.message for record in caplog.records if record.levelname == "WARNING"][:1] == [
        "an object cannot be read by the scheduler"
    ]


async def test_a_scheduler_started_later_keeps_the_rooms_made_before():
    pod = a_pod("high", 2, priority=5)
    pod["status"]["nominatedNodeName"] = "n"
    low = a_pod("low", 2, priority=-10, nodeName="n")
    low["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    low["status"] = {
        "phase": "Running",
        "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}],
    }
    async with a_world(a_node("n"), low, pod, a_pod("thief", 2, preemptionPolicy="Never")) as world:
        await world.refused("thief")
        await world.refused("high")
        world.api.remove(PODS, "low", "lab")
        await world.bound("high")
        assert world.node_of("thief") is None


async def test_a_pod_that_fits_is_not_held_up_by_what_is_to_be_written_of_others():
    api = SlowStatusApi()
    huge = [a_pod(f"huge-{at}", 9) for at in range(50)]
    async with a_world(a_node("n"), *huge, api=api) as world:
        world.api.put(PODS, a_pod("small", 1, minute=5))
        await world.bound("small")
        api.answers.set()
        for pod in huge:
            assert "Insufficient nvidia.com/gpu" in await world.refused(pod["metadata"]["name"])


async def test_a_pod_that_gets_its_node_while_its_report_is_written_says_nothing_else_afterwards():
    api = SlowStatusApi()
    async with a_world(a_node("n", unschedulable=True), a_pod("p"), api=api) as world:
        await world.quiet()  # its report is under way
        world.api.put(NODES, a_node("n"))
        await world.quiet()
        assert world.node_of("p") is None
        api.answers.set()
        await world.bound("p")
        await world.quiet()
        verbs = [call.verb for call in world.api.calls if call.verb in ("patch", "create binding")]
        assert verbs == ["patch", "create binding"]


async def test_every_waiting_pod_of_one_shape_gets_its_turn_by_age():
    waiting = [a_pod(f"p{at}", 2, minute=at) for at in range(6)]
    async with a_world(a_node("n"), a_pod("first", 2, minute=0, priority=1), *waiting) as world:
        await world.bound("first")
        for pod in waiting:
            await world.refused(pod["metadata"]["name"])
        before = "first"
        for pod in waiting[:3]:
            world.api.remove(PODS, before, "lab")
            before = pod["metadata"]["name"]
            await world.bound(before)
        world.api.put(NODES, a_node("large", 99))
        await world.bound(*(pod["metadata"]["name"] for pod in waiting[3:]))


async def test_pods_of_one_shape_differ_by_their_labels_where_others_refuse_them_by_these():
    term = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    refused = a_pod("refused", 1, minute=1)
    refused["metadata"]["labels"] = {"app": "db"}
    async with a_world(a_node("n", 9), a_pod("lonely", 1, affinity=apart)) as world:
        await world.bound("lonely")
        world.api.put(PODS, refused)
        assert "anti-affinity" in await world.refused("refused")
        world.api.put(PODS, a_pod("other", 1, minute=2))
        await world.bound("other")
