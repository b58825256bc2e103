"""Decide which nodes are lost, which taints they get, and when pods must leave.

https://kubernetes.io/docs/concepts/architecture/nodes/#condition and
https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/#taint-based-evictions
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from moorage_kube.clock import parse_rfc3339, rfc3339
from moorage_kube.meta import condition, is_deleting
from moorage_kube.moments import span_of
from moorage_kube.resources import Obj
from moorage_kube.scheduling import Taint, Toleration, parse_pod
from moorage_local.controllers.pods import is_finished, is_ready

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
BY_CONDITION = {  # condition → (status that taints → taint)
    "Ready": {"False": NOT_READY, "Unknown": UNREACHABLE},
    "MemoryPressure": {"True": "node.kubernetes.io/memory-pressure"},
    "DiskPressure": {"True": "node.kubernetes.io/disk-pressure"},
    "PIDPressure": {"True": "node.kubernetes.io/pid-pressure"},
    "NetworkUnavailable": {"True": "node.kubernetes.io/network-unavailable"},
}
NO_SCHEDULE_KEYS = frozenset({key for table in BY_CONDITION.values() for key in table.values()} | {UNSCHEDULABLE})
NO_EXECUTE_KEYS = frozenset({NOT_READY, UNREACHABLE})
POSTED = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")  # the conditions a kubelet posts


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One node, and the time since its agent's last sign of life, by our own clock (so that clocks need not
    agree).

    `silent` counts only the time in which this process was awake: a machine that sleeps suspends the agents and us
    alike, so that leases cannot be renewed meanwhile.
    """

    node: Obj
    silent: timedelta
    now: datetime
    grace: timedelta


@dataclass(frozen=True, slots=True)
class WriteStatus:
    conditions: tuple[Obj, ...]


@dataclass(frozen=True, slots=True)
class SetTaints:
    taints: tuple[Obj, ...]


@dataclass(frozen=True, slots=True)
class Tell:
    type: str
    reason: str
    message: str


Action = WriteStatus | SetTaints | Tell


@dataclass(frozen=True, slots=True)
class Plan:
    actions: tuple[Action, ...] = ()
    look_again_in: timedelta | None = None
    pods_not_ready: bool = False  # its pods are to be marked as not ready


def plan(seen: Observed) -> Plan:
    """Return the steps for one node; none if it needs no change."""
    node = seen.node
    old = list((node.get("status") or {}).get("conditions") or ())
    lost = seen.silent >= seen.grace
    conditions = _lost(node, old, seen.now) if lost else old
    actions: list[Action] = []
    if conditions != old:
        actions.append(WriteStatus(tuple(conditions)))
        actions.append(
            Tell("Normal", "NodeNotReady", f"Node {node['metadata']['name']} status is now: NodeNotReady")
        )
    judged = {**node, "status": {**(node.get("status") or {}), "conditions": conditions}}
    before = list((node.get("spec") or {}).get("taints") or ())
    taints = taints_for(judged, seen.now)
    if taints != before:
        actions.append(SetTaints(tuple(taints)))
    ready = condition(judged, "Ready")
    return Plan(
        tuple(actions),
        None if lost else seen.grace - seen.silent,
        ready is not None and ready.get("status") != "True",
    )


def _lost(node: Mapping[str, Any], old: Sequence[Obj], now: datetime) -> list[Obj]:
    moment = rfc3339(now)
    out = list(old)
    for kind in POSTED:
        known = condition(node, kind)
        if known is None:
            out.append(
                {
                    "type": kind,
                    "status": "Unknown",
                    "reason": "NodeStatusNeverUpdated",
                    "message": "Kubelet never posted node status.",
                    "lastHeartbeatTime": node["metadata"].get("creationTimestamp") or moment,
                    "lastTransitionTime": moment,
                }
            )
        elif known.get("status") != "Unknown":
            out[out.index(known)] = {  # type: ignore[arg-type]
                **known,
                "status": "Unknown",
                "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
                "lastTransitionTime": moment,
            }
    return out


def taints_for(node: Mapping[str, Any], now: datetime) -> list[Obj]:
    """Return the node's taints for its conditions and cordon; other taints stay, in their order."""
    no_schedule: set[str] = set()
    no_execute: set[str] = set()
    for kind, table in BY_CONDITION.items():
        key = table.get((condition(node, kind) or {}).get("status") or "")
        if key is not None:
            no_schedule.add(key)
            if key in NO_EXECUTE_KEYS:
                no_execute.add(key)
    spec = node.get("spec") or {}
    if spec.get("unschedulable"):
        no_schedule.add(UNSCHEDULABLE)
    kept: list[Obj] = []
    for taint in spec.get("taints") or ():
        key, effect = taint.get("key"), taint.get("effect")
        if effect == "NoSchedule" and key in NO_SCHEDULE_KEYS:
            if key in no_schedule:
                no_schedule.discard(key)
                kept.append(taint)
        elif effect == "NoExecute" and key in NO_EXECUTE_KEYS:
            if key in no_execute:
                no_execute.discard(key)
                kept.append(taint)
        else:
            kept.append(taint)
    moment = rfc3339(now)
    kept += [{"key": key, "effect": "NoSchedule"} for key in sorted(no_schedule)]
    kept += [{"key": key, "effect": "NoExecute", "timeAdded": moment} for key in sorted(no_execute)]
    return kept


def leaves_at(
    pod: Mapping[str, Any],
    taints: Iterable[Mapping[str, Any]],
    now: datetime,
    slept_since: Callable[[datetime], timedelta] = lambda _: timedelta(0),
) -> datetime | None:
    """Return when the pod must leave a node with these taints.

    A time up to now means at once, None means never.

    If several taints are tolerated, the toleration that expires first decides. A taint without `timeAdded`
    counts from now. `slept_since(moment)` is the time that this machine slept since then. It does not count,
    because the node could not recover during that time.
    """
    if is_finished(pod) or is_deleting(pod):
        return None
    tolerations = parse_pod(pod).tolerations
    due: list[datetime] = []
    for taint_obj in taints:
        if taint_obj.get("effect") != "NoExecute":
            continue
        taint = Taint(taint_obj["key"], taint_obj.get("value") or "", "NoExecute")
        seconds = _tolerated_for(tolerations, taint)
        if seconds is None:
            continue
        added = parse_rfc3339(taint_obj["timeAdded"]) if taint_obj.get("timeAdded") else now
        due.append(added + span_of(max(0, seconds)) + (slept_since(added) if seconds else timedelta(0)))
    return min(due, default=None)


def _tolerated_for(tolerations: Iterable[Toleration], taint: Taint) -> int | None:
    """Return the seconds for which the taint is tolerated: 0 for not at all, None for ever.

    If several tolerations match, the shortest decides.
    """
    matching = [toleration.seconds for toleration in tolerations if toleration.tolerates(taint)]
    if not matching:
        return 0
    limited = [seconds for seconds in matching if seconds is not None]
    return min(limited) if limited else None


def not_ready_conditions(pod: Mapping[str, Any], now: datetime) -> list[Obj] | None:
    """Return the conditions of a pod on a lost node: not ready. None if the pod already has them."""
    if is_finished(pod) or not is_ready(pod):
        return None
    moment = rfc3339(now)
    return [
        {**entry, "status": "False", "reason": "NodeNotReady", "lastTransitionTime": moment}
        if entry.get("type") == "Ready"
        else entry
        for entry in pod["status"]["conditions"]
    ]


def disrupted_conditions(pod: Mapping[str, Any], reason: str, message: str, now: datetime) -> list[Obj]:
    """Return the pod's conditions with DisruptionTarget set.

    The cluster removes the pod, which did not fail itself.
    """
    others = [
        entry for entry in (pod.get("status") or {}).get("conditions") or () if entry["type"] != "DisruptionTarget"
    ]
    return [
        *others,
        {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": rfc3339(now),
        },
    ]
