"""The node agent against the local cluster's own API server."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from moorage_kube.errors import AlreadyExists
from moorage_kube.meta import condition
from moorage_kube.resources import EVENTS, NODES, PODS, SERVICEACCOUNTS
from moorage_kube.testing import builders
from moorage_kube.testing.waiting import PATIENCE_SECONDS, until
from moorage_local.apiserver.server import ApiServer
from moorage_local.controllers.events import EventRecorder
from moorage_local.nodeagent.agent import PEAK_ANNOTATION, NodeAgent, NodeSpec
from moorage_local.nodeagent.leftovers import stop_all
from moorage_local.storage.memory import MemoryStorage

pytestmark = pytest.mark.anyio


@dataclass
class Place:
    api: Any
    agent: NodeAgent
    root: Path

    async def create(self, name: str, script: str, spec: Any = None, **container: Any) -> Any:
        main = {"name": "c", "image": "localhost/host", "command": ["sh", "-c", script]} | container
        spec = {"nodeName": "n1", "restartPolicy": "Never"} | (spec or {})
        return await self.api.create(PODS, builders.a_pod(name, namespace="default", container=main, spec=spec))

    async def until(self, name: str, what: Callable[[Any], Any]) -> Any:
        async def read() -> Any:
            pod = await self.api.get(PODS, name, "default")
            return pod if what(pod) else None

        return await until(f"pod {name}", read)

    async def phase(self, name: str, phase: str) -> Any:
        return await self.until(name, lambda pod: (pod.get("status") or {}).get("phase") == phase)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    root = Path(tempfile.mkdtemp(prefix="moor-server-"))
    server = ApiServer(MemoryStorage())
    await server.start()
    api = server.client("system:node:n1")
    recorder = EventRecorder(api, "kubelet")
    spec = NodeSpec(name="n1", cpu_milli=4000, memory_bytes=8 << 30, gpus=2, gpu_type="a100")
    agent = NodeAgent(api, spec, root / "nodes/n1", recorder=recorder)
    task = asyncio.create_task(agent.run())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await agent.ready.wait()
        yield Place(api, agent, root)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await recorder.close()
        await server.stop()
        stop_all(root / "nodes", grace_seconds=0.0)
        shutil.rmtree(root, ignore_errors=True)


async def test_pod_runs_to_its_exit_code_and_its_status_comes_to_rest(place: Place) -> None:
    await place.create("p", "echo $CUDA_VISIBLE_DEVICES; exit 3", resources={"limits": {"nvidia.com/gpu": "1"}})
    pod = await place.phase("p", "Failed")
    one = pod["status"]["containerStatuses"][0]
    assert one["state"]["terminated"]["exitCode"] == 3
    assert one["allocatedResourcesStatus"][0]["resources"] == [{"resourceID": "GPU-n1-0", "health": "Healthy"}]
    await place.create("q", "true")  # a second one passes through the same loop: by then the first has settled
    await place.phase("q", "Succeeded")
    after = await place.api.get(PODS, "p", "default")
    assert after["metadata"]["resourceVersion"] == pod["metadata"]["resourceVersion"]


async def test_node_is_ready(place: Place) -> None:
    node = await place.api.get(NODES, "n1")
    assert condition(node, "Ready")["status"] == "True"  # type: ignore[index]
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "2"


async def test_deletion_is_graceful_and_then_complete(place: Place) -> None:
    await place.create("p", "trap 'exit 5' TERM; while :; do sleep 0.05; done")
    await place.phase("p", "Running")
    await place.api.delete(PODS, "p", "default")

    async def is_gone() -> bool:
        return "p" not in {pod["metadata"]["name"] for pod in (await place.api.list(PODS, "default")).items}

    await until("the end of the pod", is_gone)


async def test_memory_limit_is_enforced_and_the_peak_annotated(place: Place) -> None:
    code = "x = bytearray(300 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nimport time; time.sleep(60)"
    await place.create(
        "p", "", command=[sys.executable, "-S", "-c", code], resources={"limits": {"memory": "64Mi"}}
    )
    pod = await place.phase("p", "Failed")
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"
    assert int(pod["metadata"]["annotations"][PEAK_ANNOTATION]) > 64 << 20


async def test_service_account_token_is_projected(place: Place) -> None:
    try:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        await place.api.create(SERVICEACCOUNTS, account, "default")
    except AlreadyExists:
        pass
    volume = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    path = "/var/run/secrets/kubernetes.io/serviceaccount"
    await place.create(
        "p", f"test -s {path}/token", {"volumes": [volume]}, volumeMounts=[{"name": "t", "mountPath": path}]
    )
    await place.phase("p", "Succeeded")


async def test_events_reach_the_api(place: Place) -> None:
    await place.create("p", "true")
    await place.phase("p", "Succeeded")

    async def is_told() -> bool:
        return "Started" in {event["reason"] for event in (await place.api.list(EVENTS, "default")).items}

    await until("the event of the start", is_told)


async def test_log_is_read(place: Place) -> None:
    await place.create("p", "echo hello")
    pod = await place.phase("p", "Succeeded")
    assert b"".join([chunk async for chunk in place.agent.logs(pod, "c")]) == b"hello\n"
