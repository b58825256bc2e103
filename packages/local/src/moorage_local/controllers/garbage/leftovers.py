"""Delete expired events, and pods that have no kubelet to end them.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-garbage-collection
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from moorage_kube.api import Api
from moorage_kube.awaketime import AwakeTime
from moorage_kube.clock import Clock, parse_rfc3339
from moorage_kube.errors import Conflict, MoorageError, NotFound
from moorage_kube.meta import is_deleting
from moorage_kube.resources import EVENTS, NODES, PODS, Obj
from moorage_local.controllers.events import EventRecorder
from moorage_local.controllers.nodes.plan import disrupted_conditions
from moorage_local.controllers.pods import is_finished
from moorage_local.informers import InformerSet

log = logging.getLogger(__name__)

FINISHED_MAX = 12_500  # finished pods that stay, as kube-controller-manager's --terminated-pod-gc-threshold
EVENT_LIFE = timedelta(hours=1)  # as kube-apiserver's --event-ttl
EVENT_SWEEP = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """All pods, and the names of the nodes that exist or existed until a moment ago."""

    pods: Sequence[Obj]
    nodes: Collection[str]
    finished_max: int = FINISHED_MAX


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a pod at once. With a `message`, first mark it as failed by disruption."""

    pod: Obj
    message: str = ""


def plan(seen: Observed) -> tuple[Remove, ...]:
    """Return the pods to remove.

    These are pods of deleted nodes, pods deleted before they had a node, and the oldest finished pods beyond
    the limit.
    """
    removals: dict[str, Remove] = {}
    for pod in seen.pods:
        node = (pod.get("spec") or {}).get("nodeName")
        if node and node not in seen.nodes:
            removals[pod["metadata"]["uid"]] = Remove(pod, "PodGC: node no longer exists")
        elif not node and is_deleting(pod) and not _unmarked(pod):
            removals[pod["metadata"]["uid"]] = Remove(pod)
    finished = [pod for pod in seen.pods if is_finished(pod) and not is_deleting(pod)]
    surplus = len(finished) - seen.finished_max
    if surplus > 0:
        finished.sort(key=lambda pod: (pod["metadata"].get("creationTimestamp") or "", pod["metadata"]["name"]))
        for pod in finished[:surplus]:
            removals.setdefault(pod["metadata"]["uid"], Remove(pod))
    return tuple(removals.values())


def _unmarked(pod: Mapping[str, Any]) -> bool:
    """Whether the pod is already force-deleted, and only finalizers block its removal."""
    return bool(pod["metadata"].get("finalizers")) and pod["metadata"].get("deletionGracePeriodSeconds") == 0


def expired(event: Mapping[str, Any], now: datetime) -> bool:
    """Whether the event was last seen more than an hour ago."""
    series = event.get("series") or {}
    times = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )
    seen = next((text for text in times if text), None)
    return seen is not None and now - parse_rfc3339(seen) > EVENT_LIFE


class LeftoverSweeper:
    """Checks all pods every `interval`, all events every five minutes.

    A node counts as deleted once it was missing for `quarantine`, while we were `awake`, and the API confirms it.
    """

    def __init__(
        self,
        api: Api,
        informers: InformerSet,
        events: EventRecorder,
        clock: Clock,
        *,
        interval: timedelta = timedelta(seconds=20),
        quarantine: timedelta = timedelta(seconds=40),
        finished_max: int = FINISHED_MAX,
        awake: AwakeTime,
    ) -> None:
        self._api = api
        self._events = events
        self._clock = clock
        self._interval = interval
        self._quarantine = quarantine
        self._finished_max = finished_max
        self._pods = informers.of(PODS)
        self._nodes = informers.of(NODES)
        self._awake = awake
        self._missing: dict[str, float] = {}  # node → the awake second since which it is missing

    async def run(self) -> None:
        """Sweep until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(self._interval, self.sweep_pods))
            group.create_task(self._every(EVENT_SWEEP, self.sweep_events))

    async def _every(self, interval: timedelta, sweep: Callable[[], Any]) -> None:
        while True:
            await self._clock.sleep(interval.total_seconds())
            try:
                await sweep()
            except (MoorageError, OSError) as error:
                log.warning("a sweep failed", extra={"error": str(error)})

    async def sweep_pods(self) -> None:
        """Check all pods once."""
        pods = self._pods.all()
        nodes = await self._nodes_believed({(pod.get("spec") or {}).get("nodeName") or "" for pod in pods} - {""})
        for step in plan(Observed(pods=pods, nodes=nodes, finished_max=self._finished_max)):
            with contextlib.suppress(NotFound, Conflict):  # the next sweep looks again
                await self._remove(step)

    async def _nodes_believed(self, named: set[str]) -> set[str]:
        now = self._awake.seconds()
        there = {node["metadata"]["name"] for node in self._nodes.all()}
        self._missing = {name: self._missing.get(name, now) for name in named - there}
        for name, since in self._missing.items():
            if now - since < self._quarantine.total_seconds() or await self._exists(name):
                there.add(name)
        return there

    async def _exists(self, node: str) -> bool:
        try:
            await self._api.get(NODES, node)
        except NotFound:
            return False
        return True

    async def _remove(self, step: Remove) -> None:
        pod = step.pod
        meta = pod["metadata"]
        if step.message and not is_finished(pod):
            conditions = disrupted_conditions(pod, "DeletionByPodGC", step.message, self._clock.now())
            status = {**(pod.get("status") or {}), "phase": "Failed", "conditions": conditions}
            await self._api.update(PODS, {**pod, "status": status}, subresource="status")
        elif is_deleting(pod) and meta.get("deletionGracePeriodSeconds") == 0:
            return  # forced already: a finalizer holds it
        await self._api.delete(PODS, meta["name"], meta["namespace"], grace_period_seconds=0, uid=meta["uid"])

    async def sweep_events(self) -> None:
        """Check all events once."""
        now = self._clock.now()
        for event in (await self._api.list(EVENTS)).items:
            if expired(event, now):
                meta = event["metadata"]
                with contextlib.suppress(NotFound, Conflict):
                    await self._api.delete(EVENTS, meta["name"], meta["namespace"], uid=meta["uid"])
