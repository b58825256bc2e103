"""Updates the status of PodDisruptionBudgets: how many pods may be evicted now.

https://kubernetes.io/docs/tasks/run-application/configure-pdb/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from moorage_kube.api import Api
from moorage_kube.clock import Clock, parse_rfc3339, rfc3339
from moorage_kube.controlloop import ControlLoop
from moorage_kube.informer import index_by_controller
from moorage_kube.meta import Key, controller_ref, is_deleting, key_of, labels_of, with_condition
from moorage_kube.resources import DEPLOYMENTS, PDBS, PODS, REPLICASETS, STATEFULSETS, Obj
from moorage_kube.selectors import label_selector_of
from moorage_local.controllers.base import Writer
from moorage_local.controllers.events import EventRecorder
from moorage_local.controllers.intorpercent import scaled
from moorage_local.controllers.pods import is_finished, is_ready
from moorage_local.informers import InformerSet

DISRUPTION_TIMEOUT = timedelta(minutes=2)  # an eviction granted but not seen by then did not happen


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A budget, the live pods that it selects, and the total number of pods that their controllers request.

    `scale` is None if a pod has no controller with a known scale.
    """

    pdb: Obj
    pods: Sequence[Obj]
    scale: int | None
    now: datetime


def plan(seen: Observed) -> tuple[Obj, timedelta | None]:
    """Return the correct status of the budget, and the time until the next check."""
    pdb, spec = seen.pdb, seen.pdb["spec"]
    old = pdb.get("status") or {}
    # evicted pods that are not deleted yet count as unhealthy, for a while
    disrupted: dict[str, str] = {}
    waits: list[timedelta] = []
    by_name = {pod["metadata"]["name"]: pod for pod in seen.pods}
    for name, since in (old.get("disruptedPods") or {}).items():
        left = parse_rfc3339(since) + DISRUPTION_TIMEOUT - seen.now
        if name in by_name and not is_deleting(by_name[name]) and left > timedelta(0):
            disrupted[name] = since
            waits.append(left)
    # how many are healthy
    healthy = sum(
        1
        for pod in seen.pods
        if is_ready(pod) and not is_deleting(pod) and pod["metadata"]["name"] not in disrupted
    )
    # how many there should be
    message = ""
    if spec.get("maxUnavailable") is not None:
        expected = seen.scale
        desired = (
            None if expected is None else max(0, expected - scaled(spec["maxUnavailable"], expected, up=True))
        )
    else:
        least = spec.get("minAvailable", 1)
        if isinstance(least, int):
            expected, desired = len(seen.pods), least
        else:
            expected = seen.scale
            desired = None if expected is None else scaled(least, expected, up=True)
    # how many pods may be evicted
    if expected is None or desired is None:
        expected, desired, allowed = 0, 0, 0
        message = "cannot find a controller with a number of replicas for these pods: use a number in minAvailable"
        kind, status, reason = "DisruptionAllowed", "False", "SyncFailed"
    else:
        allowed = max(0, healthy - desired) if expected > 0 else 0
        kind, status = "DisruptionAllowed", "True" if allowed else "False"
        reason = "SufficientPods" if allowed else "InsufficientPods"
    new: Obj = {
        "observedGeneration": pdb["metadata"].get("generation", 1),
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "conditions": with_condition(
            old.get("conditions") or [],
            kind,
            status,
            now=rfc3339(seen.now),
            reason=reason,
            message=message,
            observedGeneration=pdb["metadata"].get("generation", 1),
        ),
    }
    if disrupted:
        new["disruptedPods"] = disrupted
    return new, min(waits, default=None)


class DisruptionController:
    """Computes the budgets of a namespace again after its pods change."""

    def __init__(self, api: Api, informers: InformerSet, events: EventRecorder, clock: Clock) -> None:
        self._clock = clock
        self._pdbs = informers.of(PDBS)
        self._pods = informers.of(PODS, controller=index_by_controller, namespace=_by_namespace)
        self._sets = informers.of(REPLICASETS)
        self._deployments = informers.of(DEPLOYMENTS)
        self._stateful = informers.of(STATEFULSETS)
        self._writer = Writer(api, events, clock)
        self.loop: ControlLoop[Key] = ControlLoop("disruption", self.reconcile, of=self._pdbs)
        self._pdbs.on_change(self._pdb_changed)
        self._pods.on_change(self._pod_changed)
        for owners in (self._sets, self._deployments, self._stateful):
            owners.on_change(self._owner_changed)

    def _pdb_changed(self, _before: Obj | None, after: Obj | None) -> None:
        if after is not None:
            self.loop.queue.add(key_of(after))

    def _pod_changed(self, before: Obj | None, after: Obj | None) -> None:
        self._wake([pod for pod in (before, after) if pod is not None])

    def _wake(self, pods: Sequence[Obj]) -> None:
        for pdb in self._pdbs.all():
            if any(_selects(pdb, pod) for pod in pods):
                self.loop.queue.add(key_of(pdb))

    def _owner_changed(self, before: Obj | None, after: Obj | None) -> None:
        old = ((before or {}).get("spec") or {}).get("replicas")
        new = ((after or {}).get("spec") or {}).get("replicas")
        owner = after or before
        if old != new and owner is not None and len(self._pdbs):
            self._wake(self._pods.by_index("namespace", owner["metadata"].get("namespace") or ""))

    async def reconcile(self, key: Key) -> timedelta | None:
        if not await self._writer.is_ready(key):
            return timedelta(milliseconds=200)
        pdb = self._pdbs.get(key.name, key.namespace)
        if pdb is None or is_deleting(pdb):
            return None
        pods = [
            pod
            for pod in self._pods.by_index("namespace", key.namespace)
            if _selects(pdb, pod) and not is_finished(pod)
        ]
        status, look_again = plan(Observed(pdb=pdb, pods=pods, scale=self._scale(pods), now=self._clock.now()))
        if status != pdb.get("status"):
            await self._writer.write_status(key, self._pdbs, pdb, status)
        return look_again

    def _scale(self, pods: Sequence[Obj]) -> int | None:
        total = 0
        counted: set[str] = set()
        for pod in pods:
            ref, namespace = controller_ref(pod), pod["metadata"].get("namespace") or ""
            if ref is None:
                return None
            owner = {"ReplicaSet": self._sets, "StatefulSet": self._stateful}.get(ref["kind"])
            controller = owner.get(ref["name"], namespace) if owner is not None else None
            if controller is None or controller["metadata"]["uid"] != ref["uid"]:
                return None
            above = controller_ref(controller)
            if above is not None and above["kind"] == "Deployment":
                controller = self._deployments.get(above["name"], namespace) or controller
            uid = controller["metadata"]["uid"]
            if uid not in counted:
                counted.add(uid)
                replicas = controller["spec"].get("replicas")
                total += 1 if replicas is None else int(replicas)
        return total


def _by_namespace(obj: Obj) -> Sequence[str]:
    return (obj["metadata"].get("namespace") or "",)


def _selects(pdb: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    selector = pdb["spec"].get("selector")
    if pdb["metadata"].get("namespace") != pod["metadata"].get("namespace") or selector is None:
        return False
    return label_selector_of(selector).matches(labels_of(pod))
