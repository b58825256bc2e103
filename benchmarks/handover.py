"""How long a hand-over takes, and whether any place is lost to somebody else.

    KUBEBUILDER_ASSETS=… python benchmarks/handover.py [--handovers 1000]

On a real control plane (etcd, kube-apiserver, kube-scheduler, kube-controller-manager of KUBEBUILDER_ASSETS)
with hollow nodes, each of which has as many devices as it has places, of two machine types in turn (`--types 1`:
of one, whose places are handed over without a promise).

1. Plain pods on empty nodes, one at a time: from created to bound.
2. Plain pods behind a gate of their own, which is lifted when the node is empty: the guest's like.
3. Guests, one at a time: from the gate lifted to bound on the reserved place. The bar: p50 ≤ 4 × that of 1.
   All times are between watch events as one client sees them: the cost of a request by this program is in none.
4. Rounds of contested hand-overs: all places are held by reservations; ordinary pods and guests of the other type,
   which want the same devices, come first and wait; then as many guests as there are places. A hand-over is lost
   when its guest is bound elsewhere than on the place it was given, or when somebody else holds a device there.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from moorage.model.machine import MACHINES
from moorage.model.names import (
    GUARD_LABEL,
    MACHINE_GROUP_LABEL,
    MACHINE_TYPE_LABEL,
    PLACE_ANNOTATION,
    RESERVATION_LABEL,
    SYSTEM_NAMESPACE,
)
from moorage_kube.informer import Informer, wait_synced
from moorage_kube.meta import annotations_of, labels_of
from moorage_kube.remote.client import KubeClient
from moorage_kube.remote.config import load_connection
from moorage_kube.resources import NAMESPACES, PODS, Obj
from moorage_testing.cluster import start_cluster
from moorage_testing.hollow import hollow_nodes

GROUP, NAMESPACE, TYPES = "bench", "bench", ("red", "blue")
PLACES_PER_NODE = 4  # as many of each type
BAR = 4.0


GATE = "bench.moorage.dev/gate"


def a_pod(name: str, kind: str | None = None, *, gated: bool = False) -> Obj:
    """A guest of that type, or an ordinary pod that wants one device."""
    gates = [{"name": GATE}] if gated else []
    labels = {MACHINE_GROUP_LABEL: GROUP, MACHINE_TYPE_LABEL: kind} if kind else {"ordinary": "true"}
    limits = {} if kind else {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}],
            "terminationGracePeriodSeconds": 0,
            "schedulingGates": gates,
        },
    }


def a_machine(nodes: list[str], kinds: tuple[str, ...]) -> Obj:
    """All types on every node, as many places of each."""
    size = {"cpu": "1", "memory": "1Gi", "gpu": {"type": "nvidia.com/gpu", "num": 1}}
    offers = [{"name": kind} for kind in kinds]
    available = len(nodes) * PLACES_PER_NODE // len(kinds)
    return {
        "apiVersion": MACHINES.api_version,
        "kind": MACHINES.kind,
        "metadata": {"name": GROUP, "labels": {MACHINE_GROUP_LABEL: GROUP}},
        "spec": {
            "nodePool": [{"name": name, "mode": "ready", "machineType": offers} for name in nodes],
            "machineTypes": [{"name": kind, "spec": size, "available": available} for kind in kinds],
        },
    }


class Watcher:
    """When each pod was first seen let through, and bound; by name."""

    def __init__(self, api: KubeClient) -> None:
        self.pods = Informer(api, PODS, NAMESPACE)
        self.lifted: dict[str, float] = {}
        self.bound: dict[str, tuple[float, str]] = {}
        self.changed = asyncio.Event()
        self.pods.on_change(self._see)
        self.reservations = Informer(api, PODS, SYSTEM_NAMESPACE, label_selector=RESERVATION_LABEL)
        self.reservations.on_change(self._see_reservation)
        self.preempted: float | None = None  # since last set to None: a reservation was told to go
        self.gone: float | None = None  # and had gone

    def _see(self, _before: Obj | None, after: Obj | None) -> None:
        if after is not None:
            name = after["metadata"]["name"]
            if not after["spec"].get("schedulingGates"):
                self.lifted.setdefault(name, time.monotonic())
            if node := after["spec"].get("nodeName"):
                self.bound.setdefault(name, (time.monotonic(), node))
        self.changed.set()

    def _see_reservation(self, _before: Obj | None, after: Obj | None) -> None:
        if after is None:
            self.gone = self.gone or time.monotonic()
        elif after["metadata"].get("deletionTimestamp"):
            self.preempted = self.preempted or time.monotonic()

    async def until(self, what: str, done: Any, patience: float = 120.0) -> None:
        """Wait until `done()` is true, looking at every change."""
        deadline = time.monotonic() + patience
        while not done():
            if time.monotonic() > deadline:
                raise SystemExit(f"waited {patience:g} s for {what}")
            self.changed.clear()
            try:
                await asyncio.wait_for(self.changed.wait(), 1.0)
            except TimeoutError:
                continue


async def usage(api: KubeClient) -> list[dict[str, int]]:
    status = (await api.get(MACHINES, GROUP)).get("status") or {}
    return [one["usage"] for one in status.get("availableMachines") or ()]


async def settled(api: KubeClient, places: int) -> None:
    """Wait until every place is reserved again, so many of each type."""
    deadline = time.monotonic() + 180
    while True:
        found = await usage(api)
        if found and all(one["reserved"] == places and one["used"] == 0 for one in found):
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"the places were not all reserved within 180 s: {found}")
        await asyncio.sleep(0.05)


async def clear(api: KubeClient, watcher: Watcher) -> None:
    names = [pod["metadata"]["name"] for pod in watcher.pods.all()]
    # who waits goes first: a place that a guest leaves must find nobody before its reservation
    names.sort(key=lambda name: name in watcher.bound)
    for name in names:
        await api.delete(PODS, name, NAMESPACE, grace_period_seconds=0)
    await watcher.until("the pods to go", lambda: not len(watcher.pods))


async def one_by_one(
    api: KubeClient, watcher: Watcher, count: int, kind: str | None = None, places: int = 0, *, gated: bool = False
) -> list[float]:
    """Milliseconds from let through (for a plain pod without gate: created) to bound."""
    found, steps = [], []
    for number in range(count):
        name = f"{kind or ('gated' if gated else 'plain')}-{number}"
        if kind:
            await settled(api, places)
        watcher.preempted = watcher.gone = None
        await api.create(PODS, a_pod(name, kind, gated=gated))
        if gated:
            await watcher.until(f"{name} to be seen", lambda name=name: watcher.pods.get(name, NAMESPACE))
            await api.patch(PODS, name, {"spec": {"schedulingGates": []}}, NAMESPACE)
        await watcher.until(f"{name} to be bound", lambda name=name: name in watcher.bound)
        found.append((watcher.bound[name][0] - watcher.lifted[name]) * 1000)
        if watcher.preempted and watcher.gone:
            marks = (watcher.lifted[name], watcher.preempted, watcher.gone, watcher.bound[name][0])
            steps.append([(late - early) * 1000 for early, late in pairwise(marks)])
        await api.delete(PODS, name, NAMESPACE, grace_period_seconds=0)
        await watcher.until(f"{name} to go", lambda: not len(watcher.pods))
    if steps:
        told, ended, bound = (statistics.median(one) for one in zip(*steps, strict=True))
        print(f"  of which: preempted after {told:.1f} ms, gone after {ended:.1f}, bound after {bound:.1f} (p50)")
    return found


async def contested(
    api: KubeClient, watcher: Watcher, kinds: tuple[str, ...], places: int, rounds: int
) -> tuple[int, list[str]]:
    done, lost = 0, []
    for number in range(rounds):
        await settled(api, places)
        # the places of this round's type; guests of the other and as many ordinary pods are the rivals
        mine = kinds[number % len(kinds)]
        for rival in range(places):
            await api.create(PODS, a_pod(f"r{number}-ordinary-{rival}"))
        guests = [f"r{number}-guest-{one}" for one in range(places)]
        await asyncio.gather(*(api.create(PODS, a_pod(name, mine)) for name in guests))
        await watcher.until(
            "the guests to be bound", lambda names=guests: all(one in watcher.bound for one in names)
        )
        for pod in watcher.pods.all():
            name, node = pod["metadata"]["name"], pod["spec"].get("nodeName")
            if MACHINE_TYPE_LABEL in labels_of(pod):
                if annotations_of(pod).get(PLACE_ANNOTATION) != node:
                    lost.append(f"{name}: given {annotations_of(pod).get(PLACE_ANNOTATION)}, bound on {node}")
            elif node:
                lost.append(f"{name} took a device on {node}")
        for one in (await api.get(MACHINES, GROUP))["status"]["availableMachines"]:
            if one["name"] != mine and (left := one["usage"]["reserved"]) != places:
                lost.append(f"round {number}: {places - left} places of the other type are gone")
        done += len(guests)
        print(f"round {number + 1}/{rounds}: {done} hand-overs, {len(lost)} lost", flush=True)
        await clear(api, watcher)
    return done, lost


async def measure(kubeconfig: Path, handovers: int, nodes: int, samples: int, kinds: tuple[str, ...]) -> bool:
    names = [f"bench-{number}" for number in range(nodes)]
    async with KubeClient(load_connection(kubeconfig)) as api:
        namespace = {"metadata": {"name": NAMESPACE, "labels": {GUARD_LABEL: "enabled"}}}
        await api.create(NAMESPACES, namespace)
        watcher = Watcher(api)
        async with hollow_nodes(api, *names, gpus=PLACES_PER_NODE, cpu="32"):
            following = [asyncio.create_task(one.run()) for one in (watcher.pods, watcher.reservations)]
            await wait_synced(watcher.pods, watcher.reservations)
            plain = await one_by_one(api, watcher, samples)
            twins = await one_by_one(api, watcher, samples, gated=True)
            places = nodes * PLACES_PER_NODE // len(kinds)
            await api.create(MACHINES, a_machine(names, kinds))
            await settled(api, places)
            guests = await one_by_one(api, watcher, samples, kinds[0], places)
            ratio = statistics.median(guests) / statistics.median(plain)
            like = statistics.median(guests) / statistics.median(twins)
            print(f"plain pod, created → bound:      p50 {statistics.median(plain):6.1f} ms of {samples}")
            print(f"plain pod, gate lifted → bound:  p50 {statistics.median(twins):6.1f} ms of {samples}")
            print(f"guest, gate lifted → bound:      p50 {statistics.median(guests):6.1f} ms of {samples}")
            print(f"ratio {ratio:.2f} to created, {like:.2f} to gate lifted (bar {BAR:g})", flush=True)
            rounds = -(-handovers // places)
            began = time.monotonic()
            done, lost = await contested(api, watcher, kinds, places, rounds)
            print(f"contested hand-overs: {done}, lost: {len(lost)} (bar 0), {time.monotonic() - began:.0f} s")
            for line in lost[:20]:
                print("  " + line)
            for task in following:
                task.cancel()
    return ratio <= BAR and not lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--handovers", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--types", type=int, choices=(1, 2), default=2)
    options = parser.parse_args()
    if not os.environ.get("KUBEBUILDER_ASSETS"):
        print("KUBEBUILDER_ASSETS is not set: nothing is said about a real control plane", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="moor-") as folder, start_cluster(Path(folder) / "home") as cluster:
        kinds = TYPES[: options.types]
        work = measure(cluster.kubeconfig, options.handovers, options.nodes, options.samples, kinds)
        good = asyncio.run(work)
        if not good:
            print((cluster.home / "services.log").read_text()[-3000:])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
