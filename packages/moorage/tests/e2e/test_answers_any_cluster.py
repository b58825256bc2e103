"""Why something waits, beside what the scheduler says of it, on whichever cluster the environment chose."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import msgspec
import pytest

from moorage.decide.explain.explainer import explain
from moorage.decide.explain.storage import storage_of
from moorage.present.explanationanswer import make_explanation
from moorage_kube.clock import SYSTEM
from moorage_kube.meta import condition
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import EVENTS, NAMESPACES, NODES, PODS, PVCS, PVS, STORAGECLASSES, Obj
from moorage_kube.testing import waiting
from moorage_testing.hollow import hollow_nodes

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api", "scheduler", "controllers")]

PATIENCE_SECONDS = 180.0  # bounds a hang
until = partial(waiting.until, patience=PATIENCE_SECONDS)
GPU = "nvidia.com/gpu"


@pytest.fixture
async def namespace(api: KubeClient, unique: str) -> AsyncIterator[str]:
    await api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": unique}})
    yield unique
    await api.delete(NAMESPACES, unique)


def a_pod(name: str, kind: str, gpus: int, *, claim: str = "", owner: str = "", seconds: int = 0) -> Obj:
    notes = {"moorage.dev/owner": owner} if owner else {}
    notes |= {"moorage.dev/expected-seconds": str(seconds)} if seconds else {}
    container: Obj = {"name": "c", "image": "example.test/none:1", "command": ["sleep", "1000"]}
    container["resources"] = {"limits": {GPU: str(gpus), "cpu": "100m", "memory": "16Mi"}}
    spec: Obj = {"containers": [container], "nodeSelector": {"nvidia.com/gpu.product": kind}}
    if claim:
        spec["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]
    meta = {"name": name, "annotations": notes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


async def ask(api: KubeClient, namespace: str, pod: Obj) -> Obj:
    """What `moor explain` says, read with this client's own rights."""
    claims = (await api.list(PVCS, namespace)).items
    found = explain(
        pod,
        nodes=(await api.list(NODES)).items,
        pods=(await api.list(PODS)).items,
        now=SYSTEM.now(),
        storage=storage_of(claims, (await api.list(PVS)).items, (await api.list(STORAGECLASSES)).items),
        events=(await api.list(EVENTS, namespace)).items,
    )
    return dict(msgspec.to_builtins(make_explanation(found)))


async def refused(api: KubeClient, namespace: str, name: str) -> Obj:
    """The pod, once the scheduler has said that no node takes it."""

    async def read() -> Obj | None:
        pod = await api.get(PODS, name, namespace)
        told = condition(pod, "PodScheduled")
        return pod if told is not None and told.get("status") == "False" else None

    found: Obj = await until(f"{name} to be refused", read)
    return found


async def placed(api: KubeClient, namespace: str, name: str) -> None:
    async def read() -> bool:
        return bool((await api.get(PODS, name, namespace))["spec"].get("nodeName"))

    await until(f"{name} to be placed", read)


async def test_free_gpus_on_two_nodes_are_not_taken_for_two_together(
    api: KubeClient, namespace: str, unique: str
) -> None:
    async with hollow_nodes(api, f"{unique}-x", f"{unique}-y", gpus=2, gpu_type=unique):
        for name in ("x", "y"):
            pod = a_pod(name, unique, 1, owner=name, seconds=3600)
            here = {"key": "metadata.name", "operator": "In", "values": [f"{unique}-{name}"]}
            required = {"nodeSelectorTerms": [{"matchFields": [here]}]}
            pod["spec"]["affinity"] = {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
            }
            await api.create(PODS, pod, namespace)
        for name in ("x", "y"):
            await placed(api, namespace, name)
        await api.create(PODS, a_pod("both", unique, 3), namespace)
        await api.create(PODS, a_pod("pair", unique, 2), namespace)
        pair = await refused(api, namespace, "pair")
        said = await ask(api, namespace, pair)
        assert said["short"] == f"needs 2 GPUs of type {unique}; one node has at most 1 free (2 in all)"
        assert sorted(one["owner"] for one in said["heldBy"]) == ["x", "y"]
        assert "--gpus 1" in [one["options"] for one in said["smaller"]]
        assert "Insufficient" in said["schedulerSays"]
        never = await ask(api, namespace, await refused(api, namespace, "both"))
        assert (never["state"], never["refusals"][0]["code"]) == ("never", "more_than_any_node")


async def test_a_volume_without_storage_is_the_reason_and_not_the_gpus(
    api: KubeClient, namespace: str, unique: str
) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "slow"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": f"{unique}-none",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    async with hollow_nodes(api, f"{unique}-a", gpus=2, gpu_type=unique):
        await api.create(PVCS, claim, namespace)
        await api.create(PODS, a_pod("me", unique, 1, claim="slow"), namespace)
        said = await ask(api, namespace, await refused(api, namespace, "me"))
        assert said["state"] == "waiting"
        assert said["short"] == "volume slow has no storage yet"
        assert f"StorageClass '{unique}-none' not found" in said["text"]
        assert "unbound" in said["schedulerSays"]


async def test_a_type_that_does_not_exist_and_a_cordoned_node_are_told_apart(
    api: KubeClient, namespace: str, unique: str
) -> None:
    async with hollow_nodes(api, f"{unique}-a", gpus=2, gpu_type=unique):
        await api.patch(NODES, f"{unique}-a", {"spec": {"unschedulable": True}})
        await api.create(PODS, a_pod("later", unique, 1), namespace)
        await api.create(PODS, a_pod("never", f"{unique}-x", 1), namespace)
        later = await ask(api, namespace, await refused(api, namespace, "later"))
        assert (later["state"], later["short"]) == ("waiting", f"node {unique}-a is cordoned")
        never = await ask(api, namespace, await refused(api, namespace, "never"))
        assert (never["state"], never["refusals"][0]["code"]) == ("never", "unknown_gpu_type")
