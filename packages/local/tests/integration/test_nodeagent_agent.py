"""The node agent with real processes and an API in memory."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from moorage_kube.clock import SYSTEM, Clock, parse_rfc3339
from moorage_kube.errors import BadRequest, NotFound
from moorage_kube.meta import condition
from moorage_kube.resources import CONFIGMAPS, LEASES, NODES, PODS, PVCS, PVS, SECRETS
from moorage_kube.testing import builders
from moorage_kube.testing.clock import FakeClock
from moorage_kube.testing.pausing import pause
from moorage_kube.testing.waiting import read_until, soon, until
from moorage_local.nodeagent import podshim
from moorage_local.nodeagent.addresses import NETWORK
from moorage_local.nodeagent.agent import PEAK_ANNOTATION, NodeAgent, NodeSpec
from moorage_local.nodeagent.launcher import Fence, Launcher
from moorage_local.nodeagent.leftovers import kill_leftovers, marked_processes, stop_all
from moorage_local.nodeagent.node import is_doubted
from moorage_local.nodeagent.podfolder import PodFolder, write_json

FAKE = Path(__file__).parents[1] / "unit/nodeagent/fakeapi.py"
_spec = importlib.util.spec_from_file_location("nodeagent_fakeapi", FAKE)
assert _spec is not None
assert _spec.loader is not None
fakeapi = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fakeapi)

pytestmark = pytest.mark.anyio


@dataclass
class Events:
    seen: list[tuple[str, str, str]] = field(default_factory=list)

    def event(self, obj: Any, type: str, reason: str, message: str) -> None:
        self.seen.append((obj["metadata"]["name"], reason, message))

    def reasons(self, name: str) -> list[str]:
        return [reason for who, reason, _ in self.seen if who == name]


@dataclass
class Lab:
    """A fake API, and one node agent that can be ended and started again."""

    root: Path
    api: Any = field(default_factory=lambda: fakeapi.NodeApi())
    events: Events = field(default_factory=Events)
    spec: NodeSpec = NodeSpec(name="n1", cpu_milli=4000, memory_bytes=8 << 30, gpus=2, gpu_type="a100")
    agent: NodeAgent = None  # type: ignore[assignment]
    task: asyncio.Task[None] = None  # type: ignore[assignment]

    @asynccontextmanager
    async def running(
        self, clock: Clock = SYSTEM, *, hidden: Path | None = None, launcher: Launcher | None = None
    ) -> AsyncIterator[NodeAgent]:
        self.agent = NodeAgent(
            self.api,
            self.spec,
            self.root / "nodes/n1",
            recorder=self.events,
            server_url="https://127.0.0.1:6443",
            poll_seconds=0.1,
            clock=clock,
            hidden=hidden,
            launcher=launcher,
        )
        task = asyncio.create_task(self.agent.run())
        ready = asyncio.create_task(self.agent.ready.wait())
        try:
            await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
            yield self.agent
        finally:
            ready.cancel()
            task.cancel()
            await asyncio.gather(task, ready, return_exceptions=True)
            if launcher is not None:
                launcher.close()

    async def create(self, name: str = "p", script: str = "true", **more: Any) -> Any:
        return await self.api.create(PODS, a_pod(name, script, **more), "default")

    async def pod(self, name: str = "p") -> Any:
        return await self.api.get(PODS, name, "default")

    async def until(self, what: Callable[[Any], Any], name: str = "p") -> Any:
        last: list[Any] = []

        async def read() -> Any:
            last[:] = [await self.pod(name)]
            return what(last[0])

        try:
            await until(f"pod {name}", read)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(last, indent=1)}") from error
        return last[0]

    async def phase(self, phase: str, name: str = "p") -> Any:
        return await self.until(lambda pod: pod["status"].get("phase") == phase, name)

    async def gone(self, name: str = "p") -> None:
        async def is_gone() -> bool:
            try:
                await self.pod(name)
            except NotFound:
                return True
            return False

        await until(f"the end of pod {name}", is_gone)

    async def text(self, name: str = "p", **options: Any) -> str:
        pod = await self.pod(name)
        return b"".join([chunk async for chunk in self.agent.logs(pod, **options)]).decode()

    def folder(self, pod: Any) -> PodFolder:
        return PodFolder(self.root / "nodes/n1" / pod["metadata"]["uid"])


def a_pod(name: str, script: str, *, spec: Any = None, container: Any = None, meta: Any = None) -> dict[str, Any]:
    main = {"name": "c", "image": "localhost/host", "command": ["sh", "-c", script]} | (container or {})
    spec = {"restartPolicy": "Never"} | (spec or {})
    return builders.a_pod(name, namespace="default", node="n1", container=main, spec=spec, metadata=meta)


def state(pod: Any, index: int = 0) -> Any:
    return pod["status"]["containerStatuses"][index]["state"]


def gpus(count: int) -> Any:
    return {"resources": {"limits": {"nvidia.com/gpu": str(count)}, "requests": {"nvidia.com/gpu": str(count)}}}


@pytest.fixture
def lab() -> Any:
    root = Path(tempfile.mkdtemp(prefix="moor-agent-"))
    yield Lab(root)
    stop_all(root / "nodes", grace_seconds=0.0)
    shutil.rmtree(root, ignore_errors=True)


async def test_node_is_registered_with_what_it_offers(lab: Lab) -> None:
    async with lab.running():
        node = await lab.api.get(NODES, "n1")
        assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "a100"
        assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "n1"
        offers = node["status"]["allocatable"]
        assert (offers["cpu"], offers["memory"], offers["nvidia.com/gpu"]) == ("4", "8388608Ki", "2")
        assert condition(node, "Ready")["status"] == "True"  # type: ignore[index]
        assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("process://")
        lease = await lab.api.get(LEASES, "n1", "kube-node-lease")
        assert lease["spec"]["holderIdentity"] == "n1"


def doubt(node: Any) -> Any:
    conditions = [
        one | {"status": "Unknown", "reason": "NodeStatusUnknown"} for one in node["status"]["conditions"]
    ]
    return node | {"status": node["status"] | {"conditions": conditions}}


async def pass_seconds(clock: FakeClock, seconds: int) -> None:
    """Second by second, as a machine that is awake; the agent gets its turn after each."""
    for _ in range(seconds):
        clock.advance(1.0)
        for _ in range(50):
            await asyncio.sleep(0)


async def test_a_node_that_was_given_up_is_ready_again_with_its_next_heartbeat(lab: Lab) -> None:
    clock = FakeClock()
    async with lab.running(clock):
        await pass_seconds(clock, 1)
        await lab.api.update(NODES, doubt(await lab.api.get(NODES, "n1")), subresource="status")
        await pass_seconds(clock, 10)
        assert not is_doubted(await lab.api.get(NODES, "n1"))


async def test_a_node_tells_that_it_lives_as_soon_as_its_machine_wakes(lab: Lab) -> None:
    clock = FakeClock()
    async with lab.running(clock):
        await pass_seconds(clock, 1)
        await lab.api.update(NODES, doubt(await lab.api.get(NODES, "n1")), subresource="status")
        clock.suspend(timedelta(hours=8))  # of the ten seconds until the next heartbeat nine are left
        await pass_seconds(clock, 1)
        lease = await lab.api.get(LEASES, "n1", "kube-node-lease")
        assert parse_rfc3339(lease["spec"]["renewTime"]) == clock.now()
        assert not is_doubted(await lab.api.get(NODES, "n1"))


async def test_what_others_did_to_the_node_stays(lab: Lab) -> None:
    async with lab.running():
        await lab.api.patch(NODES, "n1", {"metadata": {"labels": {"mine": "x"}}, "spec": {"unschedulable": True}})
    async with lab.running():
        node = await lab.api.get(NODES, "n1")
        assert (node["metadata"]["labels"]["mine"], node["spec"]["unschedulable"]) == ("x", True)


async def test_pod_runs_to_its_exit_code(lab: Lab) -> None:
    async with lab.running():
        await lab.create(script="echo hello; exit 3")
        pod = await lab.phase("Failed")
        assert state(pod)["terminated"]["exitCode"] == 3
        assert pod["status"]["qosClass"] == "BestEffort"
        assert await lab.text() == "hello\n"
        assert "Started" in lab.events.reasons("p")


async def test_running_pod_is_ready(lab: Lab) -> None:
    async with lab.running():
        await lab.create(script="exec sleep 1000")
        pod = await lab.phase("Running")
        assert {one["type"]: one["status"] for one in pod["status"]["conditions"]} == {
            "PodScheduled": "True",
            "PodReadyToStartContainers": "True",
            "Initialized": "True",
            "ContainersReady": "True",
            "Ready": "True",
        }


async def test_environment_volumes_and_references_reach_the_process(lab: Lab) -> None:
    secret = base64.b64encode(b"s3cret").decode()
    await lab.api.create(CONFIGMAPS, {"metadata": {"name": "cfg"}, "data": {"a": "1", "b.txt": "file"}}, "default")
    await lab.api.create(SECRETS, {"metadata": {"name": "sec"}, "data": {"key": secret}}, "default")
    folder = lab.root / "pv"
    pv = {"metadata": {"name": "pv1"}, "spec": {"hostPath": {"path": str(folder)}}}
    await lab.api.create(PVS, pv)
    claim = {"metadata": {"name": "data"}, "spec": {"volumeName": "pv1"}, "status": {"phase": "Bound"}}
    await lab.api.create(PVCS, claim, "default")
    container = {
        "env": [
            {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cfg", "key": "a"}}},
            {"name": "B", "value": "$(A)+$(NONE)"},
            {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
            {"name": "S", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "key"}}},
        ],
        "resources": {"limits": {"memory": "200Mi"}},
        "volumeMounts": [
            {"name": "cfg", "mountPath": "/moor/cfg"},
            {"name": "all", "mountPath": "/moor/all"},
            {"name": "data", "mountPath": "/moor/data", "subPath": "sub"},
            {"name": "tmp", "mountPath": "/moor/tmp"},
        ],
    }
    volumes = [
        {"name": "cfg", "configMap": {"name": "cfg", "items": [{"key": "b.txt", "path": "x/y.txt"}]}},
        {
            "name": "all",
            "projected": {
                "sources": [
                    {"secret": {"name": "sec"}},
                    {"serviceAccountToken": {"path": "token"}},
                    {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                ]
            },
        },
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    script = (
        'echo "$A $B $ME $MEM $S $HOSTNAME";'
        'echo "$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT [$CUDA_VISIBLE_DEVICES]";'
        " cat /moor/cfg/x/y.txt; echo; cat /moor/all/key; echo; cat /moor/all/name; echo;"
        " cut -c-16 /moor/all/token; echo kept > /moor/data/out; touch /moor/tmp/t && echo ok"
    )
    async with lab.running():
        await lab.create(script=script, container=container, spec={"volumes": volumes})
        await lab.phase("Succeeded")
        assert (await lab.text()).splitlines() == [
            "1 1+$(NONE) p 200 s3cret p",
            "127.0.0.1:6443 []",
            "file",
            "s3cret",
            "p",
            "token-of-default",
            "ok",
        ]
        assert (folder / "sub/out").read_text() == "kept\n"


async def test_missing_configmap_is_waited_for(lab: Lab) -> None:
    container = {"envFrom": [{"configMapRef": {"name": "late"}}]}
    async with lab.running():
        await lab.create(script="echo $WORD", container=container)
        pod = await lab.until(
            lambda pod: "waiting" in state(pod) if pod["status"].get("containerStatuses") else False
        )
        assert state(pod)["waiting"] == {
            "reason": "CreateContainerConfigError",
            "message": 'configmap "late" not found',
        }
        await lab.api.create(CONFIGMAPS, {"metadata": {"name": "late"}, "data": {"WORD": "there"}}, "default")
        await lab.phase("Succeeded")
        assert await lab.text() == "there\n"


async def test_missing_volume_is_told_in_an_event(lab: Lab) -> None:
    spec = {"volumes": [{"name": "v", "secret": {"secretName": "none"}}]}
    async with lab.running():
        await lab.create(spec=spec)
        pod = await lab.until(
            lambda pod: "FailedMount" in lab.events.reasons("p") and pod["status"].get("containerStatuses")
        )
        assert ("p", "FailedMount", 'MountVolume.SetUp failed for volume "v" : secret "none" not found') in (
            lab.events.seen
        )
        assert state(pod)["waiting"]["reason"] == "ContainerCreating"


async def test_image_is_refused_unless_the_host_environment_is_asked_for(lab: Lab) -> None:
    async with lab.running():
        await lab.create(container={"image": "python:3.12"})
        pod = await lab.until(lambda pod: bool(pod["status"].get("containerStatuses")))
        assert state(pod)["waiting"]["reason"] == "ImageNotRunnable"
        await lab.api.patch(
            PODS, "p", {"metadata": {"annotations": {"localcluster.moorage.dev/host-env": "true"}}}, "default"
        )
        await lab.phase("Succeeded")


async def test_pod_without_command_waits(lab: Lab) -> None:
    async with lab.running():
        await lab.create(container={"command": None})
        pod = await lab.until(lambda pod: bool(pod["status"].get("containerStatuses")))
        assert state(pod)["waiting"] == {"reason": "CreateContainerConfigError", "message": "no command specified"}


async def test_gpus_are_given_lowest_free_first_and_named(lab: Lab) -> None:
    async with lab.running():
        await lab.create("a", "echo $CUDA_VISIBLE_DEVICES; exec sleep 1000", container=gpus(1))
        await lab.phase("Running", "a")
        await lab.create("b", "echo $CUDA_VISIBLE_DEVICES", container=gpus(1))
        pod = await lab.phase("Succeeded", "b")
        said = await until("what the first pod says", lambda: lab.text("a", tail_lines=1))
        assert (said, await lab.text("b")) == ("0\n", "1\n")
        assert pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"] == [
            {"name": "nvidia.com/gpu", "resources": [{"resourceID": "GPU-n1-1", "health": "Healthy"}]}
        ]


async def test_pod_beyond_what_is_left_is_refused(lab: Lab) -> None:
    async with lab.running():
        await lab.create("a", "exec sleep 1000", container=gpus(2))
        await lab.phase("Running", "a")
        await lab.create("b", container=gpus(1))
        assert (await lab.phase("Failed", "b"))["status"]["reason"] == "UnexpectedAdmissionError"
        await lab.create("c", container={"resources": {"requests": {"cpu": "5"}}})
        status = (await lab.phase("Failed", "c"))["status"]
        assert status["reason"] == "OutOfcpu"
        assert "requested: 5000, used: 0, capacity: 4000" in status["message"]


async def test_pod_waits_for_gpus_of_one_that_was_deleted_by_force(lab: Lab) -> None:
    async with lab.running():
        await lab.create("a", "trap '' TERM; echo up; while :; do sleep 0.05; done", container=gpus(2))
        await lab.phase("Running", "a")
        await lab.api.delete(PODS, "a", "default", grace_period_seconds=0)
        await lab.create("b", container=gpus(2))
        await lab.phase("Succeeded", "b")


async def test_memory_over_the_limit_is_oom_killed_with_the_peak(lab: Lab) -> None:
    code = "x = bytearray(300 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nimport time; time.sleep(60)"
    container = {"command": [sys.executable, "-S", "-c", code], "resources": {"limits": {"memory": "64Mi"}}}
    async with lab.running():
        await lab.create(container=container)
        pod = await lab.phase("Failed")
        ended = state(pod)["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")
        assert ended["message"].startswith("memory limit 64Mi exceeded; peak ")
        assert int(pod["metadata"]["annotations"][PEAK_ANNOTATION]) > 64 << 20
        assert "OOMKilling" in lab.events.reasons("p")


async def test_deletion_is_graceful_and_leaves_nothing(lab: Lab) -> None:
    async with lab.running():
        await lab.create(script="trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.05; done")
        pod = await lab.phase("Running")
        folder = lab.folder(pod)
        await lab.until(lambda _: (folder.path / "logs/c/0.log").exists())
        await lab.api.delete(PODS, "p", "default")
        await lab.gone()
        await soon("the end of its folder", lambda: not folder.path.exists())
        assert "Killing" in lab.events.reasons("p")


async def test_final_status_is_published_before_the_pod_is_removed(lab: Lab) -> None:
    async with lab.running():
        await lab.create(
            script="trap 'exit 5' TERM; while :; do sleep 0.05; done",
        )
        await lab.phase("Running")
        lab.api.log.clear()
        await lab.api.delete(PODS, "p", "default")
        await lab.gone()
        verbs = [verb for verb, resource, _ in lab.api.log if resource == "pods"]
        assert verbs[-2:] == ["update status", "delete"]


async def test_pod_deleted_before_it_started_is_removed(lab: Lab) -> None:
    async with lab.running():
        await lab.create(container={"image": "python:3.12"})
        await lab.until(lambda pod: bool(pod["status"].get("containerStatuses")))
        await lab.api.delete(PODS, "p", "default")
        await lab.gone()


async def test_running_pod_is_adopted_and_its_exit_code_found(lab: Lab) -> None:
    async with lab.running():
        await lab.create(
            script="echo x >> starts; while ! test -e go; do sleep 0.02; done; exit 9", container=gpus(1)
        )
        pod = await lab.phase("Running")
    work = lab.folder(pod).path / "work/c"
    assert lab.folder(pod).is_locked()
    (work / "go").touch()
    await soon("the end of its shim", lambda: not lab.folder(pod).is_locked())
    async with lab.running():
        pod = await lab.phase("Failed")
        assert state(pod)["terminated"]["exitCode"] == 9
        assert (work / "starts").read_text() == "x\n"


async def test_adopted_pod_keeps_its_gpus(lab: Lab) -> None:
    async with lab.running():
        await lab.create("a", "exec sleep 1000", container=gpus(1))
        await lab.phase("Running", "a")
    async with lab.running():
        await lab.create("b", "echo $CUDA_VISIBLE_DEVICES", container=gpus(1))
        await lab.phase("Succeeded", "b")
        assert await lab.text("b") == "1\n"


def is_lost(pod: Any) -> bool:
    found = condition(pod, "DisruptionTarget")
    return (
        pod["status"]["phase"] == "Failed"
        and pod["status"]["reason"] == "Terminated"
        and found is not None
        and (found["status"], found["reason"]) == ("True", "TerminationByKubelet")
        and state(pod)["terminated"]["reason"] == "ContainerStatusUnknown"
        and state(pod)["terminated"]["exitCode"] == 137
    )


async def test_processes_killed_while_nobody_watched_are_reported_lost(lab: Lab) -> None:
    async with lab.running():
        await lab.create(script="exec sleep 1000")
        pod = await lab.phase("Running")
    folder = lab.folder(pod)
    os.kill((folder.state() or {})["shimPid"], signal.SIGKILL)
    async with lab.running():
        await lab.until(is_lost)


async def test_shim_killed_under_a_watching_agent_is_reported_lost(lab: Lab) -> None:
    async with lab.running():
        await lab.create(script="exec sleep 1000")
        pod = await lab.phase("Running")
        os.kill((lab.folder(pod).state() or {})["shimPid"], signal.SIGKILL)
        await lab.until(is_lost)
        await lab.api.delete(PODS, "p", "default")
        await lab.gone()


async def test_running_pod_without_folder_is_lost_and_not_started_again(lab: Lab) -> None:
    async with lab.running():
        await lab.create(script="exec sleep 1000")
        pod = await lab.phase("Running")
    stop_all(lab.root / "nodes", grace_seconds=0.0)
    lab.folder(pod).remove()
    async with lab.running():
        await lab.until(is_lost)


async def test_folder_without_object_is_stopped_and_removed(lab: Lab) -> None:
    async with lab.running():
        await lab.create(script="exec sleep 1000")
        pod = await lab.phase("Running")
    await lab.api.delete(PODS, "p", "default", grace_period_seconds=0)
    async with lab.running():
        await soon("the end of its folder", lambda: not lab.folder(pod).path.exists())
        assert marked_processes(frozenset({pod["metadata"]["uid"]})) == {}


async def test_shutdown_ends_pods_as_a_kubelet_does(lab: Lab) -> None:
    async with lab.running() as agent:
        await lab.create("a", "trap 'exit 0' TERM; while :; do sleep 0.05; done")
        await lab.create("b", "trap '' TERM; while :; do sleep 0.05; done")
        await lab.phase("Running", "a")
        await lab.phase("Running", "b")
        await agent.shutdown(stop_pods=True, grace_seconds=0.5)
        for name in ("a", "b"):
            pod = await lab.pod(name)
            assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "Terminated")
            assert condition(pod, "DisruptionTarget")["reason"] == "TerminationByKubelet"  # type: ignore[index]
        assert condition(await lab.api.get(NODES, "n1"), "Ready")["status"] == "False"  # type: ignore[index]


async def test_shutdown_that_leaves_pods_alone_does(lab: Lab) -> None:
    async with lab.running() as agent:
        await lab.create(script="exec sleep 1000")
        pod = await lab.phase("Running")
        await agent.shutdown(stop_pods=False)
    assert lab.folder(pod).is_locked()


async def test_deadline_fails_the_pod(lab: Lab) -> None:
    async with lab.running():
        await lab.create(script="exec sleep 1000", spec={"activeDeadlineSeconds": 1})
        assert (await lab.phase("Failed"))["status"]["reason"] == "DeadlineExceeded"


async def test_others_conditions_are_kept(lab: Lab) -> None:
    async with lab.running():
        await lab.create(script="while ! test -e go; do sleep 0.02; done")
        pod = await lab.phase("Running")
        mine = {"status": {"conditions": [{"type": "mine", "status": "True"}]}}
        await lab.api.patch(PODS, pod["metadata"]["name"], mine, "default", kind="strategic", subresource="status")
        (lab.folder(pod).path / "work/c/go").touch()
        assert condition(await lab.phase("Succeeded"), "mine") is not None


async def test_log_options(lab: Lab) -> None:
    async with lab.running():
        await lab.create(script="for i in 1 2 3 4; do echo $i; done; printf rest")
        await lab.phase("Succeeded")
        assert await lab.text() == "1\n2\n3\n4\nrest\n"
        assert await lab.text(tail_lines=2) == "4\nrest\n"
        assert await lab.text(tail_lines=0) == ""
        assert await lab.text(limit_bytes=3) == "1\n2"
        assert await lab.text(since_seconds=3600) == "1\n2\n3\n4\nrest\n"
        stamped = (await lab.text(timestamps=True)).splitlines()
        assert stamped[0].endswith("Z 1")
        with pytest.raises(BadRequest, match='previous terminated container "c" in pod "p" not found'):
            await lab.text(previous=True)


async def test_log_of_a_container_that_waits_says_why(lab: Lab) -> None:
    async with lab.running():
        await lab.create(container={"command": None})
        await lab.until(lambda pod: bool(pod["status"].get("containerStatuses")))
        with pytest.raises(BadRequest, match='container "c" in pod "p" is waiting to start: no command specified'):
            await lab.text()


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can be mounted by root only")
async def test_full_disk_is_told_and_waited_for(lab: Lab) -> None:
    nodes = lab.root / "nodes"
    nodes.mkdir()
    await asyncio.to_thread(
        subprocess.run, ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(nodes)], check=True
    )
    try:
        async with lab.running():
            await lab.create("a", "exec sleep 1000")
            await lab.phase("Running", "a")
            filler = nodes / "filler"
            with contextlib.suppress(OSError), filler.open("wb") as out:
                while True:
                    out.write(b"x" * 4096)
                    out.flush()
            await lab.create("b", "true")
            pod = await lab.until(lambda pod: bool(pod["status"].get("containerStatuses")), "b")
            assert state(pod)["waiting"] == {
                "reason": "CreateContainerError",
                "message": "the pod's folder cannot be written: no space left on device",
            }
            os.kill((lab.folder(await lab.pod("a")).state() or {})["containers"][0]["pid"], signal.SIGKILL)
            filler.unlink()
            assert state(await lab.phase("Failed", "a"))["terminated"]["exitCode"] == 137
            await lab.phase("Succeeded", "b")
    finally:
        stop_all(nodes, grace_seconds=0.0)
        await asyncio.to_thread(subprocess.run, ["umount", "-l", str(nodes)], check=True)


async def test_followed_log_ends_with_the_container(lab: Lab) -> None:
    async with lab.running():
        await lab.create(script="echo first; while ! test -e go; do sleep 0.02; done; echo last")
        pod = await lab.phase("Running")
        got = b""
        async for chunk in lab.agent.logs(pod, "c", follow=True):
            got += chunk
            if b"first" in got:
                (lab.folder(pod).path / "work/c/go").touch()
        assert got == b"first\nlast\n"


async def test_previous_log_is_that_of_the_attempt_before(lab: Lab) -> None:
    script = "echo try $(ls | wc -l); if test -e seen; then exec sleep 1000; fi; touch seen; exit 1"
    async with lab.running():
        await lab.create(script=script, spec={"restartPolicy": "Always"})
        await lab.until(
            lambda pod: (
                bool(pod["status"].get("containerStatuses"))
                and pod["status"]["containerStatuses"][0]["restartCount"] == 1
                and "running" in state(pod)
            )
        )
        assert await lab.text(previous=True) == "try 0\n"
        await lab.until(lambda pod: (lab.folder(pod).path / "logs/c/1.log").stat().st_size)
        assert await lab.text() == "try 1\n"


async def test_readiness_follows_its_probe_and_liveness_restarts(lab: Lab) -> None:
    container = {
        "readinessProbe": {"exec": {"command": ["test", "-e", "good"]}, "periodSeconds": 0.05},
        "livenessProbe": {
            "exec": {"command": ["sh", "-c", "! test -e bad"]},
            "periodSeconds": 0.05,
            "failureThreshold": 1,
        },
    }
    async with lab.running():
        await lab.create(script="exec sleep 1000", container=container, spec={"restartPolicy": "Always"})
        pod = await lab.phase("Running")
        assert pod["status"]["containerStatuses"][0]["ready"] is False
        work = lab.folder(pod).path / "work/c"
        (work / "good").touch()
        await lab.until(lambda pod: pod["status"]["containerStatuses"][0]["ready"])
        (work / "bad").touch()
        await lab.until(lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] >= 1)
        assert "Unhealthy" in lab.events.reasons("p")


async def test_a_failed_hook_and_ignored_fields_are_events_of_the_pod(lab: Lab) -> None:
    container = {"lifecycle": {"postStart": {"exec": {"command": ["false"]}}}, "tty": True}
    async with lab.running():
        await lab.create(script="exec sleep 1000", container=container)
        await lab.phase("Failed")
    events = [(reason, message) for _, reason, message in lab.events.seen if reason != "Started"]
    assert events == [
        ("FieldsIgnored", "the local cluster ignores containers[c].tty: see docs/reference/pod-fields.md"),
        ("FailedPostStartHook", "PostStartHook of container c: exit code 1"),
    ]


async def test_the_termination_message_is_in_the_status(lab: Lab) -> None:
    async with lab.running():
        await lab.create(script="echo bye > /dev/termination-log; exit 3")
        pod = await lab.phase("Failed")
    assert state(pod)["terminated"]["message"] == "bye\n"


async def test_each_pod_has_an_address_of_its_own_and_probes_ask_there(lab: Lab) -> None:
    serve = (
        "import http.server, os; http.server.HTTPServer((os.environ['POD_IP'], 8080),"
        " http.server.SimpleHTTPRequestHandler).serve_forever()"
    )
    container = {
        "command": [sys.executable, "-c", serve],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "readinessProbe": {"httpGet": {"port": 8080}, "periodSeconds": 0.05},
    }

    def is_ready(pod: Any) -> bool:
        return (condition(pod, "Ready") or {}).get("status") == "True"

    async with lab.running():
        for name in ("a", "b"):
            await lab.create(name, container=container)
        await lab.create("host", "exec sleep 1000", spec={"hostNetwork": True})
        seen = {}
        for name in ("a", "b"):
            status = (await lab.until(is_ready, name))["status"]
            assert status["podIPs"] == [{"ip": status["podIP"]}]
            assert status["hostIP"] == "127.0.0.1"
            seen[name] = status["podIP"]
        assert (await lab.phase("Running", "host"))["status"]["podIP"] == "127.0.0.1"
        assert len(set(seen.values())) == 2
        assert all(ip_address(one) in NETWORK for one in seen.values())
    pod = await lab.pod("a")
    blank = {key: value for key, value in pod["status"].items() if key not in ("podIP", "podIPs")}
    await lab.api.update(PODS, {**pod, "status": blank}, subresource="status")
    async with lab.running():
        pod = await lab.until(lambda pod: pod["status"].get("podIP"), "a")
        assert pod["status"]["podIP"] == seen["a"], "an agent that comes back knows the addresses of its pods"


async def test_tcp_and_http_probes(lab: Lab) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" if b"/ok" in line else b"HTTP/1.1 500 Oh\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    def probe(**action: Any) -> Any:
        return {"readinessProbe": action | {"periodSeconds": 0.05}}

    host = {"hostNetwork": True}
    async with lab.running(), server:
        named = {"ports": [{"name": "web", "containerPort": port}]}
        await lab.create(
            "good", "exec sleep 1000", spec=host, container=named | probe(httpGet={"path": "/ok", "port": "web"})
        )
        bad = probe(httpGet={"path": "/no", "port": port})
        await lab.create("bad", "exec sleep 1000", spec=host, container=bad)
        await lab.create("tcp", "exec sleep 1000", spec=host, container=probe(tcpSocket={"port": port}))
        for name in ("good", "tcp"):
            await lab.until(
                lambda pod: condition(pod, "Ready") and condition(pod, "Ready")["status"] == "True", name
            )
        await lab.until(lambda _: "Unhealthy" in lab.events.reasons("bad"), "bad")
        assert condition(await lab.pod("bad"), "Ready")["status"] == "False"  # type: ignore[index]


async def test_init_containers_are_reported(lab: Lab) -> None:
    init = {
        "name": "i",
        "image": "localhost/host",
        "command": ["sh", "-c", "while ! test -e go; do sleep 0.02; done"],
    }
    async with lab.running():
        await lab.create(spec={"initContainers": [init]})
        pod = await lab.until(
            lambda pod: "running" in (pod["status"].get("initContainerStatuses") or [{"state": {}}])[0]["state"]
        )
        assert pod["status"]["phase"] == "Pending"
        assert condition(pod, "Initialized")["status"] == "False"  # type: ignore[index]
        assert state(pod)["waiting"]["reason"] == "PodInitializing"
        (lab.folder(pod).path / "work/i/go").touch()
        pod = await lab.phase("Succeeded")
        assert condition(pod, "Initialized")["status"] == "True"  # type: ignore[index]


@pytest.mark.timeout(900)
async def test_agent_killed_at_any_moment_loses_no_exit_code_and_starts_nothing_twice(lab: Lab, seed: int) -> None:
    """A whole control plane of its own, killed with SIGKILL again and again while pods start and end."""
    dice = random.Random(seed)
    inbox = lab.root / "in"
    inbox.mkdir()
    runs = lab.root / "runs"
    runs.mkdir()
    count = 24
    for number in range(count):
        script = f"echo x >> {runs}/{number}; sleep {dice.random() * 0.6:.3f}; exit {number + 1}"
        pod = a_pod(f"p{number}", script, container=gpus(1) if number % 8 == 0 else None)
        (inbox / f"{number:03}.json").write_text(json.dumps(pod))

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(FAKE), str(lab.root)])

    def phases() -> dict[str, Any]:
        path = lab.root / "api.json"
        stored = json.loads(path.read_text())["stored"] if path.exists() else []
        return {obj["metadata"]["name"]: obj for resource, obj in stored if resource["plural"] == "pods"}

    control = start()
    try:
        for _ in range(8):
            await pause(dice, 0.4, 1.2)
            control.kill()
            control.wait()
            control = start()
        await asyncio.to_thread(
            read_until,
            phases,
            lambda pods: len(pods) == count and all(pod["status"]["phase"] == "Failed" for pod in pods.values()),
            patience=600,
        )
        pods = phases()
        codes = {
            name: (pod["status"].get("containerStatuses") or [{"state": None}])[0]["state"]
            for name, pod in pods.items()
        }
        assert {name: (one or {}).get("terminated", {}).get("exitCode") for name, one in codes.items()} == {
            f"p{number}": number + 1 for number in range(count)
        }
        assert {file.name: file.read_text() for file in runs.iterdir()} == {str(n): "x\n" for n in range(count)}
    finally:
        control.kill()
        control.wait()
        for folder in (lab.root / "pods").iterdir():
            kill_leftovers(folder.name)


# -- pods that try to get at the cluster's folder


@pytest.fixture
def fenced(lab: Lab) -> Lab:
    """The lab in a folder with a secret, on a machine that can keep pods from it."""
    words = [sys.executable, "-S", "-E", "-s", podshim.__file__, "--try-fence", str(lab.root)]
    tried = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    if tried != "fully":
        pytest.skip(f"this machine allows no fence: {tried}")
    (lab.root / "tokens.json").write_text("s3cret\n")
    (lab.root / "run").mkdir()
    return lab


def with_volume(prepare: str, script: str, *mounts: Any, **container: Any) -> Any:
    """A pod with an emptyDir: an init container prepares it at /moor-all, then the script runs with `mounts`."""
    init = {
        "name": "prepare", "image": "localhost/host", "command": ["sh", "-c", prepare],
        "volumeMounts": [{"name": "v", "mountPath": "/moor-all"}],
    }  # fmt: skip
    places = [{"name": "v"} | mount for mount in mounts]
    return {
        "script": script,
        "spec": {"volumes": [{"name": "v", "emptyDir": {}}], "initContainers": [init]},
        "container": {"volumeMounts": places} | container,
    }


@pytest.mark.parametrize(
    ("link", "below"),
    [
        pytest.param("ln -s {root} x", "x", id="an absolute link"),
        pytest.param("ln -s ../../../../.. x", "x", id="a relative link"),
        pytest.param("ln -s {root} x", "x/nodes", id="a link on the way"),
        pytest.param("ln -s {root} x", "x/made", id="a link on the way to a folder that is missing"),
        pytest.param("mkdir a; ln -s ../.. a/up; ln -s a/up x", "x", id="a link to a link"),
        pytest.param("ln -s {root}/tokens.json x", "x", id="a link to a file"),
        pytest.param("ln -s x x", "x", id="a link to itself"),
    ],
)
async def test_a_sub_path_never_leads_out_of_its_volume(fenced: Lab, link: str, below: str) -> None:
    script = "cat /moor/* /moor; ls /moor"
    prepare = f"cd /moor-all && {link.format(root=fenced.root)}"
    async with fenced.running(hidden=fenced.root):
        await fenced.create(**with_volume(prepare, script, {"mountPath": "/moor", "subPath": below}))
        pod = await fenced.phase("Failed")
        ended = state(pod)["terminated"]
        assert (ended["reason"], f'subPath "{below}"' in ended["message"]) == ("StartError", True), ended
        assert sorted(one.name for one in fenced.root.iterdir()) == ["nodes", "run", "tokens.json"]


async def test_links_that_stay_in_the_volume_are_followed_by_sub_paths(fenced: Lab) -> None:
    prepare = "cd /moor-all && mkdir -p a/b && echo kept > a/b/f; ln -s a x; ln -s ../x/b a/y; ln -s a/b/f file"
    mounts = [
        {"mountPath": "/moor", "subPath": "x/y"},
        {"mountPath": "/moor-new", "subPath": "x/new/deep"},
        {"mountPath": "/moor-file", "subPath": "file"},
    ]
    script = "cat /moor/f /moor-file; echo new > /moor-new/g"
    async with fenced.running(hidden=fenced.root):
        await fenced.create(**with_volume(prepare, script, *mounts))
        pod = await fenced.phase("Succeeded")
        assert await fenced.text() == "kept\nkept\n"
        assert (fenced.folder(pod).path / "volumes/v/a/new/deep/g").read_text() == "new\n"


async def test_mount_points_are_not_made_in_the_clusters_folder(fenced: Lab) -> None:
    """Neither through a link in another volume, nor by its path below the home folder."""
    prepare = f"echo > /moor-all/f; ln -s {fenced.root}/run /moor-all/x"
    mounts = [
        {"mountPath": "/moor"},
        {"mountPath": "/moor/x/stop-pods", "subPath": "f"},
        {"mountPath": f"{fenced.root}/scheduler.json", "subPath": "f"},
    ]
    env = [{"name": "HOME", "value": str(fenced.root)}]
    async with fenced.running(hidden=fenced.root):
        await fenced.create(**with_volume(prepare, "true", *mounts, env=env))
        await fenced.until(lambda pod: pod["status"].get("phase") in ("Succeeded", "Failed"))
        assert sorted(one.name for one in fenced.root.iterdir()) == ["nodes", "run", "tokens.json"]
        assert list((fenced.root / "run").iterdir()) == []


@pytest.mark.parametrize("where", ["the folder around", "/proc", "the folder itself", "/"])
async def test_a_volume_in_the_way_of_the_fence_does_not_take_it_away(fenced: Lab, where: str) -> None:
    data = fenced.root / "home" / "data"
    data.mkdir(parents=True)
    (data / "tokens.json").write_text("s3cret\n")
    fenced.root = data
    target = {"the folder around": str(data.parent), "the folder itself": str(data)}.get(where, where)
    script = f"cat {data}/tokens.json {data}/nodes/n1/*/spec.json; echo up"
    async with fenced.running(hidden=data):
        more = with_volume("true", script, {"mountPath": target}, workingDir="/usr")
        await fenced.create(**more)
        pod = await fenced.until(lambda pod: pod["status"].get("phase") in ("Succeeded", "Failed"))
        ended = state(pod)["terminated"]
        text = "" if ended["reason"] == "StartError" else await fenced.text()
        assert "s3cret" not in text
        assert "namespace" not in text
        assert ended["reason"] == "StartError" or "up\n" in text


async def test_a_host_path_shows_of_the_clusters_folder_only_a_path_inside_of_it(fenced: Lab) -> None:
    fence = fenced.root / "run"
    (fence / "inside").mkdir()
    (fence / "inside/file").write_text("shown\n")
    paths = {"above": fenced.root, "itself": fence, "inside": fence / "inside"}
    volumes = [{"name": name, "hostPath": {"path": str(path)}} for name, path in paths.items()]
    mounts = [{"name": name, "mountPath": f"/moor-{name}"} for name in paths]
    async with fenced.running(hidden=fence):
        script = "cat /moor-above/tokens.json; ls /moor-above/run /moor-itself; cat /moor-inside/file"
        await fenced.create(script=script, spec={"volumes": volumes}, container={"volumeMounts": mounts})
        await fenced.phase("Succeeded")
        assert await fenced.text() == "s3cret\n/moor-above/run:\n\n/moor-itself:\nshown\n"


class OnAnotherMachine(Launcher):
    """Whose kernel refuses namespaces."""

    async def fence(self, _folder: Path) -> Fence:
        return Fence(hides=False, gap="unshare: Operation not permitted")


async def test_pods_of_a_machine_that_cannot_fence_run_and_one_event_each_says_so(lab: Lab) -> None:
    async with lab.running(hidden=lab.root, launcher=OnAnotherMachine()):
        for name in ("p", "q"):
            await lab.create(name, "echo up")
            await lab.phase("Succeeded", name)
        notices = [(name, message) for name, reason, message in lab.events.seen if reason == "NotFenced"]
    assert [name for name, _ in notices] == ["p", "q"]
    assert all("unshare" in message and "administrator's token" in message for _, message in notices)


async def test_no_pod_starts_while_it_is_not_known_whether_it_can_be_fenced(lab: Lab) -> None:
    """The folder that is to be hidden is away: no sign of a kernel that refuses."""
    data = lab.root / "data"
    async with lab.running(hidden=data):
        await lab.create()
        pod = await lab.until(lambda pod: pod["status"].get("containerStatuses") and "message" in str(state(pod)))
        assert state(pod)["waiting"]["reason"] == "RunContainerError"
        assert str(data) in state(pod)["waiting"]["message"]
        data.mkdir()
        await lab.phase("Succeeded")


async def test_fenced_pods_bring_no_such_event_and_privileged_ones_are_not_fenced(fenced: Lab) -> None:
    look = f"cat {fenced.root}/tokens.json 2>/dev/null; true"
    async with fenced.running(hidden=fenced.root):
        await fenced.create("p", look)
        await fenced.create("q", look, container={"securityContext": {"privileged": True}})
        for name in ("p", "q"):
            await fenced.phase("Succeeded", name)
        assert [await fenced.text("p"), await fenced.text("q")] == ["", "s3cret\n"]
        assert "NotFenced" not in fenced.events.reasons("p") + fenced.events.reasons("q")


async def test_a_command_runs_beside_a_container_whatever_process_the_report_names(lab: Lab) -> None:
    async with lab.running():
        await lab.create(script="sleep 1000")
        pod = await lab.phase("Running")
        folder = lab.folder(pod)
        shim_pid = (folder.state() or {})["shimPid"]
        os.kill(shim_pid, signal.SIGSTOP)  # or it writes the report anew, with what memory it has seen since
        try:
            for pid, codes in ((None, (0,)), (os.getpid(), (126, 127)), (1, (126, 127))):
                report = folder.state() or {}
                report["containers"][0]["pid"] = pid or report["containers"][0]["pid"]
                write_json(folder.path / "state.json", report)
                command = await lab.agent.execute(pod, "c", ["true"])
                try:
                    assert await command.exit_code() in codes
                finally:
                    await command.close()
        finally:
            os.kill(shim_pid, signal.SIGCONT)


DAMAGED: dict[str, Callable[[Path], object]] = {
    "deeply nested": lambda path: path.write_bytes(b"[" * 100_000),
    "no list of containers": lambda path: path.write_text('{"containers": 5}'),
    "no list of containers, for this pod": lambda path: path.write_text(
        json.dumps({"uid": path.parent.name, "shimPid": 1, "pod": {"phase": "Running"}, "containers": 5})
    ),
    "a list": lambda path: path.write_text("[]"),
    "no object of the pod": lambda path: path.write_text('{"pod": 5, "containers": [5]}'),
    "times that are none": lambda path: path.write_text(path.read_text().replace("20", "x0")),
    "numbers that are none": lambda path: path.write_text(path.read_text().replace(": 0", ': "none"')),
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "nothing": Path.touch,
}


async def test_an_agent_starts_and_works_on_whatever_a_pod_wrote_into_its_report(lab: Lab) -> None:
    async with lab.running():
        await lab.create(script="until test -e go; do sleep 0.05; done; exit 3")
        pod = await lab.phase("Running")
    path = lab.folder(pod).path / "state.json"
    kept = path.read_text()
    for number, damage in enumerate(DAMAGED.values()):
        path.unlink()
        if damage.__name__ == "<lambda>":
            path.write_text(kept)
        damage(path)
        async with lab.running():
            await lab.create(f"q{number}")
            await lab.phase("Succeeded", f"q{number}")
            assert (await lab.pod())["status"]["phase"] == "Running"
        if path.is_dir():
            path.rmdir()
            path.touch()
    (path.parent / "work/c/go").touch()
    async with lab.running():
        ended = state(await lab.phase("Failed"))["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (3, "Error")


async def test_a_pod_whose_report_is_damaged_is_reported_lost_when_its_shim_was_killed(lab: Lab) -> None:
    async with lab.running():
        await lab.create(script="exec sleep 1000")
        folder = lab.folder(await lab.phase("Running"))
        shim_pid = (folder.state() or {})["shimPid"]
        (folder.path / "state.json").write_bytes(b"[" * 100_000)
        os.kill(shim_pid, signal.SIGKILL)
        pod = await lab.phase("Failed")
        assert state(pod)["terminated"]["reason"] == "ContainerStatusUnknown"


async def test_other_damaged_files_of_a_pod_keep_no_agent_from_its_work(lab: Lab) -> None:
    async with lab.running():
        await lab.create(script="exec sleep 1000")
        folder = lab.folder(await lab.phase("Running")).path
    for name in ("admission.json", "lock", "stop", "logs/c/0.log", "logs/c/x.log", "logs/c/1x.log"):
        with contextlib.suppress(FileNotFoundError):
            (folder / name).rename(folder / f"{name}.kept")
        os.mkfifo(folder / name)
    async with lab.running():
        await lab.create("q")
        await lab.phase("Succeeded", "q")
        assert await lab.text() == ""
        for name in ("admission.json", "lock", "stop"):
            (folder / name).unlink()
        for name in ("admission.json", "lock"):
            (folder / f"{name}.kept").rename(folder / name)
        await lab.api.delete(PODS, "p", "default")
        await lab.gone()


async def test_a_pod_may_leave_any_tree_of_folders_behind(lab: Lab) -> None:
    ten = "a/a/a/a/a/a/a/a/a/a"
    deep = f"i=0; while test $i -lt 300; do mkdir -p {ten} && cd -P {ten}; i=$((i+1)); done"
    async with lab.running():
        await lab.create(script=deep)
        pod = await lab.phase("Succeeded")
        await lab.api.delete(PODS, "p", "default")
        await lab.gone()
        await soon("the end of its folder", lambda: not lab.folder(pod).path.exists())
        await lab.create("q")
        await lab.phase("Succeeded", "q")
