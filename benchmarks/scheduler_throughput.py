"""kube-scheduler with and without our extender, in one run.

    KUBEBUILDER_ASSETS=FOLDER python benchmarks/scheduler_throughput.py [--same] [--packing]

A real etcd, kube-apiserver and kube-scheduler (client QPS 5,000) place pods of one or two GPUs on nodes of
eight. All pods are there before the scheduler starts; counted is the rate from the first binding to the last,
each time on a fresh etcd:

- kube-scheduler as it comes;
- with the configuration we ship but no extender (`--same`): it spreads, so it never meets a full node;
- the same, packing by itself (`--packing`): NodeResourcesFit with MostAllocated on GPUs alone. What any packing
  costs the scheduler, such as looking past full nodes, is in this row too;
- with our configuration and the extender, whose process runs in this row only.

Printed too: CPU of each process in that time, in seconds and in ms per pod, what became of the extender's
predictions, and GPUs left on nodes in use. Bar: with the extender at least 0.8 of kube-scheduler as it comes, else
exit code 1; the ratios to the other rows are printed beside it, and those of the CPU that all processes but this
one took per pod: on a machine with neighbours rates differ from run to run by more than from row to row, CPU less.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from moorage_kube.clock import SYSTEM, rfc3339
from moorage_kube.informer import Informer, wait_synced
from moorage_kube.parent import end_with_parent
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import NODES, PODS, Obj
from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import ControlPlane, control_plane

BAR = 0.8
QPS = 5000
NODE_GPUS = 8
# the default weights of NodeResourcesFit are LeastAllocated's on cpu and memory
PACKING = {
    "name": "NodeResourcesFit",
    "args": {
        "scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "nvidia.com/gpu", "weight": 1}]},
    },
}
GPUS = (1, 1, 1, 1, 1, 1, 2, 2)  # what the pods ask for, in turn: 78 % of all GPUs


async def prepare(api: KubeClient, nodes: int, pods: int) -> None:
    gate = asyncio.Semaphore(64)
    now = rfc3339(SYSTEM.now())

    async def node(number: int) -> None:
        name = f"node-{number}"
        resources = {"cpu": "128", "memory": "1Ti", "pods": "250", "nvidia.com/gpu": str(NODE_GPUS)}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    rate: float  # pods bound per second
    cpu: dict[str, float]  # seconds by process name, the extender's as "extender"
    outcomes: dict[str, int]  # of the extender's assumptions
    nodes: int  # that hold a pod
    broken: int  # of those, with GPUs left

    @property
    def spent(self) -> float:
        """CPU seconds of the control plane and the extender."""
        return sum(seconds for name, seconds in self.cpu.items() if name != "benchmark")


def cpu_seconds() -> dict[str, float]:
    """CPU of this process and its children, by name."""
    found: dict[str, float] = {}
    mine = os.getpid()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = int(stat.parent.name), stat.read_text()
            name = rest[rest.index("(") + 1 : rest.rindex(")")]
            fields = rest[rest.rindex(")") + 2 :].split()
        except (OSError, ValueError):
            continue  # it ended
        if pid == mine or int(fields[1]) == mine:
            name = "benchmark" if pid == mine else "extender" if name.startswith(("python", "moor")) else name
            ticks = int(fields[11]) + int(fields[12])
            found[name] = found.get(name, 0.0) + ticks / os.sysconf("SC_CLK_TCK")
    return found


def outcomes(port: int) -> dict[str, int]:
    """What became of the extender's assumptions."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    start = 'moorage_extender_assumptions_total{outcome="'
    return {
        line[len(start) : line.index('"}')]: int(float(line.split()[-1]))
        for line in lines
        if line.startswith(start)
    }


async def bindings(
    api: KubeClient, wanted: int, started: asyncio.Event
) -> tuple[float, dict[str, float], list[Obj]]:
    """Pods bound per second from the first to the last of `wanted`, as an informer sees them; CPU; the pods."""
    times: list[float] = []
    cpu: list[dict[str, float]] = []
    done = asyncio.Event()

    def changed(before: Obj | None, after: Obj | None) -> None:
        if after and after["spec"].get("nodeName") and not (before or after)["spec"].get("nodeName"):
            if not times:
                cpu.append(cpu_seconds())
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
    spent = {name: seconds - cpu[0].get(name, 0.0) for name, seconds in cpu_seconds().items()}
    return (wanted - 1) / (times[-1] - times[0]), spent, pods.all()


async def measure(
    plane: ControlPlane, nodes: int, pods: int, *, extender: bool, stock: bool = False, packing: bool = False
) -> Measured:
    async with KubeClient.from_kubeconfig(plane.kubeconfig) as api:
        await prepare(api, nodes, pods)
        started = asyncio.Event()
        watching = asyncio.create_task(bindings(api, pods, started))
        await started.wait()
        plane.start_scheduler(extender=extender, qps=QPS, stock=stock, plugins=(PACKING,) if packing else ())
        rate, cpu, placed = await asyncio.wait_for(watching, 900)
    held: dict[str, int] = {}
    for pod in placed:
        gpus = int(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
        held[pod["spec"]["nodeName"]] = held.get(pod["spec"]["nodeName"], 0) + gpus
    return Measured(
        rate=rate,
        cpu=cpu,
        outcomes=outcomes(plane.ports["extender"]) if extender else {},
        nodes=len(held),
        broken=sum(count < NODE_GPUS for count in held.values()),
    )


def run(
    assets: Path,
    nodes: int,
    pods: int,
    *,
    extender: bool = False,
    policy: str = "pack",
    stock: bool = False,
    packing: bool = False,
) -> Measured:
    home = Path(tempfile.mkdtemp(prefix="moor-"))
    try:
        with control_plane(assets, home) as plane:
            port = plane.ports["extender"]
            argv = [sys.executable, "-m", "moorage.cli.main", "extender", "--kubeconfig", str(plane.kubeconfig)]
            argv += ["--host", "127.0.0.1", "--port", str(port), "--policy", policy]
            if not extender:
                return asyncio.run(measure(plane, nodes, pods, extender=False, stock=stock, packing=packing))
            with (home / "extender.log").open("wb") as log:
                ours = subprocess.Popen(argv, stdout=log, stderr=log, preexec_fn=end_with_parent)
            try:
                wait_until("the extender", lambda: answers(f"http://127.0.0.1:{port}/readyz"))
                return asyncio.run(measure(plane, nodes, pods, extender=True))
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
    parser.add_argument("--policy", default="pack")
    parser.add_argument("--same", action="store_true", help="measure our configuration without the extender, too")
    parser.add_argument("--packing", action="store_true", help="measure kube-scheduler packing by itself, too")
    options = parser.parse_args()
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets or not (Path(assets) / "kube-scheduler").exists():
        print("needs etcd, kube-apiserver and kube-scheduler in $KUBEBUILDER_ASSETS", file=sys.stderr)
        return 2
    bench = partial(run, Path(assets), options.nodes, options.pods)
    stock = bench(stock=True)
    tell("kube-scheduler as it comes", stock, options.pods)
    with_ = bench(extender=True, policy=options.policy)
    tell("with the extender", with_, options.pods)
    compare(with_, "kube-scheduler as it comes", stock)
    if options.same:
        tell("our configuration alone", alone := bench(), options.pods)
        compare(with_, "our configuration alone", alone)
    if options.packing:
        tell("the same, packing itself", packing := bench(packing=True), options.pods)
        compare(with_, "the same, packing itself", packing)
    return 0 if with_.rate / stock.rate >= BAR else 1


def compare(with_: Measured, what: str, other: Measured) -> None:
    print(
        f"with the extender / {what:26} {with_.rate / other.rate:.2f} (bar: at least {BAR:g}); "
        f"CPU per pod {with_.spent / other.spent:.2f}",
        flush=True,
    )


def tell(what: str, found: Measured, pods: int) -> None:
    print(f"{what:26} {found.rate:7.1f} pods/s; {found.nodes} nodes in use, {found.broken} of them with GPUs left")
    spent = (f"{name} {seconds:.1f} ({1000 * seconds / pods:.2f})" for name, seconds in sorted(found.cpu.items()))
    print("  CPU seconds (ms per pod): " + ", ".join(spent), flush=True)
    if found.outcomes:
        print(
            "  predictions: " + ", ".join(f"{count} {name}" for name, count in found.outcomes.items()), flush=True
        )


if __name__ == "__main__":
    sys.exit(main())
