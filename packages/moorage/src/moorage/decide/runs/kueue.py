"""The reason why a Job or a pod waits in a queue of Kueue, and the fields that Kueue leaves in a Job.

A Job is suspended by Kueue until there is quota for it, and again when Kueue takes the quota back. The Job is the
same attempt of its run all the time. A pod that is not owned by such a Job waits behind a gate, and is deleted
when Kueue takes the quota back; workspaces and workers of maps are such pods.
https://kueue.sigs.k8s.io/docs/concepts/workload/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from moorage.model.kueue import (
    ADMISSION_GATE,
    EVICTION_CONDITION,
    EVICTION_PREFIX,
    JOB_UID_LABEL,
    KUEUE,
    QUEUE_LABEL,
)
from moorage.model.names import COMMAND_ANNOTATION, is_dns_label
from moorage_kube.meta import condition, is_condition_true, labels_of
from moorage_kube.resources import Obj
from moorage_kube.scheduling import has_gate


class QueueWait(Struct, frozen=True):
    """A Job or pod that Kueue holds. `queue`: its LocalQueue; `message`: the reason as a sentence."""

    queue: str
    message: str


class Queues(Struct, frozen=True):
    """The LocalQueues of a namespace.

    `names` is None if Kueue is not installed; `known` is False if they cannot be read.
    """

    names: frozenset[str] | None
    known: bool = True


UNKNOWN_QUEUES = Queues(None, known=False)


def queue_problem(queue: str, queues: Queues, namespace: str) -> tuple[str, str] | None:
    """The fault of a requested queue, and a hint. None if it is fine, or not known."""
    if not is_dns_label(queue):
        return f"invalid queue {queue!r}", f"use the name of a LocalQueue: kubectl get localqueues -n {namespace}"
    if not queues.known:
        return None  # Kueue judges it
    if queues.names is None:
        return f"queue {queue!r} not found: Kueue is not installed on this cluster", "leave out the queue"
    if queue not in queues.names:
        there = ", ".join(sorted(queues.names))
        hint = f"available: {there}" if there else "ask an administrator to create a LocalQueue there"
        return f"queue {queue!r} not found in namespace {namespace}", hint
    return None


def queue_of(obj: Mapping[str, Any] | None) -> str:
    """The LocalQueue that an object names. "" if it names none; Kueue does not hold it then."""
    return labels_of(obj).get(QUEUE_LABEL, "") if obj is not None else ""


def is_held(obj: Mapping[str, Any] | None) -> bool:
    """Whether Kueue holds a Job in a queue (it is suspended) or a pod (it has Kueue's gate)."""
    spec = (obj or {}).get("spec") or {}
    return has_gate(spec, ADMISSION_GATE) or bool(spec.get("suspend") and queue_of(obj))


def is_taken_back(pod: Mapping[str, Any]) -> bool:
    """Whether Kueue evicts the pod."""
    ending = condition(pod, EVICTION_CONDITION) or {}
    return ending.get("status") == "True" and str(ending.get("reason") or "").startswith(EVICTION_PREFIX)


def queue_wait(obj: Mapping[str, Any] | None, workloads: Iterable[Mapping[str, Any]]) -> QueueWait | None:
    """The reason why Kueue holds a Job or a pod; None if it does not."""
    if obj is None or not is_held(obj):
        return None
    queue, uid = queue_of(obj), obj["metadata"].get("uid")
    mine = [workload for workload in workloads if labels_of(workload).get(JOB_UID_LABEL) == uid]
    newest = max(mine, key=lambda workload: str(workload["metadata"].get("creationTimestamp") or ""), default=None)
    return QueueWait(queue, _sentence(newest))


def _sentence(workload: Mapping[str, Any] | None) -> str:
    if workload is None:
        return "Kueue has not created a Workload for it: Kueue may not run, or the queue may not exist"
    reserved = condition(workload, "QuotaReserved") or {}
    if (workload.get("spec") or {}).get("active") is False:
        why = str((condition(workload, "Evicted") or {}).get("message") or "")
        return "its Workload is deactivated" + (f": {why}" if why else "")
    if is_condition_true(workload, "Admitted"):
        return "it is admitted, and about to start"
    if reserved.get("status") == "True":
        return "it has quota, and waits for " + (_checks(workload) or "its admission")
    preempted = condition(workload, "Preempted") or {}
    before = f"{preempted['message']}; " if preempted.get("status") == "True" and preempted.get("message") else ""
    return before + str(reserved.get("message") or "it waits for its turn")


def _checks(workload: Mapping[str, Any]) -> str:
    """The admission checks that are not passed, with their messages."""
    checks = (workload.get("status") or {}).get("admissionChecks") or ()
    waiting = [check for check in checks if check.get("state") != "Ready"]
    texts = [
        f"admission check {check.get('name')}" + (f" ({check['message']})" if check.get("message") else "")
        for check in waiting
    ]
    return ", ".join(texts)


def without_kueue(spec: Obj, job: Mapping[str, Any]) -> None:
    """Remove Kueue's fields of the last attempt from the template of a new one: another flavor may fit.

    Runs of Moorage choose nodes by affinity, so the node selector of their Jobs in a queue is Kueue's. Jobs of
    others retain theirs: its author is unknown.
    """
    if not queue_of(job):
        return
    template: Obj = spec["template"]
    meta, pod = template.get("metadata") or {}, template["spec"]
    for table in ("labels", "annotations"):
        kept = {
            key: value
            for key, value in (meta.get(table) or {}).items()
            if key == QUEUE_LABEL or not key.startswith(f"{KUEUE}/")
        }
        if table in meta:
            meta[table] = kept
    if COMMAND_ANNOTATION in (job["metadata"].get("annotations") or {}):
        pod.pop("nodeSelector", None)
    if gates := pod.pop("schedulingGates", None):
        others = [gate for gate in gates if not str(gate.get("name")).startswith(f"{KUEUE}/")]
        if others:
            pod["schedulingGates"] = others
