"""Decide the steps of a Deployment's rollout from one ReplicaSet to the next.

The rules are those of kube-controller-manager's Deployment controller:
https://kubernetes.io/docs/concepts/workloads/controllers/deployment/

During a rolling update, at most `replicas + maxSurge` pods are requested. Old pods are removed only while at least
`replicas - maxUnavailable` pods stay available. Each step is computed from the observed sizes, so an interrupted
step is computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from moorage_kube.clock import parse_rfc3339, rfc3339
from moorage_kube.integers import INT32_MAX, integer_or
from moorage_kube.meta import annotations_of, condition, is_deleting, labels_of, owner_reference
from moorage_kube.moments import span_of
from moorage_kube.resources import Obj
from moorage_local.controllers.intorpercent import scaled
from moorage_local.controllers.pods import stable, suffix

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAXIMUM = "deployment.kubernetes.io/max-replicas"
NOT_COPIED = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        REVISION,
        "deployment.kubernetes.io/revision-history",
        DESIRED,
        MAXIMUM,
        "deprecated.deployment.rollback.to",
    }
)
PROGRESS_DEADLINE_SECONDS = 600  # the API's default
HISTORY_LIMIT = 10  # the API's default


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One Deployment, its ReplicaSets, and for Recreate the number of live pods of each ReplicaSet, by uid."""

    deployment: Obj
    sets: Sequence[Obj]
    now: datetime
    live_pods: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreateSet:
    set: Obj


@dataclass(frozen=True, slots=True)
class UpdateSet:
    """Merge-patch a ReplicaSet: size, annotations, minReadySeconds. `event` reports a changed size."""

    set: Obj
    patch: Obj
    event: str = ""


@dataclass(frozen=True, slots=True)
class DeleteSet:
    set: Obj


@dataclass(frozen=True, slots=True)
class SetRevision:
    revision: str


@dataclass(frozen=True, slots=True)
class WriteStatus:
    status: Obj


Action = CreateSet | UpdateSet | DeleteSet | SetRevision | WriteStatus


@dataclass(frozen=True, slots=True)
class Plan:
    actions: tuple[Action, ...] = ()
    look_again_in: timedelta | None = None


def plan(seen: Observed) -> Plan:
    """Return the next steps of the rollout; none if it is complete and the status is correct."""
    return _Pass(seen).decide()


class _Pass:
    def __init__(self, seen: Observed) -> None:
        self.seen = seen
        self.deployment = seen.deployment
        self.spec: Mapping[str, Any] = seen.deployment["spec"]
        self.replicas = 1 if self.spec.get("replicas") is None else int(self.spec["replicas"])
        self.surge, self.unavailable = limits_of(seen.deployment)
        self.sets = sorted(
            seen.sets,
            key=lambda replica_set: (
                replica_set["metadata"].get("creationTimestamp") or "",
                replica_set["metadata"]["name"],
            ),
        )
        self.new = find_new(seen.deployment, self.sets)
        self.old = [replica_set for replica_set in self.sets if replica_set is not self.new]
        self.sizes = {replica_set["metadata"]["uid"]: size_of(replica_set) for replica_set in self.sets}
        self.created: Obj | None = None
        self.new_size = 0  # of the set to be created

    def decide(self) -> Plan:
        if is_deleting(self.deployment):
            return Plan(self._status_action())
        if self.spec.get("paused") or self._resized():
            self._scale()
        elif self._strategy() == "Recreate":
            self._recreate()
        else:
            self._roll()
        actions: list[Action] = []
        revision = self._revision()
        if self.created is not None:
            made = self._dressed(self.created, revision)
            actions.append(CreateSet({**made, "spec": {**made["spec"], "replicas": self.new_size}}))
        actions += self._updates(revision)
        if revision is not None and annotations_of(self.deployment).get(REVISION) != revision:
            actions.append(SetRevision(revision))
        actions += self._history()
        actions += self._status_action()
        return Plan(tuple(actions), self._look_again())

    def _strategy(self) -> str:
        return str((self.spec.get("strategy") or {}).get("type") or "RollingUpdate")

    # -- sizes ------------------------------------------------------------------------------------------------

    def _size(self, obj: Obj) -> int:
        return self.sizes[obj["metadata"]["uid"]]

    def _resize(self, obj: Obj, size: int) -> None:
        self.sizes[obj["metadata"]["uid"]] = max(0, size)

    def _resized(self) -> bool:
        """Whether `spec.replicas` was changed since the sets were last sized."""
        for replica_set in self.sets:
            annotated = annotations_of(replica_set).get(DESIRED)
            if self._size(replica_set) > 0 and annotated is not None and annotated != str(self.replicas):
                return True
        return False

    def _ensure_new(self) -> None:
        if self.new is None:
            self.created = make_set(self.deployment)
            self.new_size = 0

    def _roll(self) -> None:
        self._ensure_new()
        if self.new is None:
            self.new_size = self._room_for_new(0)
            return
        size = self._size(self.new)
        if size > self.replicas:
            self._resize(self.new, self.replicas)
            return
        if size < self.replicas:
            grown = size + self._room_for_new(size)
            if grown != size:
                self._resize(self.new, grown)
                return
        self._shrink_old(self.new)

    def _room_for_new(self, size: int) -> int:
        total = sum(self.sizes.values())
        return max(0, min(self.replicas + self.surge - total, self.replicas - size))

    def _shrink_old(self, new: Obj) -> None:
        if not any(self._size(replica_set) for replica_set in self.old):
            return
        least = self.replicas - self.unavailable
        new_unavailable = self._size(new) - available_of(new)
        may_go = sum(self.sizes.values()) - least - new_unavailable
        if may_go <= 0:
            return
        for replica_set in self.old:  # the unhealthy first: they serve no requests
            sick = min(max(0, self._size(replica_set) - available_of(replica_set)), may_go)
            if sick:
                self._resize(replica_set, self._size(replica_set) - sick)
                may_go -= sick
        spare = sum(available_of(replica_set) for replica_set in self.sets) - least
        for replica_set in self.old:
            if spare <= 0:
                break
            gone = min(self._size(replica_set), spare)
            self._resize(replica_set, self._size(replica_set) - gone)
            spare -= gone

    def _recreate(self) -> None:
        if any(self._size(replica_set) for replica_set in self.old):
            for replica_set in self.old:
                self._resize(replica_set, 0)
            return
        if any(self.seen.live_pods.get(replica_set["metadata"]["uid"], 0) for replica_set in self.old):
            return
        self._ensure_new()
        if self.new is None:
            self.new_size = self.replicas
        else:
            self._resize(self.new, self.replicas)

    def _scale(self) -> None:
        """Change the sum of sizes to the wanted one without continuing the rollout."""
        active = [replica_set for replica_set in self.sets if self._size(replica_set)]
        if len(active) <= 1:
            target = active[0] if active else (self.new or (self.sets[-1] if self.sets else None))
            if target is not None:
                self._resize(target, self.replicas)
            return
        if self.new is not None and self._saturated(self.new):
            for replica_set in self.old:
                self._resize(replica_set, 0)
            return
        if self._strategy() != "RollingUpdate":
            return
        allowed = self.replicas + self.surge if self.replicas else 0
        total = sum(self._size(replica_set) for replica_set in active)
        to_add = allowed - total
        if to_add == 0:
            return
        # the largest first; of equal ones the newest when growing, the oldest when shrinking
        by_age = list(reversed(active)) if to_add > 0 else active
        ordered = sorted(by_age, key=lambda replica_set: -self._size(replica_set))
        left = to_add
        for replica_set in ordered:
            if not left:
                break
            size = self._size(replica_set)
            before = integer_or(annotations_of(replica_set).get(MAXIMUM), total, maximum=INT32_MAX) or total
            share = -size if self.replicas == 0 else _rounded(size * allowed, before) - size
            share = max(0, min(share, left)) if to_add > 0 else min(0, max(share, left))
            self._resize(replica_set, size + share)
            left -= share
        if left:
            self._resize(ordered[0], self._size(ordered[0]) + left)

    def _saturated(self, obj: Obj) -> bool:
        return (
            self._size(obj) == self.replicas
            and annotations_of(obj).get(DESIRED) == str(self.replicas)
            and available_of(obj) == self.replicas
        )

    # -- writes -----------------------------------------------------------------------------------------------

    def _revision(self) -> str | None:
        """The revision of the newest ReplicaSet: its own if that is the highest, else the highest plus one."""
        if self.new is None and self.created is None:
            return None
        highest = max((revision_of(replica_set) for replica_set in self.old), default=0)
        own = revision_of(self.new) if self.new is not None else 0
        return str(own if own > highest else highest + 1)

    def _annotations(self, replica_set: Mapping[str, Any], revision: str | None) -> dict[str, str]:
        wanted = {DESIRED: str(self.replicas), MAXIMUM: str(self.replicas + self.surge)}
        if replica_set is self.new or replica_set is self.created:
            wanted |= {
                key: value for key, value in annotations_of(self.deployment).items() if key not in NOT_COPIED
            }
            if revision is not None:
                wanted[REVISION] = revision
        return wanted

    def _dressed(self, obj: Obj, revision: str | None) -> Obj:
        meta = {**obj["metadata"], "annotations": self._annotations(obj, revision)}
        return {**obj, "metadata": meta}

    def _updates(self, revision: str | None) -> list[Action]:
        actions: list[Action] = []
        for replica_set in self.sets:
            size, before = self._size(replica_set), size_of(replica_set)
            patch: Obj = {}
            known = annotations_of(replica_set)
            if replica_set is self.new or size or before:
                changed = {
                    key: value
                    for key, value in self._annotations(replica_set, revision).items()
                    if known.get(key) != value
                }
                if changed:
                    patch["metadata"] = {"annotations": changed}
            if size != before:
                patch.setdefault("spec", {})["replicas"] = size
            least = int(self.spec.get("minReadySeconds") or 0)
            if replica_set is self.new and int(replica_set["spec"].get("minReadySeconds") or 0) != least:
                patch.setdefault("spec", {})["minReadySeconds"] = least
            if patch:
                verb = "up" if size > before else "down"
                name = replica_set["metadata"]["name"]
                event = f"Scaled {verb} replica set {name} from {before} to {size}" if size != before else ""
                actions.append(UpdateSet(replica_set, patch, event))
        return actions

    def _history(self) -> list[Action]:
        limit = self.spec.get("revisionHistoryLimit")
        keep = HISTORY_LIMIT if limit is None else int(limit)
        if self.new is None or not self._complete():
            return []
        idle = [
            replica_set
            for replica_set in self.old
            if not self._size(replica_set)
            and not size_of(replica_set)
            and not (replica_set.get("status") or {}).get("replicas")
            and not is_deleting(replica_set)
            and (replica_set.get("status") or {}).get("observedGeneration", 0)
            >= replica_set["metadata"].get("generation", 1)
        ]
        surplus = len(idle) - keep
        idle.sort(key=lambda replica_set: (revision_of(replica_set), replica_set["metadata"]["name"]))
        return [DeleteSet(replica_set) for replica_set in idle[: max(0, surplus)]]

    # -- status -----------------------------------------------------------------------------------------------

    def _counts(self) -> dict[str, int]:
        statuses = [replica_set.get("status") or {} for replica_set in self.sets]
        total = sum(int(status.get("replicas") or 0) for status in statuses)
        available = sum(int(status.get("availableReplicas") or 0) for status in statuses)
        wanted = sum(size_of(replica_set) for replica_set in self.sets)
        return {
            "replicas": total,
            "updatedReplicas": int(((self.new or {}).get("status") or {}).get("replicas") or 0),
            "readyReplicas": sum(int(status.get("readyReplicas") or 0) for status in statuses),
            "availableReplicas": available,
            "unavailableReplicas": max(0, wanted - available),
        }

    def _complete(self) -> bool:
        counts = self._counts()
        return all(counts[name] == self.replicas for name in ("updatedReplicas", "replicas", "availableReplicas"))

    def _status_action(self) -> tuple[Action, ...]:
        old = self.deployment.get("status") or {}
        counts = self._counts()
        status: Obj = {"observedGeneration": self.deployment["metadata"].get("generation", 1)}
        status |= {name: count for name, count in counts.items() if count}
        if old.get("collisionCount"):
            status["collisionCount"] = old["collisionCount"]
        conditions = self._available(list(old.get("conditions") or ()), counts)
        conditions = self._progressing(conditions, counts, old)
        status["conditions"] = self._failures(conditions)
        clean = {name: value for name, value in old.items() if value}
        return (WriteStatus(status),) if clean != status else ()

    def _failures(self, conditions: list[Obj]) -> list[Obj]:
        """The conditions of its ReplicaSets about pods that could not be created, the new set first."""
        for replica_set in (self.new, *self.old):
            failure = condition(replica_set, "ReplicaFailure") if replica_set is not None else None
            if failure is not None and failure.get("status") == "True":
                reason, message = str(failure.get("reason") or ""), str(failure.get("message") or "")
                return self._with(conditions, "ReplicaFailure", "True", reason, message)
        return [entry for entry in conditions if entry.get("type") != "ReplicaFailure"]

    def _available(self, conditions: list[Obj], counts: Mapping[str, int]) -> list[Obj]:
        if counts["availableReplicas"] >= self.replicas - self.unavailable:
            return self._with(
                conditions, "Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability."
            )
        return self._with(
            conditions,
            "Available",
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        )

    def _progressing(self, conditions: list[Obj], counts: Mapping[str, int], old: Mapping[str, Any]) -> list[Obj]:
        deadline = self._deadline()
        if deadline is None:
            return [entry for entry in conditions if entry.get("type") != "Progressing"]
        known = next((entry for entry in conditions if entry.get("type") == "Progressing"), None)
        paused = bool(self.spec.get("paused"))
        if paused:
            if known is None or known.get("reason") != "ProgressDeadlineExceeded":
                return self._with(conditions, "Progressing", "Unknown", "DeploymentPaused", "Deployment is paused")
            return conditions
        if known is not None and known.get("reason") == "DeploymentPaused":
            return self._with(conditions, "Progressing", "Unknown", "DeploymentResumed", "Deployment is resumed")
        if self.created is not None:
            name = self.created["metadata"]["name"]
            return self._with(
                conditions, "Progressing", "True", "NewReplicaSetCreated", f'Created new replica set "{name}"'
            )
        if self.new is None:
            return conditions
        name = self.new["metadata"]["name"]
        if self._complete():
            if known is not None and known.get("reason") == "NewReplicaSetAvailable" and name in known["message"]:
                return conditions
            text = f'ReplicaSet "{name}" has successfully progressed.'
            return self._with(conditions, "Progressing", "True", "NewReplicaSetAvailable", text)
        if known is None:
            return self._with(
                conditions, "Progressing", "True", "FoundNewReplicaSet", f'Found new replica set "{name}"'
            )
        if self._moved(counts, old):
            text = f'ReplicaSet "{name}" is progressing.'
            return self._with(conditions, "Progressing", "True", "ReplicaSetUpdated", text, touch=True)
        finished = known.get("reason") == "NewReplicaSetAvailable"
        if not finished and known.get("status") != "False" and self._idle_for(known) > deadline:
            text = f'ReplicaSet "{name}" has timed out progressing.'
            return self._with(conditions, "Progressing", "False", "ProgressDeadlineExceeded", text)
        return conditions

    def _moved(self, counts: Mapping[str, int], old: Mapping[str, Any]) -> bool:
        def was(name: str) -> int:
            return int(old.get(name) or 0)

        old_now = counts["replicas"] - counts["updatedReplicas"]
        old_before = was("replicas") - was("updatedReplicas")
        return (
            counts["updatedReplicas"] > was("updatedReplicas")
            or old_now < old_before
            or counts["readyReplicas"] > was("readyReplicas")
            or counts["availableReplicas"] > was("availableReplicas")
        )

    def _idle_for(self, known: Mapping[str, Any]) -> timedelta:
        since = known.get("lastUpdateTime") or known.get("lastTransitionTime")
        return self.seen.now - parse_rfc3339(since) if since else timedelta(0)

    def _deadline(self) -> timedelta | None:
        seconds = self.spec.get("progressDeadlineSeconds", PROGRESS_DEADLINE_SECONDS)
        if seconds is None or int(seconds) >= 2**31 - 1:  # MaxInt32 means none
            return None
        return span_of(seconds)

    def _look_again(self) -> timedelta | None:
        known = condition(self.deployment, "Progressing")
        deadline = self._deadline()
        if known is None or deadline is None or self._complete() or self.spec.get("paused"):
            return None
        if known.get("status") == "False" or known.get("reason") == "NewReplicaSetAvailable":
            return None
        return max(timedelta(0), deadline - self._idle_for(known)) + timedelta(seconds=1)

    def _with(
        self, conditions: list[Obj], kind: str, status: str, reason: str, message: str, *, touch: bool = False
    ) -> list[Obj]:
        """Set a condition. `touch`: change its update time even if nothing else changes."""
        now = rfc3339(self.seen.now)
        known = next((entry for entry in conditions if entry.get("type") == kind), None)
        if (
            known is not None
            and not touch
            and (known.get("status"), known.get("reason"), known.get("message")) == (status, reason, message)
        ):
            return conditions
        since = known["lastTransitionTime"] if known is not None and known.get("status") == status else now
        new = {
            "type": kind,
            "status": status,
            "lastUpdateTime": now,
            "lastTransitionTime": since,
            "reason": reason,
            "message": message,
        }
        if known is None:
            return [*conditions, new]
        return [new if entry is known else entry for entry in conditions]


def limits_of(deployment: Mapping[str, Any]) -> tuple[int, int]:
    """Return (maxSurge, maxUnavailable) as numbers: surge rounded up, unavailable down, never both zero."""
    spec = deployment["spec"]
    strategy = spec.get("strategy") or {}
    replicas = 1 if spec.get("replicas") is None else int(spec["replicas"])
    if strategy.get("type") == "Recreate":
        return 0, replicas
    rolling = strategy.get("rollingUpdate") or {}
    surge = scaled(rolling.get("maxSurge", "25%"), replicas, up=True)
    unavailable = scaled(rolling.get("maxUnavailable", "25%"), replicas, up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return surge, min(unavailable, replicas)


def size_of(replica_set: Mapping[str, Any]) -> int:
    """Return the number of pods that a ReplicaSet requests."""
    replicas = replica_set["spec"].get("replicas")
    return 1 if replicas is None else int(replicas)


def available_of(replica_set: Mapping[str, Any]) -> int:
    return int((replica_set.get("status") or {}).get("availableReplicas") or 0)


def revision_of(replica_set: Mapping[str, Any]) -> int:
    text = annotations_of(replica_set).get(REVISION) or "0"
    return integer_or(text, 0)


def bare_template(template: Mapping[str, Any]) -> Obj:
    """Return the template without its hash label, for comparison."""
    meta = {key: value for key, value in (template.get("metadata") or {}).items() if value}
    labels = {key: value for key, value in (meta.get("labels") or {}).items() if key != HASH_LABEL}
    meta.pop("labels", None)
    if labels:
        meta["labels"] = labels
    return {"metadata": meta, "spec": template.get("spec") or {}}


def find_new(deployment: Mapping[str, Any], sets: Sequence[Obj]) -> Obj | None:
    """Return the ReplicaSet with the Deployment's template; the oldest if there are several."""
    wanted = bare_template(deployment["spec"]["template"])
    return next(
        (replica_set for replica_set in sets if bare_template(replica_set["spec"]["template"]) == wanted), None
    )


def make_set(deployment: Mapping[str, Any]) -> Obj:
    """Return the ReplicaSet for the Deployment's template; its name has the hash of the template."""
    meta, spec = deployment["metadata"], deployment["spec"]
    template = bare_template(spec["template"])
    collisions = (deployment.get("status") or {}).get("collisionCount") or 0
    digest = suffix("template", stable(template), collisions, length=9)
    labels = {**labels_of(template), HASH_LABEL: digest}
    selector = spec.get("selector") or {}
    made: Obj = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{meta['name'][:53].rstrip('-.')}-{digest}",
            "namespace": meta["namespace"],
            "labels": labels,
            "ownerReferences": [owner_reference(deployment)],
        },
        "spec": {
            "replicas": 0,
            "selector": {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), HASH_LABEL: digest}},
            "template": {
                "metadata": {**template["metadata"], "labels": labels},
                "spec": template["spec"],
            },
        },
    }
    if spec.get("minReadySeconds"):
        made["spec"]["minReadySeconds"] = int(spec["minReadySeconds"])
    return made


def _rounded(numerator: int, denominator: int) -> int:
    """Return the quotient, with halves rounded up."""
    return (2 * numerator + denominator) // (2 * denominator)
