"""The controller of memory kills and the webhook's caches before an API: noted, told, held, let go."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from moorage.controllers.base import Shared
from moorage.controllers.memorykill.controller import MemoryKillController
from moorage.decide.runs.killanswer import Hold, Known, answer, behind_gate
from moorage.decide.runs.memorykills import is_gated, ledger_from, rule_of
from moorage.model.policy import POLICIES, Policy
from moorage.webhooks.kills import KillCaches
from moorage_kube.clock import rfc3339
from moorage_kube.informer import wait_synced
from moorage_kube.meta import Key, annotations_of, labels_of
from moorage_kube.resources import EVENTS, NAMESPACES, PODS, REPLICASETS, STATEFULSETS, Obj
from moorage_kube.testing.clock import FakeClock
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio

UID = "uid-rs"
KEY = Key("lab", UID)
NOTE = "moorage.dev/memory-kills"


class World:
    """An API with a ReplicaSet of one pod, a policy, and our controller before it."""

    def __init__(self, level: str = "fill") -> None:
        self.api, self.clock = FakeApi(), FakeClock()
        self.api.put(NAMESPACES, {"metadata": {"name": "lab", "labels": {"moorage.dev/guard": "enabled"}}})
        self.api.put(POLICIES, self.policy(level))
        self.api.put(REPLICASETS, self.replica_set())
        self.tasks: list[asyncio.Task[None]] = []
        self.start()

    def start(self) -> None:
        self.controller = MemoryKillController(Shared(api=self.api, clock=self.clock))
        self.caches = KillCaches(self.api)

    def policy(self, level: str) -> Obj:
        return {"metadata": {"name": "p"}, "spec": {"rules": {"restartBomb": {"level": level}}}}

    def replica_set(self) -> Obj:
        owner = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": "web",
            "uid": "uid-deploy",
            "controller": True,
        }
        return {"metadata": {"name": "web-1", "namespace": "lab", "uid": UID, "ownerReferences": [owner]}}

    def pod(self, name: str, kind: str = "ReplicaSet", version: str = "apps/v1", owner: str = UID) -> Obj:
        ref = {"apiVersion": version, "kind": kind, "name": "web-1", "uid": owner, "controller": True}
        meta = {"name": name, "namespace": "lab", "uid": f"u-{name}", "ownerReferences": [ref]}
        meta["creationTimestamp"] = rfc3339(self.clock.now())  # type: ignore[assignment]
        container = {"name": "c", "image": "i", "resources": {"limits": {"memory": "1Gi"}}}
        return {"metadata": meta, "spec": {"containers": [container]}, "status": {"phase": "Pending"}}

    def kill(self, pod: Obj) -> Obj:
        ended = {"reason": "OOMKilled", "finishedAt": rfc3339(self.clock.now())}
        status = {"phase": "Failed", "containerStatuses": [{"name": "c", "state": {"terminated": ended}}]}
        return self.api.put(PODS, pod | {"status": status})

    async def run(self) -> None:
        for informer in (*self.controller.informers, *self.caches.informers):
            self.tasks.append(asyncio.create_task(informer.run()))
        await wait_synced(*self.controller.informers, *self.caches.informers)

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks = []

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def passes(self, times: int = 1) -> Any:
        await self.settle()
        wait = None
        for _ in range(times):
            wait = await self.controller.reconcile(KEY)
            await self.settle()
        return wait

    async def events(self) -> list[tuple[str, str]]:
        listed = await self.api.list(EVENTS, "lab")
        return sorted((event["involvedObject"]["kind"], event["reason"]) for event in listed.items)

    async def pod_now(self, name: str) -> Obj:
        return await self.api.get(PODS, name, "lab")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.run()
    try:
        yield made
    finally:
        await made.stop()


async def test_a_kill_is_noted_on_the_owner_and_told_to_its_deployment_once(world):
    world.kill(world.pod("web-a"))
    await world.passes(3)
    keeper = await world.api.get(REPLICASETS, "web-1", "lab")
    assert labels_of(keeper)[NOTE] == "true"
    assert [kill.pod for kill in ledger_from(annotations_of(keeper)[NOTE]).kills] == ["web-a"]
    assert await world.events() == [("Deployment", "KilledForMemory")]


async def test_another_operator_remembers_and_does_not_tell_again(world):
    world.kill(world.pod("web-a"))
    await world.passes()
    await world.stop()
    world.start()
    await world.run()
    await world.passes(2)
    listed = await world.api.list(EVENTS, "lab")
    assert [event["count"] for event in listed.items] == [1]


async def test_the_webhook_knows_of_the_kill_and_the_operator_lets_go_when_it_is_asked(world):
    world.kill(world.pod("web-a"))
    await world.settle()
    new = world.pod("web-b")
    known = world.caches.known(new)
    found = answer(new, known or Known(), rule_of(Policy({"restartBomb": {"level": "fill"}})))
    assert isinstance(found, Hold)
    new = behind_gate(new, found.kill)
    new["spec"]["schedulingGates"].append({"name": "other"})
    world.api.put(PODS, new)
    await world.passes()
    assert ("Pod", "HeldForMemory") in await world.events()
    assert (world.caches.known(world.pod("web-c")) or Known()).held == 1
    stored = await world.pod_now("web-b")
    stored["metadata"]["annotations"]["moorage.dev/memory-release"] = "yes"
    world.api.put(PODS, stored)
    await world.passes()
    stored = await world.pod_now("web-b")
    assert stored["spec"]["schedulingGates"] == [{"name": "other"}]
    assert labels_of(stored)["moorage.dev/memory"] == "released"
    assert world.caches.known(world.pod("web-c")) is None  # forgiven


async def test_the_webhook_remembers_by_the_owners_note_when_the_pod_is_gone(world):
    world.kill(world.pod("web-a"))
    await world.passes()
    world.api.remove(PODS, "web-a", "lab")
    await world.settle()
    known = world.caches.known(world.pod("web-b"))
    assert known is not None
    assert [kill.pod for kill in known.kills] == ["web-a"]


async def test_a_pod_that_is_gone_before_anybody_looked_was_killed_none_the_less(world):
    world.kill(world.pod("web-a"))
    await world.settle()
    world.api.remove(PODS, "web-a", "lab")  # as a StatefulSet's controller does
    await world.settle()
    assert world.caches.known(world.pod("web-b")) is not None
    await world.passes()
    keeper = await world.api.get(REPLICASETS, "web-1", "lab")
    assert [kill.pod for kill in ledger_from(annotations_of(keeper)[NOTE]).kills] == ["web-a"]


async def test_a_replacement_that_slipped_past_is_deleted_once(world):
    world.kill(world.pod("web-a"))
    world.api.put(PODS, world.pod("web-b"))
    await world.passes(2)
    listed = await world.api.list(PODS, "lab")
    assert [pod["metadata"]["name"] for pod in listed.items] == ["web-a"]
    world.api.put(PODS, world.pod("web-c"))  # nobody holds it: the webhook is away
    await world.passes(2)
    assert (await world.pod_now("web-c"))["metadata"]["name"] == "web-c"


@pytest.mark.parametrize("level", ["warn", "off"])
async def test_a_milder_policy_lets_go_of_what_is_held(world, level):
    world.kill(world.pod("web-a"))
    await world.settle()
    new = world.pod("web-b")
    known = world.caches.known(new)
    assert known is not None
    new = behind_gate(new, known.kills[0])
    world.api.put(PODS, new)
    await world.passes()
    assert is_gated(await world.pod_now("web-b"))
    world.api.put(POLICIES, world.policy(level))
    await world.passes()
    assert not is_gated(await world.pod_now("web-b"))


async def test_pods_of_namespaces_that_are_not_guarded_are_never_touched(world):
    world.api.put(NAMESPACES, {"metadata": {"name": "lab", "labels": {}}})
    world.kill(world.pod("web-a"))
    world.api.put(PODS, world.pod("web-b"))
    before = len(world.api.calls)
    await world.passes(2)
    assert {call.verb for call in world.api.calls[before:]} <= {"watch", "list"}


async def test_owners_of_other_kinds_are_not_written_to(world):
    world.kill(world.pod("step-1", "Workflow", "argoproj.io/v1alpha1"))
    await world.passes(2)
    assert await world.events() == [("Workflow", "KilledForMemory")]
    assert not [call for call in world.api.calls if call.verb == "patch"]
    assert world.caches.known(world.pod("step-1-retry", "Workflow", "argoproj.io/v1alpha1")) is not None


async def test_an_owner_that_is_gone_or_another_of_its_name_is_left_alone(world):
    world.kill(world.pod("web-a"))
    world.api.remove(REPLICASETS, "web-1", "lab")
    await world.passes()
    world.api.put(REPLICASETS, {"metadata": {"name": "web-1", "namespace": "lab", "uid": "another"}})
    await world.passes()
    assert await world.events() == []


async def test_a_stateful_sets_note_is_read_back_by_the_webhook(world):
    kill = {
        "pod": "w-0",
        "uid": "u",
        "slot": "w-0@1",
        "at": "2026-01-01T00:00:00Z",
        "by": "OOMKilled",
        "node": "n",
    }
    kill |= {"hits": [{"container": "c", "limit": 2**30}]}  # type: ignore[dict-item]
    meta = {"name": "w", "namespace": "lab", "uid": "uid-w", "labels": {NOTE: "true"}}
    world.api.put(STATEFULSETS, {"metadata": meta | {"annotations": {NOTE: json.dumps({"kills": [kill]})}}})
    await world.settle()
    pod = world.pod("w-0", "StatefulSet", owner="uid-w")
    pod["metadata"]["labels"] = {"controller-revision-hash": "1"}
    assert (world.caches.known(pod) or Known()).kills[0].pod == "w-0"
    pod["metadata"]["labels"] = {"controller-revision-hash": "2"}
    assert world.caches.known(pod) is None


async def test_the_caches_are_waited_for_but_not_for_ever():
    caches = KillCaches(FakeApi())
    assert not caches.synced
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(caches.settle(), 120)
    assert caches.known({"metadata": {"name": "x"}}) is None
