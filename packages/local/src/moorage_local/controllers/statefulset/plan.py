"""Decide the next step of a StatefulSet: pods and claims to create, pods to remove, its status.

One pass handles the pods by their ordinals. With `OrderedReady` it stops at the first that is not yet in its
wanted state: a pod is created only when those before it are available, and removed only when those after it are
deleted. So a pod that never becomes ready blocks the set, even after a fix of the template: it has to be
deleted by hand (kubernetes/kubernetes#67250), as in Kubernetes. A pod that failed or ended is deleted and created
again under its name. Beyond the wanted size it is only deleted, when its turn comes: Kubernetes would wait without
end for it to become ready when another before it is not ready either. A new template replaces one pod at a time,
also with `Parallel`: `maxUnavailable` is behind the feature gate MaxUnavailableStatefulSet, which is off in 1.36,
and the API server drops the field.

https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from moorage_kube.meta import is_deleting, labels_of, owner_reference
from moorage_kube.moments import span_of
from moorage_kube.resources import Obj
from moorage_local.controllers.pods import available_in, is_finished, is_ready, phase_of, pod_from_template
from moorage_local.controllers.revisions import (
    HASH_LABEL,
    RevisionAction,
    find_revision,
    surplus_revisions,
    template_of,
)

NAME_LABEL = "statefulset.kubernetes.io/pod-name"
INDEX_LABEL = "apps.kubernetes.io/pod-index"
_ORDINAL = re.compile(r"(.*)-([0-9]+)")
PODS_MAX = 500  # pods made in one pass
STALE = timedelta(seconds=1)  # before looking again at a claim that has to go first
NOW = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One StatefulSet, its pods and revisions, and the claims of its namespace by name."""

    set: Obj
    pods: Sequence[Obj]
    revisions: Sequence[Obj]
    claims: Mapping[str, Obj] = field(default_factory=dict)
    now: datetime


@dataclass(frozen=True, slots=True)
class CreatePod:
    pod: Obj


@dataclass(frozen=True, slots=True)
class DeletePod:
    pod: Obj


@dataclass(frozen=True, slots=True)
class CreateClaim:
    claim: Obj


@dataclass(frozen=True, slots=True)
class OwnClaim:
    """Set the owners of a claim: it is deleted with them."""

    claim: Obj
    owners: list[Obj]


@dataclass(frozen=True, slots=True)
class WriteStatus:
    status: Obj


Action = RevisionAction | CreatePod | DeletePod | CreateClaim | OwnClaim | WriteStatus


@dataclass(frozen=True, slots=True)
class Plan:
    actions: tuple[Action, ...] = ()
    look_again_in: timedelta | None = None


def ordinal_of(owner_name: str, pod: Mapping[str, Any]) -> int | None:
    """Return the ordinal in the pod's name; None if the name does not belong to this set."""
    match = _ORDINAL.fullmatch(pod["metadata"]["name"])
    return int(match[2]) if match and match[1] == owner_name else None


def plan(seen: Observed) -> Plan:
    """Return the steps of one pass; none if the set is settled."""
    return _Pass(seen).run()


class _Pass:
    def __init__(self, seen: Observed) -> None:
        self.seen = seen
        self.set, self.spec = seen.set, seen.set["spec"]
        self.name: str = seen.set["metadata"]["name"]
        self.start = int((self.spec.get("ordinals") or {}).get("start") or 0)
        self.size = 1 if self.spec.get("replicas") is None else int(self.spec["replicas"])
        self.in_order = self.spec.get("podManagementPolicy") != "Parallel"
        self.min_ready = span_of(self.spec.get("minReadySeconds") or 0)
        self.update, self.revising = find_revision(seen.set, seen.revisions)
        wanted = (seen.set.get("status") or {}).get("currentRevision")
        known = (revision for revision in seen.revisions if revision["metadata"]["name"] == wanted)
        self.current = next(known, self.update)
        self.replicas: dict[int, Obj] = {}
        self.condemned: list[Obj] = []
        for pod in sorted(seen.pods, key=lambda pod: ordinal_of(self.name, pod) or 0):
            at = ordinal_of(self.name, pod)
            if at is None:
                continue
            if self.start <= at < self.start + self.size:
                self.replicas[at] = pod
            else:
                self.condemned.append(pod)
        self.actions: list[Action] = []
        self.look_again: timedelta | None = None
        self.fewer_current = 0

    def run(self) -> Plan:
        self.actions += self.revising
        if not is_deleting(self.set) and self._keep_replicas() and self._remove_condemned():
            self._update()
        status = self._status()
        old = self.set.get("status") or {}
        if {key: value for key, value in old.items() if value or key in status} != status:
            self.actions.append(WriteStatus(status))
        live = [revision["metadata"]["name"] for revision in (self.current, self.update)]
        live += [labels_of(pod).get(HASH_LABEL, "") for pod in self.seen.pods]
        self.actions += surplus_revisions(self.set, self.seen.revisions, live)
        waits = [wait for pod in self.seen.pods if (wait := self._wait(pod)) > NOW]
        waits += [self.look_again] if self.look_again is not None else []
        return Plan(tuple(self.actions), min(waits, default=None))

    def _wait(self, pod: Obj) -> timedelta:
        return available_in(pod, self.min_ready, self.seen.now) if is_ready(pod) else NOW

    def _ready(self, pod: Obj) -> bool:
        return phase_of(pod) == "Running" and is_ready(pod)

    def _available(self, pod: Obj) -> bool:
        return self._ready(pod) and self._wait(pod) <= NOW

    def _healthy(self, pod: Obj | None) -> bool:
        return pod is not None and self._available(pod) and not is_deleting(pod)

    # -- the pods there should be

    def _keep_replicas(self) -> bool:
        """Create or replace the required pods. Return whether the pass may continue with the surplus pods."""
        made = 0
        # all that there are, and as many that are missing as one pass makes
        first = range(self.start, self.start + min(self.size, PODS_MAX + len(self.replicas)))
        for at in sorted({*first, *self.replicas}):
            pod = self.replicas.get(at)
            if pod is None:
                if made >= PODS_MAX or not self._make(at):
                    if self.in_order:
                        return False
                    continue
                made += 1
                if self.in_order:
                    return False
                continue
            if is_finished(pod):
                if not is_deleting(pod):
                    self.actions.append(DeletePod(pod))
                if self.in_order:
                    return False
                continue
            if phase_of(pod) == "Pending" and not is_deleting(pod):
                self._make_claims(at)
            if self.in_order and not self._healthy(pod):
                return False
            if not is_deleting(pod):
                self._own_claims(at, pod, scaled_down=False)
        return True

    def _make(self, at: int) -> bool:
        """Create a pod and its missing claims; return whether it was created.

        It must wait while a claim of the earlier pod with this ordinal is being deleted or has a pod as owner.
        """
        for name in self._claim_names(at).values():
            claim = self.seen.claims.get(name)
            refs = (claim["metadata"].get("ownerReferences") or ()) if claim is not None else ()
            if claim is not None and (is_deleting(claim) or any(ref["kind"] == "Pod" for ref in refs)):
                self.look_again = STALE
                return False
        self._make_claims(at)
        self.actions.append(CreatePod(self._pod(at)))
        return True

    def _pod(self, at: int) -> Obj:
        revision = self.current if self._stays_current(at) else self.update
        name = f"{self.name}-{at}"
        labels = {NAME_LABEL: name, INDEX_LABEL: str(at), HASH_LABEL: revision["metadata"]["name"]}
        pod = pod_from_template(self.set, template_of(revision), name, labels=labels)
        spec = pod["spec"]
        claimed = self._claim_names(at)
        volumes = [
            {"name": volume, "persistentVolumeClaim": {"claimName": claim}} for volume, claim in claimed.items()
        ]
        volumes += [volume for volume in spec.get("volumes") or () if volume["name"] not in claimed]
        if volumes:
            spec["volumes"] = volumes
        spec["hostname"] = name
        if self.spec.get("serviceName"):
            spec["subdomain"] = self.spec["serviceName"]
        return pod

    def _stays_current(self, at: int) -> bool:
        """Whether a new pod is created from the old revision."""
        strategy = self.spec.get("updateStrategy") or {}
        if strategy.get("type", "RollingUpdate") != "RollingUpdate":
            return False
        rolling = strategy.get("rollingUpdate")
        if rolling is None:
            still = int((self.set.get("status") or {}).get("currentReplicas") or 0)
        else:
            still = int(rolling.get("partition") or 0)
        return at < self.start + still

    # -- claims

    def _claim_names(self, at: int) -> dict[str, str]:
        """Return the names of the claims, by the names of their volumes."""
        return {
            template["metadata"]["name"]: f"{template['metadata']['name']}-{self.name}-{at}"
            for template in self.spec.get("volumeClaimTemplates") or ()
        }

    def _make_claims(self, at: int) -> None:
        for template in self.spec.get("volumeClaimTemplates") or ():
            given = template["metadata"]
            name = f"{given['name']}-{self.name}-{at}"
            if name in self.seen.claims:
                continue
            meta: Obj = {"name": name, "namespace": self.set["metadata"]["namespace"]}
            selected = (self.spec.get("selector") or {}).get("matchLabels") or {}
            if labels := {**(given.get("labels") or {}), **selected}:
                meta["labels"] = labels
            if given.get("annotations"):
                meta["annotations"] = dict(given["annotations"])
            if self._retention("whenDeleted") == "Delete":
                meta["ownerReferences"] = [owner_reference(self.set)]
            spec = dict(template["spec"])
            claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}
            self.actions.append(CreateClaim(claim))

    def _retention(self, when: str) -> str:
        policy: Mapping[str, str] = self.spec.get("persistentVolumeClaimRetentionPolicy") or {}
        return policy.get(when) or "Retain"

    def _own_claims(self, at: int, pod: Obj, *, scaled_down: bool) -> None:
        """Set the owner of the claims: the set, the pod or none, by the retention policy."""
        owner: Obj | None = None
        if scaled_down and self._retention("whenScaled") == "Delete":
            owner = owner_reference({"apiVersion": "v1", "kind": "Pod", **pod})
        elif self._retention("whenDeleted") == "Delete":
            owner = owner_reference(self.set)
        for name in self._claim_names(at).values():
            claim = self.seen.claims.get(name)
            if claim is None or is_deleting(claim):
                continue
            had = claim["metadata"].get("ownerReferences") or []
            ours = (self.set["metadata"]["uid"], pod["metadata"]["uid"])
            wanted = [ref for ref in had if ref["uid"] not in ours] + ([owner] if owner else [])
            if {ref["uid"] for ref in wanted} != {ref["uid"] for ref in had}:
                self.actions.append(OwnClaim(claim, wanted))

    # -- the pods there should not be

    def _remove_condemned(self) -> bool:
        """Delete the surplus pods, the highest ordinals first, and one at a time if the order matters."""
        unhealthy = [pod for pod in (*self.replicas.values(), *self.condemned) if not self._healthy(pod)]
        missing = self.size - len(self.replicas)
        first = unhealthy[0] if unhealthy and not missing else None
        for pod in reversed(self.condemned):
            self._own_claims(ordinal_of(self.name, pod) or 0, pod, scaled_down=True)
        for pod in reversed(self.condemned):
            if is_deleting(pod):
                if self.in_order:
                    return False
                continue
            # a pod that ended never becomes available: there is nothing to wait for
            if self.in_order and not self._available(pod) and not is_finished(pod) and pod is not first:
                return False
            self.actions.append(DeletePod(pod))
            if self.in_order:
                return False
        return True

    # -- the pods of an old revision

    def _update(self) -> None:
        strategy = self.spec.get("updateStrategy") or {}
        if strategy.get("type", "RollingUpdate") != "RollingUpdate":
            return
        partition = int((strategy.get("rollingUpdate") or {}).get("partition") or 0)
        for at in reversed(range(self.start + partition, self.start + self.size)):
            pod = self.replicas.get(at)
            if pod is not None and not is_deleting(pod) and self._is_old(pod):
                if not is_finished(pod):
                    self.actions.append(DeletePod(pod))
                self.fewer_current += 1
                return
            if not self._healthy(pod):
                return

    def _is_old(self, pod: Obj) -> bool:
        newest: str = self.update["metadata"]["name"]
        return labels_of(pod).get(HASH_LABEL) != newest

    # -- status

    def _status(self) -> Obj:
        mine = [pod for pod in self.seen.pods if ordinal_of(self.name, pod) is not None]
        staying = [labels_of(pod).get(HASH_LABEL) for pod in mine if not is_deleting(pod)]
        current, update = self.current["metadata"]["name"], self.update["metadata"]["name"]
        ready = sum(1 for pod in mine if self._ready(pod))
        updated = staying.count(update)
        still = staying.count(current) - (self.fewer_current if current != update else 0)
        strategy = (self.spec.get("updateStrategy") or {}).get("type", "RollingUpdate")
        if strategy == "RollingUpdate" and updated == ready == len(mine) == self.size:
            current, still = update, updated
        counts = {"readyReplicas": ready, "currentReplicas": max(0, still), "updatedReplicas": updated}
        status: Obj = {
            "observedGeneration": self.set["metadata"].get("generation", 1),
            "replicas": len(mine),
            "availableReplicas": sum(1 for pod in mine if self._available(pod)),
            "currentRevision": current,
            "updateRevision": update,
            "collisionCount": int((self.set.get("status") or {}).get("collisionCount") or 0),
        }
        return status | {name: count for name, count in counts.items() if count}
