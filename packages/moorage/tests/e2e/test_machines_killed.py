"""Operator, webhook, extender killed at random moments under load: no guest evicted, no count wrong, none stuck.

On a real control plane, with hollow nodes; the services are processes, and die by SIGKILL. Each dies
`MOORAGE_TEST_KILLS` times (default 3); with `MOORAGE_TEST_KILL_MINUTES` they are killed for so long instead, and a
new operator waits for the lease of the dead one as it would anywhere (else the lease is taken away with it).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from moorage.model.machine import MACHINES
from moorage_kube.errors import ApiError, NotFound
from moorage_kube.informer import Informer, wait_synced
from moorage_kube.meta import annotations_of, is_deleting, labels_of
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import LEASES, NAMESPACES, PODS, Obj
from moorage_kube.testing.pausing import pause
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import control_plane
from moorage_testing.hollow import hollow_nodes
from moorage_testing.services import Services, separate_services

ASSETS = Path(os.environ.get("KUBEBUILDER_ASSETS") or "/nonexistent")
KILLS = int(os.environ.get("MOORAGE_TEST_KILLS") or 3)
MINUTES = float(os.environ.get("MOORAGE_TEST_KILL_MINUTES") or 0)
SYSTEM, GROUP, NAMESPACE = "moorage-system", "moorage.dev/machine-group", "lab"
TYPE, GATE, PLACE = "moorage.dev/machine-type", "moorage.dev/machine", "moorage.dev/machine-place"
NODES, DEVICES, AVAILABLE = ("n0", "n1", "n2"), 4, {"red": 5, "blue": 5}
OPEN = ("n1", "n2")  # not tainted: ordinary pods want devices there, and take those that nobody holds
GUESTS_AT_ONCE, ORDINARY_AT_ONCE = 18, 6
READY = {"operator": "leading", "webhook": "ready parts", "extender": "ready parts"}

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(int(600 + 60 * MINUTES)),
    pytest.mark.skipif(
        not (ASSETS / "kube-scheduler").exists(),
        reason="KUBEBUILDER_ASSETS names no folder with kube-scheduler: the services are killed beside a real one",
    ),
]


@pytest.fixture
def services(tmp_path: Path) -> Any:
    with control_plane(ASSETS, tmp_path) as plane:
        plane.start_controllers()
        plane.start_scheduler()
        with separate_services(plane, tmp_path) as made:
            made.start(*READY)
            yield made


@pytest.fixture
async def api(services: Services) -> AsyncIterator[KubeClient]:
    async with KubeClient.from_kubeconfig(services.kubeconfig) as client:
        yield client


def a_machine() -> Obj:
    size = {"cpu": "1", "memory": "1Gi", "gpu": {"type": "nvidia.com/gpu", "num": 1}}
    offers = [{"name": kind} for kind in AVAILABLE]
    return {
        "apiVersion": MACHINES.api_version,
        "kind": MACHINES.kind,
        "metadata": {"name": "pool", "labels": {GROUP: "pool"}},
        "spec": {
            "nodePool": [
                {"name": name, "mode": "ready", "taint": name not in OPEN, "machineType": offers} for name in NODES
            ],
            "machineTypes": [{"name": kind, "spec": size, "available": n} for kind, n in AVAILABLE.items()],
        },
    }


def a_pod(name: str, kind: str | None) -> Obj:
    """A guest of that type; without one an ordinary pod, which wants a device."""
    limits = {} if kind else {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    return {
        "metadata": {"name": name, "labels": {GROUP: "pool", TYPE: kind} if kind else {}},
        "spec": {"containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}]},
    }


@dataclass
class Lab:
    """People who start guests and end them, and what became of each."""

    api: KubeClient
    chance: random.Random
    pods: Informer
    ended: set[str] = field(default_factory=set)  # by us
    lost: list[str] = field(default_factory=list)  # by somebody else
    served: set[str] = field(default_factory=set)
    ran: set[str] = field(default_factory=set)  # ordinary pods that found a device
    made: int = 0

    def see(self, before: Obj | None, after: Obj | None) -> None:
        pod = after or before or {}
        name = pod["metadata"]["name"]
        if is_managed(pod) and pod["spec"].get("nodeName"):
            self.served.add(name)
        elif pod["spec"].get("nodeName") and TYPE not in labels_of(pod):
            self.ran.add(name)
        if name not in self.ended and (after is None or is_deleting(after) or is_finished(after)):
            self.lost.append(f"{name}: {pod.get('status')}")

    async def a_step(self) -> None:
        """Somebody comes or goes."""
        here = [pod for pod in self.pods.all() if not is_deleting(pod)]
        guests = [pod for pod in here if TYPE in labels_of(pod)]
        others = [pod for pod in here if TYPE not in labels_of(pod)]
        if len(guests) < GUESTS_AT_ONCE and self.chance.random() < 0.6:
            self.made += 1
            await self.api.create(PODS, a_pod(f"g{self.made}", self.chance.choice(list(AVAILABLE))), NAMESPACE)
        elif len(others) < ORDINARY_AT_ONCE and self.chance.random() < 0.3:
            self.made += 1
            await self.api.create(PODS, a_pod(f"o{self.made}", None), NAMESPACE)
        elif (ran := [pod for pod in others if pod["spec"].get("nodeName")]) and self.chance.random() < 0.3:
            await self.end(self.chance.choice(ran))
        elif settled := [pod for pod in guests if is_settled(pod)]:
            await self.end(self.chance.choice(settled))

    async def end(self, pod: Obj) -> None:
        self.ended.add(pod["metadata"]["name"])
        with contextlib.suppress(NotFound):
            await self.api.delete(PODS, pod["metadata"]["name"], NAMESPACE)

    async def live(self) -> None:
        while True:
            with contextlib.suppress(ApiError):
                await self.a_step()
            await pause(self.chance, 0.02, 0.3)


def is_managed(pod: Obj) -> bool:
    """Whether it passed the webhook: it waits behind the gate, or was let through."""
    gates = [one["name"] for one in pod["spec"].get("schedulingGates") or ()]
    return TYPE in labels_of(pod) and (GATE in gates or PLACE in annotations_of(pod))


def is_settled(pod: Obj) -> bool:
    """Whether nothing more will happen to it by itself: it is bound, or it never passed the webhook."""
    return bool(pod["spec"].get("nodeName")) or not is_managed(pod)


def is_finished(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


async def kill_again_and_again(services: Services, api: KubeClient, name: str, chance: random.Random) -> int:
    """Kill a service at moments of chance, each time after the last one was of use. How often it died."""
    ends, kills = time.monotonic() + 60 * MINUTES, 0
    while (time.monotonic() < ends) if MINUTES else (kills < KILLS):
        await pause(chance, 0.0, 4.0)
        services.kill(name)
        kills += 1
        await pause(chance, 0.0, 1.0)
        if name == "operator" and not MINUTES:
            with contextlib.suppress(NotFound):
                await api.delete(LEASES, "moorage-operator", SYSTEM)
        services.start(name)
        await until_of_use(services, name, kills + 1)
    return kills


async def until_of_use(services: Services, name: str, times: int) -> None:
    await until(f"the {name}", lambda: services.log(name).read_text().count(READY[name]) >= times)


class Truth:
    """What the counts should be, from the pods themselves."""

    def __init__(self, lab: Lab, places: Informer, machines: Informer) -> None:
        self._lab, self._places, self._machines = lab, places, machines

    def wrong(self) -> list[str]:
        """In what the Machine's status differs from the pods; and who waits though there is a place."""
        status = (self._machines.get("pool") or {}).get("status") or {}
        told = {one["name"]: one["usage"] for one in status.get("availableMachines") or ()}
        found = []
        for kind, available in AVAILABLE.items():
            guests = [
                pod for pod in self._lab.pods.all() if labels_of(pod).get(TYPE) == kind and not is_finished(pod)
            ]
            used = sum(1 for pod in guests if is_managed(pod) and pod["spec"].get("nodeName"))
            want = {
                "maximum": available,
                "reserved": available - used,
                "used": used,
                "waiting": sum(1 for pod in guests if pod["spec"].get("schedulingGates")),
                "pending": 0,
                "unmanaged": sum(1 for pod in guests if not is_managed(pod)),
                "unplaced": 0,
            }
            standing = sum(
                1
                for pod in self._places.all()
                if labels_of(pod).get(TYPE) == kind and pod["spec"].get("nodeName") and not is_deleting(pod)
            )
            if told.get(kind) != want or standing != available - used:
                found.append(f"{kind}: told {told.get(kind)}, is {want}, {standing} places stand")
            if want["waiting"] and used < available:
                found.append(f"{kind}: {want['waiting']} wait for {available - used} free places")
        return found


async def test_killed_under_load_no_guest_is_evicted_no_count_is_wrong_and_no_pod_is_stuck(
    services: Services, api: KubeClient, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    await api.create(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": {"moorage.dev/guard": "enabled"}}})
    lab = Lab(api, random.Random(seed), Informer(api, PODS, NAMESPACE))
    places = Informer(api, PODS, SYSTEM, label_selector="moorage.dev/reservation")
    machines = Informer(api, MACHINES)
    lab.pods.on_change(lab.see)
    truth = Truth(lab, places, machines)

    async def right(when: str) -> None:
        try:
            await until(when, lambda: not truth.wrong())
        except AssertionError as error:
            raise AssertionError(f"{error}; {truth.wrong()}; seed {seed}") from error

    async with hollow_nodes(api, *NODES, gpus=DEVICES, cpu="32"), asyncio.TaskGroup() as tasks:
        following = [tasks.create_task(one.run()) for one in (lab.pods, places, machines)]
        await wait_synced(lab.pods, places, machines)
        for name in READY:
            await until_of_use(services, name, 1)
        await api.create(MACHINES, a_machine())
        await right("all places to be held")
        living = tasks.create_task(lab.live())
        killers = [
            tasks.create_task(kill_again_and_again(services, api, name, random.Random(seed + at)))
            for at, name in enumerate(READY)
        ]
        kills = dict(zip(READY, [await one for one in killers], strict=True))
        living.cancel()
        ordinary = [pod for pod in lab.pods.all() if TYPE not in labels_of(pod)]
        for pod in ordinary:  # they took what guests left, before a reservation could; now each place is to stand
            await lab.end(pod)
        await right("the counts to be right after the load")
        while waiting := [pod for pod in lab.pods.all() if TYPE in labels_of(pod)]:
            # places go round until everybody had one
            running = [pod for pod in waiting if is_settled(pod) and not is_deleting(pod)]
            for pod in running:
                await lab.end(pod)
            names = {pod["metadata"]["name"] for pod in running}
            await until(
                "them to go", lambda names=names: not names & {p["metadata"]["name"] for p in lab.pods.all()}
            )
            await right(f"places for those who wait, {len(waiting) - len(running)}")
        assert lab.lost == []
        with capsys.disabled():
            print(
                f"killed {kills}; {lab.made} pods made, {len(lab.served)} guests served,"
                f" {len(lab.ran)} ordinary pods ran, none evicted",
                flush=True,
            )
        for task in following:
            task.cancel()
