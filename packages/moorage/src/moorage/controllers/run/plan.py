"""Convert between a run's objects and its decision: read Jobs, pods and nodes; build the next attempt's Job."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from moorage.decide.runs.interrupted import ended_suspended, was_interrupted
from moorage.decide.runs.kueue import queue_of, without_kueue
from moorage.decide.runs.restarts import INTERRUPTED, LOST_AFTER, AttemptSeen, Observed, PodSeen, StartAttempt
from moorage.model.names import (
    ATTEMPT_LABEL,
    ATTEMPTS_ANNOTATION,
    CANCELLED_ANNOTATION,
    CHECKPOINT_AT_ANNOTATION,
    CHECKPOINT_CHECKED_ANNOTATION,
    ENDED_ANNOTATION,
    IDLE_ANNOTATION,
    MEMORY_KILLS,
    RESTART_LIMIT,
    RESTART_LIMIT_ANNOTATION,
    RUN_LABEL,
    RUNNING_SINCE_ANNOTATION,
    STOPPED_ANNOTATION,
    SUSPENDED_ANNOTATION,
    TIME_LIMIT_ANNOTATION,
    USED_SECONDS_ANNOTATION,
    YIELDS_TO_ANNOTATION,
    attempt_name,
)
from moorage_kube.meta import (
    annotations_of,
    condition,
    controller_ref,
    is_condition_true,
    is_deleting,
    labels_of,
    owner_reference,
    with_condition,
)
from moorage_kube.moments import moment, rfc3339
from moorage_kube.resources import Obj

T = TypeVar("T", int, None)

UNREACHABLE_TAINT = "node.kubernetes.io/unreachable"
TURN_REASON = "TurnOver"  # of the condition DisruptionTarget of a pod that gives its place to another run's
LOST_REASON = "DeletionByMoorage"  # of the condition DisruptionTarget if it was not set before

_JOB_LABELS = (  # set on objects of one Job
    "controller-uid",
    "job-name",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
    MEMORY_KILLS,
)
_OF_ONE_ATTEMPT = (  # annotations that the next attempt must not inherit
    ATTEMPTS_ANNOTATION,
    CANCELLED_ANNOTATION,
    CHECKPOINT_AT_ANNOTATION,
    CHECKPOINT_CHECKED_ANNOTATION,
    ENDED_ANNOTATION,
    IDLE_ANNOTATION,
    MEMORY_KILLS,
    RUNNING_SINCE_ANNOTATION,
    STOPPED_ANNOTATION,
    SUSPENDED_ANNOTATION,
    USED_SECONDS_ANNOTATION,
    YIELDS_TO_ANNOTATION,
    "batch.kubernetes.io/job-tracking",
    "kubectl.kubernetes.io/last-applied-configuration",
)


def observe(
    run: str,
    jobs: Iterable[Obj],
    pods: Iterable[Obj],
    lost_nodes: Mapping[str, datetime | None],
    *,
    now: datetime,
    lost_after: timedelta = LOST_AFTER,
    stopped_at: Mapping[str, datetime] | None = None,
) -> Observed | None:
    """The input of the decision; None if the run has no Job with the name of one of its attempts.

    `stopped_at`: by uid of a Job, the time when one of its pods was asked to stop, unless its runner reports that.
    """
    mine = attempts_of(run, jobs)
    if not mine:
        return None
    # pods by the Job that owns them
    by_job: dict[str, list[PodSeen]] = {}
    for pod in pods:
        owner = controller_ref(pod)
        if owner is not None:
            by_job.setdefault(str(owner["uid"]), []).append(_parse_pod(pod))
    # the first Job has the run's limits and marks; it may be deleted already
    notes = annotations_of(mine[0][1]) if mine[0][0] == 1 else {}
    return Observed(
        run=run,
        attempts=tuple(
            _parse_job(
                number, job, by_job.get(job["metadata"]["uid"], ()), (stopped_at or {}).get(job["metadata"]["uid"])
            )
            for number, job in mine
        ),
        now=now,
        restart_limit=_count(notes.get(RESTART_LIMIT_ANNOTATION), RESTART_LIMIT),
        time_limit_seconds=_count(notes.get(TIME_LIMIT_ANNOTATION), None),
        ended=notes.get(ENDED_ANNOTATION) or None,
        cancelled=CANCELLED_ANNOTATION in notes,
        made=_count(notes.get(ATTEMPTS_ANNOTATION), 1),
        lost_nodes=lost_nodes,
        lost_after=lost_after,
    )


def attempts_of(run: str, jobs: Iterable[Obj]) -> list[tuple[int, Obj]]:
    """The run's Jobs with their numbers, in order.

    A Job whose name is not the computed one belongs to another owner.
    """
    attempts = []
    for job in jobs:
        labels = labels_of(job)
        number = _count(labels.get(ATTEMPT_LABEL), 1)
        if labels.get(RUN_LABEL) == run and number >= 1 and job["metadata"]["name"] == attempt_name(run, number):
            attempts.append((number, job))
    return sorted(attempts, key=lambda attempt: attempt[0])


def is_lost(node: Mapping[str, Any]) -> tuple[bool, datetime | None]:
    """Whether the node does not answer, and since when: Ready is Unknown, or it is tainted unreachable."""
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint.get("key") == UNREACHABLE_TAINT:
            ready = condition(node, "Ready") or {}
            return True, moment(taint.get("timeAdded")) or moment(ready.get("lastTransitionTime"))
    ready_condition = condition(node, "Ready")
    if ready_condition is not None and ready_condition.get("status") == "Unknown":
        return True, moment(ready_condition.get("lastTransitionTime"))
    return False, None


def next_job(run: str, first: Obj, last: Obj, start: StartAttempt) -> Obj:
    """The Job of the next attempt: like the last one, with the remaining retries and time.

    Owned by the first attempt's Job, so that deleting the run deletes all. `ttlSecondsAfterFinished` is left out:
    all attempts are deleted with the first.
    """
    meta, spec = last["metadata"], json.loads(json.dumps(last["spec"]))
    labels = {key: value for key, value in labels_of(last).items() if key not in _JOB_LABELS}
    notes = {key: value for key, value in annotations_of(last).items() if key not in _OF_ONE_ATTEMPT}
    number = str(start.number)
    for key in ("selector", "manualSelector", "ttlSecondsAfterFinished", "suspend"):
        spec.pop(key, None)
    spec["backoffLimit"] = start.backoff_limit
    without_kueue(spec, last)
    template = spec["template"]
    template_meta = template.get("metadata") or {}
    kept = {key: value for key, value in (template_meta.get("labels") or {}).items() if key not in _JOB_LABELS}
    template["metadata"] = {"labels": kept | {RUN_LABEL: run, ATTEMPT_LABEL: number}}
    if template_meta.get("annotations"):
        template["metadata"]["annotations"] = template_meta["annotations"]
    if start.deadline_seconds is not None:
        template["spec"]["activeDeadlineSeconds"] = start.deadline_seconds
    made: Obj = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": attempt_name(run, start.number),
            "namespace": meta["namespace"],
            "labels": labels | {RUN_LABEL: run, ATTEMPT_LABEL: number},
            "ownerReferences": [owner_reference({"apiVersion": "batch/v1", "kind": "Job"} | first)],
        },
        "spec": spec,
    }
    if notes:
        made["metadata"]["annotations"] = notes
    return made


def failed_status(pod: Obj, *, now: datetime) -> Obj:
    """The status of a pod on a lost node, which its node cannot write: failed by a disruption.

    The Job controller removes its finalizer from a pod only when its phase is final, so a delete is not enough.
    """
    conditions = (pod.get("status") or {}).get("conditions") or []
    if not is_condition_true(pod, "DisruptionTarget"):
        conditions = with_condition(
            conditions,
            "DisruptionTarget",
            "True",
            now=rfc3339(now),
            reason=LOST_REASON,
            message="its node has not answered for long, and the pod was being deleted",
        )
    return {"status": {"phase": "Failed", "conditions": conditions}}


def disrupted_status(pod: Obj, to: str, *, now: datetime) -> Obj | None:
    """The status of a pod that ends for another run's turn; None if it is set already."""
    if is_condition_true(pod, "DisruptionTarget"):
        return None
    conditions = with_condition(
        (pod.get("status") or {}).get("conditions") or [],
        "DisruptionTarget",
        "True",
        now=rfc3339(now),
        reason=TURN_REASON,
        message=f"{to} is next in turn and gets its place",
    )
    return {"status": {"conditions": conditions}}


def still_waits(jobs: Sequence[Obj], pods: Sequence[Obj]) -> bool:
    """Whether a run has an active attempt, but no unfinished pod with a node. Pass all its Jobs and pods.

    An active attempt is unfinished, and neither suspended nor being deleted.
    """
    live = [job for job in jobs if not any(is_condition_true(job, end) for end in ("Complete", "Failed"))]
    if not any(not job["spec"].get("suspend") and not is_deleting(job) for job in live):
        return False
    return not any(
        (pod.get("spec") or {}).get("nodeName")
        for pod in pods
        if (pod.get("status") or {}).get("phase") in (None, "Pending", "Running")
    )


def _parse_job(number: int, job: Obj, pods: Sequence[PodSeen], stopped_at: datetime | None) -> AttemptSeen:
    spec, status, notes = job["spec"], job.get("status") or {}, annotations_of(job)
    failed = condition(job, "Failed") if is_condition_true(job, "Failed") else None
    if was_interrupted(job):
        failed = {"reason": INTERRUPTED, "lastTransitionTime": (failed or {}).get("lastTransitionTime")}
    succeeded = is_condition_true(job, "Complete") and failed is None
    started = moment(status.get("startTime"))
    if stopped_at and started and stopped_at < started:
        stopped_at = None  # of a pod before a suspension
    return AttemptSeen(
        number=number,
        job=job["metadata"]["name"],
        uid=job["metadata"]["uid"],
        state="succeeded" if succeeded else "failed" if failed else "active",
        reason=str((failed or {}).get("reason") or ""),
        message=str((failed or {}).get("message") or ""),
        ended=moment(status.get("completionTime") or (failed or {}).get("lastTransitionTime")),
        deleting=is_deleting(job),
        suspended=bool(spec.get("suspend")),
        backoff_limit=int(spec.get("backoffLimit", 6)),
        failed_pods=int(status.get("failed") or 0),
        parallelism=int(spec.get("parallelism", 1)),
        running_since=_when(notes.get(RUNNING_SINCE_ANNOTATION)),
        used_seconds=_count(notes.get(USED_SECONDS_ANNOTATION), None),
        yields_to=notes.get(YIELDS_TO_ANNOTATION, ""),
        is_queued=bool(queue_of(job)) and SUSPENDED_ANNOTATION not in notes,
        ended_suspended=ended_suspended(job),
        stopped_at=stopped_at,
        is_noted=STOPPED_ANNOTATION in notes,
        pods=tuple(sorted(pods, key=lambda pod: pod.name)),
    )


def _parse_pod(pod: Obj) -> PodSeen:
    meta, status = pod["metadata"], pod.get("status") or {}
    ends, out_of_memory = [], False
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        ended = (container.get("state") or {}).get("terminated") or {}
        out_of_memory = out_of_memory or ended.get("reason") == "OOMKilled"
        if (when := moment(ended.get("finishedAt"))) is not None:
            ends.append(when)
    disruption = condition(pod, "DisruptionTarget") if is_condition_true(pod, "DisruptionTarget") else None
    return PodSeen(
        name=meta["name"],
        uid=meta["uid"],
        node=(pod.get("spec") or {}).get("nodeName") or "",
        phase=status.get("phase") or "Pending",
        status_reason=status.get("reason") or "",
        disruption=None if disruption is None else str(disruption.get("reason") or "DisruptionTarget"),
        disrupted_at=None if disruption is None else moment(disruption.get("lastTransitionTime")),
        out_of_memory=out_of_memory,
        started=moment(status.get("startTime")),
        ended=max(ends, default=None),
        deleting_since=moment(meta.get("deletionTimestamp")),
        forced=bool(meta.get("deletionTimestamp")) and meta.get("deletionGracePeriodSeconds") == 0,
    )


def _count(text: str | None, usual: T) -> int | T:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 12 else usual


def _when(text: str | None) -> datetime | None:
    """The time in an annotation. Any user may have written it, so an unreadable value counts as missing."""
    try:
        return moment(text)
    except ValueError:
        return None
