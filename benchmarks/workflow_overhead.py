"""What a node of a workflow costs beside the pod that it is, and how soon the next step follows.

    python benchmarks/workflow_overhead.py [--nodes 1000 10000] [--chain 100] [--at-once 40]
                                           [--finished 2000] [--waiting 1000] [--flood 10000] [--crowd 10000]

A local cluster in a temporary folder, whose operator is a process of its own. Each part is left out by 0.

--chain N     a chain of so many steps: the time from a step's end, as its pod tells it, to the creation of the
              next one's pod. Then the same behind --finished nodes of the same workflow, and beside another
              workflow whose --waiting nodes fit nowhere
--nodes N …   so many plain pods of `true`, created by this program and deleted when they have ended, --at-once at
              a time; then a DAG of as many nodes with the same limit: seconds, and CPU seconds of each of our
              processes, for a pod and for a node; their ratio; the largest memory (RSS) of each process until then
--flood N     a workflow without `parallelism` of so many steps that run long, with a GPU each, of which there are
              two; then workflows of one step without a GPU, one after the other: the seconds until each has ended
--crowd N     the same with so many plain pods in the place of the first workflow. At last, for both, the CPU that
              is used while nothing changes
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moorage.cli.datafolder import DataFolder
from moorage.model.argo import WORKFLOW_LABEL, WORKFLOWS
from moorage.model.names import HOST_IMAGE
from moorage_kube.clock import SYSTEM
from moorage_kube.informer import Informer
from moorage_kube.remote.client import KubeClient
from moorage_kube.remote.config import load_connection
from moorage_kube.resources import PODS, Obj
from moorage_kube.testing.waiting import until

FINAL = ("Succeeded", "Failed", "Error")
NAMESPACE = "default"
TICKS = os.sysconf("SC_CLK_TCK")
REST_SECONDS = 20.0
GPUS = 2


SMALL = {"cpu": "1m", "memory": "16Mi"}
ONE_GPU = SMALL | {"nvidia.com/gpu": "1"}


def a_container(command: list[str], amounts: dict[str, str] = SMALL) -> dict[str, Any]:
    return {"image": HOST_IMAGE, "command": command, "resources": {"requests": amounts, "limits": amounts}}


@dataclass(frozen=True, slots=True)
class Processes:
    """The control plane and our services, by name."""

    pids: dict[str, int]

    def cpu_seconds(self) -> dict[str, float]:
        spent = {}
        for name, pid in self.pids.items():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            spent[name] = (int(fields[11]) + int(fields[12])) / TICKS
        return spent

    def cpu_since(self, before: dict[str, float]) -> dict[str, float]:
        return {name: seconds - before[name] for name, seconds in self.cpu_seconds().items()}

    def most_memory(self) -> str:
        """The largest resident set of each until now."""
        texts = []
        for name, pid in self.pids.items():
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            kib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
            texts.append(f"{name} {kib / 1024:.0f}")
        return ", ".join(texts) + " MiB"


@contextlib.contextmanager
def a_cluster(data: Path) -> Iterator[Processes]:
    """The processes of `moor up`, without their supervisor: the operator is to be looked at by itself."""
    moor = [sys.executable, "-m", "moorage.cli.main"]
    up = [*moor, "up", "--data", str(data), "--port", "0", "--gpus", str(GPUS), "--gpu-type", "a100"]
    subprocess.run(up, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*moor, "down", "--data", str(data)], check=True, stdout=subprocess.DEVNULL)
    config = DataFolder(data).load_config()
    assert config is not None
    with contextlib.ExitStack() as stack:
        sockets = {
            name: stack.enter_context(socket.create_server(("127.0.0.1", port), backlog=512))
            for name, port in config.ports.items()
        }
        fds = {name: each.fileno() for name, each in sockets.items()}
        services = {name: fd for name, fd in fds.items() if name in ("extender", "webhook", "server")}
        of_services = ["moorage.cli.services", "--fds", json.dumps(services), "--parts"]
        commands = {
            "control plane": ["moorage_local", "--fds", json.dumps(fds)],
            "services": [*of_services, "webhook,extender,server"],
            "operator": [*of_services, "operator"],
        }
        started: dict[str, subprocess.Popen[bytes]] = {}
        for name, (module, *options) in commands.items():
            read, write = os.pipe()
            log = stack.enter_context((data / "log" / f"{name.replace(' ', '-')}.log").open("ab"))
            started[name] = subprocess.Popen(
                [sys.executable, "-m", module, "--data", str(data), *options, "--ready-fd", str(write)],
                pass_fds=[*fds.values(), write],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )
            stack.callback(_end, started[name])
            os.close(write)
            if name != "control plane":  # the services wait for it
                os.read(read, 100)
            os.close(read) if name != "control plane" else stack.callback(os.close, read)
        yield Processes({name: process.pid for name, process in started.items()})


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


async def plain_pods(api: KubeClient, number: int, at_once: int) -> None:
    """Create, await and delete so many pods."""
    ended: dict[str, asyncio.Event] = {}

    def changed(_before: Obj | None, after: Obj | None) -> None:
        if after is not None and (after.get("status") or {}).get("phase") in FINAL:
            name = after["metadata"]["name"]
            if name in ended:
                ended[name].set()

    pods = Informer(api, PODS, NAMESPACE, label_selector="plain=true")
    pods.on_change(changed)
    watching = asyncio.create_task(pods.run())
    await pods.synced.wait()
    gate = asyncio.Semaphore(at_once)

    async def pod(at: int) -> None:
        async with gate:
            name = f"plain-{number}-{at}"
            ended[name] = asyncio.Event()
            spec = {"restartPolicy": "Never", "containers": [{"name": "main"} | a_container(["true"])]}
            await api.create(
                PODS, {"metadata": {"name": name, "labels": {"plain": "true"}}, "spec": spec}, NAMESPACE
            )
            await ended[name].wait()
            await api.delete(PODS, name, NAMESPACE)

    await asyncio.gather(*(pod(at) for at in range(number)))
    watching.cancel()


async def create(api: KubeClient, name: str, spec: dict[str, Any]) -> None:
    typed = {"apiVersion": WORKFLOWS.api_version, "kind": WORKFLOWS.kind, "metadata": {"name": name}, "spec": spec}
    await api.create(WORKFLOWS, typed, NAMESPACE)


async def workflow(api: KubeClient, name: str, spec: dict[str, Any]) -> None:
    """Run one to its end. It is watched: to ask for a large one again and again would cost more than to run it."""
    is_over, status = asyncio.Event(), {}

    def changed(_before: Obj | None, after: Obj | None) -> None:
        if after is not None and (after.get("status") or {}).get("phase") in FINAL:
            status.update(after["status"])
            is_over.set()

    workflows = Informer(api, WORKFLOWS, NAMESPACE, field_selector=f"metadata.name={name}")
    workflows.on_change(changed)
    watching = asyncio.create_task(workflows.run())
    await workflows.synced.wait()
    await create(api, name, spec)
    await is_over.wait()
    watching.cancel()
    if status["phase"] != "Succeeded":
        raise SystemExit(f"workflow {name}: {status}")


async def ended(api: KubeClient, name: str) -> None:
    async def is_ended() -> bool:
        return ((await api.get(WORKFLOWS, name, NAMESPACE)).get("status") or {}).get("phase") in FINAL

    await until(f"the end of workflow {name}", is_ended)


def a_dag(number: int, at_once: int) -> dict[str, Any]:
    """A tree: every node has four after it."""
    tasks = [{"name": f"t{at}", "template": "true"} for at in range(number)]
    for at in range(1, number):
        tasks[at]["depends"] = f"t{(at - 1) // 4}"
    return {
        "entrypoint": "main",
        "parallelism": at_once,
        "podGC": {"strategy": "OnPodCompletion"},
        "templates": [
            {"name": "main", "dag": {"tasks": tasks}},
            {"name": "true", "container": a_container(["true"])},
        ],
    }


async def compare(api: KubeClient, processes: Processes, number: int, at_once: int) -> None:
    """Plain pods, then a DAG of as many nodes."""
    rows = []
    for kind, work in (
        ("pod", plain_pods(api, number, at_once)),
        ("node", workflow(api, f"dag-{number}", a_dag(number, at_once))),
    ):
        started, before = time.monotonic(), processes.cpu_seconds()
        await work
        spent = {name: seconds / number for name, seconds in processes.cpu_since(before).items()}
        rows.append(((time.monotonic() - started) / number, sum(spent.values())))
        each = ", ".join(f"{name} {seconds * 1e3:.1f}" for name, seconds in spent.items())
        print(
            f"{number:6} {kind}s: {rows[-1][0] * 1e3:6.1f} ms each; CPU {rows[-1][1] * 1e3:5.1f} ms: {each}",
            flush=True,
        )
    (pod_time, pod_cpu), (node_time, node_cpu) = rows
    print(
        f"        ratio {node_time / pod_time:.2f}, of CPU {node_cpu / pod_cpu:.2f};"
        f" memory at most: {processes.most_memory()}",
        flush=True,
    )


async def chain(api: KubeClient, name: str, number: int, finished: int = 0) -> None:
    """From a step's end, as its pod tells it, to the creation of the next one's pod."""
    created: list[float] = []
    ended: dict[str, float] = {}

    def changed(before: Obj | None, after: Obj | None) -> None:
        if after is None:
            return
        now = SYSTEM.now().timestamp()
        if before is None:
            created.append(now)
        if (after.get("status") or {}).get("phase") in FINAL:
            ended.setdefault(after["metadata"]["name"], now)

    links = Informer(api, PODS, NAMESPACE, label_selector=f"{WORKFLOW_LABEL}={name},link=true")
    links.on_change(changed)
    watching = asyncio.create_task(links.run())
    await links.synced.wait()
    tasks: list[dict[str, Any]] = [{"name": f"t{at}", "template": "link"} for at in range(number)]
    for at in range(1, number):
        tasks[at]["depends"] = f"t{at - 1}"
    if finished:
        tasks.append({"name": "first", "template": "true", "withSequence": {"count": str(finished)}})
        tasks[0]["depends"] = "first"
    link = {"name": "link", "metadata": {"labels": {"link": "true"}}, "container": a_container(["true"])}
    spec = {
        "entrypoint": "main",
        "parallelism": 40,
        "templates": [
            {"name": "main", "dag": {"tasks": tasks}},
            link,
            {"name": "true", "container": a_container(["true"])},
        ],
    }
    await workflow(api, name, spec)
    watching.cancel()
    waits = sorted(1e3 * (start - end) for end, start in zip(sorted(ended.values()), created[1:], strict=False))
    print(
        f"{name} of {len(ended)}: from a step's end to the next pod p50 {waits[len(waits) // 2]:.0f} ms,"
        f" p99 {waits[int(len(waits) * 0.99)]:.0f} ms, most {waits[-1]:.0f} ms",
        flush=True,
    )


def a_crowd(number: int, container: dict[str, Any]) -> dict[str, Any]:
    """So many steps side by side, without a limit."""
    step = {"name": "step", "template": "step", "withSequence": {"count": str(number)}}
    return {
        "entrypoint": "main",
        "templates": [{"name": "main", "steps": [[step]]}, {"name": "step", "container": container}],
    }


async def beside_waiting(api: KubeClient, number: int, waiting: int) -> None:
    """A chain beside another workflow, of which so many nodes fit nowhere."""
    await create(api, "waiting", a_crowd(waiting, a_container(["true"], {"cpu": "1000", "memory": "16Mi"})))
    await asyncio.sleep(REST_SECONDS)
    await chain(api, "chain-beside-waiting", number)
    await api.patch(WORKFLOWS, "waiting", {"spec": {"shutdown": "Terminate"}}, NAMESPACE)
    await ended(api, "waiting")


async def flood(api: KubeClient, number: int) -> None:
    await create(api, "flood", a_crowd(number, a_container(["sleep", "3600"], ONE_GPU)))


async def crowd(api: KubeClient, number: int) -> None:
    gate = asyncio.Semaphore(16)

    async def pod(at: int) -> None:
        async with gate:
            spec = {"containers": [{"name": "main"} | a_container(["sleep", "3600"], ONE_GPU)]}
            await api.create(PODS, {"metadata": {"name": f"crowd-{at}"}, "spec": spec}, NAMESPACE)

    await asyncio.gather(*(pod(at) for at in range(number)))


async def beside(api: KubeClient, processes: Processes, name: str, work: Coroutine[Any, Any, None]) -> None:
    """How long other workflows wait for their first step beside `work`, which makes pods that wait."""
    started, before = time.monotonic(), processes.cpu_seconds()
    making = asyncio.create_task(work)
    while True:
        is_made = making.done()
        began = time.monotonic()
        await workflow(api, f"beside-{name}-{began:.0f}", a_dag(1, 1))
        print(
            f"{name}: a workflow of one step, created {began - started:.0f} s after the beginning, ended after"
            f" {time.monotonic() - began:.1f} s; all are {'made' if is_made else 'being made'}",
            flush=True,
        )
        if is_made:
            break
        await asyncio.sleep(REST_SECONDS / 2)
    await making
    await asyncio.sleep(REST_SECONDS)
    spent = ", ".join(f"{name} {seconds:.0f}" for name, seconds in processes.cpu_since(before).items())
    pods = len((await api.list(PODS, NAMESPACE)).items)
    print(f"{name}: {pods} pods are there; CPU s until now: {spent}", flush=True)
    before = processes.cpu_seconds()
    await asyncio.sleep(REST_SECONDS)
    spent = ", ".join(f"{name} {100 * s / REST_SECONDS:.0f} %" for name, s in processes.cpu_since(before).items())
    print(f"{name}: of a core at rest: {spent}; memory at most: {processes.most_memory()}", flush=True)


async def measure(data: Path, processes: Processes, chosen: argparse.Namespace) -> None:
    async with KubeClient(load_connection(data / "kubeconfig")) as api:
        if chosen.chain:
            await chain(api, "chain", chosen.chain)
            if chosen.finished:
                await chain(api, f"chain-behind-{chosen.finished}", chosen.chain, chosen.finished)
            if chosen.waiting:
                await beside_waiting(api, chosen.chain, chosen.waiting)
        for number in filter(None, chosen.nodes):
            await compare(api, processes, number, chosen.at_once)
        if chosen.flood:
            await beside(api, processes, "flood", flood(api, chosen.flood))
        if chosen.crowd:
            await beside(api, processes, "crowd", crowd(api, chosen.crowd))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1000, 10_000])
    parser.add_argument("--chain", type=int, default=100)
    parser.add_argument("--finished", type=int, default=2000)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--flood", type=int, default=10_000)
    parser.add_argument("--crowd", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=40)
    parser.add_argument("--data", type=Path, help="an empty folder to keep; a temporary one by default")
    chosen = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = chosen.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="workflow-overhead-")))
        processes = stack.enter_context(a_cluster(folder / "data"))
        print(f"processes: {processes.pids}", flush=True)
        asyncio.run(measure(folder / "data", processes, chosen))


if __name__ == "__main__":
    main()
