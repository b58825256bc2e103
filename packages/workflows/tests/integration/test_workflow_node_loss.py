"""A step whose node, or whose namespace, is lost: it runs again when the old pod can run no more, and not before.

Workflows, pods and nodes are objects in a fake API, records are in a real SQLite file; time moves by hand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.workflowoperators import Scene

from moorage_kube.errors import Forbidden
from moorage_kube.meta import is_deleting
from moorage_kube.moments import rfc3339
from moorage_kube.resources import NODES, PODS, Obj
from moorage_kube.testing.waiting import until
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio

LOST_AFTER = timedelta(minutes=5)
MANIFEST = """
metadata: {name: wf, namespace: default}
spec:
  entrypoint: main
  volumeClaimTemplates:
  - {metadata: {name: work}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}
  templates:
  - {name: main, container: {image: busybox, command: [sleep, "600"]}}
"""


class RefusingApi(FakeApi):
    """Refuses to create objects while `refusal` is set."""

    refusal: Forbidden | None = None

    async def create(self, *arguments: Any, **options: Any) -> Obj:
        if self.refusal is not None:
            raise self.refusal
        return await super().create(*arguments, **options)


class NodeScene(Scene):
    """One workflow of one step, whose pod runs on a node that tells nothing by itself."""

    def __init__(self, folder: Path) -> None:
        ready = {"type": "Ready", "status": "True"}
        node = {"metadata": {"name": "node-1"}, "status": {"conditions": [ready]}}
        self.refusing = RefusingApi()
        super().__init__(folder, yaml.safe_load(MANIFEST), node=node, api=self.refusing, lost_after=LOST_AFTER)

    async def names(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in await self.pods()]

    async def run(self) -> str:
        """Start the step; its pod runs on the node."""

        async def made() -> str | None:
            await self.controller.reconcile(self.key)
            return next(iter(await self.names()), None)

        name: str = await until("the step's pod", made)
        await self.api.patch(PODS, name, {"spec": {"nodeName": "node-1"}}, "default")
        await self.api.patch(PODS, name, {"status": {"phase": "Running"}}, "default", subresource="status")
        return name

    async def delete(self, name: str) -> timedelta | None:
        """Somebody deletes the pod, and the operator sees it: when it will look again."""
        await self.api.delete(PODS, name, "default")

        async def is_seen() -> bool:
            pod = self.controller.informers[1].get(name, "default")
            return pod is not None and is_deleting(pod)

        await until("the operator to hear of the deletion", is_seen)
        return await self.controller.reconcile(self.key)

    async def silence(self) -> None:
        """Nobody hears of the node any more; that changes no pod."""
        ready = {"type": "Ready", "status": "Unknown", "lastTransitionTime": rfc3339(self.clock.now())}
        self.api.put(NODES, {"metadata": {"name": "node-1"}, "status": {"conditions": [ready]}})

        async def is_seen() -> bool:
            node = self.controller.informers[2].get("node-1")
            return node is not None and node["status"]["conditions"] == [ready]

        await until("the operator to hear of the silence", is_seen)

    async def looks_until(self, look_again: timedelta | None, end: timedelta) -> timedelta | None:
        """Let time pass until `end`; the operator looks when it wanted to, and not otherwise."""
        while look_again is not None and look_again <= end:
            self.clock.advance(look_again)
            end -= look_again
            look_again = await self.controller.reconcile(self.key)
        self.clock.advance(end)
        return None if look_again is None else look_again - end


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[NodeScene]:
    scene = NodeScene(tmp_path)
    async with scene.operator():
        yield scene
    scene.records.close()


async def test_a_pod_deleted_before_its_node_fell_silent_is_given_up_after_the_silence(scene: NodeScene) -> None:
    first = await scene.run()
    look_again = await scene.delete(first)
    await scene.silence()
    look_again = await scene.looks_until(look_again, LOST_AFTER - timedelta(seconds=1))
    assert await scene.names() == [first]
    await scene.looks_until(look_again, timedelta(minutes=1))
    assert await scene.names() == [f"{first}-l1"]


async def test_a_new_operator_waits_for_the_silence_of_the_node_too(scene: NodeScene) -> None:
    first = await scene.run()
    await scene.silence()
    await scene.delete(first)
    await scene.start()
    look_again = await scene.controller.reconcile(scene.key)
    look_again = await scene.looks_until(look_again, LOST_AFTER - timedelta(seconds=1))
    assert await scene.names() == [first]
    await scene.looks_until(look_again, timedelta(minutes=1))
    assert await scene.names() == [f"{first}-l1"]


async def test_a_pod_whose_node_is_gone_is_made_again_at_once(scene: NodeScene) -> None:
    first = await scene.run()
    scene.api.remove(NODES, "node-1")

    async def is_seen() -> bool:
        return scene.controller.informers[2].get("node-1") is None

    await until("the operator to hear that the node is gone", is_seen)
    await scene.delete(first)
    assert await scene.names() == [f"{first}-l1"]


async def test_a_node_that_the_operator_has_not_heard_of_is_asked_for(scene: NodeScene) -> None:
    first = await scene.run()
    nodes = scene.controller.informers[2]
    scene.api.remove(NODES, "node-1")

    async def is_gone() -> bool:
        return nodes.get("node-1") is None

    await until("the operator to hear that the node is gone", is_gone)
    scene.deafen(2)
    scene.api.put(NODES, {"metadata": {"name": "node-1"}, "status": {}})
    await scene.delete(first)
    assert await scene.names() == [first]


async def test_an_operator_that_starts_while_the_namespace_is_being_deleted_lets_the_pods_go(scene) -> None:
    """Kubernetes deletes pods first, and all else when they are gone."""
    first = await scene.run()
    cause = {"reason": "NamespaceTerminating", "message": "namespace default is being terminated"}
    scene.refusing.refusal = Forbidden("unable to create new content", details={"causes": [cause]})
    await scene.delete(first)
    await scene.start()
    assert await scene.names() == [first]
    assert await scene.controller.reconcile(scene.key) is None
    assert await scene.names() == []
