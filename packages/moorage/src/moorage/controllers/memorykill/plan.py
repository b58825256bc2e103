"""Convert objects to the input of the decision about an owner's kills, and the result to patches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from moorage.decide.runs.killplan import Release, Seen, is_outdated, pod_seen
from moorage.decide.runs.memorykills import BombRule, Kill, Ledger, Owner, known_of, ledger_from, owner_of, wanders
from moorage.model.names import (
    MEMORY_GATE,
    MEMORY_HELD_ANNOTATION,
    MEMORY_KILL_ANNOTATION,
    MEMORY_KILLS,
    MEMORY_LABEL,
    MEMORY_RELEASE_ANNOTATION,
)
from moorage_kube.meta import annotations_of, is_deleting, labels_of
from moorage_kube.resources import Obj


def observe(
    owner: Owner,
    pods: Iterable[Obj],
    keeper: Mapping[str, Any] | None,
    ledger: Ledger,
    rule: BombRule,
    now: datetime,
) -> Seen:
    """The input of the decision.

    `keeper`: the owner object of the pods, such as a Deployment; None if it was not read. `ledger`: the kills that
    an annotation of this object stores.
    """
    mine = [pod for pod in pods if (controller := owner_of(pod)) is not None and controller.uid == owner.uid]
    kills, forgiven, _ = known_of(mine, ledger, owner.uid)
    stateful = keeper if owner.kind == "StatefulSet" else None
    return Seen(
        rule=rule,
        owner=owner,
        kills=kills,
        forgiven=forgiven,
        ledger=ledger,
        pods=tuple(
            pod_seen(pod, owner, kills.values(), outdated=is_outdated(pod, stateful))
            for pod in mine
            if not is_deleting(pod) and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        ),
        now=now,
    )


def ledger_of(keeper: Mapping[str, Any]) -> Ledger:
    """The kills that an annotation of the owner object stores."""
    return ledger_from(annotations_of(keeper).get(MEMORY_KILLS))


def ledger_patch(ledger: Ledger, keeper: Mapping[str, Any]) -> Obj:
    """The merge patch that stores the kills on the owner object. It applies only to the version that was read."""
    meta = keeper["metadata"]
    return {
        "metadata": {
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
            "labels": {MEMORY_KILLS: "true"},
            "annotations": {MEMORY_KILLS: ledger.to_text()},
        }
    }


def release_patch(pod: Mapping[str, Any], release: Release) -> Obj:
    """The merge patch that removes our gate and retains the others."""
    meta, spec = pod["metadata"], pod["spec"]
    notes: dict[str, str | None] = {}
    if release.state is None:
        annotations = (MEMORY_HELD_ANNOTATION, MEMORY_KILL_ANNOTATION, MEMORY_RELEASE_ANNOTATION)
        notes = {key: None for key in annotations if key in annotations_of(pod)}
    labels = {MEMORY_LABEL: release.state} if MEMORY_LABEL in labels_of(pod) or release.state else {}
    return {
        "metadata": {
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
            "labels": labels,
            "annotations": notes,
        },
        "spec": {
            "schedulingGates": [gate for gate in spec.get("schedulingGates") or () if gate["name"] != MEMORY_GATE]
        },
    }


def kill_message(kill: Kill, owner: Owner, rule: BombRule) -> str:
    """The message of the owner's event for a kill."""
    message = str(kill)
    message = message[0].upper() + message[1:]
    if not wanders(owner):
        return f"{message}; its replacement stays on that node"
    if not rule.holds:
        return f"{message}; its replacement may do the same to the next node: give it more memory, or limit it"
    if rule.level == "fill" and rule.escalation is not None:
        return f"{message}; its replacement gets more memory, or is held where it has the most that is allowed"
    return f"{message}; its replacement is held: give the template more memory to go on"


def held_message(pod: str) -> str:
    """The message of the event of a held pod."""
    return (
        "Held: another pod of its owner was killed with the same memory. Give the template more memory, or release"
        f" the pod as it is: kubectl annotate pod {pod} {MEMORY_RELEASE_ANNOTATION}=yes"
    )
