"""kube-scheduler with and without our extender, in one run.

    KUBEBUILDER_ASSETS=FOLDER python benchmarks/scheduler_throughput.py [--nodes 1000] [--pods 5000]

A real etcd, kube-apiserver and kube-scheduler (client QPS 5,000) place pods of one or two GPUs on nodes of
eight. All pods are there before the scheduler starts; counted is the rate from the first binding to the last, once
without and once with the extender, each on a fresh etcd. Bar: with / without at least 0.8, else exit code 1.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from moorage.apimachinery.informer import Informer, wait_synced
from moorage.apimachinery.resources import NODES, PODS, Obj
from moorage.clock import SYSTEM, rfc3339
from moorage.kube.client import KubeClient
from moorage.testing.cluster import ControlPlane, control_plane
from moorage.testing.waiting import wait_until

BAR = 0.8
QPS = 5000
GPUS = (1, 1, 1, 1, 1, 1, 2, 2)  # what the pods ask for, in turn: 78 % of all GPUs


async def prepare(api: KubeClient, nodes: int, pods: int) -> None:
    gate = asyncio.Semaphore(64)
    now = rfc3339(SYSTEM.now())

    async def node(number: int) -> None:
        name = f"node-{number}"
        resources = {"cpu": "128", "memory": "1Ti", "pods": "250", "nvidia.com/gpu": "8"}
        ready = {"type": "Ready", "status": "True", "reason": "Hollow", "lastTransitionTime": now}
        async with gate:
            labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.present": "true"}
            await api.create(
                NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
            )
            status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
            await api.patch(NODES, name, {"status": status}, subresource="status")
            await api.patch(NODES, name, {"spec": {"taints": None}})

    async def pod(number: int) -> None:
        gpus = str(GPUS[number % len(GPUS)])
        limits = {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": gpus}
        container = {"name": "main", "image": "none", "resources": {"limits": limits, "requests": limits}}
        meta = {"name": f"pod-{number}", "namespace": "default"}
        async with gate:
            await api.create(
                PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}
            )

    await asyncio.gather(*(node(number) for number in range(nodes)))
    await asyncio.gather(*(pod(number) for number in range(pods)))


async def bindings(api: KubeClient, wanted: int, started: asyncio.Event) -> float:
    """Bound pods per second, from the first to the last of `wanted`, as an informer sees them."""
    times: list[float] = []
    done = asyncio.Event()

    def changed(before: Obj | None, after: Obj | None) -> None:
        if after and after["spec"].get("nodeName") and not (before or after)["spec"].get("nodeName"):
            times.append(time.monotonic())
            if len(times) == wanted:
                done.set()

    pods = Informer(api, PODS, "default")
    pods.on_change(changed)
    running = asyncio.create_task(pods.run())
    await wait_synced(pods)
    started.set()
    await done.wait()
    running.cancel()
    return (wanted - 1) / (times[-1] - times[0])


async def measure(plane: ControlPlane, nodes: int, pods: int, *, extender: bool) -> float:
    async with KubeClient.from_kubeconfig(plane.kubeconfig) as api:
        await prepare(api, nodes, pods)
        started = asyncio.Event()
        watching = asyncio.create_task(bindings(api, pods, started))
        await started.wait()
        plane.start_scheduler(extender=extender, qps=QPS)
        return await asyncio.wait_for(watching, 900)


def run(assets: Path, nodes: int, pods: int, *, extender: bool) -> float:
    home = Path(tempfile.mkdtemp(prefix="moor-"))
    try:
        with control_plane(assets, home) as plane:
            argv = [sys.executable, "-m", "moorage.cli.main", "extender", "--kubeconfig", str(plane.kubeconfig)]
            port = plane.ports["extender"]
            with (home / "extender.log").open("wb") as log:
                ours = subprocess.Popen(
                    [*argv, "--host", "127.0.0.1", "--port", str(port)], stdout=log, stderr=log
                )
            try:
                wait_until("the extender", lambda: answers(f"http://127.0.0.1:{port}/readyz"))
                return asyncio.run(measure(plane, nodes, pods, extender=extender))
            finally:
                ours.terminate()
                ours.wait()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=5000)
    options = parser.parse_args()
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets or not (Path(assets) / "kube-scheduler").exists():
        print("needs etcd, kube-apiserver and kube-scheduler in $KUBEBUILDER_ASSETS", file=sys.stderr)
        return 2
    without = run(Path(assets), options.nodes, options.pods, extender=False)
    print(f"without the extender  {without:7.1f} pods/s", flush=True)
    with_ = run(Path(assets), options.nodes, options.pods, extender=True)
    print(f"with the extender     {with_:7.1f} pods/s")
    print(f"ratio {with_ / without:.2f} (bar: at least {BAR:g})")
    return 0 if with_ / without >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
