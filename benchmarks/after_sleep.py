"""The local cluster after its machine slept: nodes Ready again, and no pod lost by it.

    python benchmarks/after_sleep.py [--seconds 75] [--watch 20]

Starts a cluster of two nodes in a folder of its own, with a deployment of two pods. SIGSTOP holds every
process of it, its pods' too, for `--seconds` (longer than the 40 s after which a silent node is given up),
then SIGCONT wakes all. For `--watch` seconds after that the nodes and pods are read ten times a second.
Printed: seconds from the wake to the first answer of the API, and to the moment from which every node stayed
Ready and free of taints; whether a pod was unready, replaced or restarted; leases that changed hands. Exit
code 1 when a node was not Ready for longer than BAR_SECONDS after the wake, or when a pod was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from moorage_kube.errors import MoorageError
from moorage_kube.meta import condition
from moorage_kube.remote.client import KubeClient
from moorage_kube.remote.config import load_connection
from moorage_kube.resources import DEPLOYMENTS, LEASES, NODES, PODS, Obj
from moorage_testing.killing import parent_of, pids_with

BAR_SECONDS = 5.0
LOOK_SECONDS = 0.1
GIVE_UP_SECONDS = 600.0  # after the wake, whether the API answers or not
REPLICAS = 2


def processes_of(data: Path) -> list[int]:
    """Every process whose command or environment names the data folder, and their descendants."""
    held = set(pids_with(str(data)))
    parents = {pid: parent_of(pid) for pid in pids_with()}
    while more := {pid for pid, parent in parents.items() if parent in held} - held:
        held |= more
    return sorted(held)


def a_deployment() -> Obj:
    labels = {"app": "sleeper"}
    container = {
        "name": "main",
        "image": "localhost/host",
        "command": ["sleep", "3600"],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
    }
    return {
        "metadata": {"name": "sleeper", "namespace": "default"},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def is_ready(node: Obj) -> bool:
    ready = condition(node, "Ready")
    return ready is not None and ready.get("status") == "True" and not node["spec"].get("taints")


async def look(api: KubeClient) -> tuple[bool, dict[str, Any]]:
    nodes = (await api.list(NODES)).items
    pods = (await api.list(PODS, "default", label_selector="app=sleeper")).items
    seen = {
        pod["metadata"]["uid"]: sum(status.get("restartCount", 0) for status in pod["status"]["containerStatuses"])
        for pod in pods
        if pod["status"].get("phase") == "Running" and condition(pod, "Ready")["status"] == "True"  # type: ignore[index]
    }
    return bool(nodes) and all(is_ready(node) for node in nodes), seen


async def transitions(api: KubeClient) -> dict[str, int]:
    leases = (await api.list(LEASES)).items
    return {lease["metadata"]["name"]: int(lease["spec"].get("leaseTransitions") or 0) for lease in leases}


async def scene(data: Path, seconds: float, watch: float) -> bool:
    async with KubeClient(load_connection(data / "kubeconfig")) as api:
        await api.create(DEPLOYMENTS, a_deployment())
        while True:
            ready, before = await look(api)
            if ready and len(before) == REPLICAS:
                break
            await asyncio.sleep(LOOK_SECONDS)
        leases = await transitions(api)
    held = processes_of(data)
    print(f"{len(held)} processes held for {seconds:g} s", flush=True)
    for pid in held:
        os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    woken = time.monotonic()
    for pid in held:
        os.kill(pid, signal.SIGCONT)
    first: float | None = None
    ready_since: float | None = None
    lost = False
    async with KubeClient(load_connection(data / "kubeconfig")) as api:
        while (at := time.monotonic() - woken) < watch or (ready_since is None and at < GIVE_UP_SECONDS):
            try:
                ready, pods = await look(api)
            except (MoorageError, OSError):
                await asyncio.sleep(LOOK_SECONDS)
                continue
            at = time.monotonic() - woken
            first = at if first is None else first
            if not ready:
                ready_since = None
            elif ready_since is None:
                ready_since = at
            lost = lost or pods != before
            await asyncio.sleep(LOOK_SECONDS)
        after = await transitions(api)
    print(f"first answer after   {first or 0:6.1f} s")
    print(f"nodes Ready after    {'never' if ready_since is None else f'{ready_since:6.1f} s'}")
    print(f"pods unready, replaced or restarted meanwhile: {'yes' if lost else 'no'}")
    changed = {name: (leases.get(name), number) for name, number in after.items() if leases.get(name) != number}
    print(f"leases that changed hands: {changed or 'none'}")
    return not lost and ready_since is not None and ready_since <= BAR_SECONDS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--watch", type=float, default=20.0)
    options = parser.parse_args()
    moor = str(Path(sys.executable).with_name("moor"))
    folder = Path(tempfile.mkdtemp(prefix="moor-"))
    data = folder / "d"
    try:
        up = [moor, "up", "--data", str(data), "--nodes", "2", "--gpus", "1", "--port", "0", "--api-port", "0"]
        subprocess.run(up, check=True, stdout=subprocess.DEVNULL)
        try:
            return 0 if asyncio.run(scene(data, options.seconds, options.watch)) else 1
        finally:
            subprocess.run([moor, "down", "--data", str(data)], check=True, stdout=subprocess.DEVNULL)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
