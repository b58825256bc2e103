"""How fast guests are let through when very many wait, and when a new one knows its place in line.

    KUBEBUILDER_ASSETS=… python benchmarks/gated_guests.py [--guests 15000] [--pools 30] [--places 100]

On a real kube-apiserver with etcd (of KUBEBUILDER_ASSETS), `moor operator`, `moor webhook` and `moor server` as
processes of their own. There is no scheduler: this program binds the reservations, so that places stand, before
anybody waits. Every pool has its places on a node of its own, and as many guests as its share of all.

1. The floor: merge patches per second by one client, 16 at a time, on the same pods: reservations (no webhook sees
   them), and guests by a user (mutating and validating webhook see each). The operator's patches of pods are
   not reviewed, and a node here serves one machine type: the floor of a hand-over is one patch of the first kind.
2. The operator is started on all the guests: from the first gate lifted to the last place given. The bar: 200/s.
3. With the rest still waiting, new guests come one at a time: from created to the server's answer (`moor explain`)
   that puts as many before them as are, and to the Machine's count of those who wait. The bar: 1 s.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import aiohttp

from moorage.model.machine import MACHINES
from moorage.model.names import (
    GUARD_LABEL,
    MACHINE_GROUP_LABEL,
    MACHINE_TYPE_LABEL,
    RESERVATION_LABEL,
    SYSTEM_NAMESPACE,
)
from moorage_kube.errors import NotFound
from moorage_kube.informer import Informer, wait_synced
from moorage_kube.remote.client import KubeClient
from moorage_kube.remote.config import load_connection
from moorage_kube.resources import LEASES, NAMESPACES, NODES, PODS, Obj
from moorage_testing.cluster import control_plane
from moorage_testing.services import Services, separate_services

NAMESPACE, TYPE = "crowd", "one"
AT_ONCE = 16
FLOOR_PATCHES = 1000
RATE_BAR, LINE_BAR_SECONDS = 200.0, 1.0
PATIENCE_SECONDS = 300.0


def pool_name(number: int) -> str:
    return f"pool-{number:02}"


def a_node(name: str) -> Obj:
    resources = {"cpu": "1000", "memory": "4000Gi", "pods": "5000", "nvidia.com/gpu": "1000"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Made", "message": ""}],
        },
    }


def a_machine(name: str, places: int) -> Obj:
    size = {"cpu": "1", "memory": "1Gi", "gpu": {"type": "nvidia.com/gpu", "num": 1}}
    return {
        "apiVersion": MACHINES.api_version,
        "kind": MACHINES.kind,
        "metadata": {"name": name, "labels": {MACHINE_GROUP_LABEL: name}},
        "spec": {
            "nodePool": [{"name": name, "mode": "ready", "machineType": [{"name": TYPE}]}],
            "machineTypes": [{"name": TYPE, "spec": size, "available": places}],
        },
    }


def a_guest(name: str, pool: str) -> Obj:
    return {
        "metadata": {"name": name, "labels": {MACHINE_GROUP_LABEL: pool, MACHINE_TYPE_LABEL: TYPE}},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    }


async def all_of(jobs: Iterable[Callable[[], Awaitable[Any]]], at_once: int = AT_ONCE) -> float:
    """Do them, so many at a time; seconds that it took."""
    turn, began = asyncio.Semaphore(at_once), time.monotonic()

    async def one(job: Callable[[], Awaitable[Any]]) -> None:
        async with turn:
            await job()

    await asyncio.gather(*(one(job) for job in jobs))
    return time.monotonic() - began


async def until(what: str, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {PATIENCE_SECONDS:g} s for {what}")
        await asyncio.sleep(0.005)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Crowd:
    """The pods as this program's own watches show them, and when each gate was lifted."""

    def __init__(self, api: KubeClient) -> None:
        self.api = api
        self.lifted: dict[str, float] = {}
        self.guests = Informer(api, PODS, NAMESPACE, keep=_slim)
        self.places = Informer(api, PODS, SYSTEM_NAMESPACE, label_selector=RESERVATION_LABEL, keep=_slim)
        self.machines = Informer(api, MACHINES)
        self.guests.on_change(self._see)
        self._binding: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Semaphore(AT_ONCE)
        self.places.on_change(self._bind)

    def _see(self, before: Obj | None, after: Obj | None) -> None:
        if before is not None and after is not None and not after["spec"]["schedulingGates"]:
            self.lifted.setdefault(after["metadata"]["name"], time.monotonic())

    def _bind(self, before: Obj | None, after: Obj | None) -> None:
        if before is None and after is not None and not after["spec"]["nodeName"]:
            task = asyncio.create_task(self._bind_to(after["metadata"]))
            self._binding.add(task)
            task.add_done_callback(self._binding.discard)

    async def _bind_to(self, meta: Obj) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": meta["labels"][MACHINE_GROUP_LABEL]}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": target}
        async with self._turn:
            await self.api.create_subresource(PODS, meta["name"], "binding", body, SYSTEM_NAMESPACE)

    def bound(self) -> int:
        return sum(1 for pod in self.places.all() if pod["spec"]["nodeName"])

    def usage(self, pool: str) -> dict[str, int]:
        machine = self.machines.get(pool) or {}
        found = (machine.get("status") or {}).get("availableMachines") or ()
        return dict(found[0]["usage"]) if found else {}


def _slim(pod: Obj) -> Obj:
    meta, spec = pod["metadata"], pod["spec"]
    kept = {key: meta.get(key) for key in ("name", "namespace", "uid", "resourceVersion", "labels")}
    return {
        "metadata": kept,
        "spec": {"nodeName": spec.get("nodeName") or "", "schedulingGates": spec.get("schedulingGates") or []},
    }


async def floor(api: KubeClient, crowd: Crowd) -> tuple[float, float]:
    """Patches per second on reservations, and on guests."""
    rates = []
    patch = {"metadata": {"annotations": {"bench": "floor"}}}
    for pods in (crowd.places.all(), crowd.guests.all()):
        chosen = [pod["metadata"] for pod in pods][:FLOOR_PATCHES]
        took = await all_of(
            (lambda meta=meta: api.patch(PODS, meta["name"], patch, meta["namespace"])) for meta in chosen
        )
        rates.append(len(chosen) / took)
    return rates[0], rates[1]


async def measure(
    kubeconfig: Path, services: Services, guests: int, pools: int, places: int, samples: int, *, pause: bool
) -> bool:
    connection = load_connection(kubeconfig)
    names = [pool_name(number) for number in range(pools)]
    async with KubeClient(connection) as api:
        await api.create(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": {GUARD_LABEL: "enabled"}}})
        for name in names:
            await api.create(NODES, a_node(name))
            await api.patch(NODES, name, {"spec": {"taints": None}})
            await api.patch(NODES, name, {"status": a_node(name)["status"]}, subresource="status")
        services.start("webhook", "operator")
        crowd = Crowd(api)
        following = [asyncio.create_task(one.run()) for one in (crowd.guests, crowd.places, crowd.machines)]
        await wait_synced(crowd.guests, crowd.places, crowd.machines)
        await all_of((lambda name=name: api.create(MACHINES, a_machine(name, places))) for name in names)
        await until("the places to stand", lambda: crowd.bound() == pools * places)
        await until("the counts", lambda: all(crowd.usage(name).get("reserved") == places for name in names))
        services.kill("operator")
        took = await all_of(
            (lambda n=n: api.create(PODS, a_guest(f"g-{n:05}", names[n % pools]), NAMESPACE))
            for n in range(guests)
        )
        print(f"{guests} guests created through the webhook: {guests / took:.0f}/s", flush=True)
        await until("all to be seen", lambda: len(crowd.guests) == guests)
        if pause:
            print("made; a line on stdin goes on", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
        open_rate, guarded_rate = await floor(api, crowd)
        print(
            f"floor, patches: that are not reviewed {open_rate:.0f}/s, of guests by users {guarded_rate:.0f}/s",
            flush=True,
        )
        try:
            await api.delete(LEASES, "moorage-operator", SYSTEM_NAMESPACE)  # the next need not wait for its end
        except NotFound:
            pass
        began = time.monotonic()
        services.start("operator")
        wanted = min(guests, pools * places)
        await until("the first gate", lambda: bool(crowd.lifted))
        busy = {name: cpu_seconds(one.pid) for name, one in services.running.items()}
        await until("the gates", lambda: len(crowd.lifted) == wanted)
        moments = sorted(crowd.lifted.values())
        span = moments[-1] - moments[0]
        rate = (wanted - 1) / span
        spent = ", ".join(
            f"{name} {cpu_seconds(one.pid) - busy[name]:.1f}" for name, one in services.running.items()
        )
        print(
            f"let through: {wanted} of {guests} over {pools} pools in {span:.1f} s:"
            f" {rate:.0f}/s (bar {RATE_BAR:g})"
        )
        print(f"  the first {moments[0] - began:.1f} s after its start; {rate / open_rate:.2f} of the floor")
        print(f"  CPU seconds meanwhile: {spent}", flush=True)
        left = guests // pools - places
        answers, counts = await in_line(api, connection, services, crowd, names, left, samples)
        worst = max(*answers, *counts)
        print(f"place in line, {guests - wanted} waiting, created → `moor explain` right: {_spread(answers)}")
        print(f"created → counted as waiting in the Machine's status: {_spread(counts)}")
        print(f"worst {worst:.2f} s (bar {LINE_BAR_SECONDS:g})")
        for task in following:
            task.cancel()
    return rate >= RATE_BAR and worst <= LINE_BAR_SECONDS


async def in_line(
    api: KubeClient, connection: Any, services: Services, crowd: Crowd, names: list[str], left: int, samples: int
) -> tuple[list[float], list[float]]:
    """Seconds until a new guest's place in line is known, by either way."""
    services.start("server")
    url = f"http://127.0.0.1:{services.ports['server']}"
    headers = {"Authorization": f"Bearer {connection.token}"}
    answers, counts = [], []
    async with aiohttp.ClientSession(headers=headers) as session:

        async def ahead(name: str) -> int | None:
            try:
                async with session.get(f"{url}/api/v1/explain/{NAMESPACE}/{name}") as answer:
                    return len((await answer.json()).get("line") or ()) if answer.status == 200 else None
            except aiohttp.ClientConnectionError:
                return None

        deadline = time.monotonic() + PATIENCE_SECONDS
        waits = f"g-{len(names) * (left - 1):05}" if left > 0 else "g-00000"
        while await ahead(waits) is None and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        for number in range(samples):
            pool, name = names[number % len(names)], f"new-{number:03}"
            want = left + number // len(names)
            await api.create(PODS, a_guest(name, pool), NAMESPACE)
            began = time.monotonic()

            async def counted(pool: str = pool, want: int = want, began: float = began) -> None:
                await until(f"{pool} to count it", lambda: crowd.usage(pool).get("waiting") == want + 1)
                counts.append(time.monotonic() - began)

            async def answered(name: str = name, want: int = want, began: float = began) -> None:
                while (found := await ahead(name)) != want:
                    if time.monotonic() - began > 30:
                        raise SystemExit(f"{name} was told {found} ahead, not {want}")
                answers.append(time.monotonic() - began)

            await asyncio.gather(counted(), answered())
    return answers, counts


def _spread(seconds: list[float]) -> str:
    return f"p50 {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s of {len(seconds)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--guests", type=int, default=15_000)
    parser.add_argument("--pools", type=int, default=30)
    parser.add_argument("--places", type=int, default=100, help="per pool")
    parser.add_argument("--samples", type=int, default=15)
    parser.add_argument("--pause", action="store_true", help="wait for a line on stdin once the guests are made")
    options = parser.parse_args()
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        print("KUBEBUILDER_ASSETS is not set: nothing is said about a real API server", file=sys.stderr)
        return 2
    with (
        tempfile.TemporaryDirectory(prefix="moor-") as folder,
        control_plane(Path(assets), Path(folder) / "home") as plane,
        separate_services(plane, Path(folder) / "home") as services,
    ):
        numbers = (options.guests, options.pools, options.places, options.samples)
        work = measure(plane.kubeconfig, services, *numbers, pause=options.pause)
        good = asyncio.run(work)
        if not good and services.log("operator").exists():
            print(services.log("operator").read_text()[-2000:])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
