"""The controllers against the real API server, in process, with a node agent that only says what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import random
from datetime import timedelta

import pytest

from moorage_kube.awaketime import AwakeTime
from moorage_kube.clock import SYSTEM, rfc3339, rfc3339_micro
from moorage_kube.errors import AlreadyExists, Conflict, NotFound, ServerError
from moorage_kube.informer import Informer
from moorage_kube.meta import Key, annotations_of, condition, is_condition_true, is_deleting
from moorage_kube.resources import (
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    NODES,
    PDBS,
    PODS,
    PVCS,
    PVS,
    REPLICASETS,
    SERVICEACCOUNTS,
    STORAGECLASSES,
    Resource,
)
from moorage_kube.testing import builders
from moorage_kube.testing.clock import FakeClock
from moorage_kube.testing.pausing import pause
from moorage_kube.testing.waiting import until
from moorage_local.apiserver.server import ApiServer
from moorage_local.controllers.catalogue import Catalogue
from moorage_local.controllers.events import EventRecorder
from moorage_local.controllers.garbage.collector import GarbageCollector
from moorage_local.controllers.manager import ControllerManager
from moorage_local.controllers.nodes.controller import NodeController
from moorage_local.informers import InformerSet
from moorage_local.nodeagent.node import HEALTHY, NodeSpec, lease_object
from moorage_local.storage.memory import MemoryStorage

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Agent:
    """Says that pods run and are ready; pods annotated `test/end` end that way, deleted pods end as Failed."""

    def __init__(self, api):
        self.api = api
        self.frozen = False
        self.pods = Informer(api, PODS)
        self.queue = asyncio.Queue()
        self.pods.on_change(lambda _, after: self.queue.put_nowait(after) if after else None)

    async def run(self):
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pods.run())
            group.create_task(self.work())

    async def work(self):
        while True:
            pod = await self.queue.get()
            if self.frozen or not pod["spec"].get("nodeName"):
                continue
            with contextlib.suppress(NotFound, Conflict):
                await self.step(pod)

    async def step(self, pod):
        meta, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
        end = annotations_of(pod).get("test/end")
        if is_deleting(pod):
            if phase not in ("Succeeded", "Failed"):
                await self.say(pod, "Failed")
            elif meta.get("deletionGracePeriodSeconds") != 0:
                await self.api.delete(
                    PODS, meta["name"], meta["namespace"], grace_period_seconds=0, uid=meta["uid"]
                )
        elif phase in (None, "Pending"):
            await self.say(pod, end or "Running")

    async def say(self, pod, phase):
        now = rfc3339(SYSTEM.now())
        status = {**(pod.get("status") or {}), "phase": phase}
        others = [one for one in status.get("conditions") or () if one["type"] != "Ready"]
        ready = "True" if phase == "Running" else "False"
        status["conditions"] = [*others, {"type": "Ready", "status": ready, "lastTransitionTime": now}]
        if phase in ("Succeeded", "Failed"):
            code = 0 if phase == "Succeeded" else int(annotations_of(pod).get("test/code", "1"))
            ended = {"exitCode": code, "startedAt": now, "finishedAt": now, "reason": "Error"}
            main = {"name": "main", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
            status["containerStatuses"] = [{**main, "state": {"terminated": ended}}]
        meta = pod["metadata"]
        await self.api.patch(PODS, meta["name"], {"status": status}, meta["namespace"], subresource="status")


class Cluster:
    def __init__(self, api, folder, agent):
        self.api = api
        self.folder = folder
        self.agent = agent

    async def until(self, read, what):
        """The first true answer of `read`, tried again and again until the deadline."""

        async def answer():
            with contextlib.suppress(NotFound):
                return await read()

        return await until(what, answer)

    async def gone(self, resource, name, namespace=None):
        async def read():
            with contextlib.suppress(NotFound):
                await self.api.get(resource, name, namespace)
                return False
            return True

        await self.until(read, f"{resource} {name} is gone")

    async def get_when(self, resource, name, test, namespace="default"):
        async def read():
            obj = await self.api.get(resource, name, namespace if resource.namespaced else None)
            return obj if test(obj) else None

        return await self.until(read, f"{resource} {name}")

    async def pods(self, namespace="default"):
        return (await self.api.list(PODS, namespace)).items


@pytest.fixture
async def cluster(tmp_path):
    server = ApiServer(MemoryStorage(), tokens={})
    await server.start()
    api = server.client("system:kube-controller-manager")
    await api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    manager = ControllerManager(
        api,
        volumes_folder=tmp_path / "volumes",
        ca_pem="CERTIFICATE",
        node_grace_seconds=3600,
        gone_node_grace_seconds=0,
        sweep_seconds=0.05,
    )
    agent = Agent(api)
    tasks = [asyncio.create_task(manager.run()), asyncio.create_task(agent.run())]
    ready = asyncio.create_task(manager.ready.wait())
    await asyncio.wait([ready, *tasks], return_when=asyncio.FIRST_COMPLETED)
    assert ready.done()
    yield Cluster(api, tmp_path / "volumes", agent)
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, asyncio.CancelledError), result
    await server.stop()


def template(end=None, **spec):
    annotations = {"test/end": end} if end else {}
    container = {"name": "main", "image": "localhost/host", "command": ["true"]}
    return {
        "metadata": {"labels": {"app": "x"}, "annotations": annotations},
        "spec": {"nodeName": "n1", "restartPolicy": "Never", "containers": [container]} | spec,
    }


def job(name, end=None, **spec):
    return builders.an_object(JOBS, name, namespace="default", spec={"template": template(end)} | spec)


def done(kind):
    return lambda obj: is_condition_true(obj, kind)


async def test_a_job_runs_to_completion_and_counts_every_pod(cluster):
    await cluster.api.create(JOBS, job("sum", "Succeeded", completions=5, parallelism=2))
    ended = await cluster.get_when(JOBS, "sum", done("Complete"))
    assert ended["status"]["succeeded"] == 5
    assert ended["status"].get("failed", 0) == 0
    assert condition(ended, "Complete")["reason"] == "CompletionsReached"
    pods = await cluster.pods()
    assert len(pods) == 5
    await cluster.until(lambda: _no_finalizers(cluster), "pods released")
    reasons = await cluster.until(lambda: _reasons(cluster, "Completed"), "events")
    assert {"SuccessfulCreate", "Completed"} <= reasons


async def _no_finalizers(cluster):
    return all(not pod["metadata"].get("finalizers") for pod in await cluster.pods())


async def _reasons(cluster, wanted):
    found = {event["reason"] for event in (await cluster.api.list(EVENTS, "default")).items}
    return found if wanted in found else None


async def test_a_job_without_retries_fails_at_the_first_failure(cluster):
    await cluster.api.create(JOBS, job("once", "Failed", backoffLimit=0))
    ended = await cluster.get_when(JOBS, "once", done("Failed"))
    assert condition(ended, "Failed")["reason"] == "BackoffLimitExceeded"
    assert ended["status"]["failed"] == 1
    assert len(await cluster.pods()) == 1


async def test_an_evicted_pod_fails_its_job_by_policy_even_though_the_pod_vanishes(cluster):
    rule = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    spec = {"podFailurePolicy": {"rules": [rule]}, "podReplacementPolicy": "Failed", "backoffLimit": 3}
    await cluster.api.create(JOBS, job("train", **spec))
    await cluster.get_when(JOBS, "train", lambda obj: (obj.get("status") or {}).get("ready") == 1)
    (pod,) = await cluster.pods()
    disrupted = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": rfc3339(SYSTEM.now()),
    }
    status = {"conditions": [*pod["status"]["conditions"], disrupted]}
    await cluster.api.patch(PODS, pod["metadata"]["name"], {"status": status}, "default", subresource="status")
    await cluster.api.delete(PODS, pod["metadata"]["name"], "default")
    ended = await cluster.get_when(JOBS, "train", done("Failed"))
    found = condition(ended, "Failed")
    name = pod["metadata"]["name"]
    assert found["reason"] == "PodFailurePolicy"
    assert found["message"] == (
        f"Pod default/{name} has condition DisruptionTarget matching FailJob rule at index 0"
    )
    assert ended["status"]["failed"] == 1
    await cluster.gone(PODS, name, "default")


async def test_a_suspended_job_has_no_pods_until_it_is_resumed(cluster):
    await cluster.api.create(JOBS, job("later", suspend=True))
    await cluster.get_when(JOBS, "later", done("Suspended"))
    assert await cluster.pods() == []
    await cluster.api.patch(JOBS, "later", {"spec": {"suspend": False}}, "default")
    await cluster.get_when(JOBS, "later", lambda obj: obj["status"].get("ready") == 1)
    await cluster.api.patch(JOBS, "later", {"spec": {"suspend": True}}, "default")
    stopped = await cluster.get_when(
        JOBS, "later", lambda obj: is_condition_true(obj, "Suspended") and not obj["status"].get("terminating")
    )
    assert stopped["status"].get("failed", 0) == 0

    async def no_pods():
        return not await cluster.pods()

    await cluster.until(no_pods, "the pod is gone")


async def test_a_job_goes_with_its_pods_after_its_time(cluster):
    await cluster.api.create(JOBS, job("brief", "Succeeded", ttlSecondsAfterFinished=0))
    await cluster.gone(JOBS, "brief", "default")

    async def no_pods():
        return not await cluster.pods()

    await cluster.until(no_pods, "the pod is gone")


async def test_deleting_a_job_deletes_its_running_pods(cluster):
    await cluster.api.create(JOBS, job("long"))
    await cluster.get_when(JOBS, "long", lambda obj: (obj.get("status") or {}).get("ready") == 1)
    await cluster.api.delete(JOBS, "long", "default", propagation="Background")
    await cluster.gone(JOBS, "long", "default")

    async def no_pods():
        return not await cluster.pods()

    await cluster.until(no_pods, "the pod is gone")


async def test_an_orphaned_pod_outlives_its_job(cluster):
    await cluster.api.create(JOBS, job("parent"))
    await cluster.get_when(JOBS, "parent", lambda obj: (obj.get("status") or {}).get("ready") == 1)
    await cluster.api.delete(JOBS, "parent", "default", propagation="Orphan")
    await cluster.gone(JOBS, "parent", "default")
    (pod,) = await cluster.pods()
    assert not pod["metadata"].get("ownerReferences")
    assert not is_deleting(pod)


def deployment(name="web", replicas=3, image="v1", **spec):
    pod = template(restartPolicy="Always")
    pod["spec"]["containers"][0]["image"] = image
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "x"}}, "template": pod} | spec
    return builders.an_object(DEPLOYMENTS, name, namespace="default", spec=spec)


def rolled_out(replicas):
    def test(obj):
        status = obj.get("status") or {}
        counts = [status.get(name) for name in ("replicas", "updatedReplicas", "availableReplicas")]
        return counts == [replicas] * 3 and status["observedGeneration"] == obj["metadata"].get("generation", 1)

    return test


async def test_a_deployment_rolls_out_scales_and_restarts(cluster):
    await cluster.api.create(DEPLOYMENTS, deployment())
    first = await cluster.get_when(DEPLOYMENTS, "web", rolled_out(3))
    assert is_condition_true(first, "Available")
    assert annotations_of(first)["deployment.kubernetes.io/revision"] == "1"
    await cluster.api.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 5}}, "default")
    await cluster.get_when(DEPLOYMENTS, "web", rolled_out(5))
    restart = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}}}
    await cluster.api.patch(DEPLOYMENTS, "web", {"spec": {"template": restart}}, "default")
    second = await cluster.get_when(
        DEPLOYMENTS,
        "web",
        lambda obj: rolled_out(5)(obj) and annotations_of(obj)["deployment.kubernetes.io/revision"] == "2",
    )
    progressing = condition(second, "Progressing")
    assert progressing["status"] == "True"
    sets = (await cluster.api.list(REPLICASETS, "default")).items
    assert sorted(one["spec"]["replicas"] for one in sets) == [0, 5]
    done_ = await cluster.get_when(
        DEPLOYMENTS, "web", lambda obj: condition(obj, "Progressing")["reason"] == "NewReplicaSetAvailable"
    )
    assert rolled_out(5)(done_)
    await cluster.api.delete(DEPLOYMENTS, "web", "default", propagation="Foreground")
    await cluster.gone(DEPLOYMENTS, "web", "default")
    assert (await cluster.api.list(REPLICASETS, "default")).items == []


async def test_recreate_never_runs_old_and_new_together(cluster):
    seen = []

    def look(_, after):
        pods = [pod for pod in cluster.agent.pods.all() if (pod.get("status") or {}).get("phase") == "Running"]
        seen.append({pod["spec"]["containers"][0]["image"] for pod in pods})

    await cluster.api.create(DEPLOYMENTS, deployment(replicas=2, strategy={"type": "Recreate"}))
    await cluster.get_when(DEPLOYMENTS, "web", rolled_out(2))
    cluster.agent.pods.on_change(look)
    change = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "v2"}]}}}}
    await cluster.api.patch(DEPLOYMENTS, "web", change, "default", kind="strategic")
    await cluster.get_when(
        DEPLOYMENTS,
        "web",
        lambda obj: rolled_out(2)(obj) and annotations_of(obj).get("deployment.kubernetes.io/revision") == "2",
    )
    assert {"v1", "v2"} not in seen
    assert {"v2"} in seen


async def test_a_replicaset_replaces_a_deleted_pod(cluster):
    owner = builders.an_object(REPLICASETS, "rs", namespace="default", spec=deployment(replicas=2)["spec"])
    await cluster.api.create(REPLICASETS, owner)
    await cluster.get_when(REPLICASETS, "rs", lambda obj: (obj.get("status") or {}).get("availableReplicas") == 2)
    before = {pod["metadata"]["name"] for pod in await cluster.pods()}
    gone = min(before)
    await cluster.api.delete(PODS, gone, "default")

    async def replaced():
        names = {pod["metadata"]["name"] for pod in await cluster.pods()}
        return gone not in names and len(names) == 2

    await cluster.until(replaced, "replaced")


STORAGE_CLASS = builders.an_object(
    STORAGECLASSES, "local", annotations={"storageclass.kubernetes.io/is-default-class": "true"},
    provisioner="localcluster.moorage.dev/folder", reclaimPolicy="Delete", volumeBindingMode="Immediate",
    allowVolumeExpansion=True,
)  # fmt: skip


def claim(name="data", **spec):
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}} | spec
    return builders.an_object(PVCS, name, namespace="default", spec=spec)


def bound(obj):
    return (obj.get("status") or {}).get("phase") == "Bound"


async def test_a_claim_gets_a_folder_grows_and_takes_it_away(cluster):
    await cluster.api.create(STORAGECLASSES, STORAGE_CLASS)
    await cluster.api.create(PVCS, claim())
    got = await cluster.get_when(PVCS, "data", bound)
    volume = await cluster.get_when(PVS, got["spec"]["volumeName"], bound)
    folder = cluster.folder / volume["metadata"]["name"]
    assert volume["spec"]["hostPath"]["path"] == str(folder)
    assert folder.is_dir()
    assert got["spec"]["storageClassName"] == "local"
    assert got["status"]["capacity"] == {"storage": "1Gi"}
    (folder / "weights").write_text("1")
    await cluster.api.patch(PVCS, "data", {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}, "default")
    await cluster.get_when(PVCS, "data", lambda obj: obj["status"]["capacity"] == {"storage": "2Gi"})
    await cluster.api.delete(PVCS, "data", "default")
    await cluster.gone(PVCS, "data", "default")
    await cluster.gone(PVS, volume["metadata"]["name"])
    assert not folder.exists()


async def test_a_claim_in_use_stays_until_its_pod_has_ended(cluster):
    await cluster.api.create(STORAGECLASSES, STORAGE_CLASS | {"reclaimPolicy": "Retain"})
    await cluster.api.create(PVCS, claim())
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    pod = {"apiVersion": "v1", "kind": "Pod", **template(volumes=[volume])}
    pod["metadata"] |= {"name": "user", "namespace": "default"}
    await cluster.api.create(PODS, pod)
    got = await cluster.get_when(PVCS, "data", bound)
    await cluster.get_when(PODS, "user", lambda obj: obj["status"].get("phase") == "Running")
    await cluster.api.delete(PVCS, "data", "default")
    held = await cluster.api.get(PVCS, "data", "default")
    assert is_deleting(held)
    await cluster.api.delete(PODS, "user", "default")
    await cluster.gone(PVCS, "data", "default")
    kept = await cluster.get_when(PVS, got["spec"]["volumeName"], lambda obj: obj["status"]["phase"] == "Released")
    assert (cluster.folder / kept["metadata"]["name"]).is_dir()


async def test_a_claim_waits_for_a_volume_made_by_hand(cluster):
    await cluster.api.create(PVCS, claim(storageClassName=""))
    await cluster.get_when(PVCS, "data", lambda obj: (obj.get("status") or {}).get("phase") == "Pending")
    spec = {
        "capacity": {"storage": "5Gi"},
        "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": "/srv/data"},
    }
    await cluster.api.create(PVS, builders.an_object(PVS, "by-hand", spec=spec))
    got = await cluster.get_when(PVCS, "data", bound)
    assert got["spec"]["volumeName"] == "by-hand"
    assert got["status"]["capacity"] == {"storage": "5Gi"}


async def test_a_namespace_is_emptied_and_goes(cluster):
    await cluster.api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}})
    await cluster.get_when(SERVICEACCOUNTS, "default", bool, "lab")
    found = await cluster.get_when(CONFIGMAPS, "kube-root-ca.crt", bool, "lab")
    assert found["data"] == {"ca.crt": "CERTIFICATE"}
    inside = job("train")
    inside["metadata"]["namespace"] = "lab"
    await cluster.api.create(JOBS, inside)
    await cluster.get_when(JOBS, "train", lambda obj: (obj.get("status") or {}).get("ready") == 1, "lab")
    await cluster.api.delete(NAMESPACES, "lab")
    await cluster.gone(NAMESPACES, "lab")
    assert await cluster.pods("lab") == []
    assert (await cluster.api.list(JOBS, "lab")).items == []


async def test_custom_resources_are_collected_with_their_owner(cluster):
    boats = Resource("sea.test", "v1", "boats", "Boat")
    await cluster.api.create(CRDS, builders.a_definition(boats))
    await cluster.get_when(CRDS, "boats.sea.test", done("Established"))

    async def create():
        with contextlib.suppress(AlreadyExists):
            await cluster.api.create(boats, builders.an_object(boats, "ada", namespace="default"))
        return True

    await cluster.until(create, "served")
    boat = await cluster.api.get(boats, "ada", "default")
    ref = {"apiVersion": "sea.test/v1", "kind": "Boat", "name": "ada", "uid": boat["metadata"]["uid"]}
    await cluster.api.create(CONFIGMAPS, builders.an_object(CONFIGMAPS, "cargo", namespace="default", owner=ref))
    below = await cluster.api.get(CONFIGMAPS, "cargo", "default")
    ref = {"apiVersion": "v1", "kind": "ConfigMap", "name": "cargo", "uid": below["metadata"]["uid"]}
    await cluster.api.create(boats, builders.an_object(boats, "dinghy", namespace="default", owner=ref))
    await cluster.api.delete(boats, "ada", "default")
    await cluster.gone(CONFIGMAPS, "cargo", "default")
    await cluster.gone(boats, "dinghy", "default")


async def test_an_object_whose_owner_never_was_is_collected(cluster):
    ref = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "nobody",
        "uid": "00000000-0000-0000-0000-000000000000",
    }
    meta = {"name": "stray", "namespace": "default", "ownerReferences": [ref]}
    await cluster.api.create(CONFIGMAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
    await cluster.gone(CONFIGMAPS, "stray", "default")


async def test_pods_of_a_node_that_is_no_more_are_failed_and_removed(cluster):
    await cluster.api.create(JOBS, job("train", backoffLimit=0))
    await cluster.get_when(JOBS, "train", lambda obj: (obj.get("status") or {}).get("ready") == 1)
    cluster.agent.frozen = True
    await cluster.api.delete(NODES, "n1")
    ended = await cluster.get_when(JOBS, "train", done("Failed"))
    assert ended["status"]["failed"] == 1


async def test_a_cordoned_node_bears_the_taint(cluster):
    await cluster.api.patch(NODES, "n1", {"spec": {"unschedulable": True}})
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}

    def tainted(obj):
        keys = [(one["key"], one["effect"]) for one in obj["spec"].get("taints") or ()]
        return (cordon["key"], cordon["effect"]) in keys

    await cluster.get_when(NODES, "n1", tainted)
    await cluster.api.patch(NODES, "n1", {"spec": {"unschedulable": None}})
    await cluster.get_when(NODES, "n1", lambda obj: not tainted(obj))


@pytest.mark.parametrize("slept", [timedelta(minutes=2), timedelta(hours=8), timedelta(days=3)], ids=str)
async def test_a_sleep_of_the_machine_costs_no_node_and_silence_afterwards_does(slept):
    server = ApiServer(MemoryStorage(), tokens={})
    await server.start()
    clock = FakeClock()
    api = server.client("system:kube-controller-manager")
    status = {"conditions": [{"type": kind, "status": status} for kind, status, _, _ in HEALTHY]}
    node = await api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    await api.update(NODES, {**node, "status": status}, subresource="status")
    await api.create(
        LEASES, lease_object(NodeSpec(name="n1", cpu_milli=1, memory_bytes=1), "u", now=rfc3339_micro(clock.now()))
    )
    informers, awake = InformerSet(api), AwakeTime(clock)
    controller = NodeController(
        api, informers, EventRecorder(api, "test", clock), clock, grace=timedelta(seconds=40), awake=awake
    )
    following = asyncio.create_task(informers.run())
    await informers.synced()

    async def readiness():
        await controller.reconcile_node(Key("", "n1"))
        node = await api.get(NODES, "n1")
        return condition(node, "Ready")["status"], len(node["spec"].get("taints") or ())

    async def awake_for(seconds):
        for _ in range(seconds):
            clock.advance(1.0)
            awake.look()
        return await readiness()

    assert await awake_for(20) == ("True", 0)
    clock.advance(slept)
    assert await readiness() == ("True", 0)
    assert await awake_for(18) == ("True", 0)
    assert await awake_for(22) == ("Unknown", 2)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await server.stop()


async def queued(collector):
    """What waits for the collector, in its order."""
    names = []
    while len(collector.loop.queue):
        ref = await collector.loop.queue.get()
        collector.loop.queue.done(ref)
        names.append(ref.key.name)
    return names


class Family:
    """An owner and its pods, which block its deletion; a collector that looks at nothing by itself."""

    def __init__(self, api, informers, collector):
        self.api, self.collector = api, collector
        self._heard = asyncio.Event()
        self._pods, self._owners = informers.of(PODS), informers.of(CONFIGMAPS)
        for informer in (self._pods, self._owners):
            informer.on_change(lambda *_: self._heard.set())

    async def make(self, pods):
        meta = {"name": "owner", "namespace": "default"}
        owner = await self.api.create(CONFIGMAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
        ref = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
        ref["blockOwnerDeletion"] = True
        for number in range(pods):
            pod = {"apiVersion": "v1", "kind": "Pod", **template(nodeName="n1" if number % 2 else None)}
            meta = {"name": f"pod-{number}", "namespace": "default", "ownerReferences": [ref]}
            await self.api.create(PODS, {**pod, "metadata": meta})
        await self.until(lambda: len(self._pods) == pods)
        await queued(self.collector)

    async def delete_owner(self, propagation):
        await self.api.delete(CONFIGMAPS, "owner", "default", propagation=propagation)
        await self.until(lambda: (known := self._owners.get("owner", "default")) is None or is_deleting(known))
        return await queued(self.collector)

    async def delete_pod(self, number):
        await self.api.delete(PODS, f"pod-{number}", "default", grace_period_seconds=0)
        await self.until(lambda: self._pods.get(f"pod-{number}", "default") is None)
        return await queued(self.collector)

    async def until(self, is_done):
        while not is_done():
            self._heard.clear()
            await self._heard.wait()


@pytest.fixture
async def family():
    server = ApiServer(MemoryStorage(), tokens={})
    await server.start()
    api = server.client("system:kube-controller-manager")
    informers = InformerSet(api)
    collector = GarbageCollector(api, informers, catalogue=Catalogue())
    following = asyncio.create_task(informers.run())
    await informers.synced()
    yield Family(api, informers, collector)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await server.stop()


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
async def test_of_what_an_owner_left_those_that_wait_for_a_place_go_first(family, propagation):
    await family.make(pods=8)
    order = [name for name in await family.delete_owner(propagation) if name != "owner"]
    assert [int(name[-1]) % 2 for name in order] == [0] * 4 + [1] * 4


async def test_an_owner_is_looked_at_again_when_the_last_of_its_pods_is_gone(family):
    await family.make(pods=5)
    assert "owner" in await family.delete_owner("Foreground")
    assert [await family.delete_pod(number) for number in range(5)] == [[], [], [], [], ["owner"]]


async def test_a_change_of_an_owner_that_waits_is_no_reason_to_look_at_all_its_pods_again(family):
    await family.make(pods=3)
    await family.delete_owner("Foreground")
    await family.api.patch(CONFIGMAPS, "owner", {"data": {"a": "b"}}, "default")
    await family.until(lambda: len(family.collector.loop.queue) > 0)
    assert await queued(family.collector) == ["owner"]


async def test_a_silent_node_is_tainted_and_its_pods_leave(tmp_path):
    server = ApiServer(MemoryStorage(), tokens={})
    await server.start()
    api = server.client("system:kube-controller-manager")
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    ready |= {"lastHeartbeatTime": rfc3339(SYSTEM.now()), "lastTransitionTime": rfc3339(SYSTEM.now())}
    node = await api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    await api.update(NODES, {**node, "status": {"conditions": [ready]}}, subresource="status")
    spec = {"holderIdentity": "n1", "renewTime": rfc3339_micro(SYSTEM.now())}
    await api.create(LEASES, builders.an_object(LEASES, "n1", namespace="kube-node-lease", spec=spec))
    forever = {"operator": "Exists"}
    soon = {
        "key": "node.kubernetes.io/unreachable",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 0,
    }
    for name, tolerations in (("stays", [forever]), ("leaves", [soon])):
        pod = {"apiVersion": "v1", "kind": "Pod", **template(tolerations=tolerations)}
        pod["metadata"] |= {"name": name, "namespace": "default"}
        await api.create(PODS, pod)
    manager = ControllerManager(api, volumes_folder=tmp_path, node_grace_seconds=0.3)
    task = asyncio.create_task(manager.run())
    cluster = Cluster(api, tmp_path, None)
    lost = await cluster.get_when(NODES, "n1", lambda obj: (condition(obj, "Ready") or {})["status"] == "Unknown")
    assert condition(lost, "Ready")["reason"] == "NodeStatusUnknown"
    left = await cluster.get_when(PODS, "leaves", is_deleting)
    assert condition(left, "DisruptionTarget")["reason"] == "DeletionByTaintManager"
    assert not is_deleting(await api.get(PODS, "stays", "default"))
    tainted = await api.get(NODES, "n1")
    keys = {(one["key"], one["effect"]) for one in tainted["spec"]["taints"]}
    assert keys >= {
        ("node.kubernetes.io/unreachable", "NoSchedule"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
    }
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await server.stop()


async def test_a_disruption_budget_tells_how_many_pods_may_go(cluster):
    await cluster.api.create(DEPLOYMENTS, deployment(replicas=3))
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "x"}}}
    await cluster.api.create(PDBS, builders.an_object(PDBS, "web", namespace="default", spec=spec))
    found = await cluster.get_when(
        PDBS, "web", lambda obj: (obj.get("status") or {}).get("disruptionsAllowed") == 1
    )
    status = found["status"]
    assert (status["currentHealthy"], status["desiredHealthy"], status["expectedPods"]) == (3, 2, 3)


async def test_a_job_survives_its_controllers_being_killed_again_and_again(tmp_path):
    server = ApiServer(MemoryStorage(), tokens={})
    await server.start()
    api = server.client("system:kube-controller-manager")
    await api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    agent = Agent(api)
    agent_task = asyncio.create_task(agent.run())
    await api.create(JOBS, job("many", "Succeeded", completions=40, parallelism=8))
    made = set()
    agent.pods.on_change(lambda _, after: made.add(after["metadata"]["uid"]) if after else None)
    cluster = Cluster(api, tmp_path, agent)
    ended = None
    for lives in range(200):
        manager = ControllerManager(api, volumes_folder=tmp_path)
        task = asyncio.create_task(manager.run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02 + 0.01 * lives):
                ended = await cluster.get_when(JOBS, "many", done("Complete"))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if ended is not None:
            break
    assert ended is not None
    assert ended["status"]["succeeded"] == 40
    assert len(made) == 40
    agent_task.cancel()
    await asyncio.gather(agent_task, return_exceptions=True)
    await server.stop()


class Unreliable:
    """An API whose writes fail now and then: before they were done, after they were done, or by a conflict."""

    def __init__(self, api, seed, often=0.15):
        self.api = api
        self.random = random.Random(seed)
        self.often = often
        self.failed = 0
        for name in ("get", "list", "create_subresource"):
            setattr(self, name, getattr(api, name))

    async def watch(self, resource, *args, **options):
        """Pods come late, so that caches of different collections disagree."""
        async with contextlib.aclosing(self.api.watch(resource, *args, **options)) as events:
            async for event in events:
                if resource == PODS:
                    await pause(self.random, 0.0, 0.02)
                yield event

    async def _maybe(self, write, *args, **options):
        fate = self.random.random() / self.often
        if fate < 1:
            self.failed += 1
        if fate < 0.3:
            raise ServerError("no answer: it was not done", status=0)
        if fate < 0.4:
            raise Conflict("somebody was quicker")
        answer = await write(*args, **options)
        if fate < 1:
            raise ServerError("no answer: it was done", status=0)
        return answer

    async def create(self, *args, **options):
        return await self._maybe(self.api.create, *args, **options)

    async def update(self, *args, **options):
        return await self._maybe(self.api.update, *args, **options)

    async def patch(self, *args, **options):
        return await self._maybe(self.api.patch, *args, **options)

    async def delete(self, *args, **options):
        return await self._maybe(self.api.delete, *args, **options)


@contextlib.asynccontextmanager
async def unreliable(folder, seed):
    """A cluster whose controllers meet an unreliable API; yields it and the uids of all pods ever made."""
    server = ApiServer(MemoryStorage(), tokens={})
    await server.start()
    api = server.client("system:kube-controller-manager")
    await api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    agent = Agent(api)
    made = set()
    agent.pods.on_change(lambda _, after: made.add(after["metadata"]["uid"]) if after else None)
    flaky = Unreliable(api, seed)
    manager = ControllerManager(flaky, volumes_folder=folder, ca_pem="x")
    tasks = [asyncio.create_task(manager.run()), asyncio.create_task(agent.run())]
    try:
        yield Cluster(api, folder, agent), made
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, asyncio.CancelledError), result
        await server.stop()
    assert flaky.failed


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", ["NonIndexed", "Indexed"])
async def test_answers_that_are_lost_make_no_pod_twice_and_count_none_twice(tmp_path, seed, mode):
    async with unreliable(tmp_path, seed) as (cluster, made):
        wanted = job("sum", "Succeeded", completions=12, parallelism=4, completionMode=mode)
        await cluster.api.create(JOBS, wanted)
        ended = await cluster.get_when(JOBS, "sum", done("Complete"))
        assert (ended["status"]["succeeded"], len(made)) == (12, 12)
        await cluster.until(lambda: _no_finalizers(cluster), "pods released")


@pytest.mark.parametrize("seed", range(3))
async def test_answers_that_are_lost_bind_one_volume_and_leave_no_folder(tmp_path, seed):
    async with unreliable(tmp_path, seed) as (cluster, _):
        await cluster.api.create(STORAGECLASSES, STORAGE_CLASS)
        for number in range(4):
            await cluster.api.create(PVCS, claim(f"data-{number}"))
        for number in range(4):
            await cluster.get_when(PVCS, f"data-{number}", bound)
        assert len((await cluster.api.list(PVS)).items) == 4
        assert len(list(tmp_path.iterdir())) == 4
        for number in range(4):
            await cluster.api.delete(PVCS, f"data-{number}", "default")

        async def no_volumes():
            return not (await cluster.api.list(PVS)).items

        await cluster.until(no_volumes, "volumes are gone")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", range(3))
async def test_answers_that_are_lost_make_one_set_per_template(tmp_path, seed):
    async with unreliable(tmp_path, seed) as (cluster, _):
        await cluster.api.create(DEPLOYMENTS, deployment(replicas=4))
        await cluster.get_when(DEPLOYMENTS, "web", rolled_out(4))
        change = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "v2"}]}}}}
        await cluster.api.patch(DEPLOYMENTS, "web", change, "default", kind="strategic")
        await cluster.get_when(
            DEPLOYMENTS,
            "web",
            lambda obj: rolled_out(4)(obj) and annotations_of(obj).get("deployment.kubernetes.io/revision") == "2",
        )
        sets = (await cluster.api.list(REPLICASETS, "default")).items
        assert sorted(one["spec"]["replicas"] for one in sets) == [0, 4]
        live = [pod for pod in await cluster.pods() if not is_deleting(pod)]
        assert len(live) == 4


async def test_events_are_only_advice_and_never_raise(cluster):
    recorder = EventRecorder(Unreliable(cluster.api, 1, often=1.0), "tester")
    recorder.event({"no": "metadata"}, "Normal", "Odd", "nothing to tell of")
    node = await cluster.api.get(NODES, "n1")
    recorder.event(node, "Normal", "Long", "x" * 5000)
    for _ in range(3000):
        recorder.event(node, "Normal", "Often", "too often to write down")
    await recorder.close()
    EventRecorder(cluster.api, "tester")  # closing one that told nothing is fine, too
    await EventRecorder(cluster.api, "tester").close()


async def test_the_same_event_again_is_counted_up(cluster):
    recorder = EventRecorder(cluster.api, "tester")
    node = await cluster.api.get(NODES, "n1")
    for _ in range(3):
        recorder.event(node, "Warning", "Rebooted", "it rebooted")
    recorder.event(node, "Warning", "Rebooted", "it rebooted twice")
    await recorder.close()
    events = [one for one in (await cluster.api.list(EVENTS)).items if one["reason"] == "Rebooted"]
    assert sorted((one["count"], one["message"]) for one in events) == [
        (1, "it rebooted twice"),
        (3, "it rebooted"),
    ]
    assert all(one["source"]["component"] == "tester" for one in events)
