"""Hollow nodes do what a kubelet would, as far as others can tell."""

from __future__ import annotations

import asyncio

import pytest

from moorage.apimachinery.meta import is_condition_true
from moorage.apimachinery.resources import NODES, Obj
from moorage.testing.fakeapi import FakeApi
from moorage.testing.hollow import HollowNodes

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
        async with asyncio.timeout(30):
            while not is_condition_true(await api.get(NODES, "n0"), "Ready"):
                await nodes.beat()
                await asyncio.sleep(0)
        assert not is_condition_true(await api.get(NODES, "n1"), "Ready")
