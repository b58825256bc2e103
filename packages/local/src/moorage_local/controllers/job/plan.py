"""Decide the next step of a Job: pods to create or remove, its status, and when to check again.

Nothing here reads the clock or the network. The rules are those of kube-controller-manager's Job controller
(batch/v1, Kubernetes 1.32): https://kubernetes.io/docs/concepts/workloads/controllers/job/

Counting. Each pod has the finalizer `batch.kubernetes.io/job-tracking` from its creation, so it cannot vanish
uncounted. A finished pod takes three writes, each of which may be the last before a crash:

1. its uid enters `status.uncountedTerminatedPods` (for a success of an Indexed Job, its index enters
   `status.completedIndexes`, which cannot count twice);
2. its finalizer is removed;
3. once the pod of that uid is without the finalizer, one status write drops the uid and raises the counter.

Only the pass that *reads* the pod without its finalizer does step 3, so the plan can be cut off after any step and
made again. Children are not created twice, because names are computed from the observed state
(`pods.child_names`), and the controller does not decide on a cache that lacks its own writes (`freshness`).

Not supported, and refused by failing the Job with reason `NotSupported`: `backoffLimitPerIndex`,
`maxFailedIndexes` and the action `FailIndex`, which needs them.

One module of over 600 lines because it is one pass: every method reads the counts of the ones before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from moorage_kube.clock import parse_rfc3339, rfc3339
from moorage_kube.integers import INT32_MAX, integer_or
from moorage_kube.meta import annotations_of, condition, is_condition_true, is_deleting
from moorage_kube.moments import span_of
from moorage_kube.resources import Obj
from moorage_local.controllers.job.failure_policy import judge
from moorage_local.controllers.job.indexes import first_missing, format_indexes, named, parse_indexes
from moorage_local.controllers.pods import (
    child_names,
    finished_at,
    is_active,
    is_ready,
    is_terminating,
    phase_of,
    pod_from_template,
    removal_order,
)
from moorage_local.podspecs import container_statuses_of

FINALIZER = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
UID_LABEL = "batch.kubernetes.io/controller-uid"
NAME_LABEL = "batch.kubernetes.io/job-name"
OLD_UID_LABEL = "controller-uid"
OLD_NAME_LABEL = "job-name"
MANAGED_BY = "kubernetes.io/job-controller"

BACKOFF = timedelta(seconds=10)  # after the first failure; doubled by each further one
BACKOFF_MAX = timedelta(minutes=6)
UNCOUNTED_MAX = 500  # uids in one status, so that it stays under 20 KB
PODS_MAX = 500  # pods made or removed in one pass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Number of failures since the last success, and time of the latest failure."""

    failures: int = 0
    last_failure: datetime | None = None

    def remaining(self, now: datetime) -> timedelta:
        """Return the time to wait before the next pod; zero for no wait."""
        if not self.failures or self.last_failure is None:
            return timedelta(0)
        wait = min(BACKOFF * (1 << min(self.failures - 1, 16)), BACKOFF_MAX)
        return max(timedelta(0), wait - (now - self.last_failure))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One Job and the pods it controls, at one moment.

    `backoff` is the last decision; None when not known (after a restart): then it is computed from the pods.
    """

    job: Obj
    pods: Sequence[Obj]
    now: datetime
    backoff: Backoff | None = None


@dataclass(frozen=True, slots=True)
class CreatePod:
    pod: Obj


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod.

    With `uncount`, the tracking finalizer is removed first: the pod does not count as a failure.
    """

    pod: Obj
    uncount: bool = False


@dataclass(frozen=True, slots=True)
class WriteStatus:
    status: Obj


@dataclass(frozen=True, slots=True)
class ReleasePod:
    """Remove the tracking finalizer of a pod that is recorded in the status."""

    pod: Obj


@dataclass(frozen=True, slots=True)
class Tell:
    """An event about the Job."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete a finished Job whose TTL has expired."""


Action = CreatePod | DeletePod | WriteStatus | ReleasePod | Tell | DeleteJob


@dataclass(frozen=True, slots=True)
class Plan:
    actions: tuple[Action, ...] = ()
    look_again_in: timedelta | None = None
    backoff: Backoff = field(default_factory=Backoff)  # to remember once the actions were taken


def is_job_finished(job: Mapping[str, Any]) -> bool:
    return is_condition_true(job, "Complete") or is_condition_true(job, "Failed")


def is_indexed(job: Mapping[str, Any]) -> bool:
    return (job["spec"].get("completionMode") or "NonIndexed") == "Indexed"


def completion_index(pod: Mapping[str, Any]) -> int | None:
    """The pod's index, or None if it has none."""
    index = integer_or(annotations_of(pod).get(INDEX), -1, maximum=INT32_MAX)
    return index if index >= 0 else None


def is_tracked(pod: Mapping[str, Any]) -> bool:
    return FINALIZER in (pod["metadata"].get("finalizers") or ())


def replaces_failed_only(job: Mapping[str, Any]) -> bool:
    """Whether podReplacementPolicy is Failed; a podFailurePolicy implies it."""
    spec = job["spec"]
    given = spec.get("podReplacementPolicy")
    return bool(given == "Failed" or (given is None and spec.get("podFailurePolicy")))


def plan(seen: Observed) -> Plan:
    """Return the steps that bring the Job closer to its spec; none if it is settled."""
    job = seen.job
    if (job["spec"].get("managedBy") or MANAGED_BY) != MANAGED_BY:
        return Plan()
    if is_job_finished(job):
        return _after_the_end(seen)
    return _Pass(seen).decide()


def _after_the_end(seen: Observed) -> Plan:
    released = tuple(ReleasePod(pod) for pod in seen.pods if is_tracked(pod))
    ttl = seen.job["spec"].get("ttlSecondsAfterFinished")
    if ttl is None or is_deleting(seen.job):
        return Plan(released)
    ended = condition(seen.job, "Complete") if is_condition_true(seen.job, "Complete") else None
    ended = ended or condition(seen.job, "Failed") or {}
    due = parse_rfc3339(ended["lastTransitionTime"]) + span_of(ttl)
    if due <= seen.now:
        return Plan((*released, DeleteJob()))
    return Plan(released, due - seen.now)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The end of the Job: `kind` FailureTarget or SuccessCriteriaMet now, `final` once all pods are deleted."""

    kind: str
    reason: str
    message: str

    @property
    def final(self) -> str:
        return "Failed" if self.kind == "FailureTarget" else "Complete"


class _Pass:
    """One decision, with its intermediate results."""

    def __init__(self, seen: Observed) -> None:
        self.seen = seen
        self.job = seen.job
        self.spec: Mapping[str, Any] = seen.job["spec"]
        self.now = rfc3339(seen.now)
        self.old: Obj = seen.job.get("status") or {}
        self.status: Obj = {**self.old, "conditions": list(self.old.get("conditions") or ())}
        self.pods = sorted(seen.pods, key=_by_index)
        self.indexed = is_indexed(seen.job)
        self.completions: int | None = self.spec.get("completions")
        self.parallelism = _number(self.spec.get("parallelism"), 1)
        if self.completions is None and self.spec.get("parallelism") is None:
            self.completions = 1
        self.suspended = bool(self.spec.get("suspend"))
        self.policy = self.spec.get("podFailurePolicy")
        self.before: list[Action] = []  # creations and deletions
        self.releases: list[Action] = []
        self.after: list[Action] = []  # events
        self.waits: list[timedelta] = []
        uncounted = self.old.get("uncountedTerminatedPods") or {}
        self.uncounted_succeeded: list[str] = list(uncounted.get("succeeded") or ())
        self.uncounted_failed: list[str] = list(uncounted.get("failed") or ())

    def decide(self) -> Plan:
        # count pods, ended ones once each
        self._count_released()
        active = [pod for pod in self.pods if is_active(pod)]
        terminating = sum(1 for pod in self.pods if is_terminating(pod))
        succeeded_now = self._new(self.uncounted_succeeded, lambda pod: phase_of(pod) == "Succeeded")
        failed_now = self._new(self.uncounted_failed, self._failed)
        self.succeeded = self.status["succeeded_"] + len(self.uncounted_succeeded) + len(succeeded_now)
        self.failed = (
            self.status["failed_"]
            + len(self.uncounted_failed)
            + sum(1 for pod in failed_now if judge(self.policy, pod).counts)
        )
        if not self.old.get("startTime") and not self.suspended:
            self.status["startTime"] = self.now
        # has the Job ended, and how?
        backoff = self._backoff(succeeded_now, failed_now)
        outcome = self._outcome()
        if self.indexed:
            limit = self.completions or 0
            self.done_before = parse_indexes(self.old.get("completedIndexes") or "", limit)
            indexes = {
                completion_index(pod) for pod in self.pods if phase_of(pod) == "Succeeded" and is_tracked(pod)
            }
            self.done = self.done_before | {index for index in indexes if index is not None and index < limit}
            self.succeeded = len(self.done)
            outcome = outcome or self._success_policy()
        # delete and make pods
        left, deleted, made = active, [], 0
        if outcome is not None:
            deleted = active
            self.before += [DeletePod(pod) for pod in deleted]
            left = []
        elif not is_deleting(self.job):
            deleted, made = self._manage(active, terminating, backoff)
            gone = {pod["metadata"]["uid"] for pod in deleted}
            left = [pod for pod in active if pod["metadata"]["uid"] not in gone]
        # is it complete with the pods that are left?
        if outcome is None:
            if self._complete(len(left) + made):
                outcome = _Outcome(
                    "SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods"
                )
            elif not is_deleting(self.job):
                self._suspend_condition()
        # record the counts, then the outcome
        self.status["active"] = len(left) + made
        self.status["ready"] = sum(1 for pod in left if is_ready(pod))
        self.status["terminating"] = terminating + len(deleted)
        full = self._track(outcome)
        if outcome is not None:
            self._conclude(outcome, full)
        return self._plan(backoff)

    # -- counting ---------------------------------------------------------------------------------------------

    def _count_released(self) -> None:
        """Step 3: recorded uids of pods without the finalizer become counts."""
        tracked = {pod["metadata"]["uid"] for pod in self.pods if is_tracked(pod)}
        left_succeeded = [uid for uid in self.uncounted_succeeded if uid in tracked]
        left_failed = [uid for uid in self.uncounted_failed if uid in tracked]
        self.status["succeeded_"] = (
            _number(self.old.get("succeeded"), 0) + len(self.uncounted_succeeded) - len(left_succeeded)
        )
        self.status["failed_"] = _number(self.old.get("failed"), 0) + len(self.uncounted_failed) - len(left_failed)
        self.uncounted_succeeded, self.uncounted_failed = left_succeeded, left_failed

    def _new(self, uncounted: Sequence[str], test: Any) -> list[Obj]:
        """Return tracked pods with a valid index that pass the test and are not recorded yet."""
        known = set(uncounted)
        return [
            pod
            for pod in self.pods
            if is_tracked(pod) and pod["metadata"]["uid"] not in known and self._valid(pod) and test(pod)
        ]

    def _valid(self, pod: Obj) -> bool:
        if not self.indexed:
            return True
        index = completion_index(pod)
        return index is not None and index < (self.completions or 0)

    def _failed(self, pod: Obj) -> bool:
        """Whether the pod is Failed.

        A pod that is being deleted also counts, unless only failed pods are replaced.
        """
        if phase_of(pod) == "Failed":
            return True
        return not replaces_failed_only(self.job) and is_terminating(pod)

    def _track(self, outcome: _Outcome | None) -> bool:
        """Step 1 and 2: record the ended pods, and release them. Return whether the list is full."""
        new_indexes: set[int] = set()
        fails_all = outcome is not None and outcome.kind == "FailureTarget"
        full = False
        for pod in self.pods:
            if not is_tracked(pod):
                continue
            failed, succeeded = self._failed(pod), phase_of(pod) == "Succeeded"
            if not (failed or succeeded or outcome is not None or is_deleting(self.job)):
                continue
            uid = pod["metadata"]["uid"]
            self.releases.append(ReleasePod(pod))
            if succeeded and uid not in self.uncounted_failed:
                if self.indexed:
                    index = completion_index(pod)
                    if index is not None and index in self.done and index not in self.done_before:
                        new_indexes.add(index)
                elif uid not in self.uncounted_succeeded:
                    self.uncounted_succeeded.append(uid)
            elif (
                (failed or fails_all)
                and uid not in self.uncounted_failed
                and self._valid(pod)
                and judge(self.policy, pod).counts
            ):
                self.uncounted_failed.append(uid)
            if len(new_indexes) + len(self.uncounted_succeeded) + len(self.uncounted_failed) >= UNCOUNTED_MAX:
                full = True
                break
        if self.indexed:
            done = self.done_before | new_indexes
            self.status["succeeded_"] = len(done)
            self.status["completedIndexes"] = format_indexes(done)
        return full

    # -- how it ends ------------------------------------------------------------------------------------------

    def _outcome(self) -> _Outcome | None:
        for kind in ("SuccessCriteriaMet", "FailureTarget"):
            known = condition(self.job, kind)
            if known is not None and known.get("status") == "True":
                return _Outcome(kind, known.get("reason") or "", known.get("message") or "")
        unsupported = _unsupported(self.spec)
        if unsupported:
            return _Outcome("FailureTarget", "NotSupported", unsupported)
        if self.policy:
            for pod in self.pods:
                if self._failed(pod):
                    message = judge(self.policy, pod).fail_job
                    if message is not None:
                        return _Outcome("FailureTarget", "PodFailurePolicy", message)
        limit = _number(self.spec.get("backoffLimit"), 6)
        if self.failed > limit or self._restarted_too_often(limit):
            return _Outcome("FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        deadline = self.spec.get("activeDeadlineSeconds")
        if deadline is not None and not self.suspended:
            started = self.status.get("startTime") or self.now
            left = span_of(deadline) - (self.seen.now - parse_rfc3339(started))
            if left <= timedelta(0):
                return _Outcome(
                    "FailureTarget", "DeadlineExceeded", "Job was active longer than specified deadline"
                )
            self.waits.append(left)
        return None

    def _restarted_too_often(self, limit: int) -> bool:
        """Whether restarts within the pods exceed the limit; they count with restartPolicy OnFailure."""
        if ((self.spec["template"].get("spec") or {}).get("restartPolicy")) != "OnFailure":
            return False
        restarts = sum(
            int(container_status.get("restartCount") or 0)
            for pod in self.pods
            if phase_of(pod) in ("Running", "Pending")
            for container_status in container_statuses_of(pod.get("status"))
        )
        return restarts > 0 if limit == 0 else restarts >= limit

    def _success_policy(self) -> _Outcome | None:
        for number, rule in enumerate((self.spec.get("successPolicy") or {}).get("rules") or ()):
            met = self.done
            if rule.get("succeededIndexes"):
                met, all_met = named(rule["succeededIndexes"], self.done, self.completions or 0)
                if rule.get("succeededCount") is None and not all_met:
                    continue
            if rule.get("succeededCount") is not None and len(met) < int(rule["succeededCount"]):
                continue
            return _Outcome("SuccessCriteriaMet", "SuccessPolicy", f"Matched rules at index {number}")
        return None

    def _complete(self, active: int) -> bool:
        if self.completions is None:
            return self.succeeded > 0 and active == 0
        return self.succeeded >= self.completions and active == 0

    def _conclude(self, outcome: _Outcome, full: bool) -> None:
        """Set the reason of the end, and the final condition once every pod is deleted and counted."""
        if condition(self.job, outcome.kind) is None:
            self._set_condition(outcome.kind, "True", outcome.reason, outcome.message)
        if self.uncounted_succeeded or self.uncounted_failed or full or self.status["terminating"]:
            return
        self._set_condition(outcome.final, "True", outcome.reason, outcome.message)
        if outcome.final == "Complete":
            self.status["completionTime"] = self.now
            if self.completions is not None and self.status["succeeded_"] > self.completions:
                self.after.append(
                    Tell(
                        "Warning",
                        "TooManySucceededPods",
                        "Too many succeeded pods running after completion count reached",
                    )
                )
            self.after.append(Tell("Normal", "Completed", "Job completed"))
        else:
            self.after.append(Tell("Warning", outcome.reason, outcome.message))

    def _suspend_condition(self) -> None:
        known = condition(self.job, "Suspended")
        if self.suspended:
            if known is None or known.get("status") != "True":
                self._set_condition("Suspended", "True", "JobSuspended", "Job suspended")
                self.after.append(Tell("Normal", "Suspended", "Job suspended"))
        elif known is not None and known.get("status") == "True":
            self._set_condition("Suspended", "False", "JobResumed", "Job resumed")
            self.after.append(Tell("Normal", "Resumed", "Job resumed"))
            self.status["startTime"] = self.now  # the deadline does not run while suspended

    def _set_condition(self, kind: str, status: str, reason: str, message: str) -> None:
        new = {
            "type": kind,
            "status": status,
            "lastProbeTime": self.now,
            "lastTransitionTime": self.now,
            "reason": reason,
            "message": message,
        }
        conditions = [entry for entry in self.status["conditions"] if entry.get("type") != kind]
        self.status["conditions"] = [*conditions, new]

    # -- pods -------------------------------------------------------------------------------------------------

    def _manage(self, active: list[Obj], terminating: int, backoff: Backoff) -> tuple[list[Obj], int]:
        """Remove surplus pods, or create missing ones. Return the removed pods and the number of created ones."""
        if self.suspended:
            self.before += [DeletePod(pod, uncount=True) for pod in active]
            return active, 0
        if self.completions is None:
            wanted = len(active) if self.succeeded > 0 else self.parallelism
        else:
            wanted = max(0, min(self.completions - self.succeeded, self.parallelism))
        surplus = self._surplus(active, max(0, len(active) - wanted))[:PODS_MAX]
        if surplus:
            self.before += [DeletePod(pod, uncount=True) for pod in surplus]
            return surplus, 0
        missing = wanted - len(active) - (terminating if replaces_failed_only(self.job) else 0)
        if missing <= 0:
            return [], 0
        wait = backoff.remaining(self.seen.now)
        if wait > timedelta(0):
            self.waits.append(wait)
            return [], 0
        pods = self._make(active, min(missing, PODS_MAX))
        self.before += [CreatePod(pod) for pod in pods]
        return [], len(pods)

    def _surplus(self, active: list[Obj], at_least: int) -> list[Obj]:
        chosen: list[Obj] = []
        left = active
        if self.indexed:
            left = []
            by_index: dict[int | None, list[Obj]] = {}
            for pod in active:
                if self._valid(pod):
                    by_index.setdefault(completion_index(pod), []).append(pod)
                else:
                    chosen.append(pod)
            for twins in by_index.values():
                ordered = removal_order(twins)
                chosen += ordered[:-1]
                left.append(ordered[-1])
        if len(chosen) < at_least:
            chosen += removal_order(left)[: at_least - len(chosen)]
        return chosen

    def _make(self, active: list[Obj], count: int) -> list[Obj]:
        meta = self.job["metadata"]
        labels = {
            UID_LABEL: meta["uid"],
            NAME_LABEL: meta["name"],
            OLD_UID_LABEL: meta["uid"],
            OLD_NAME_LABEL: meta["name"],
        }
        template = self.spec["template"]
        if not self.indexed:
            names = child_names(meta["name"], self.job, self.pods, count)
            return [
                pod_from_template(self.job, template, name, labels=labels, finalizers=(FINALIZER,))
                for name in names
            ]
        taken = set(self.done) | {completion_index(pod) for pod in active}
        if replaces_failed_only(self.job):
            taken |= {completion_index(pod) for pod in self.pods if is_terminating(pod)}
        indexes = first_missing({index for index in taken if index is not None}, self.completions or 0, count)
        pods = []
        for index in indexes:
            base = f"{meta['name']}-{index}"
            pod = pod_from_template(
                self.job,
                template,
                child_names(base, self.job, self.pods, 1)[0],
                labels=labels | {INDEX: str(index)},
                annotations={INDEX: str(index)},
                finalizers=(FINALIZER,),
                base=base,
            )
            _tell_index(pod["spec"])
            pod["spec"].setdefault("hostname", base)
            pods.append(pod)
        return pods

    def _backoff(self, succeeded: list[Obj], failed: list[Obj]) -> Backoff:
        if self.seen.backoff is None:
            succeeded = [pod for pod in self.pods if phase_of(pod) == "Succeeded"]
            failed = [pod for pod in self.pods if self._failed(pod)]
            known = Backoff()
        else:
            known = self.seen.backoff
        if not succeeded and not failed:
            return known
        ends = sorted(finished_at(pod) for pod in failed)
        if succeeded:
            last = max(finished_at(pod) for pod in succeeded)
            ends = [end for end in ends if end > last]
            return Backoff(len(ends), ends[-1] if ends else None)
        return Backoff(known.failures + len(ends), ends[-1])

    # -- the answer -------------------------------------------------------------------------------------------

    def _plan(self, backoff: Backoff) -> Plan:
        uncounted: Obj = {}
        if self.uncounted_succeeded:
            uncounted["succeeded"] = self.uncounted_succeeded
        if self.uncounted_failed:
            uncounted["failed"] = self.uncounted_failed
        status = {name: value for name, value in self.status.items() if name not in ("succeeded_", "failed_")}
        status["uncountedTerminatedPods"] = uncounted
        for name, value in (
            ("active", self.status["active"]),
            ("succeeded", self.status["succeeded_"]),
            ("failed", self.status["failed_"]),
        ):
            status.pop(name, None)
            if value:
                status[name] = value  # these are omitted when zero, as the API server writes them
        for name in ("conditions", "completedIndexes"):
            if not status.get(name):
                status.pop(name, None)
        old = {name: value for name, value in self.old.items() if value or name not in _OMITTED}
        write = [WriteStatus(status)] if status != old else []
        actions = (*self.before, *write, *self.releases, *self.after)
        return Plan(actions, min(self.waits, default=None), backoff)


_OMITTED = ("active", "succeeded", "failed", "conditions", "completedIndexes")


def _number(value: Any, default: int) -> int:
    return default if value is None else int(value)


def _by_index(pod: Obj) -> tuple[int, str]:
    index = completion_index(pod)
    return (-1 if index is None else index, pod["metadata"]["name"])


def _unsupported(spec: Mapping[str, Any]) -> str | None:
    for name in ("backoffLimitPerIndex", "maxFailedIndexes"):
        if spec.get(name) is not None:
            return f"spec.{name} is not supported by the local cluster; use spec.backoffLimit"
    for number, rule in enumerate((spec.get("podFailurePolicy") or {}).get("rules") or ()):
        if rule.get("action") == "FailIndex":
            return (
                f"spec.podFailurePolicy.rules[{number}].action FailIndex is not supported by the local cluster; "
                "use FailJob, Ignore or Count"
            )
    return None


def _tell_index(spec: Obj) -> None:
    """Set JOB_COMPLETION_INDEX in all containers that lack it. The containers must be copies."""
    variable = {
        "name": "JOB_COMPLETION_INDEX",
        "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}},
    }
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            spec[kind] = [
                container
                if any(env.get("name") == "JOB_COMPLETION_INDEX" for env in container.get("env") or ())
                else {**container, "env": [*(container.get("env") or ()), variable]}
                for container in spec[kind]
            ]
