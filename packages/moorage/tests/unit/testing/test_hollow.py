"""Hollow nodes do what a kubelet would, as far as others can tell."""

from __future__ import annotations

import asyncio

import pytest

from moorage_kube.meta import is_condition_true
from moorage_kube.resources import NODES, PODS, Obj
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.hollow import HollowNodes

pytestmark = pytest.mark.anyio

DOUBTED: Obj = {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}


async def test_nodes_whose_heartbeats_came_late_are_ready_again_unless_they_are_lost() -> None:
    api = FakeApi()
    for name in ("n0", "n1"):
        api.put(NODES, {"metadata": {"name": name}, "spec": {}})
    async with HollowNodes(api, ["n0", "n1"]) as nodes:
        nodes.lose("n1")
        for name in ("n1", "n0"):
            await api.patch(NODES, name, {"status": DOUBTED}, subresource="status")
        async with asyncio.timeout(120):
            while not is_condition_true(await api.get(NODES, "n0"), "Ready"):
                await nodes.beat()
                await asyncio.sleep(0)
        assert not is_condition_true(await api.get(NODES, "n1"), "Ready")


async def test_a_pod_made_again_under_its_name_and_not_bound_yet_stops_nobody() -> None:
    api = FakeApi()
    api.put(NODES, {"metadata": {"name": "n0"}, "spec": {}})
    async with HollowNodes(api, ["n0"]):
        for number in range(8):  # more than work at once
            name = f"pod-{number}"
            bound: Obj = {
                "metadata": {"name": name, "namespace": "lab"},
                "spec": {"nodeName": "n0", "containers": []},
            }
            api.put(PODS, bound)
            api.remove(PODS, name, "lab")
            api.put(PODS, bound | {"spec": {"containers": []}})
        api.put(
            PODS, {"metadata": {"name": "last", "namespace": "lab"}, "spec": {"nodeName": "n0", "containers": []}}
        )
        async with asyncio.timeout(120):
            while ((await api.get(PODS, "last", "lab")).get("status") or {}).get("phase") != "Running":  # noqa: ASYNC110
                await asyncio.sleep(0)
