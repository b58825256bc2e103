"""Reservations on whichever cluster the environment chose: kept, handed over, filled until then, given back.

Nodes are hollow: scheduler and API are the cluster's own; operator, webhook and extender ours.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial

import pytest

from moorage.model.machine import MACHINES, NODE_POOLS
from moorage.model.reservation import RESERVATIONS
from moorage_kube.clock import SYSTEM, rfc3339
from moorage_kube.errors import Invalid, NotFound
from moorage_kube.meta import annotations_of
from moorage_kube.moments import parse_rfc3339
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import EVENTS, NAMESPACES, PODS, Obj
from moorage_kube.testing import waiting
from moorage_testing.cluster import Cluster
from moorage_testing.hollow import HollowNodes, hollow_nodes

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api", "scheduler", "controllers")]

PATIENCE_SECONDS = 180.0  # bounds a hang
until = partial(waiting.until, patience=PATIENCE_SECONDS)


@pytest.fixture
async def lab(api: KubeClient, unique: str) -> AsyncIterator[str]:
    """The namespace that reserves."""
    await api.create(NAMESPACES, {"metadata": {"name": unique, "labels": {"moorage.dev/guard": "enabled"}}})
    yield unique
    await api.delete(NAMESPACES, unique)


@pytest.fixture
async def others(api: KubeClient, unique: str) -> AsyncIterator[str]:
    """The namespace of everybody else."""
    name = f"{unique}-others"
    await api.create(NAMESPACES, {"metadata": {"name": name, "labels": {"moorage.dev/guard": "enabled"}}})
    yield name
    await api.delete(NAMESPACES, name)


@pytest.fixture
async def nodes(api: KubeClient, unique: str) -> AsyncIterator[HollowNodes]:
    async with hollow_nodes(api, f"{unique}-a", f"{unique}-b", gpus=1, gpu_type=unique) as made:
        yield made


@pytest.fixture
async def machines(api: KubeClient, unique: str, nodes: HollowNodes) -> AsyncIterator[str]:
    """Two machines of the type `big`; the group bears the unique name."""
    size = {"cpu": "4", "memory": "12Gi", "gpu": {"type": "nvidia.com/gpu", "num": 1, "family": unique}}
    entries = [{"name": one, "mode": "ready", "machineType": [{"name": "big"}]} for one in nodes.names]
    machine = {
        "apiVersion": MACHINES.api_version,
        "kind": MACHINES.kind,
        "metadata": {"name": unique, "labels": {"moorage.dev/machine-group": unique}},
        "spec": {"nodePool": entries, "machineTypes": [{"name": "big", "spec": size, "available": 2}]},
    }
    await api.create(MACHINES, machine)
    await until("the places", lambda: _counts(api, unique, reserved=2))
    yield unique
    await api.delete(MACHINES, unique)

    async def gone() -> bool:
        try:
            await api.get(NODE_POOLS, unique)
        except NotFound:
            return True
        return False

    await until("the pool to go", gone)


async def _counts(api: KubeClient, name: str, **want: int) -> bool:
    status = (await api.get(MACHINES, name)).get("status") or {}
    usage = {one["name"]: one["usage"] for one in status.get("availableMachines") or ()}.get("big", {})
    return {key: usage.get(key) for key in want} == want and usage.get("pending") == 0


async def until_runs(api: KubeClient, name: str, namespace: str) -> None:
    async def runs() -> bool:
        return bool((await api.get(PODS, name, namespace))["spec"].get("nodeName"))

    await until(f"{name} to run", runs)


async def until_gone(api: KubeClient, name: str, namespace: str) -> None:
    """A pod that has ended holds its place no more, and is still there for a moment."""

    async def gone() -> bool:
        try:
            await api.get(PODS, name, namespace)
        except NotFound:
            return True
        return False

    await until(f"{name} to be gone", gone)


async def until_held_back(api: KubeClient, name: str, namespace: str) -> str:
    """Wait for the note on the pod that says what it waits for."""

    async def noted() -> str:
        return annotations_of(await api.get(PODS, name, namespace)).get("moorage.dev/waits-for", "")

    return str(await until(f"{name} to be held back", noted))


async def until_phase(api: KubeClient, name: str, namespace: str, phase: str) -> Obj:
    async def read() -> Obj | None:
        found = await api.get(RESERVATIONS, name, namespace)
        return found if (found.get("status") or {}).get("phase") == phase else None

    found: Obj = await until(f"phase {phase}", read)
    return found


def a_guest(name: str, group: str, *, limit: int | None = None, backfill: bool = False) -> Obj:
    labels = {"moorage.dev/machine-group": group, "moorage.dev/machine-type": "big"}
    if backfill:
        labels["moorage.dev/backfill"] = "true"
    spec: Obj = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "localhost/host", "command": ["sleep", "infinity"]}],
    }
    if limit is not None:
        spec["activeDeadlineSeconds"] = limit
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


async def test_what_is_reserved_now_is_kept_for_its_owner_and_given_back_when_cancelled(
    cluster: Cluster, api: KubeClient, lab: str, others: str, machines: str
) -> None:
    done = cluster.moor(
        "reserve", "create", "course", "-n", lab, "--machine", f"{machines}/big", "--count", "2", "--to", "+1h"
    )
    assert done.stdout == "course\n"
    await until_phase(api, "course", lab, "Active")
    await api.create(PODS, a_guest("stranger", machines), others)
    note = await until_held_back(api, "stranger", others)
    assert f"2 big are reserved for namespace {lab} by the reservation {lab}/course" in note
    await api.create(PODS, a_guest("mine", machines), lab)
    await until_runs(api, "mine", lab)

    async def in_use() -> bool:
        shown = json.loads(cluster.moor("reserve", "show", "course", "-n", lab, "-o", "json").stdout)
        return (shown["phase"], shown["held"], shown["inUse"], shown["shortfall"]) == ("Active", 2, 1, 0)

    await until("one of two in use", in_use)
    refused = cluster.moor(
        "reserve",
        "create",
        "more",
        "-n",
        others,
        "--gpus",
        "1",
        "--gpu-type",
        machines,
        "--to",
        "+30m",
        check=False,
    )
    assert refused.returncode == 1
    assert f"{lab}/course has 2 from " in refused.stderr
    assert "1 for as long from " in refused.stderr
    spec = (await api.get(RESERVATIONS, "course", lab))["spec"] | {"count": 1}
    direct = {
        "apiVersion": RESERVATIONS.api_version,
        "kind": RESERVATIONS.kind,
        "metadata": {"name": "direct", "namespace": others},
        "spec": spec,
    }
    with pytest.raises(Invalid, match=r"spec.count: 1 of 2 big are not free from"):
        await api.create(RESERVATIONS, direct)
    assert (await api.get(PODS, "stranger", others))["spec"].get("nodeName") is None
    assert f"{lab}/course" in cluster.moor("reserve", "list", "-o", "name").stdout.split()
    assert cluster.moor("reserve", "delete", "course", "-n", lab).stdout == "course deleted\n"
    await until_runs(api, "stranger", others)
    assert (await api.get(PODS, "mine", lab))["metadata"].get("deletionTimestamp") is None


async def test_before_it_starts_only_who_ends_in_time_goes(
    cluster: Cluster, api: KubeClient, lab: str, others: str, machines: str
) -> None:
    cluster.moor(
        "reserve", "create", "night", "-n", lab, "--machine", f"{machines}/big",
        "--count", "2", "--from", "+1h", "--to", "+2h",
    )  # fmt: skip
    await until_phase(api, "night", lab, "Preparing")
    await api.create(PODS, a_guest("endless", machines), others)
    note = await until_held_back(api, "endless", others)
    assert "it has no time limit; one that ends by " in note
    await api.create(PODS, a_guest("short", machines, limit=600), others)
    await until_runs(api, "short", others)
    assert (await api.get(PODS, "endless", others))["spec"]["schedulingGates"] == [{"name": "moorage.dev/machine"}]


async def test_backfill_fills_the_hole_and_has_left_when_it_starts_and_after_its_end_all_is_as_before(
    cluster: Cluster, api: KubeClient, lab: str, others: str, machines: str
) -> None:
    for name in ("worker-0", "worker-1"):
        await api.create(PODS, a_guest(name, machines, backfill=True), others)
    for name in ("worker-0", "worker-1"):
        await until_runs(api, name, others)
    cluster.moor(
        "reserve", "create", "soon", "-n", lab, "--machine", f"{machines}/big",
        "--count", "2", "--from", "+45s", "--to", "+1h",
    )  # fmt: skip
    await api.create(PODS, a_guest("stranger", machines), others)
    booked = await until_phase(api, "soon", lab, "Preparing")
    assert booked["status"]["shortfall"] == 0  # they will have left
    await until("the places to be held again", lambda: _counts(api, machines, reserved=2, used=0))
    assert SYSTEM.now() < parse_rfc3339(booked["spec"]["from"])
    for name in ("worker-0", "worker-1"):
        await until_gone(api, name, others)
    told = [one["reason"] for one in (await api.list(EVENTS, others)).items]
    assert "LeavesForReservation" in told
    await api.create(PODS, a_guest("mine", machines), lab)
    await until_phase(api, "soon", lab, "Active")
    await until_runs(api, "mine", lab)
    assert (await api.get(PODS, "stranger", others))["spec"].get("nodeName") is None
    ends = rfc3339(SYSTEM.now() + timedelta(seconds=10))
    await api.patch(RESERVATIONS, "soon", {"spec": {"to": ends}}, lab)
    await until_phase(api, "soon", lab, "Expired")
    await until_runs(api, "stranger", others)
    assert (await api.get(PODS, "mine", lab))["metadata"].get("deletionTimestamp") is None
    assert "moorage.dev/waits-for" not in annotations_of(await api.get(PODS, "stranger", others))
