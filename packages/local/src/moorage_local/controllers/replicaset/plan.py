"""Decide which pods a ReplicaSet creates or removes, and its status.

https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from moorage_kube.clock import rfc3339
from moorage_kube.meta import is_deleting, labels_of, with_condition
from moorage_kube.moments import span_of
from moorage_kube.resources import Obj
from moorage_local.controllers.pods import (
    available_in,
    child_names,
    is_active,
    is_ready,
    pod_from_template,
    removal_order,
)

FAILURE = "ReplicaFailure"
PODS_MAX = 500  # pods made or removed in one pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One ReplicaSet and the pods that it controls, at one moment."""

    set: Obj
    pods: Sequence[Obj]
    now: datetime


@dataclass(frozen=True, slots=True)
class CreatePod:
    pod: Obj


@dataclass(frozen=True, slots=True)
class DeletePod:
    pod: Obj


@dataclass(frozen=True, slots=True)
class WriteStatus:
    status: Obj


Action = CreatePod | DeletePod | WriteStatus


@dataclass(frozen=True, slots=True)
class Plan:
    actions: tuple[Action, ...] = ()
    look_again_in: timedelta | None = None


def plan(seen: Observed) -> Plan:
    """Return the steps that bring the number of pods to `spec.replicas`; none if it is settled."""
    meta, spec = seen.set["metadata"], seen.set["spec"]
    wanted = 1 if spec.get("replicas") is None else int(spec["replicas"])
    active = [pod for pod in seen.pods if is_active(pod)]
    actions: list[Action] = []
    if not is_deleting(seen.set):
        missing = wanted - len(active)
        if missing > 0:
            names = child_names(meta["name"], seen.set, seen.pods, min(missing, PODS_MAX))
            actions += [CreatePod(pod_from_template(seen.set, spec["template"], name)) for name in names]
        elif missing < 0:
            crowd = Counter((pod.get("spec") or {}).get("nodeName") or "" for pod in active)
            surplus = removal_order(active, crowd=crowd)[: min(-missing, PODS_MAX)]
            actions += [DeletePod(pod) for pod in surplus]
    min_ready = span_of(spec.get("minReadySeconds") or 0)
    ready = [pod for pod in active if is_ready(pod)]
    waits = [available_in(pod, min_ready, seen.now) for pod in ready]
    template = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    labelled = sum(1 for pod in active if template.items() <= labels_of(pod).items())
    status: Obj = {
        "replicas": len(active),
        "observedGeneration": meta.get("generation", 1),
    }
    for name, count in (
        ("fullyLabeledReplicas", labelled),
        ("readyReplicas", len(ready)),
        ("availableReplicas", sum(1 for wait in waits if wait <= timedelta(0))),
    ):
        if count:
            status[name] = count
    old = seen.set.get("status") or {}
    # a failure to create a pod stays until all are created
    missing_any = len(active) < wanted
    conditions = [
        condition for condition in old.get("conditions") or () if missing_any or condition.get("type") != FAILURE
    ]
    if conditions:
        status["conditions"] = conditions
    if {name: value for name, value in old.items() if value or name == "replicas"} != status:
        actions.append(WriteStatus(status))
    return Plan(tuple(actions), min((wait for wait in waits if wait > timedelta(0)), default=None))


def with_failure(owner: Obj, message: str, now: datetime) -> Obj | None:
    """Return the status with the reason why a pod could not be created, like the real controller.

    None if the status already has it.
    """
    status: Obj = owner.get("status") or {}
    conditions = status.get("conditions") or []
    known = next((condition for condition in conditions if condition.get("type") == FAILURE), None)
    if known is not None and known.get("message") == message:
        return None
    changed = with_condition(conditions, FAILURE, "True", now=rfc3339(now), reason="FailedCreate", message=message)
    return {"replicas": 0} | status | {"conditions": changed}
