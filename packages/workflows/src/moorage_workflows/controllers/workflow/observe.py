"""Convert a pod of a step from the API server into a `PodSeen` of the graph. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from moorage.decide.interruptions import stop_time
from moorage.model.argo import NODE_ID_ANNOTATION, POD_FINALIZER, WORKFLOW_LABEL
from moorage_kube.errors import QuantityError
from moorage_kube.meta import annotations_of, condition, controller_ref, is_condition_true, is_deleting
from moorage_kube.moments import moment
from moorage_kube.quantity import parse_quantity
from moorage_kube.resources import Obj
from moorage_workflows.decide.workflows.graph.events import ContainerSeen, PodSeen
from moorage_workflows.decide.workflows.pods import INIT, MAIN, WAIT
from moorage_workflows.model.workflow import REPORTS_ANNOTATION, StepReport

_KEPT_ANNOTATIONS = (NODE_ID_ANNOTATION, REPORTS_ANNOTATION)
NOT_STARTED = 64
_NOT_STARTED_WORDS = ("StartError", "ContainerCannotRun")
IMAGE_WAITS = ("ErrImageNeverPull", "ErrImagePull", "ImageNotRunnable", "ImagePullBackOff", "InvalidImageName")
_WAITING_WORDS = (*IMAGE_WAITS, "CreateContainerConfigError")


def keep_pod(pod: Obj) -> Obj:
    """The fields of a pod that the controller needs: a run of 10,000 steps has as many pods."""
    # metadata: identity, deletion, and the annotations that the run reads
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    kept_meta = {
        key: meta[key]
        for key in (
            "name",
            "namespace",
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "finalizers",
            "ownerReferences",
        )
        if key in meta
    }
    labels = meta.get("labels") or {}
    kept_meta["labels"] = {WORKFLOW_LABEL: labels.get(WORKFLOW_LABEL, "")}
    kept_meta["annotations"] = {
        key: value for key, value in annotations_of(pod).items() if key in _KEPT_ANNOTATIONS
    }
    # spec and status: placement, resources, and the states of containers
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": kept_meta,
        "spec": {
            "nodeName": spec.get("nodeName", ""),
            "initContainers": [
                {key: container[key] for key in ("name", "restartPolicy") if key in container}
                for container in spec.get("initContainers") or ()
            ],
            "containers": [
                {"name": container.get("name"), "resources": container.get("resources") or {}}
                for container in spec.get("containers") or ()
            ],
        },
        "status": {
            key: status[key]
            for key in (
                "phase",
                "reason",
                "message",
                "podIP",
                "startTime",
                "conditions",
                "containerStatuses",
                "initContainerStatuses",
            )
            if key in status
        },
    }


def has_executor(pod: Mapping[str, Any]) -> bool:
    """Whether a container of the pod reports outputs."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    return REPORTS_ANNOTATION in annotations_of(pod) or any(each.get("name") == WAIT for each in containers)


def is_held(pod: Mapping[str, Any]) -> bool:
    """Whether the pod has our finalizer, until its end is recorded."""
    return POD_FINALIZER in (pod["metadata"].get("finalizers") or ())


def is_of(pod: Mapping[str, Any], uid: str) -> bool:
    owner = controller_ref(pod)
    return owner is not None and owner.get("uid") == uid


def pod_seen(
    pod: Obj, *, now: datetime, lost_nodes: Mapping[str, datetime | None], lost_after: timedelta,
    report: StepReport | None = None,
) -> PodSeen:  # fmt: skip
    """One pod. `lost_nodes`: nodes that are deleted (None), or silent since a moment."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    containers = {str(row.get("name")): row for row in status.get("containerStatuses") or ()}
    main = containers.get(MAIN) or {}
    ended = (main.get("state") or {}).get("terminated") or {}
    phase = str(status.get("phase") or "Pending")
    host = str(spec.get("nodeName") or "")
    is_deleted = is_deleting(pod)
    disruption = condition(pod, "DisruptionTarget") or {}
    is_disrupted = disruption.get("status") == "True"
    is_lost = host in lost_nodes and is_deleted and _is_silent(lost_nodes[host], now, lost_after)
    # a pod that was never bound has no process: its deletion is its end
    # where the main container cannot start, the one that waits for its outputs waits for ever
    is_stuck = phase == "Running" and ended.get("reason") in _NOT_STARTED_WORDS
    is_ended = phase in ("Succeeded", "Failed") or is_stuck or (is_deleted and (not host or is_lost))
    failure = ""
    if is_ended and status.get("reason") and phase == "Failed" and not _is_plain(status):
        failure = ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key))
    memory = any(_is_oom(row) for row in containers.values()) or "memory" in str(status.get("message", "")).lower()
    disrupted = ""
    if is_ended and (is_lost or (is_disrupted and not memory)):
        words = [str(disruption.get("reason") or "NodeLost"), str(disruption.get("message") or "")]
        disrupted = ": ".join(filter(None, words))
    steps = tuple(_container_seen(row) for name, row in containers.items() if name not in (INIT, WAIT))
    if not main:  # a container set: from the first start to the last end
        ended = _span(steps)
    finished = str(ended.get("finishedAt") or "")
    return PodSeen(
        name=str(meta["name"]),
        is_running=phase == "Running" or bool((main.get("state") or {}).get("running")),
        is_ready=is_condition_true(pod, "Ready"),
        is_ended=is_ended,
        is_stuck=is_stuck,
        is_deleted=is_deleted,
        exit_code=_exit_code(ended),
        stopped_at=stop_time(pod),
        is_watched=has_executor(pod),
        disrupted=disrupted,
        failure=failure,
        broken=_broken(spec, status) if is_ended else "",
        waiting="" if is_ended else _waiting(pod, status),
        reason=str(ended.get("reason") or ""),
        message=str(ended.get("message") or "").strip()[-500:],
        host=host,
        address=str(status.get("podIP") or ""),
        started_at=str(ended.get("startedAt") or ""),
        finished_at=finished,
        resources_seconds=_resources_seconds(spec, ended),
        report=report,
        containers=steps,
    )


def _exit_code(ended: Mapping[str, Any]) -> int | None:
    """The main container's exit code; 64 for a command that could not be started, as with Argo."""
    if "exitCode" not in ended:
        return None
    return NOT_STARTED if ended.get("reason") in _NOT_STARTED_WORDS else int(ended["exitCode"])


def _container_seen(row: Mapping[str, Any]) -> ContainerSeen:
    state = row.get("state") or {}
    ended = state.get("terminated") or {}
    return ContainerSeen(
        name=str(row.get("name")),
        is_running=bool(state.get("running")),
        exit_code=_exit_code(ended),
        reason=str(ended.get("reason") or ""),
        message=str(ended.get("message") or "").strip()[-500:],
        started_at=str((ended or state.get("running") or {}).get("startedAt") or ""),
        finished_at=str(ended.get("finishedAt") or ""),
    )


def _span(containers: Sequence[ContainerSeen]) -> dict[str, Any]:
    started = min((row.started_at for row in containers if row.started_at), default="")
    finished = max((row.finished_at for row in containers if row.finished_at), default="")
    return {"startedAt": started, "finishedAt": finished} if started and finished else {}


def _is_silent(since: datetime | None, now: datetime, lost_after: timedelta) -> bool:
    return since is None or now - since >= lost_after


def _is_plain(status: Mapping[str, Any]) -> bool:
    """Whether the pod's reason only repeats the reason of a container."""
    return status.get("reason") in ("Error", "Completed", "OOMKilled")


def _is_oom(row: Mapping[str, Any]) -> bool:
    return ((row.get("state") or {}).get("terminated") or {}).get("reason") == "OOMKilled"


def _broken(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Return why inputs or outputs are missing. Ends of sidecars are ignored: the pod ends them."""
    sidecars = {row["name"] for row in spec.get("initContainers") or () if row.get("restartPolicy") == "Always"}
    rows = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    for row in rows:
        ended = (row.get("state") or {}).get("terminated") or {}
        if row.get("name") == MAIN or not ended.get("exitCode") or row.get("name") not in (INIT, WAIT):
            continue
        text = str(ended.get("message") or "").strip() or f"exit code {ended['exitCode']}"
        return f"{'inputs' if row['name'] == INIT else 'outputs'}: {text[-500:]}"
    for row in status.get("initContainerStatuses") or ():
        ended = (row.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode") and row.get("name") not in sidecars:
            return f"init container {row.get('name')}: exit code {ended['exitCode']}"
    return ""


def _waiting(pod: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    for row in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting = (row.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _WAITING_WORDS or waiting.get("message"):
            return ": ".join(str(waiting[key]) for key in ("reason", "message") if waiting.get(key))
    scheduled = condition(pod, "PodScheduled") or {}
    if scheduled.get("status") == "False":
        return ": ".join(str(scheduled[key]) for key in ("reason", "message") if scheduled.get(key))
    return ""


def _resources_seconds(spec: Mapping[str, Any], ended: Mapping[str, Any]) -> dict[str, int]:
    """The requests of the containers, times the main one's seconds; memory in units of 100 MiB, as in Argo."""
    started, finished = moment(ended.get("startedAt")), moment(ended.get("finishedAt"))
    if started is None or finished is None:
        return {}
    seconds = max((finished - started).total_seconds(), 0.0)
    total: dict[str, float] = {}
    for container in spec.get("containers") or ():
        resources = container.get("resources") or {}
        for name, amount in ((resources.get("limits") or {}) | (resources.get("requests") or {})).items():
            try:
                value = float(parse_quantity(str(amount)))
            except (QuantityError, TypeError, ValueError):
                continue
            total[name] = total.get(name, 0.0) + (value / (100 * 2**20) if name == "memory" else value)
    return {name: int(value * seconds) for name, value in total.items() if int(value * seconds)}
