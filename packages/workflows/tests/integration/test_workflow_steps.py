"""Pods of workflow steps on a node of the local cluster: made by `make_pod`, run by the node agent, reported to a
server."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.workflowrecords import a_node_record

from moorage.model.names import HOST_IMAGE
from moorage_kube.images import ImageRule
from moorage_kube.resources import NAMESPACES, PODS, SECRETS
from moorage_kube.testing.ports import free_ports
from moorage_kube.testing.waiting import soon, until
from moorage_local.apiserver.server import ApiServer
from moorage_local.nodeagent.agent import NodeAgent, NodeSpec
from moorage_local.nodeagent.leftovers import stop_all
from moorage_local.nodeagent.node import own_annotations
from moorage_local.storage import MemoryStorage
from moorage_workflows.decide.workflows.entrypoints import entrypoints_of
from moorage_workflows.decide.workflows.pods import PodRequest, StepRuntime, make_pod

_spec = importlib.util.spec_from_file_location(
    "executor_site", Path(__file__).parents[1] / "unit/executor/test_main.py"
)
assert _spec is not None
assert _spec.loader is not None
executor = importlib.util.module_from_spec(_spec)
sys.modules["executor_site"] = executor  # its dataclasses look themselves up
_spec.loader.exec_module(executor)

pytestmark = pytest.mark.anyio
IMAGES = (
    ImageRule(image="busybox", cmd=("sh",)),
    ImageRule(image="say", entrypoint=("/bin/sh", "-c", 'echo "said $0 $1"'), cmd=("nothing",)),
)


@dataclass
class Lab:
    """One API server in memory with one node, and a server that takes artifacts and reports."""

    root: Path
    site: Any = field(default_factory=executor.Site)
    events: list[str] = field(default_factory=list)
    api: Any = None

    def event(self, _obj: Any, _type: str, reason: str, _message: str) -> None:
        self.events.append(reason)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        server = ApiServer(MemoryStorage(), tokens={}, signing_key=b"k" * 32)
        await server.start()
        self.api = server.client()
        await self.api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}})
        token = base64.b64encode(executor.TOKEN.encode()).decode()
        secret = {"metadata": {"name": "wf-token", "namespace": "lab"}, "data": {"token": token}}
        await self.api.create(SECRETS, {"apiVersion": "v1", "kind": "Secret", **secret}, "lab")
        self.node = NodeSpec(name="n1", cpu_milli=4000, memory_bytes=8 << 30, images=IMAGES)
        agent = NodeAgent(
            server.client("system:node:n1"),
            self.node,
            self.root / "nodes/n1",
            recorder=self,
            poll_seconds=0.1,
            hidden=self.root,
        )
        task = asyncio.create_task(agent.run())
        try:
            await agent.ready.wait()
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await server.stop()

    async def start(self, template: Mapping[str, Any], **more: Any) -> None:
        node = {"metadata": {"annotations": own_annotations(self.node)}}
        runtime = StepRuntime(
            image=HOST_IMAGE,
            python=sys.executable,
            on_processes=True,
            server_url=self.site.url,
            entrypoints=entrypoints_of([node]),
        )
        record = a_node_record(template=template["name"], pod_name=executor.POD)
        meta = {"name": "wf", "namespace": "lab", "uid": executor.UID}
        spec = more.pop("spec", {})
        request = PodRequest(
            record=record, workflow={"metadata": meta, "spec": spec}, template=template, secret="wf-token"
        )
        pod = make_pod(replace(request, **more), runtime)
        pod["spec"]["nodeName"] = "n1"
        await self.api.create(PODS, pod, "lab")

    async def end(self) -> dict[str, str | int]:
        """Wait for the end of the pod: its phase and the exit code of each container. Then it is deleted."""

        async def read() -> Any:
            status = (await self.api.get(PODS, executor.POD, "lab")).get("status") or {}
            return status if status.get("phase") in ("Succeeded", "Failed") else None

        status = await until("the end of the pod", read)
        ended: dict[str, str | int] = {"phase": status["phase"]}
        for container in (*status.get("initContainerStatuses", ()), *status["containerStatuses"]):
            terminated = container["state"].get("terminated")
            ended[container["name"]] = terminated["exitCode"] if terminated else "waiting"
        await self.api.patch(PODS, executor.POD, {"metadata": {"finalizers": None}}, "lab")
        await self.api.delete(PODS, executor.POD, "lab", grace_period_seconds=0)
        return ended

    def files(self, folder: str) -> set[str]:
        return {path.name for path in Path(folder).iterdir() if path.is_file()}


@pytest.fixture
def lab() -> Iterator[Lab]:
    root = Path(tempfile.mkdtemp(prefix="moor-steps-"))
    made = Lab(root)
    made.site.start()
    yield made
    made.site.stop()
    stop_all(root / "nodes", grace_seconds=0.0)
    shutil.rmtree(root, ignore_errors=True)


def shell(text: str, **more: Any) -> dict[str, Any]:
    return {"name": "step", "container": {"image": "busybox:1.36", "command": ["sh", "-c", text]}, **more}


async def test_a_plain_step_is_its_command_and_writes_into_files_of_its_own(lab: Lab) -> None:
    mark = lab.root.name
    async with lab.running():
        await lab.start(shell(f"echo x > /tmp/{mark}; echo y > /mnt/{mark}; exit 3"))
        assert await lab.end() == {"phase": "Failed", "main": 3}
    assert mark not in lab.files("/tmp") | lab.files("/mnt")
    assert lab.site.reports == []


async def test_outputs_are_reported_and_are_inputs_of_the_next_step(lab: Lab) -> None:
    outputs = {
        "parameters": [{"name": "p", "valueFrom": {"path": "/outputs/p"}}],
        "artifacts": [{"name": "a", "path": "/outputs/tree"}],
    }
    async with lab.running():
        script = (
            "mkdir -p /outputs/tree/deep; echo 5 > /outputs/p; echo text > /outputs/tree/deep/file; echo result"
        )
        await lab.start(shell(script, outputs=outputs), wants_result=True)
        assert await lab.end() == {"phase": "Succeeded", "init": 0, "main": 0, "wait": 0}
        report = lab.site.report
        assert (report.pod, report.error) == (executor.POD, "")
        assert (report.outputs.parameters, report.outputs.result) == ({"p": "5"}, "result")
        (artifact,) = report.outputs.artifacts
        # the next step
        lab.site.reports.clear()
        inputs = {
            "artifacts": [
                {"name": "in", "path": "/new/place"},
                {"name": "text", "path": "/tmp/text", "raw": {"data": "raw"}},
            ]
        }
        script = "cat /new/place/deep/file /tmp/text; touch /new/place/mine"
        await lab.start(shell(script, inputs=inputs), artifacts={"in": artifact}, wants_result=True)
        assert await lab.end() == {"phase": "Succeeded", "init": 0, "main": 0, "wait": 0}
        assert lab.site.report.outputs.result == "text\nraw"


async def test_a_script_is_a_file_that_is_run(lab: Lab) -> None:
    script = {"image": "busybox", "command": [sys.executable], "source": "import sys; print(sys.argv[0], 1 + 1)"}
    async with lab.running():
        await lab.start({"name": "step", "script": script}, wants_result=True)
        assert await lab.end() == {"phase": "Succeeded", "init": 0, "main": 0, "wait": 0}
    assert lab.site.report.outputs.result == "/moorage/script/source 2"


async def test_an_image_of_the_table_is_wrapped_with_its_own_command(lab: Lab) -> None:
    async with lab.running():
        await lab.start({"name": "step", "container": {"image": "say:v2", "args": ["a", "b"]}}, wants_result=True)
        assert await lab.end() == {"phase": "Succeeded", "init": 0, "main": 0, "wait": 0}
    assert lab.site.report.outputs.result == "said a b"


async def test_outputs_in_a_volume_are_found_and_inputs_are_put_there(lab: Lab) -> None:
    container = {
        "image": "busybox",
        "command": ["sh", "-c", "cat /work/in; echo out > /work/out"],
        "volumeMounts": [{"name": "work", "mountPath": "/work"}],
    }
    template = {
        "name": "step",
        "container": container,
        "volumes": [{"name": "work", "emptyDir": {}}],
        "inputs": {"artifacts": [{"name": "in", "path": "/work/in", "raw": {"data": "in the volume"}}]},
        "outputs": {"parameters": [{"name": "p", "valueFrom": {"path": "/work/out"}}]},
    }
    async with lab.running():
        await lab.start(template, wants_result=True)
        assert await lab.end() == {"phase": "Succeeded", "init": 0, "main": 0, "wait": 0}
    assert (lab.site.report.outputs.result, lab.site.report.outputs.parameters) == ("in the volume", {"p": "out"})


async def test_missing_outputs_and_missing_commands_are_told_apart(lab: Lab) -> None:
    outputs = {"parameters": [{"name": "p", "valueFrom": {"path": "/nowhere"}}]}
    async with lab.running():
        await lab.start(shell("true", outputs=outputs))
        assert await lab.end() == {"phase": "Failed", "init": 0, "main": 0, "wait": 1}
        assert "/nowhere does not exist" in lab.site.report.error
        lab.site.reports.clear()
        missing = {"image": "busybox", "command": ["no-such-program"]}
        await lab.start({"name": "step", "container": missing, "outputs": outputs})
        assert await lab.end() == {"phase": "Failed", "init": 0, "main": 64, "wait": 0}
        assert (lab.site.report.error, lab.site.report.outputs.exit_code) == ("", "64")


async def test_a_server_that_dies_in_the_middle_of_an_upload_gets_it_when_it_is_back(lab: Lab) -> None:
    outputs = {"artifacts": [{"name": "a", "path": "/out", "archive": {"none": {}}}]}
    await asyncio.to_thread(lab.site.stop)
    (port,) = free_ports(1)  # which nobody else gets while it is away
    lab.site.start(port)
    async with lab.running():
        lab.site.failures += ["cut"] * 1000  # ten bytes of each upload are read
        await lab.start(shell("head -c 5000000 /dev/zero > /out", outputs=outputs))
        await soon("calls of the server", lambda: lab.site.calls)
        await asyncio.to_thread(lab.site.stop)
        lab.site.failures.clear()
        lab.site.start(port)
        assert await lab.end() == {"phase": "Succeeded", "init": 0, "main": 0, "wait": 0}
    (artifact,) = lab.site.report.outputs.artifacts
    assert lab.site.artifacts[artifact.key] == bytes(5_000_000)


def _executors(uid: str) -> list[Path]:
    """Processes of this pod that run the executor."""
    return [
        process
        for process in Path("/proc").glob("[0-9]*")
        if b"moorage_workflows.executor" in _bytes(process / "cmdline")
        and uid.encode() in _bytes(process / "environ")
    ]


def _catches_sigterm(process: Path) -> bool:
    caught = re.search(rb"SigCgt:\s*(\w+)", _bytes(process / "status"))
    return caught is not None and bool(int(caught[1], 16) & 1 << signal.SIGTERM - 1)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_a_step_that_is_deleted_still_reports(lab: Lab, tmp_path: Path) -> None:
    shared = {"name": "shared", "hostPath": {"path": str(tmp_path)}}
    script = "trap 'echo late; exit 9' TERM; echo up; touch /shared/up; while :; do sleep 0.1; done"
    template = shell(script, volumes=[shared])
    template["container"]["volumeMounts"] = [{"name": "shared", "mountPath": "/shared"}]
    async with lab.running():
        await lab.start(template, wants_result=True)
        await soon("the start of the step", (tmp_path / "up").exists)
        uid = (await lab.api.get(PODS, executor.POD, "lab"))["metadata"]["uid"]
        await soon("a handler of SIGTERM", lambda: any(_catches_sigterm(pid) for pid in _executors(uid)))
        await lab.api.delete(PODS, executor.POD, "lab")
        await soon("reports", lambda: lab.site.reports)
    assert lab.site.report.outputs.result == "up\nlate"
    assert lab.site.report.outputs.exit_code == "9"


async def test_a_sidecar_ends_with_the_step(lab: Lab) -> None:
    sidecar = {"name": "beside", "image": "busybox", "command": ["sh", "-c", "exec sleep 1000"]}
    async with lab.running():
        await lab.start(shell("echo done", sidecars=[sidecar]), wants_result=True)
        ended = await lab.end()
    assert (ended["phase"], ended["main"]) == ("Succeeded", 0)
    assert lab.site.report.outputs.result == "done"
