"""Guests of a Machine with four places while all around them is killed: never more at a time, each served once.

A guest notes in one file when it begins and when it ends. More than four at a time would show there, and among the
pods as the API tells them. A pod that is created while the webhook is away slips past it and is not counted (that
is the webhook's failure policy): it is deleted, and another is made in its stead.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from pathlib import Path

from moorage.model.machine import MACHINES
from moorage.model.names import (
    GUARD_LABEL,
    MACHINE_GATE,
    MACHINE_GROUP_LABEL,
    MACHINE_TYPE_LABEL,
    PLACE_ANNOTATION,
)
from moorage_kube.errors import AlreadyExists, ApiError, NotFound
from moorage_kube.informer import Informer, wait_synced
from moorage_kube.meta import annotations_of, is_deleting
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import NAMESPACES, PODS, Obj
from moorage_testing.killing import EVERYTHING, LAUNCHER, Trouble
from scenes.outcome import Outcome

NAMESPACE, GROUP, TYPE = "lab", "pool", "red"
NODES, PLACES = ("node-1", "node-2"), 4
VICTIMS = ("localcluster",) * 4 + ("services",) * 4 + (EVERYTHING,) * 2 + ("supervisor", LAUNCHER)
PAUSE_SECONDS = (0.0, 2.0)  # between a restart and the next kill
WAITING = 12  # guests that wait for a place, while there are more to come
GUEST_SECONDS = (0.5, 4.0)
PATIENCE_SECONDS = 240.0  # without any guest's end; bounds a hang


def a_machine() -> Obj:
    size = {"cpu": "500m", "memory": "128Mi", "gpu": {"type": "nvidia.com/gpu", "num": 1}}
    return {
        "apiVersion": MACHINES.api_version,
        "kind": MACHINES.kind,
        "metadata": {"name": GROUP, "labels": {MACHINE_GROUP_LABEL: GROUP}},
        "spec": {
            "nodePool": [
                {"name": name, "mode": "ready", "taint": True, "machineType": [{"name": TYPE}]} for name in NODES
            ],
            "machineTypes": [{"name": TYPE, "spec": size, "available": PLACES}],
        },
    }


def a_guest(name: str, log: Path, seconds: float) -> Obj:
    note = f'echo "$0 {name} $(date +%s%N)" >> {log}'
    script = f"sh -c '{note}' start; sleep {seconds:.2f}; sh -c '{note}' end"
    return {
        "metadata": {"name": name, "labels": {MACHINE_GROUP_LABEL: GROUP, MACHINE_TYPE_LABEL: TYPE}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "localhost/host", "command": ["sh", "-c", script]}],
        },
    }


def is_managed(pod: Obj) -> bool:
    """Whether it passed the webhook: it waits behind the gate, or was let through."""
    gates = [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]
    return MACHINE_GATE in gates or PLACE_ANNOTATION in annotations_of(pod)


def phase_of(pod: Obj) -> str:
    return str((pod.get("status") or {}).get("phase"))


class Lab:
    """Those who make guests and take them away when they have ended, and what became of each."""

    def __init__(self, api: KubeClient, trouble: Trouble, outcome: Outcome, log: Path, *, objects: int) -> None:
        self._api, self._trouble, self._outcome, self._log = api, trouble, outcome, log
        self._objects = objects
        self.pods = Informer(api, PODS, NAMESPACE)
        self.pods.on_change(self._see)
        self.made: set[str] = set()
        self.slipped: set[str] = set()
        self.succeeded: set[str] = set()
        self.removed: set[str] = set()
        self.most = 0  # on places at a time
        self.last_change = time.monotonic()

    def _see(self, before: Obj | None, after: Obj | None) -> None:
        pod = after or before or {}
        name = pod["metadata"]["name"]
        if name in self.slipped:
            return
        if phase_of(pod) == "Succeeded" and name not in self.succeeded:
            self.succeeded.add(name)
            self.last_change = time.monotonic()
        elif phase_of(pod) == "Failed":
            self._outcome.lost.append(f"{name} failed: {pod.get('status')}")
        elif after is None and name not in self.succeeded:
            self._outcome.lost.append(f"{name} is gone before it ended")
        held = [pod for pod in self.pods.all() if _holds_a_place(pod)]
        if len(held) > max(self.most, PLACES):
            names = sorted(pod["metadata"]["name"] for pod in held)
            self._outcome.doubled.append(f"{len(held)} guests on {PLACES} places: {', '.join(names)}")
        self.most = max(self.most, len(held))

    def seen(self) -> str:
        return f"{len(self.succeeded)} of {len(self.made)} served"

    async def live(self, kills: int) -> None:
        """Make guests, a share of them with each share of the kills, and remove those that ended."""
        number = 0
        while number < self._objects or len(self.removed) < self._objects:
            due = self._objects * min(1.0, self._trouble.total / kills) + WAITING
            waiting = len(self.made) - len(self.succeeded)
            if number < min(self._objects, due) and waiting < WAITING + PLACES:
                await self._make(f"guest-{number:04}")
                number += 1
                continue
            for name in sorted(self.succeeded - self.removed):
                with contextlib.suppress(ApiError):
                    with contextlib.suppress(NotFound):
                        await self._api.delete(PODS, name, NAMESPACE)
                    self.removed.add(name)
            if self.succeeded == self.made and number < self._objects:
                self.last_change = time.monotonic()  # none is there, none can end
            if time.monotonic() - self.last_change > PATIENCE_SECONDS:
                return
            await asyncio.sleep(0.1)

    async def _make(self, name: str) -> None:
        """Create a guest, until one of that name passed the webhook."""
        tries = 0
        while True:
            called = name if not tries else f"{name}-{tries}"
            try:
                pod = await self._api.create(
                    PODS, a_guest(called, self._log, self._trouble.chance.uniform(*GUEST_SECONDS)), NAMESPACE
                )
            except AlreadyExists:
                pod = await self._found(called)
            except ApiError:
                await asyncio.sleep(0.1)
                continue
            if is_managed(pod):
                self.made.add(called)
                self.last_change = time.monotonic()
                return
            self.slipped.add(called)
            tries += 1
            with contextlib.suppress(ApiError):
                await self._api.delete(PODS, called, NAMESPACE, grace_period_seconds=0)

    async def _found(self, name: str) -> Obj:
        while True:
            with contextlib.suppress(ApiError):
                return await self._api.get(PODS, name, NAMESPACE)
            await asyncio.sleep(0.1)


def _holds_a_place(pod: Obj) -> bool:
    return is_managed(pod) and bool(pod["spec"].get("nodeName")) and phase_of(pod) not in ("Succeeded", "Failed")


async def play(trouble: Trouble, outcome: Outcome, *, kills: int, objects: int) -> None:
    """So many guests under so many kills."""
    log = trouble.cluster.home.parent / "log"
    async with KubeClient.from_kubeconfig(trouble.cluster.kubeconfig) as api:
        await api.create(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": {GUARD_LABEL: "enabled"}}})
        await api.create(MACHINES, a_machine())
        lab = Lab(api, trouble, outcome, log, objects=objects)
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(lab.pods.run())
            await wait_synced(lab.pods)
            living = tasks.create_task(lab.live(kills))
            await trouble.strike_again_and_again(
                kills,
                *VICTIMS,
                pause=PAUSE_SECONDS,
                seen=lambda: f"{len(lab.succeeded)} of {len(lab.made)} served",
            )
            await living
            await _settled(api, outcome)
            following.cancel()
    for name in sorted(lab.made - lab.succeeded):
        pod = lab.pods.get(name, NAMESPACE)
        if pod is not None and not is_deleting(pod):
            outcome.stuck.append(f"{name} is {phase_of(pod)}: {pod.get('status')}")
    judge(lab, log.read_text().splitlines(), outcome)
    outcome.objects = len(lab.made)
    outcome.notes |= {"slipped past the webhook": len(lab.slipped), "at a time at most": lab.most}


async def _settled(api: KubeClient, outcome: Outcome) -> None:
    """Wait until all places are held again, as the Machine tells."""
    ends, usage = time.monotonic() + PATIENCE_SECONDS, {}
    while time.monotonic() < ends:
        with contextlib.suppress(ApiError):
            status = (await api.get(MACHINES, GROUP)).get("status") or {}
            usage = next((kind["usage"] for kind in status.get("availableMachines") or ()), {})
            if (usage.get("reserved"), usage.get("used"), usage.get("waiting")) == (PLACES, 0, 0):
                return
        await asyncio.sleep(0.2)
    outcome.stuck.append(f"the places are not all reserved again: {usage}")


def judge(lab: Lab, notes: list[str], outcome: Outcome) -> None:
    """From what the guests themselves noted."""
    moments = sorted((int(when), word, name) for word, name, when in (line.split() for line in notes))
    counted = Counter((word, name) for _, word, name in moments)
    for name in sorted(lab.made):
        starts, ends = counted["start", name], counted["end", name]
        if starts > 1 or ends > 1:
            outcome.doubled.append(f"{name}: {starts} starts, {ends} ends")
        elif name in lab.succeeded and (starts, ends) != (1, 1):
            outcome.lost.append(f"{name} succeeded with {starts} starts, {ends} ends")
    running: set[str] = set()
    for _, word, name in moments:
        if name in lab.made:
            (running.add if word == "start" else running.discard)(name)
            if len(running) > PLACES:
                outcome.doubled.append(f"{len(running)} guests ran at a time: {', '.join(sorted(running))}")
