"""Stored facts about a run's Jobs and pods, and about the pods of workflows' steps; a run shown from them.

A stored pod is a fact about the past: the node of an attempt and its end. The *present* state of a run follows
only from the objects in the cluster, so that all readers see the same, with and without stored facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from moorage.api.storedrecords import StoredAttempt, StoredPod, StoredRun
from moorage.decide.runs.state import AttemptView, PodView, RunView, State, attempt_of, higher, view_pod, view_run
from moorage.model.argo import NODE_NAME_ANNOTATION, WORKFLOW_LABEL, WORKFLOWS
from moorage.model.labels import user_labels
from moorage.model.names import (
    ATTEMPT_LABEL,
    CANCELLED_ANNOTATION,
    CHECKPOINT_ANNOTATION,
    CHECKPOINT_AT_ANNOTATION,
    CHECKPOINT_CHECKED_ANNOTATION,
    CHECKPOINT_FROM_ANNOTATION,
    CODE_ANNOTATION,
    COMMAND_ANNOTATION,
    ENDED_ANNOTATION,
    GIT_ANNOTATION,
    OWNER_ANNOTATION,
    OWNER_LABEL,
    RESTART_LIMIT_ANNOTATION,
    RUN_LABEL,
    STOPPED_ANNOTATION,
    TIME_LIMIT_ANNOTATION,
)
from moorage_kube.meta import annotations_of, controller_ref, labels_of
from moorage_kube.moments import moment
from moorage_kube.resources import Obj
from moorage_kube.scheduling import parse_pod

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"  # annotation of a pod, as kubectl reads it
MAIN_CONTAINER = "main"  # of a step that has one
EXECUTOR_CONTAINERS = frozenset({"init", "wait"})  # of a step, ours or Argo's; authors may not use these names
DELETED = "Deleted"  # reason of a pod that was removed before it ended
_LABELS = (RUN_LABEL, ATTEMPT_LABEL, OWNER_LABEL)
_ANNOTATIONS = (
    OWNER_ANNOTATION,
    CODE_ANNOTATION,
    COMMAND_ANNOTATION,
    GIT_ANNOTATION,
    CHECKPOINT_ANNOTATION,
    CHECKPOINT_AT_ANNOTATION,
    CHECKPOINT_CHECKED_ANNOTATION,
    CHECKPOINT_FROM_ANNOTATION,
    RESTART_LIMIT_ANNOTATION,
    ENDED_ANNOTATION,
    CANCELLED_ANNOTATION,
    STOPPED_ANNOTATION,
    TIME_LIMIT_ANNOTATION,
)
_COUNTS = ("active", "terminating", "succeeded", "failed", "startTime", "completionTime", "conditions")


class Seen(Struct, frozen=True, kw_only=True):
    """All inputs of one pass of the keeper.

    `known`: the stored facts about these objects; in a pass over everything, all stored facts about existing
    objects. `deleted`: uid → the last seen version of the object, and the time of its deletion.
    """

    known: StoredRun = field(default_factory=StoredRun)
    jobs: Iterable[Obj] = ()
    pods: Iterable[Obj] = ()
    deleted: Mapping[str, tuple[Obj, datetime]] = field(default_factory=dict)
    gpu_types: Mapping[str, str] = field(default_factory=dict)  # node → GPU type
    sampled: Mapping[str, int] = field(default_factory=dict)  # uid of a pod → bytes of memory in use, of late
    now: datetime


def plan(seen: Seen) -> StoredRun:
    """The rows to write. Planning again on the written rows returns none."""
    attempts = {job.job_uid: job for job in seen.known.attempts}
    pods = {pod.uid: pod for pod in seen.known.pods}
    wanted_attempts: dict[str, StoredAttempt] = {}
    wanted_pods: dict[str, StoredPod] = {}
    for job in seen.jobs:
        wanted_attempts[uid_of(job)] = attempt_facts(job)
    for pod in seen.pods:
        wanted_pods[uid_of(pod)] = pod_facts(pod, seen.gpu_types)
    for uid, (obj, at) in seen.deleted.items():
        if is_job(obj):
            if uid not in wanted_attempts:
                kept = attempts.get(uid)
                wanted_attempts[uid] = kept if kept and kept.gone else _gone_attempt(attempt_facts(obj), at)
        elif uid not in wanted_pods:
            known = pods.get(uid)
            wanted_pods[uid] = (
                known if known and known.gone else gone_pod(pod_facts(obj, seen.gpu_types), at, ended=at)
            )
    for uid, attempt in attempts.items():
        if uid not in wanted_attempts and attempt.gone is None:
            wanted_attempts[uid] = _gone_attempt(attempt, seen.now)
    for uid, pod_row in pods.items():
        if uid not in wanted_pods and pod_row.gone is None:
            wanted_pods[uid] = gone_pod(pod_row, seen.now, ended=None)  # its deletion was not watched
    for uid, facts in list(wanted_pods.items()):
        known_facts = _with_what_was_known(facts, pods.get(uid))
        peak = higher(known_facts.peak_memory_bytes, seen.sampled.get(uid))
        wanted_pods[uid] = msgspec.structs.replace(known_facts, peak_memory_bytes=peak)
    return StoredRun(
        attempts=tuple(job for uid, job in wanted_attempts.items() if job != attempts.get(uid)),
        pods=tuple(pod for uid, pod in wanted_pods.items() if pod != pods.get(uid)),
    )


def is_of_run(obj: Obj) -> bool:
    """Whether a Job or pod belongs to a run."""
    return bool(labels_of(obj).get(RUN_LABEL))


def is_of_step(pod: Obj) -> bool:
    """Whether a pod belongs to a step of a Workflow, ours or Argo's."""
    workflow = labels_of(pod).get(WORKFLOW_LABEL)
    if not workflow or is_job(pod) or NODE_NAME_ANNOTATION not in annotations_of(pod):
        return False
    owner = controller_ref(pod) or {}
    return owner.get("kind") == WORKFLOWS.kind and owner.get("name") == workflow


def is_recorded(obj: Obj) -> bool:
    """Whether its facts and its log are stored."""
    return is_of_run(obj) or is_of_step(obj)


def is_job(obj: Obj) -> bool:
    return "template" in (obj.get("spec") or {})


def uid_of(obj: Obj) -> str:
    return str(obj["metadata"].get("uid") or "")


def attempt_facts(job: Obj) -> StoredAttempt:
    """The fields of a Job that a run view needs."""
    meta = job["metadata"]
    owner = next((ref for ref in meta.get("ownerReferences") or () if ref.get("kind") == "Job"), None)
    return StoredAttempt(
        job_uid=uid_of(job),
        run_uid=str((owner or meta).get("uid") or ""),
        namespace=meta.get("namespace") or "default",
        run=labels_of(job).get(RUN_LABEL) or meta["name"],
        number=attempt_of(job),
        document=_document(job),
        created=moment(meta.get("creationTimestamp")),
    )


def pod_facts(pod: Obj, gpu_types: Mapping[str, str]) -> StoredPod:
    """The stored fields of a pod."""
    is_step = is_of_step(pod)
    view, gpus = view_pod(_shown_first(pod) if is_step else pod), parse_pod(pod).gpus
    return StoredPod(
        uid=uid_of(pod),
        job_uid=str((controller_ref(pod) or {}).get("uid") or ""),
        namespace=pod["metadata"].get("namespace") or "default",
        run="" if is_step else labels_of(pod).get(RUN_LABEL, ""),
        workflow=labels_of(pod)[WORKFLOW_LABEL] if is_step else "",
        attempt=view.attempt,
        name=view.name,
        node=view.node,
        phase=view.phase,
        created=view.created,
        started=view.started,
        ended=view.ended,
        exit_code=view.exit_code,
        reason=view.reason,
        message=view.message,
        memory_limit_bytes=view.memory_limit_bytes,
        peak_memory_bytes=view.peak_memory_bytes,
        gpus=gpus,
        gpu_type=gpu_types.get(view.node, "") if gpus else "",
        disrupted=view.disrupted,
        container=shown_container(pod) or "",
    )


def shown_container(pod: Obj) -> str | None:
    """The container with the pod's log: other containers may have been added to the pod."""
    containers = (pod.get("spec") or {}).get("containers") or [{}]
    return annotations_of(pod).get(DEFAULT_CONTAINER) or containers[0].get("name") or None


class OtherLog(Struct, frozen=True, kw_only=True):
    """The log of another container than the pod's own, once it has started."""

    container: str
    ended: bool  # it prints no more


def other_logs(pod: Obj) -> tuple[OtherLog, ...]:
    """The logs that are stored in addition to the pod's own: of the containers that a step's author wrote.

    Containers of the executor are left out. Pods of runs have only one log.
    """
    if not is_of_step(pod):
        return ()
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    shown = shown_container(pod)
    is_over = status.get("phase") in ("Succeeded", "Failed")
    restarted = {
        container.get("name")
        for container in spec.get("initContainers") or ()
        if container.get("restartPolicy") == "Always"
    }
    logs = []
    for row in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        name, state = str(row.get("name") or ""), row.get("state") or {}
        has_started = "running" in state or "terminated" in state or "terminated" in (row.get("lastState") or {})
        if not name or name == shown or name in EXECUTOR_CONTAINERS or not has_started:
            continue
        is_final = spec.get("restartPolicy") == "Never" and name not in restarted and "terminated" in state
        logs.append(OtherLog(container=name, ended=is_over or is_final))
    return tuple(logs)


def has_own_log(pod: StoredPod, container: str) -> bool:
    """Whether the log of this container is the pod's own. Older rows do not name the container: it is `main`
    mostly.
    """
    return container in ("", pod.container or MAIN_CONTAINER)


def _shown_first(pod: Obj) -> Obj:
    """Move the container with the log of the step to the first place. Kubelets list containers by name."""
    shown = shown_container(pod)
    spec, status = pod.get("spec") or {}, pod.get("status") or {}

    def first(rows: Iterable[Obj] | None) -> list[Obj]:
        return sorted(rows or (), key=lambda row: row.get("name") != shown)

    return pod | {
        "spec": spec | {"containers": first(spec.get("containers"))},
        "status": status | {"containerStatuses": first(status.get("containerStatuses"))},
    }


def gone_pod(pod: StoredPod, at: datetime, *, ended: datetime | None) -> StoredPod:
    """A pod with a deleted object. One that had not ended counts as failed, as for Kubernetes' own Jobs.

    `ended`: the end of a container that was not reported to have ended; None if unknown.
    """
    if pod.phase in ("Succeeded", "Failed"):
        return msgspec.structs.replace(pod, gone=at)
    return msgspec.structs.replace(
        pod,
        phase="Failed",
        reason=pod.reason or DELETED,
        ended=pod.ended or (ended if pod.started else None),
        gone=at,
    )


def stored_view(pod: StoredPod) -> PodView:
    """A stored pod as a part of its run."""
    return PodView(
        name=pod.name,
        uid=pod.uid,
        attempt=pod.attempt,
        phase=pod.phase,
        node=pod.node,
        created=pod.created,
        started=pod.started,
        ended=pod.ended,
        exit_code=pod.exit_code,
        reason=pod.reason,
        message=pod.message,
        memory_limit_bytes=pod.memory_limit_bytes,
        peak_memory_bytes=pod.peak_memory_bytes,
        disrupted=pod.disrupted,
        gone=True,
    )


def stored_pods_of(kept: StoredRun, jobs: Iterable[Obj]) -> tuple[PodView, ...]:
    """The stored pods of these Jobs. Pods of an earlier run with the same name belong to other Jobs."""
    uids = {uid_of(job) for job in jobs}
    return tuple(stored_view(pod) for pod in kept.pods if pod.job_uid in uids)


def needs_records(run: RunView, *, peaks: bool) -> bool:
    """Whether a run view needs the stored facts: pods may be deleted.

    `peaks`: the view includes the memory use of each pod. Where a pod does not report it, the measured one is
    stored.
    """
    return any(attempt.misses_pods for attempt in run.attempts) or (
        peaks and any(pod.started and pod.peak_memory_bytes is None and not pod.gone for pod in run.pods)
    )


def view_deleted(kept: StoredRun) -> RunView | None:
    """A run with deleted Jobs, from the stored facts. None if no deleted Job of it is stored."""
    attempts = [attempt for attempt in kept.attempts if attempt.document]
    if not attempts:
        return None
    jobs: list[Any] = [attempt.document for attempt in attempts]
    types = {pod.node: pod.gpu_type for pod in kept.pods if pod.gpu_type}
    run = view_run(jobs, (), node_types=types, kept=stored_pods_of(kept, jobs))
    gone = max((attempt.gone for attempt in attempts if attempt.gone), default=None)
    ends = [pod.ended for pod in run.pods if pod.ended]
    return replace(
        run,
        state=State.DELETED,
        reason=f"was {run.state}" if run.state.ended else "deleted before it ended",
        ended=run.ended or max(ends, default=gone),
        deadline=None,
        attempts=tuple(_deleted_attempt(attempt) for attempt in run.attempts),
    )


def _deleted_attempt(attempt: AttemptView) -> AttemptView:
    is_over = attempt.state in ("Succeeded", "Failed")
    return attempt if is_over else replace(attempt, state=str(State.DELETED))


def _gone_attempt(attempt: StoredAttempt, at: datetime) -> StoredAttempt:
    return msgspec.structs.replace(attempt, gone=at)


def _with_what_was_known(pod: StoredPod, known: StoredPod | None) -> StoredPod:
    """Add earlier facts that are missing now: a deleted node has no type, a pod with an overwritten status no
    times.
    """
    if known is None or (known.gone and pod.gone is None):  # it was thought deleted, and exists
        return pod
    return msgspec.structs.replace(
        pod,
        node=pod.node or known.node,
        started=pod.started or known.started,
        ended=pod.ended or known.ended,
        # an exit code was seen by the node; a later one may be a guess about processes that it lost
        exit_code=pod.exit_code if known.exit_code is None else known.exit_code,
        peak_memory_bytes=higher(pod.peak_memory_bytes, known.peak_memory_bytes),
        gpu_type=pod.gpu_type or known.gpu_type,
        disrupted=pod.disrupted or known.disrupted,
    )


def _document(job: Obj) -> dict[str, Any]:
    """The fields of a Job that `view_run` reads."""
    meta, spec, status = job["metadata"], job.get("spec") or {}, job.get("status") or {}
    template = {"metadata": {}} | (spec.get("template") or {})
    pod = template.get("spec") or {}
    containers = [
        {"name": container.get("name", ""), "resources": container.get("resources") or {}}
        for container in pod.get("containers") or ()
    ]
    return {
        "metadata": {
            name: meta[name] for name in ("name", "namespace", "uid", "creationTimestamp") if name in meta
        }
        | {
            "labels": user_labels(labels_of(job)) | _chosen(labels_of(job), _LABELS),
            "annotations": _chosen(annotations_of(job), _ANNOTATIONS),
        },
        "spec": {name: spec[name] for name in ("backoffLimit", "suspend") if name in spec}
        | {
            "template": {
                "metadata": {
                    "labels": _chosen(labels_of(template), _LABELS),
                    "annotations": _chosen(annotations_of(template), _ANNOTATIONS),
                },
                "spec": {name: pod[name] for name in ("nodeSelector", "affinity") if name in pod}
                | {"containers": containers},
            }
        },
        "status": {name: status[name] for name in _COUNTS if name in status},
    }


def _chosen(values: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    return {name: values[name] for name in names if name in values}
