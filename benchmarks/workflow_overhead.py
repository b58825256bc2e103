"""What a node of a workflow costs beside the pod that it is, and how soon the next step follows.

    python benchmarks/workflow_overhead.py [--nodes 1000 10000] [--chain 100] [--at-once 40]

On a local cluster in a temporary folder. First a chain of steps: the time from a step's end, as its pod tells it,
to the creation of the next one's pod. Then for each size: so many plain pods of `true`, created by this program
and deleted when they have ended, `--at-once` at a time; then a DAG of as many nodes with the same limit. Printed
are seconds and CPU seconds of all our processes per pod and per node, their ratio, and the memory of the services.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from moorage.apimachinery.resources import PODS
from moorage.clock import SYSTEM
from moorage.kube.client import KubeClient
from moorage.kube.config import load_connection
from moorage.model.names import HOST_IMAGE
from moorage.model.workflow import WORKFLOW_LABEL, WORKFLOWS

FINAL = ("Succeeded", "Failed", "Error")
NAMESPACE = "default"
TICKS = os.sysconf("SC_CLK_TCK")


def a_container(command: list[str]) -> dict[str, Any]:
    amounts = {"cpu": "1m", "memory": "16Mi"}
    return {"image": HOST_IMAGE, "command": command, "resources": {"requests": amounts, "limits": amounts}}


class Processes:
    """The control plane and the services of one data folder."""

    def __init__(self, data: Path) -> None:
        found = subprocess.run(["pgrep", "-f", str(data)], capture_output=True, text=True, check=False).stdout
        self.pids = [int(pid) for pid in found.split() if int(pid) != os.getpid()]
        self.services = [pid for pid in self.pids if b"services" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def cpu_seconds(self) -> float:
        total = 0.0
        for pid in self.pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / TICKS
        return total

    def memory_mib(self) -> float:
        """Of the services: operator, webhook, extender and server in one process."""
        pages = max(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.services)
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def plain_pods(api: KubeClient, number: int, at_once: int) -> None:
    """Create, await and delete so many pods."""
    ended: dict[str, asyncio.Event] = {}

    async def watch() -> None:
        listed = await api.list(PODS, NAMESPACE, label_selector="plain=true")
        async for event in api.watch(
            PODS, NAMESPACE, resource_version=listed.resource_version, label_selector="plain=true"
        ):
            name = event.object["metadata"].get("name", "")
            if (event.object.get("status") or {}).get("phase") in FINAL and name in ended:
                ended[name].set()

    watching = asyncio.create_task(watch())
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


async def workflow(api: KubeClient, name: str, spec: dict[str, Any]) -> None:
    """Run one to its end."""
    typed = {"apiVersion": WORKFLOWS.api_version, "kind": WORKFLOWS.kind, "metadata": {"name": name}, "spec": spec}
    await api.create(WORKFLOWS, typed, NAMESPACE)
    while True:
        status = (await api.get(WORKFLOWS, name, NAMESPACE)).get("status") or {}
        if status.get("phase") in FINAL:
            break
        await asyncio.sleep(0.2)
    if status["phase"] != "Succeeded":
        raise SystemExit(f"workflow {name}: {status}")


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
    rows = []
    for work in (
        plain_pods(api, number, at_once),
        workflow(api, f"dag-{number}", a_dag(number, at_once)),
    ):
        started, cpu = time.monotonic(), processes.cpu_seconds()
        await work
        rows.append(((time.monotonic() - started) / number, (processes.cpu_seconds() - cpu) / number))
    (pod_time, pod_cpu), (node_time, node_cpu) = rows
    print(
        f"{number:6} nodes: pod {pod_time * 1e3:6.1f} ms, CPU {pod_cpu * 1e3:5.1f} ms;"
        f" node {node_time * 1e3:6.1f} ms, CPU {node_cpu * 1e3:5.1f} ms;"
        f" ratio {node_time / pod_time:.2f}, CPU {node_cpu / pod_cpu:.2f};"
        f" services {processes.memory_mib():.0f} MiB",
        flush=True,
    )


async def chain(api: KubeClient, number: int) -> None:
    """From a step's end, as its pod tells it, to the creation of the next one's pod."""
    created: list[float] = []
    ended: dict[str, float] = {}

    async def watch() -> None:
        listed = await api.list(PODS, NAMESPACE, label_selector=WORKFLOW_LABEL)
        async for event in api.watch(
            PODS, NAMESPACE, resource_version=listed.resource_version, label_selector=f"{WORKFLOW_LABEL}=chain"
        ):
            now, name = SYSTEM.now().timestamp(), event.object["metadata"].get("name", "")
            if event.type == "ADDED":
                created.append(now)
            if (event.object.get("status") or {}).get("phase") in FINAL:
                ended.setdefault(name, now)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.5)
    tasks = [{"name": f"t{at}", "template": "step"} for at in range(number)]
    for at in range(1, number):
        tasks[at]["depends"] = f"t{at - 1}"
    step = {"name": "step", "container": a_container(["true"])}
    await workflow(
        api, "chain", {"entrypoint": "main", "templates": [{"name": "main", "dag": {"tasks": tasks}}, step]}
    )
    watching.cancel()
    waits = sorted(1e3 * (start - end) for end, start in zip(sorted(ended.values()), created[1:], strict=False))
    print(
        f"chain of {len(ended)}: from a step's end to the next pod p50 {waits[len(waits) // 2]:.0f} ms,"
        f" p99 {waits[int(len(waits) * 0.99)]:.0f} ms, most {waits[-1]:.0f} ms"
    )


async def measure(data: Path, chosen: argparse.Namespace) -> None:
    async with KubeClient(load_connection(data / "kubeconfig")) as api:
        processes = Processes(data)
        await chain(api, chosen.chain)
        for number in chosen.nodes:
            await compare(api, processes, number, chosen.at_once)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1000, 10_000])
    parser.add_argument("--chain", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=40)
    chosen = parser.parse_args()
    moor = [sys.executable, "-m", "moorage.cli.main"]
    with tempfile.TemporaryDirectory(prefix="workflow-overhead-") as folder:
        data = Path(folder) / "data"
        subprocess.run([*moor, "up", "--data", str(data), "--port", "0"], check=True, stdout=subprocess.DEVNULL)
        try:
            asyncio.run(measure(data, chosen))
        finally:
            subprocess.run([*moor, "down", "--data", str(data)], check=False, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
