"""Many machine types, guests that come and go at random: at every quiet moment the counts are those of the pods.

    KUBEBUILDER_ASSETS=… python benchmarks/machine_soak.py [--types 200] [--guests 5000] [--quiet-every 200]

On a real control plane (etcd, kube-apiserver, kube-scheduler, kube-controller-manager of KUBEBUILDER_ASSETS) with
hollow nodes; all services of ours in one process. An hour of arrivals is played as fast as the control plane takes
it: guests of types at random come, and those that run end, until the number asked for has come. After every
`--quiet-every` of them nobody comes or goes until the counts in the Machine's status are those that the pods
themselves give, and nobody waits for a free place; who never gets there within two minutes ends the run. `--guests
300 --types 40` takes a minute or two. The figure: quiet moments, and how many of them were right (the bar: all).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from moorage.model.machine import MACHINES
from moorage.model.names import (
    GUARD_LABEL,
    MACHINE_GROUP_LABEL,
    MACHINE_TYPE_LABEL,
    PLACE_ANNOTATION,
    RESERVATION_LABEL,
    SYSTEM_NAMESPACE,
)
from moorage_kube.errors import NotFound
from moorage_kube.informer import Informer, wait_synced
from moorage_kube.meta import annotations_of, is_deleting, labels_of
from moorage_kube.remote.client import KubeClient
from moorage_kube.remote.config import load_connection
from moorage_kube.resources import NAMESPACES, PODS, Obj
from moorage_testing.cluster import start_cluster
from moorage_testing.hollow import hollow_nodes

GROUP, NAMESPACE = "soak", "soak"
TYPES_PER_NODE, NODES_OF_A_TYPE = 8, 2
AT_ONCE = 8  # changes under way together
PATIENCE_SECONDS = 120.0


def a_machine(names: list[str], nodes: list[str], chance: random.Random) -> Obj:
    """A place of each type, two of some, each type on two nodes."""
    size = {"cpu": "1", "memory": "1Gi", "gpu": {"type": "nvidia.com/gpu", "num": 1}}
    offers: dict[str, list[str]] = {node: [] for node in nodes}
    for at, name in enumerate(names):
        for more in range(NODES_OF_A_TYPE):
            offers[nodes[(at + more) % len(nodes)]].append(name)
    return {
        "apiVersion": MACHINES.api_version,
        "kind": MACHINES.kind,
        "metadata": {"name": GROUP, "labels": {MACHINE_GROUP_LABEL: GROUP}},
        "spec": {
            "nodePool": [
                {"name": node, "mode": "ready", "taint": True, "machineType": [{"name": one} for one in offered]}
                for node, offered in offers.items()
            ],
            "machineTypes": [
                {"name": name, "spec": size, "available": 2 if chance.random() < 0.2 else 1} for name in names
            ],
        },
    }


def devices_for(machine: Obj) -> int:
    """So many that every node has room for all that it offers: no place of one type crowds out another's."""
    available = {one["name"]: one["available"] for one in machine["spec"]["machineTypes"]}
    pool = machine["spec"]["nodePool"]
    return max(sum(available[one["name"]] for one in node["machineType"]) for node in pool)


def a_guest(name: str, kind: str) -> Obj:
    return {
        "metadata": {"name": name, "labels": {MACHINE_GROUP_LABEL: GROUP, MACHINE_TYPE_LABEL: kind}},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    }


def wrong(machines: Informer, guests: Informer, places: Informer) -> list[str]:
    """In what the status differs from the pods, by type; and who waits though there is a place."""
    machine = machines.get(GROUP) or {}
    status = machine.get("status") or {}
    told = {one["name"]: one["usage"] for one in status.get("availableMachines") or ()}
    used, waiting, held, stray = (Counter[str]() for _ in range(4))
    for pod in guests.all():
        kind = labels_of(pod)[MACHINE_TYPE_LABEL]
        is_gated, is_placed = bool(pod["spec"].get("schedulingGates")), PLACE_ANNOTATION in annotations_of(pod)
        waiting[kind] += is_gated
        used[kind] += bool(pod["spec"].get("nodeName")) and is_placed
        stray[kind] += not is_gated and not is_placed  # the webhook did not answer in time
    for pod in places.all():
        held[labels_of(pod)[MACHINE_TYPE_LABEL]] += bool(pod["spec"].get("nodeName")) and not is_deleting(pod)
    found = []
    for kind in (machine.get("spec") or {}).get("machineTypes") or ():
        name, available = kind["name"], kind["available"]
        want = {"maximum": available, "reserved": held[name], "used": used[name], "waiting": waiting[name]}
        want |= {"pending": 0, "unplaced": 0, "unmanaged": stray[name]}
        is_full = held[name] + used[name] == available and (not waiting[name] or used[name] == available)
        if told.get(name) != want or not is_full:
            found.append(f"{name}: told {told.get(name)}, is {want} of {available}")
    return found


async def soak(kubeconfig: Path, types: int, guests: int, quiet_every: int, seed: int) -> bool:
    chance = random.Random(seed)
    names = [f"type-{number:03}" for number in range(types)]
    nodes = [f"soak-{number:02}" for number in range(max(NODES_OF_A_TYPE, -(-types // TYPES_PER_NODE)))]
    at_once = types * 3 // 2  # more than there are places, so that some wait
    async with KubeClient(load_connection(kubeconfig)) as api:
        await api.create(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": {GUARD_LABEL: "enabled"}}})
        machines, pods = Informer(api, MACHINES), Informer(api, PODS, NAMESPACE)
        places = Informer(api, PODS, SYSTEM_NAMESPACE, label_selector=RESERVATION_LABEL)
        machine = a_machine(names, nodes, chance)
        async with hollow_nodes(api, *nodes, gpus=devices_for(machine), cpu="64"):
            following = [asyncio.create_task(one.run()) for one in (machines, pods, places)]
            await wait_synced(machines, pods, places)
            await api.create(MACHINES, machine)
            began, made, paused, moments, slowest = time.monotonic(), 0, 0, 0, 0.0

            async def quiet() -> bool:
                nonlocal moments, slowest
                since = time.monotonic()
                while found := wrong(machines, pods, places):
                    if time.monotonic() - since > PATIENCE_SECONDS:
                        print("\n".join([f"not right within {PATIENCE_SECONDS:g} s:", *found[:20]]))
                        return False
                    await asyncio.sleep(0.05)
                moments += 1
                slowest = max(slowest, time.monotonic() - since)
                return True

            async def come(name: str, kind: str) -> None:
                await api.create(PODS, a_guest(name, kind), NAMESPACE)

            async def go(name: str) -> None:
                with contextlib.suppress(NotFound):
                    await api.delete(PODS, name, NAMESPACE)

            good = await quiet()
            while good and made < guests:
                running = [pod for pod in pods.all() if pod["spec"].get("nodeName") and not is_deleting(pod)]
                here, changes = len(pods), []
                for _ in range(min(AT_ONCE, guests - made)):
                    if here < at_once and (chance.random() < 0.6 or not running):
                        made, here = made + 1, here + 1
                        changes.append(come(f"g-{made:05}", chance.choice(names)))
                        if made % quiet_every == 0:
                            break
                    elif running:
                        pod = running.pop(chance.randrange(len(running)))
                        changes.append(go(pod["metadata"]["name"]))
                if not changes:
                    await asyncio.sleep(0.05)  # all that are there wait for somebody's place
                await asyncio.gather(*changes)
                if changes and (made == guests or (made % quiet_every == 0 and made != paused)):
                    paused, good = made, await quiet()
                    print(f"{made} guests after {time.monotonic() - began:.0f} s", flush=True)
            took = time.monotonic() - began
            print(f"{made} guests of {types} types on {len(nodes)} nodes in {took:.0f} s, seed {seed}")
            told = "all right" if good else "then one was wrong"
            print(f"quiet moments: {moments}, {told}; the slowest came {slowest:.1f} s after the last change")
            for task in following:
                task.cancel()
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", type=int, default=200)
    parser.add_argument("--guests", type=int, default=5000)
    parser.add_argument("--quiet-every", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not os.environ.get("KUBEBUILDER_ASSETS"):
        print("KUBEBUILDER_ASSETS is not set: nothing is said about a real control plane", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="moor-") as folder, start_cluster(Path(folder) / "home") as cluster:
        work = soak(cluster.kubeconfig, options.types, options.guests, options.quiet_every, options.seed)
        return 0 if asyncio.run(work) else 1


if __name__ == "__main__":
    sys.exit(main())
