"""Machines on whichever cluster the environment chose: the seed's manifest, hand-overs, who gets no place.

Nodes are hollow: scheduler and API are the cluster's own; operator, webhook and extender ours.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from moorage.decide.admission.injection import lift
from moorage.decide.admission.review import OPERATOR
from moorage.model.machine import MACHINES, NODE_POOLS
from moorage_kube.clock import SYSTEM, parse_rfc3339, rfc3339
from moorage_kube.errors import Invalid, NotFound
from moorage_kube.meta import annotations_of, labels_of
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import EVENTS, NAMESPACES, NODES, PODS, Obj
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster
from moorage_testing.hollow import HollowNodes, hollow_nodes

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api", "scheduler", "controllers")]


@pytest.fixture
async def namespace(api: KubeClient, unique: str) -> AsyncIterator[str]:
    await api.create(NAMESPACES, {"metadata": {"name": unique, "labels": {"moorage.dev/guard": "enabled"}}})
    yield unique
    await api.delete(NAMESPACES, unique)


@pytest.fixture
async def nodes(api: KubeClient, unique: str) -> AsyncIterator[HollowNodes]:
    async with hollow_nodes(api, f"{unique}-a", f"{unique}-b", gpus=2, gpu_type=unique) as made:
        yield made


@pytest.fixture
async def offer(api: KubeClient, unique: str, nodes: HollowNodes) -> AsyncIterator[Callable[..., Awaitable[Obj]]]:
    """Offers machines of types `name=available` on both nodes; it goes again, and nodes are clean."""

    async def make(*, taint: bool = False, order: str = "fifo", **available: int) -> Obj:
        entries = [
            {
                "name": name,
                "mode": "ready",
                "taint": taint,
                "machineType": [{"name": kind.replace("_", "-")} for kind in available],
            }
            for name in nodes.names
        ]
        size = {"cpu": "4000m", "memory": "12Gi", "gpu": {"type": "nvidia.com/gpu", "num": 1, "family": "ampere"}}
        machine = {
            "apiVersion": MACHINES.api_version,
            "kind": MACHINES.kind,
            "metadata": {"name": unique, "labels": {"moorage.dev/machine-group": unique}},
            "spec": {
                "order": order,
                "nodePool": entries,
                "machineTypes": [
                    {"name": kind.replace("_", "-"), "spec": size, "available": count}
                    for kind, count in available.items()
                ],
            },
        }
        return await api.create(MACHINES, machine)

    yield make
    try:
        await api.delete(MACHINES, unique)
    except NotFound:
        return
    await until("the pool to go", lambda: _gone(api, unique))
    for name in nodes.names:
        node = await api.get(NODES, name)
        assert not [key for key in labels_of(node) if "machine" in key]
        assert not [one for one in node["spec"].get("taints") or () if "moorage.dev" in one["key"]]


async def _gone(api: KubeClient, name: str) -> bool:
    try:
        await api.get(NODE_POOLS, name)
    except NotFound:
        return True
    return False


def a_guest(name: str, group: str, kind: str = "xmedium") -> Obj:
    labels = {"moorage.dev/machine-group": group, "moorage.dev/machine-type": kind}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "localhost/host", "command": ["sleep", "infinity"]}],
        },
    }


def an_ordinary_pod(name: str, gpu_type: str) -> Obj:
    limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    return {
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"nvidia.com/gpu.product": gpu_type},
            "containers": [
                {
                    "name": "main",
                    "image": "localhost/host",
                    "command": ["sleep", "infinity"],
                    "resources": {"limits": limits},
                }
            ],
        },
    }


async def counts(api: KubeClient, name: str) -> dict[str, dict[str, int]]:
    status = (await api.get(MACHINES, name)).get("status") or {}
    return {one["name"]: one["usage"] for one in status.get("availableMachines") or ()}


async def until_counts(api: KubeClient, name: str, kind: str = "xmedium", **want: int) -> None:
    async def read() -> bool:
        found = (await counts(api, name)).get(kind, {})
        return {key: found.get(key) for key in want} == want and found.get("pending") == 0

    try:
        await until(f"{want}", read)
    except AssertionError as error:
        raise AssertionError(f"{error}; {await counts(api, name)}") from error


async def test_a_machine_is_reserved_used_waited_for_and_reserved_again(
    cluster: Cluster, api: KubeClient, namespace: str, nodes: HollowNodes, offer: Callable[..., Awaitable[Obj]]
) -> None:
    await offer(xmedium=1)
    await until_counts(api, namespace, maximum=1, reserved=1, used=0, waiting=0)
    await api.create(PODS, a_guest("first", namespace), namespace)
    await until_counts(api, namespace, maximum=1, reserved=0, used=1, waiting=0)
    first = await api.get(PODS, "first", namespace)
    assert first["spec"]["nodeName"] == annotations_of(first)["moorage.dev/machine-place"]
    await api.create(PODS, a_guest("second", namespace), namespace)
    await until_counts(api, namespace, maximum=1, reserved=0, used=1, waiting=1)
    listed = json.loads(cluster.moor("machines", namespace, "-o", "json").stdout)
    assert [(row["type"], row["usage"]["waiting"]) for row in listed] == [("xmedium", 1)]
    await api.delete(PODS, "first", namespace)
    await until_counts(api, namespace, maximum=1, reserved=0, used=1, waiting=0)
    await api.delete(PODS, "second", namespace)
    await until_counts(api, namespace, maximum=1, reserved=1, used=0, waiting=0)


async def test_a_run_as_typed_gets_a_machine_and_waits_for_one(
    cluster: Cluster,
    api: KubeClient,
    namespace: str,
    unique: str,
    offer: Callable[..., Awaitable[Obj]],
    tmp_path: Path,
) -> None:
    await offer(xmedium=1)
    await until_counts(api, unique, maximum=1, reserved=1, used=0, waiting=0)
    words = [*cluster.image_options, "-n", namespace, "--", "sleep", "99"]
    for name in ("first", "second"):
        typed = ("run", "--name", name, "--machine", f"{unique}/xmedium", *words)
        await asyncio.to_thread(cluster.moor, *typed, cwd=tmp_path)  # what is in the working directory is sent
    await until_counts(api, unique, maximum=1, reserved=0, used=1, waiting=1)
    [running] = (await api.list(PODS, namespace, label_selector="moorage.dev/run=first")).items
    limits = running["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "4", "memory": "12Gi", "nvidia.com/gpu": "1"}
    explained = await asyncio.to_thread(cluster.moor, "explain", "second", "-n", namespace)
    assert f"{unique}/xmedium" in explained.stdout
    typed = ("run", "--machine", f"{unique}/huge", *words)
    refused = await asyncio.to_thread(cluster.moor, *typed, check=False, cwd=tmp_path)
    assert refused.returncode == 2
    assert f"machine '{unique}/huge' not found" in refused.stderr
    await asyncio.to_thread(cluster.moor, "cancel", "first", "-n", namespace)
    await until_counts(api, unique, maximum=1, used=1, waiting=0)


async def test_nobody_takes_a_place_but_its_own_guest(
    cluster: Cluster, api: KubeClient, namespace: str, nodes: HollowNodes, offer: Callable[..., Awaitable[Obj]]
) -> None:
    await offer(red=2, blue=2)
    await until_counts(api, namespace, "red", reserved=2)
    await until_counts(api, namespace, "blue", reserved=2)
    await api.create(PODS, an_ordinary_pod("ordinary", namespace), namespace)
    stray = an_ordinary_pod("stray", namespace)
    stray["metadata"]["labels"] = {"moorage.dev/machine-group": namespace, "moorage.dev/machine-type": "red"}
    elsewhere = f"{namespace}-open"  # not before the webhook
    await api.create(NAMESPACES, {"metadata": {"name": elsewhere}})
    await api.create(PODS, stray, elsewhere)
    for number in range(2):
        await api.create(PODS, a_guest(f"red-{number}", namespace, "red"), namespace)
    await until_counts(api, namespace, "red", maximum=2, reserved=0, used=2, waiting=0, unmanaged=1)
    await until_counts(api, namespace, "blue", maximum=2, reserved=2, used=0, waiting=0)
    assert not (await api.get(PODS, "ordinary", namespace))["spec"].get("nodeName")
    assert not (await api.get(PODS, "stray", elsewhere))["spec"].get("nodeName")
    # who never passed the webhook and fits beside the places runs, takes none, and is shown
    small = a_guest("small", namespace, "red")
    await api.create(PODS, small, elsewhere)
    await api.create(PODS, a_guest("red-2", namespace, "red"), namespace)  # blue places are not for it
    await until_counts(api, namespace, "red", maximum=2, reserved=0, used=2, waiting=1, unmanaged=2)
    await until_counts(api, namespace, "blue", maximum=2, reserved=2, used=0, waiting=0)
    shown = cluster.moor("machines", namespace)
    header, *rows = shown.stdout.splitlines()
    at = header.split().index("UNMANAGED")
    assert {row.split()[1]: row.split()[at] for row in rows} == {"red": "2", "blue": "0"}
    assert "Pods that never passed the webhook: 2 red" in shown.stderr
    await api.delete(NAMESPACES, elsewhere)


async def test_fewer_offered_and_maintenance_evict_no_guest(
    api: KubeClient, namespace: str, nodes: HollowNodes, offer: Callable[..., Awaitable[Obj]]
) -> None:
    machine = await offer(taint=True, xmedium=2)
    await until_counts(api, namespace, reserved=2)
    await api.create(PODS, a_guest("ada", namespace), namespace)
    await until_counts(api, namespace, reserved=1, used=1)
    kinds = machine["spec"]["machineTypes"]
    kinds[0]["available"] = 0
    await api.patch(MACHINES, namespace, {"spec": {"machineTypes": kinds}})
    await until_counts(api, namespace, maximum=1, reserved=0, used=1)
    kinds[0]["available"] = 2
    pool = machine["spec"]["nodePool"]
    for entry in pool:
        entry["mode"] = "maintenance"
    await api.patch(MACHINES, namespace, {"spec": {"machineTypes": kinds, "nodePool": pool}})
    await until_counts(api, namespace, maximum=1, reserved=0, used=1, unplaced=1)

    async def marked() -> bool:
        found = [await api.get(NODES, name) for name in nodes.names]
        return all(labels_of(one).get("moorage.dev/machine-mode") == "maintenance" for one in found)

    await until("the nodes to be marked", marked)
    ada = await api.get(PODS, "ada", namespace)
    assert (ada["status"]["phase"], ada["metadata"].get("deletionTimestamp")) == ("Running", None)
    for entry in pool:
        entry["mode"] = "ready"
    await api.patch(MACHINES, namespace, {"spec": {"nodePool": pool}})
    await until_counts(api, namespace, maximum=2, reserved=1, used=1)


async def test_what_cannot_be_is_refused_with_every_field(
    api: KubeClient, namespace: str, nodes: HollowNodes, offer: Callable[..., Awaitable[Obj]]
) -> None:
    machine = await offer(xmedium=1)
    await until_counts(api, namespace, reserved=1)
    wrong = {
        "apiVersion": MACHINES.api_version,
        "kind": MACHINES.kind,
        "metadata": {"name": f"{namespace}-2", "labels": machine["metadata"]["labels"]},
        "spec": machine["spec"],
    }
    wrong["spec"]["machineTypes"][0]["spec"]["cpu"] = "0"
    with pytest.raises(Invalid) as told:
        await api.create(MACHINES, wrong)
    for field in ("metadata.labels[moorage.dev/machine-group]", "machineTypes[0].spec.cpu", "nodePool[0].name"):
        assert field in told.value.message
    with pytest.raises(Invalid, match="is not a machine type of"):
        await api.create(PODS, a_guest("ada", namespace, "nosuch"), namespace)


SEED = """
apiVersion: moorage.dev/v1alpha1
kind: Machine
metadata:
  name: machine-with-gpus
  labels:
    moorage.dev/machine-group: gpu-machines
spec:
  nodePool:
    - name: kind-control-plane
      mode: ready
      taint: false
      machineType:
        - name: compute-xmedium
  machineTypes:
    - name: compute-xmedium
      spec:
        cpu: 4000m
        memory: 12Gi
        gpu:
          type: nvidia.com/gpu
          num: 1
          family: ampere
      available: 1
"""


async def test_the_documents_machine_goes_through_all_its_states(api: KubeClient, namespace: str) -> None:
    name, group, kind, node = "machine-with-gpus", "gpu-machines", "compute-xmedium", "kind-control-plane"

    async def mode(word: str) -> None:
        entry = {"name": node, "mode": word, "taint": False, "machineType": [{"name": kind}]}
        await api.patch(MACHINES, name, {"spec": {"nodePool": [entry]}})

        async def is_marked() -> bool:
            return labels_of(await api.get(NODES, node)).get("moorage.dev/machine-mode") == word

        await until(f"the node to be marked {word}", is_marked)

    async def says(condition: str) -> None:
        async def read() -> bool:
            status = (await api.get(NODE_POOLS, name)).get("status") or {}
            return [one["condition"] for one in status.get("nodePool") or ()] == [condition]

        await until(f"the pool to say {condition}", read)

    async with hollow_nodes(api, node, gpus=2, gpu_type=namespace):
        await api.create(MACHINES, yaml.safe_load(SEED))
        await until_counts(api, name, kind, maximum=1, reserved=1, used=0, waiting=0)
        await says("Healthy")
        await api.create(PODS, a_guest("first", group, kind), namespace)
        await until_counts(api, name, kind, maximum=1, reserved=0, used=1, waiting=0)
        first = await api.get(PODS, "first", namespace)
        size = {"cpu": "4", "memory": "12Gi", "nvidia.com/gpu": "1"}
        asked = first["spec"]["containers"][0]["resources"]["limits"]
        assert asked == size or asked == size | {"cpu": "4000m"}
        await api.create(PODS, a_guest("second", group, kind), namespace)
        await until_counts(api, name, kind, maximum=1, reserved=0, used=1, waiting=1)
        await mode("not-ready")
        await says("Unhealthy")
        await api.delete(PODS, "first", namespace)
        await until_counts(api, name, kind, maximum=0, reserved=0, used=0, waiting=1, unplaced=1)
        await mode("ready")
        await until_counts(api, name, kind, maximum=1, reserved=0, used=1, waiting=0)
        await mode("maintenance")
        await says("Maintenance")
        await until_counts(api, name, kind, maximum=1, reserved=0, used=1, waiting=0)  # nobody is evicted
        await api.delete(MACHINES, name)
        await until("the pool to go", lambda: _gone(api, name))
        assert not [key for key in labels_of(await api.get(NODES, node)) if "machine" in key]


async def test_fair_lets_through_who_used_less_though_they_came_later(
    api: KubeClient, namespace: str, nodes: HollowNodes, offer: Callable[..., Awaitable[Obj]]
) -> None:
    await offer(order="fair", xmedium=1)
    await until_counts(api, namespace, reserved=1)
    heavy, light = (api.as_user(f"{who}-{namespace}", ("system:masters",)) for who in ("heavy", "light"))
    await heavy.create(PODS, a_guest("heavy-1", namespace), namespace)
    await until_counts(api, namespace, used=1)

    async def has_used() -> bool:
        status = (await api.get(MACHINES, namespace)).get("status") or {}
        age = SYSTEM.now() - parse_rfc3339(status["sharesAt"]) if status.get("sharesAt") else timedelta(0)
        return [one["holding"] for one in status.get("shares") or ()] == [1] and age > timedelta(seconds=3)

    await until("three seconds of use", has_used)
    await heavy.create(PODS, a_guest("heavy-2", namespace), namespace)
    await until_counts(api, namespace, used=1, waiting=1)
    await light.create(PODS, a_guest("light-1", namespace), namespace)
    await until_counts(api, namespace, used=1, waiting=2)
    await api.delete(PODS, "heavy-1", namespace)
    await until_counts(api, namespace, used=1, waiting=1)
    assert (await api.get(PODS, "light-1", namespace))["spec"].get("nodeName")
    assert not (await api.get(PODS, "heavy-2", namespace))["spec"].get("nodeName")


async def test_a_guest_whose_place_was_lost_gets_another(
    api: KubeClient, namespace: str, nodes: HollowNodes, offer: Callable[..., Awaitable[Obj]]
) -> None:
    await offer(xmedium=0)
    await until_counts(api, namespace, maximum=0)
    await api.create(PODS, a_guest("ada", namespace), namespace)
    await until_counts(api, namespace, waiting=1)
    # as the operator would have, had the node not gone a moment later
    guest = await api.get(PODS, "ada", namespace)
    operator = api.as_user(OPERATOR, ("system:masters",))
    await operator.patch(PODS, "ada", lift(guest, f"{namespace}-gone", rfc3339(SYSTEM.now())), namespace)
    await until_counts(api, namespace, used=1, waiting=0)
    assert (await api.get(PODS, "ada", namespace))["spec"]["nodeName"] in nodes.names

    async def is_told() -> bool:
        events = (await api.list(EVENTS, namespace, field_selector="involvedObject.name=ada")).items
        return "PlaceLost" in {one.get("reason") for one in events}

    async def is_unmarked() -> bool:
        found = [labels_of(await api.get(NODES, name)) for name in nodes.names]
        return not any(key.startswith("place.machine.moorage.dev/") for labels in found for key in labels)

    await until("the event", is_told)
    await until("the mark to go", is_unmarked)
