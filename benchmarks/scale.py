"""What each of our services costs as a cluster grows: nodes, pods and tenants on a real control plane.

    KUBEBUILDER_ASSETS=FOLDER python benchmarks/scale.py [--steps 100:1000:10,1000:10000:100] [--quiet 60]

A real etcd, kube-apiserver, kube-controller-manager and kube-scheduler with our configuration; the four services
are processes of their own, with the rights of their Deployments. Nodes are simulated: they send heartbeats and
report each pod as running. Each step NODES:PODS:TENANTS adds to the one before. Half of a tenant's pods are single
runs, the others belong to Jobs of ten; every fifth Job asks for GPUs. All pods pass the webhook; for those with a
GPU the scheduler asks the extender.

Printed for each step: pods running per second, and CPU in ms per pod of each process meanwhile; then memory (RSS)
and CPU at rest; the median and the worst of some requests to the server, and of a new run from submit to running.
The last lines give the growth of memory per 1,000 pods between the first and the last step. Exit code 1: a request
failed, or not all pods came to run.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from moorage.model.names import RUN_LABEL
from moorage.model.tenant import TENANTS
from moorage_kube.errors import AlreadyExists
from moorage_kube.informer import Informer, wait_synced
from moorage_kube.remote.client import KubeClient
from moorage_kube.remote.config import Connection, load_connection
from moorage_kube.resources import JOBS, NAMESPACES, PODS, Obj
from moorage_testing.cluster import ControlPlane, control_plane
from moorage_testing.hollow import HollowNodes
from moorage_testing.services import Services, separate_services

SERVICES = ("operator", "webhook", "extender", "server")
PLANE = ("kube-apiserver", "etcd", "kube-controller", "kube-scheduler")
JOB_PODS = 10
GPU_EVERY = 5
AT_ONCE = 24
SAMPLES = 30
PATIENCE_SECONDS = 1800.0
BEAT_SECONDS = 10.0  # as kubelets renew their leases
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Step:
    """The size of the cluster, in all."""

    nodes: int
    pods: int
    tenants: int


@dataclass(frozen=True, slots=True)
class Use:
    """CPU in seconds since its start, and RSS in MB, of one process."""

    cpu: float
    memory: float


def read_steps(text: str) -> list[Step]:
    """NODES:PODS:TENANTS, separated by commas."""
    return [Step(*(int(number) for number in part.split(":"))) for part in text.split(",")]


def use_of(pid: int) -> Use:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Use((int(fields[11]) + int(fields[12])) / TICKS, pages * os.sysconf("SC_PAGE_SIZE") / 1e6)


def uses(services: Services) -> dict[str, Use]:
    """Of our services, and of the control plane's processes that this program has started."""
    measured = {name: use_of(process.pid) for name, process in services.running.items()}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # it ended
        name, fields = text[text.index("(") + 1 : text.rindex(")")], text.rpartition(")")[2].split()
        if int(fields[1]) == os.getpid() and name.startswith(PLANE):
            measured[name] = use_of(int(stat.parent.name))
    return measured


async def all_of(works: Iterable[Callable[[], Awaitable[object]]]) -> None:
    """Do them, AT_ONCE at a time."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def in_turn(work: Callable[[], Awaitable[object]]) -> None:
        async with turn:
            await work()

    await asyncio.gather(*(in_turn(work) for work in works))


def team(number: int) -> str:
    return f"team-{number:04}"


def a_job(name: str, *, pods: int, gpus: int) -> Obj:
    """A run, or a Job of many pods."""
    amounts = {"cpu": "100m", "memory": "64Mi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    labels = {RUN_LABEL: name} if pods == 1 else {}
    container = {"name": "main", "image": "none", "resources": {"limits": amounts, "requests": amounts}}
    pod = {"metadata": {"labels": labels}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    spec = {"parallelism": pods, "completions": pods, "backoffLimit": 0, "template": pod}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels}, "spec": spec}


class Scene:
    """The cluster as it grows."""

    def __init__(self, api: KubeClient, connection: Connection, services: Services, stack: AsyncExitStack) -> None:
        self._api = api
        self._services = services
        self._stack = stack
        self._headers = {"Authorization": f"Bearer {connection.token}"}
        self._url = f"http://127.0.0.1:{services.ports['server']}"
        self._numbers = itertools.count()
        self._pods = Informer(api, PODS, keep=_slim)
        self._size = Step(0, 0, 0)
        self.failed = 0

    async def start(self) -> None:
        task = asyncio.create_task(self._pods.run())
        self._stack.callback(task.cancel)
        await wait_synced(self._pods)

    def running(self) -> int:
        return sum(1 for pod in self._pods.all() if pod["status"].get("phase") == "Running")

    async def grow(self, step: Step) -> None:
        """Add nodes, tenants and pods, and print what that cost."""
        names = [f"node-{number:05}" for number in range(self._size.nodes, step.nodes)]
        nodes = HollowNodes(self._api, names, gpus=8, cpu="96", memory="512Gi", beat_seconds=BEAT_SECONDS)
        await self._stack.enter_async_context(nodes)
        teams = range(self._size.tenants, step.tenants)
        await all_of((lambda number=number: self._add_team(number)) for number in teams)
        before, began = uses(self._services), time.monotonic()
        await self._add_pods(step)
        took = time.monotonic() - began
        added, after = step.pods - self._size.pods, uses(self._services)
        self._size = step
        spent = ", ".join(f"{name} {(after[name].cpu - before[name].cpu) / added * 1000:.1f}" for name in after)
        print(f"\n{step.nodes} nodes, {step.pods} pods, {step.tenants} tenants")
        print(f"  {added} pods made and running: {added / took:.0f}/s; CPU in ms per pod: {spent}", flush=True)

    async def rest(self, seconds: float) -> dict[str, Use]:
        """Wait with nothing to do; print what each process takes."""
        before = uses(self._services)
        await asyncio.sleep(seconds)
        after = uses(self._services)
        for name, use in after.items():
            share = (use.cpu - before[name].cpu) / seconds
            print(f"  at rest: {name}: {use.memory:.0f} MB, {share:.1%} of a core")
        sys.stdout.flush()
        return after

    async def ask(self) -> None:
        """Time some requests to the server, and new runs."""
        space = team(self._size.tenants // 2)
        name = next(pod["metadata"]["name"] for pod in self._pods.all() if pod["metadata"]["namespace"] == space)
        paths = ("/api/v1/jobs?limit=100", f"/api/v1/jobs?namespace={space}", "/api/v1/gpus", "/api/v1/nodes")
        async with aiohttp.ClientSession(headers=self._headers) as session:
            for path in (*paths, f"/api/v1/explain/{space}/{name}"):
                times = [await self._timed(session, path) for _ in range(SAMPLES)]
                print(f"  GET {path.replace(name, 'POD')}: {_spread(times)}", flush=True)
        times = [await self._new_run(space) for _ in range(SAMPLES)]
        print(f"  new run, from submit to running: {_spread(times)}", flush=True)

    async def _timed(self, session: aiohttp.ClientSession, path: str) -> float:
        began = time.monotonic()
        async with session.get(self._url + path) as answer:
            await answer.read()
            if answer.status != 200:
                self.failed += 1
        return time.monotonic() - began

    async def _new_run(self, space: str) -> float:
        wanted, began = self.running() + 1, time.monotonic()
        await self._api.create(JOBS, a_job(f"new-{next(self._numbers):06}", pods=1, gpus=1), space)
        await self._until("a new run", lambda: self.running() >= wanted)
        return time.monotonic() - began

    async def _add_team(self, number: int) -> None:
        name = team(number)
        try:
            await self._api.create(NAMESPACES, {"metadata": {"name": name}})
        except AlreadyExists:
            pass
        spec = {"namespace": name, "members": {"users": [f"user-{number}"]}, "quota": {"pods": "5000"}}
        tenant: Obj = {"apiVersion": TENANTS.api_version, "kind": TENANTS.kind, "metadata": {"name": name}}
        await self._api.create(TENANTS, tenant | {"spec": spec})

    async def _add_pods(self, step: Step) -> None:
        works, added = [], step.pods - self._size.pods
        singles = added // 2
        sizes = [1] * singles + [JOB_PODS] * ((added - singles) // JOB_PODS)
        sizes += [1] * (added - sum(sizes))
        for number, pods in enumerate(sizes):
            name = f"job-{next(self._numbers):06}"
            job = a_job(name, pods=pods, gpus=int(number % GPU_EVERY == 0))
            works.append(lambda job=job, number=number: self._api.create(JOBS, job, team(number % step.tenants)))
        wanted = self.running() + added
        await all_of(works)
        await self._until(f"{added} pods", lambda: self.running() >= wanted)

    async def _until(self, what: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done():
            if time.monotonic() > deadline:
                raise SystemExit(f"waited {PATIENCE_SECONDS:g} s for {what}: {self.running()} pods run")
            await asyncio.sleep(0.02)


def _slim(pod: Obj) -> Obj:
    meta, status = pod["metadata"], pod.get("status") or {}
    kept = {name: meta[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in meta}
    return {"metadata": kept, "status": {"phase": status.get("phase")}}


def _spread(seconds: list[float]) -> str:
    return f"median {statistics.median(seconds) * 1000:.0f} ms, worst {max(seconds) * 1000:.0f} ms"


async def measure(plane: ControlPlane, services: Services, steps: list[Step], quiet: float) -> bool:
    connection = load_connection(plane.kubeconfig)
    kept: list[tuple[Step, dict[str, Use]]] = []
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(KubeClient(connection))
        services.start(*SERVICES)
        scene = Scene(api, connection, services, stack)
        await scene.start()
        for step in steps:
            await scene.grow(step)
            kept.append((step, await scene.rest(quiet)))
            await scene.ask()
        (first, small), (last, large) = kept[0], kept[-1]
        if last.pods > first.pods:
            print(f"\nmemory per 1,000 pods more, from {first.pods} to {last.pods} pods:")
            for name in SERVICES:
                growth = (large[name].memory - small[name].memory) / (last.pods - first.pods) * 1000
                print(f"  {name}: {growth:.1f} MB")
        print(f"requests that failed: {scene.failed}")
    return not scene.failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=read_steps, default="100:1000:10,300:3000:30,1000:10000:100")
    parser.add_argument("--quiet", type=float, default=60.0, help="seconds at rest, per step")
    options = parser.parse_args()
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        print("KUBEBUILDER_ASSETS is not set: this needs a real control plane", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="moor-") as folder:
        home = Path(folder) / "home"
        with control_plane(Path(assets), home, need_accounts=True) as plane:
            plane.start_controllers()
            with separate_services(plane, home) as services:
                plane.start_scheduler()
                good = asyncio.run(measure(plane, services, options.steps, options.quiet))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
