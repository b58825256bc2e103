"""Convert a Machine and its pods between API objects and `moorage.decide.machines.reservation`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from moorage.decide.admission.injection import tolerations_of
from moorage.decide.explain.starting import starting_of
from moorage.decide.machines.reservation import Guest, Plan, Reservation, Share
from moorage.model.info import PAUSE_IMAGE
from moorage.model.machine import NODE_POOLS, MachineType, Pool, group_of
from moorage.model.names import (
    ALONE,
    BACKFILL_LABEL,
    HOST_IMAGE,
    INFO_CONFIGMAP,
    KEEPS_ITS_NODE,
    KEPT,
    MACHINE_GATE,
    MACHINE_GROUP_LABEL,
    MACHINE_TYPE_LABEL,
    MACHINE_TYPE_PREFIX,
    OVER_BUDGET_ANNOTATION,
    OWNER_LABEL,
    PLACE_ANNOTATION,
    PLACE_AT_ANNOTATION,
    PROMISED,
    PROMISED_TO_LABEL,
    RESERVATION_LABEL,
    RESERVATION_PRIORITY,
    SYSTEM_NAMESPACE,
    WAITS_ANNOTATION,
)
from moorage_kube.meta import (
    annotations_of,
    condition,
    is_condition_true,
    is_deleting,
    labels_of,
    owner_reference,
    with_condition,
)
from moorage_kube.moments import readable_moment, rfc3339, span_of
from moorage_kube.resources import Obj
from moorage_kube.scheduling import is_gpu, parse_pod

CONTAINER = "place"
GRACE_SECONDS = 1  # zero is a force deletion, and a kubelet may still hold the device (kubernetes#130145)
USER_ID = 65535  # the pause image's own
DISRUPTED = "DisruptionTarget"


def is_reservation(pod: Mapping[str, Any]) -> bool:
    """Whether a pod of a machine group is a reservation: it holds a place."""
    return pod["metadata"].get("namespace") == SYSTEM_NAMESPACE and RESERVATION_LABEL in labels_of(pod)


def is_finished(pod: Mapping[str, Any]) -> bool:
    """Whether the pod has succeeded or failed: it holds no resources any more."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def reservation_of(pod: Mapping[str, Any]) -> Reservation:
    """Parse a reservation pod."""
    meta, labels = pod["metadata"], labels_of(pod)
    return Reservation(
        name=meta["name"],
        uid=meta["uid"],
        type=labels.get(MACHINE_TYPE_LABEL, ""),
        node=pod["spec"].get("nodeName") or "",
        promised_to=labels.get(PROMISED_TO_LABEL, ""),
        ending=is_deleting(pod),
        unschedulable=_is_unschedulable(pod),
        alone=labels.get(RESERVATION_LABEL) == ALONE,
        preempted=is_condition_true(pod, DISRUPTED),
        image=str((pod["spec"].get("containers") or [{}])[0].get("image") or ""),
        trouble=_trouble_of(pod),
    )


def _trouble_of(pod: Mapping[str, Any]) -> str:
    starting = starting_of(pod) if pod["spec"].get("nodeName") else None
    if starting is None or not starting.is_trouble:
        return ""
    if not starting.is_unpulled:
        return f"{starting.reason}: {starting.message}"
    return (
        f"image {starting.image} cannot be pulled ({starting.reason}); set pauseImage in the ConfigMap"
        f" {SYSTEM_NAMESPACE}/{INFO_CONFIGMAP} to one that nodes can pull"
    )


def make_other_image(image: str) -> Obj:
    """The strategic merge patch that changes a reservation's image.

    Kubernetes allows this change of a pod's spec.
    """
    return {"spec": {"containers": [{"name": CONTAINER, "image": image}]}}


def guest_of(pod: Mapping[str, Any]) -> Guest:
    """Parse a pod that names a machine type."""
    meta, spec, notes = pod["metadata"], pod["spec"], annotations_of(pod)
    gates = [gate["name"] for gate in spec.get("schedulingGates") or ()]
    gated = MACHINE_GATE in gates
    return Guest(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        type=labels_of(pod).get(MACHINE_TYPE_LABEL, ""),
        owner=labels_of(pod).get(OWNER_LABEL, ""),
        created=meta.get("creationTimestamp") or "",
        gated=gated,
        other_gates=len(gates) > 1,
        place=notes.get(PLACE_ANNOTATION, ""),
        placed_at=readable_moment(notes.get(PLACE_AT_ANNOTATION)),
        node=spec.get("nodeName") or "",
        nominated=(pod.get("status") or {}).get("nominatedNodeName") or "",
        deleting=is_deleting(pod),
        unschedulable=_is_unschedulable(pod),
        pod=parse_pod(pod) if gated else None,
        limit=None if (limit := spec.get("activeDeadlineSeconds")) is None else span_of(limit),
        grace=span_of(grace_of(pod)),
        backfill=labels_of(pod).get(BACKFILL_LABEL) == "true",
        started=readable_moment((pod.get("status") or {}).get("startTime")),
        leaves=readable_moment(meta.get("deletionTimestamp")),
        waits_for=notes.get(WAITS_ANNOTATION, ""),
        is_last=notes.get(OVER_BUDGET_ANNOTATION) == "true",
    )


def grace_of(pod: Mapping[str, Any]) -> int:
    """The grace period of the pod in seconds; Kubernetes' default is 30."""
    given = pod["spec"].get("terminationGracePeriodSeconds")
    return 30 if given is None else int(given)


def shares_of(machine: Mapping[str, Any]) -> tuple[dict[str, Share], datetime | None]:
    """The usage by owner that the Machine's status stores, and its time."""
    status = machine.get("status") or {}
    shares = {
        share["owner"]: Share(used=int(share.get("used") or 0), holding=int(share.get("holding") or 0))
        for share in status.get("shares") or ()
    }
    return shares, readable_moment(status.get("sharesAt"))


def was_ready(machine: Mapping[str, Any]) -> bool:
    """Whether the Ready condition is True for the current spec."""
    seen = (machine.get("status") or {}).get("observedGeneration")
    return seen == machine["metadata"].get("generation") and is_condition_true(machine, "Ready")


def make_reservation(
    machine: Mapping[str, Any],
    pool: Pool,
    kind: MachineType,
    name: str,
    *,
    alone: bool,
    on_processes: bool,
    gpu_scheduler: str = "",
    image: str = PAUSE_IMAGE,
) -> Obj:
    """The pod that holds one place of a type on any node of the pool with this type.

    `alone`: there is no other type.

    `gpu_scheduler`: the scheduler of places with GPUs and their guests; "": the cluster's default.
    `image`: an image with a program that does nothing, for pods that run in containers.
    """
    # the pod only requests resources; on process nodes it runs `sleep`
    container: Obj = {
        "name": CONTAINER,
        "image": image,
        "resources": {"requests": dict(kind.texts), "limits": dict(kind.texts)},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    if on_processes:
        container |= {"image": HOST_IMAGE, "command": ["sleep", "infinity"]}
    # only nodes of the pool with this machine type
    offers = {"key": MACHINE_TYPE_PREFIX + kind.name, "operator": "In", "values": [pool.group]}
    security: Obj = {"seccompProfile": {"type": "RuntimeDefault"}, "runAsNonRoot": True, "runAsUser": USER_ID}
    chosen = {"schedulerName": gpu_scheduler} if gpu_scheduler and any(map(is_gpu, kind.texts)) else {}
    # a low priority: the scheduler preempts this pod for its guest
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": SYSTEM_NAMESPACE,
            "labels": {
                MACHINE_GROUP_LABEL: pool.group,
                MACHINE_TYPE_LABEL: kind.name,
                RESERVATION_LABEL: ALONE if alone else KEPT,
            },
            "annotations": dict(KEEPS_ITS_NODE),
            "ownerReferences": [owner_reference(machine)],
        },
        "spec": {
            "containers": [container],
            "priorityClassName": RESERVATION_PRIORITY,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": security,
            "tolerations": tolerations_of(pool, kind),
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [offers]}]
                    }
                }
            },
            **chosen,
        },
    }


def make_promise(reservation: Mapping[str, Any], guest: Mapping[str, Any], now: datetime) -> Obj:
    """The merge patch of a reservation's status that promises it to a guest, for the version that was read.

    Together with the label it sets the condition that the scheduler sets on a pod before preemption. The condition
    is true from here on. If it equals the scheduler's own text, the scheduler saves a write while the guest waits.
    https://github.com/kubernetes/kubernetes/blob/v1.36.2/pkg/scheduler/framework/preemption/executor.go
    """
    scheduler = guest["spec"].get("schedulerName") or "default-scheduler"
    message = f"{scheduler}: preempting to accommodate a higher priority pod"
    return _relabelled(
        reservation,
        {RESERVATION_LABEL: PROMISED, PROMISED_TO_LABEL: guest["metadata"]["uid"]},
        with_condition(
            (reservation.get("status") or {}).get("conditions") or (),
            DISRUPTED,
            "True",
            now=rfc3339(now),
            reason="PreemptionByScheduler",
            message=message,
        ),
    )


def make_nobodys(reservation: Mapping[str, Any], *, alone: bool) -> Obj:
    """The merge patch that withdraws a reservation's promise. It applies only to the version that was read."""
    conditions = (reservation.get("status") or {}).get("conditions") or ()
    labels = {RESERVATION_LABEL: ALONE if alone else KEPT, PROMISED_TO_LABEL: None}
    return _relabelled(reservation, labels, [each for each in conditions if each["type"] != DISRUPTED])


def _relabelled(
    reservation: Mapping[str, Any], labels: Mapping[str, str | None], conditions: Sequence[Obj]
) -> Obj:
    """A patch of labels and conditions at once, which also clears `managedFields`.

    API servers maintain that record for objects with many writers, and it is a large part of the cost of a write.
    Only we write reservations. Writes of the scheduler and the kubelet that end one get cheaper too.
    https://kubernetes.io/docs/reference/using-api/server-side-apply/#clearing-managedfields
    """
    meta = reservation["metadata"]
    changed: Obj = {"resourceVersion": meta["resourceVersion"], "labels": dict(labels), "managedFields": [{}]}
    return {"metadata": changed, "status": {"conditions": list(conditions)}}


def make_node_pool(machine: Mapping[str, Any]) -> Obj:
    """The MachineNodePool of a Machine: it has the same name and is deleted with it."""
    spec = machine.get("spec") or {}
    return {
        "apiVersion": NODE_POOLS.api_version,
        "kind": NODE_POOLS.kind,
        "metadata": {"name": machine["metadata"]["name"], "ownerReferences": [owner_reference(machine)]},
        "spec": {
            "machineGroupName": group_of(machine),
            "nodePool": list(spec.get("nodePool") or ()),
            "machineTypeStock": [{"name": entry["name"]} for entry in spec.get("machineTypes") or ()],
        },
    }


def make_status(machine: Mapping[str, Any], pool: Pool, decided: Plan, now: datetime) -> Obj | None:
    """The new status of the Machine; None if it is unchanged."""
    status = machine.get("status") or {}
    conditions = list(status.get("conditions") or ())
    for stated in decided.conditions:
        conditions = with_condition(
            conditions,
            stated.type,
            stated.status,
            now=rfc3339(now),
            reason=stated.reason,
            message=stated.message,
        )
    wanted: Obj = {
        "availableMachines": [
            {
                "name": name,
                "usage": {
                    "maximum": count.maximum,
                    "reserved": count.reserved,
                    "used": count.used,
                    "waiting": count.waiting,
                    "pending": count.pending,
                    "unmanaged": count.unmanaged,
                    "unplaced": count.unplaced,
                },
            }
            for name, count in decided.counts.items()
        ],
        "conditions": conditions,
        "observedGeneration": pool.generation,
    }
    if _holding(decided.shares) != _holding(shares_of(machine)[0]):
        wanted["shares"] = [
            {"owner": owner, "used": share.used, "holding": share.holding}
            for owner, share in decided.shares.items()
        ]
        wanted["sharesAt"] = rfc3339(now)
    return wanted if any(status.get(key) != value for key, value in wanted.items()) else None


def refusal(machine: Mapping[str, Any], reason: str, message: str, now: datetime) -> Obj | None:
    """The status of a Machine that cannot be served. None if the status already says so."""
    ready = condition(machine, "Ready")
    if ready is not None and (ready.get("status"), ready.get("reason"), ready.get("message")) == (
        "False",
        reason,
        message,
    ):
        return None
    had: Sequence[Obj] = (machine.get("status") or {}).get("conditions") or ()
    return {
        "conditions": with_condition(had, "Ready", "False", now=rfc3339(now), reason=reason, message=message),
        "observedGeneration": machine["metadata"].get("generation") or 0,
    }


def _holding(shares: Mapping[str, Share]) -> dict[str, int]:
    return {owner: share.holding for owner, share in shares.items() if share.holding}


def _is_unschedulable(pod: Mapping[str, Any]) -> bool:
    scheduled = condition(pod, "PodScheduled")
    return (
        scheduled is not None and scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    )
