"""The status of a Workflow's object, and the times when it and its pods are deleted. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from moorage.decide.evaluation import TextError
from moorage.model.argo import COMPLETED_LABEL, PHASE_LABEL, WORKFLOWS
from moorage_kube.meta import labels_of
from moorage_kube.moments import moment, span_of
from moorage_kube.resources import Obj
from moorage_kube.selectors import label_selector_of
from moorage_workflows.decide.workflows.linttext import PARAMETER_NAME
from moorage_workflows.decide.workflows.metadata import written
from moorage_workflows.decide.workflows.text.durations import parse_duration
from moorage_workflows.model.workflow import ENDED_PHASES, NodePhase, NodeRecord, WorkflowRecord

OUTPUT_BYTES = 16 * 1024  # of `status.outputs`: the records have all of them
MESSAGE_LENGTH = 1000
LOG_TIME = timedelta(seconds=5)  # before ended pods are deleted, as with Argo: their logs are stored meanwhile
LONG_AGO = datetime.min.replace(tzinfo=UTC)
COLLECTION_FAILED = "ArtifactGCError"  # condition: artifacts could not be deleted


def summary_patch(
    obj: Mapping[str, Any], record: WorkflowRecord, locks: Mapping[str, Any] | None = None, *, waiting: str = ""
) -> dict[str, Any] | None:
    """Return a merge patch with the summary; None if the object has it.

    `locks`: `status.synchronization`. `waiting`: why a pod cannot start, until it does.
    """
    is_done = record.phase in ENDED_PHASES
    status: dict[str, Any] = {
        "phase": record.phase or "Pending",
        "startedAt": _seconds(record.started_at),
        "finishedAt": _seconds(record.finished_at),
        "message": (record.message or waiting)[:MESSAGE_LENGTH] or None,
        "progress": f"{record.done}/{record.total}",
    }
    # a name that Argo's full definitions refuse would keep the whole status from being written
    parameters = [
        {"name": name, "value": value}
        for name, value in sorted(record.parameters.items())
        if PARAMETER_NAME.fullmatch(name)
    ]
    if parameters and sum(len(row["value"]) for row in parameters) <= OUTPUT_BYTES:
        status["outputs"] = {"parameters": parameters}
    strategy = (record.document.get("spec") or {}).get("ttlStrategy")
    if strategy and not (obj.get("spec") or {}).get("ttlStrategy"):  # the template's, for readers of the object
        status["storedWorkflowTemplateSpec"] = {"ttlStrategy": strategy}
    conditions = [{"type": "Completed", "status": "True"}] if is_done else []
    if record.metrics_error:
        conditions.append({"type": "MetricsError", "status": "True", "message": record.metrics_error})
    if is_done:
        there = (obj.get("status") or {}).get("conditions") or ()
        conditions += [row for row in there if row.get("type") == COLLECTION_FAILED]
    if conditions or (obj.get("status") or {}).get("conditions"):
        status["conditions"] = conditions or None
    for kind in ("mutex", "semaphore"):
        had = ((obj.get("status") or {}).get("synchronization") or {}).get(kind)
        if (locks or {}).get(kind) or had:
            status.setdefault("synchronization", {})[kind] = (locks or {}).get(kind)
    labels = {PHASE_LABEL: status["phase"], COMPLETED_LABEL: "true" if is_done else "false"}
    now = obj.get("status") or {}
    own = written(record.document) if not now.get("phase") else {}  # once: later changes are the users'
    metadata = own | {"labels": own.get("labels", {}) | labels}
    same = all(_without_nulls(now.get(key)) == _without_nulls(value) for key, value in status.items())
    if same and all(labels_of(obj).get(key) == value for key, value in labels.items()):
        return None
    return {"metadata": metadata, "status": status}


def _without_nulls(value: Any) -> Any:
    """Return a value as the API server stores it: without nulls and empty mappings."""
    if isinstance(value, Mapping):
        return {key: inner for key, inner in value.items() if inner is not None} or None
    return value


def collection_patch(obj: Mapping[str, Any], failure: str) -> dict[str, Any] | None:
    """Return a merge patch with the condition why artifacts remain; None if the object has it already."""
    now = list((obj.get("status") or {}).get("conditions") or ())
    wanted = [row for row in now if row.get("type") != COLLECTION_FAILED]
    if failure:
        wanted.append({"type": COLLECTION_FAILED, "status": "True", "message": failure[:MESSAGE_LENGTH]})
    return None if wanted == now else {"status": {"conditions": wanted}}


def collect_at(obj: Mapping[str, Any]) -> datetime | None:
    """When a workflow that has ended is deleted, by `ttlStrategy`; None: never, also if that is unreadable.

    Its pods are deleted with it, so it stays long enough to store their logs.
    """
    status, spec = obj.get("status") or {}, obj.get("spec") or {}
    finished = moment(status.get("finishedAt"))
    strategy = (
        spec.get("ttlStrategy") or ((status.get("storedWorkflowTemplateSpec") or {}).get("ttlStrategy")) or {}
    )
    if finished is None or not strategy:
        return None
    special = {"Succeeded": "secondsAfterSuccess", "Failed": "secondsAfterFailure"}.get(
        str(status.get("phase")), ""
    )
    seconds = strategy.get(special)
    if seconds is None:
        seconds = strategy.get("secondsAfterCompletion")
    try:
        return None if seconds is None else finished + max(span_of(int(str(seconds))), LOG_TIME)
    except ValueError:
        return None


def pod_delete_at(
    record: WorkflowRecord, node: NodeRecord | None, pod: Mapping[str, Any] | None = None
) -> datetime | None:
    """When `podGC` deletes the pod of this node; None: never, as far as is known. `pod`: None if it is deleted.

    The delay counts from the end of the pod, with the container that saves its outputs, or from the end of
    the workflow.
    """
    spec = record.document.get("spec") or {}
    gc = spec.get("podGC") or {}
    if not _selects(gc.get("labelSelector"), spec, node):
        return None
    end = max(filter(None, (moment(node.finished_at if node else None), pod_end(pod or {}))), default=LONG_AGO)
    is_done = record.phase in ENDED_PHASES
    workflow_end = max(end, moment(record.finished_at) or LONG_AGO)
    at: datetime | None = None
    match gc.get("strategy"):
        case "OnPodCompletion" if node is not None and node.phase.is_fulfilled:
            at = end
        case "OnPodSuccess" if node is not None and node.phase is NodePhase.SUCCEEDED:
            at = end
        case "OnWorkflowCompletion" if is_done:
            at = workflow_end
        case "OnWorkflowSuccess" if is_done and record.phase == "Succeeded":
            at = workflow_end
    return None if at is None else at + _delay(gc.get("deleteDelayDuration"))


def pod_end(pod: Mapping[str, Any]) -> datetime | None:
    """When the last container of a pod ended; None if none has ended, or the time is missing."""
    rows = (pod.get("status") or {}).get("containerStatuses") or ()
    ends = [moment(((row.get("state") or {}).get("terminated") or {}).get("finishedAt")) for row in rows]
    return max(filter(None, ends), default=None)


def _delay(text: Any) -> timedelta:
    """The delay in the manifest, or else Argo's. The lint refuses unreadable delays."""
    try:
        return max(parse_duration(str(text)), timedelta()) if text else LOG_TIME
    except TextError:
        return LOG_TIME


def _selects(selector: Mapping[str, Any] | None, spec: Mapping[str, Any], node: NodeRecord | None) -> bool:
    """Whether a selector matches the labels that a node's template gives its pod."""
    if not selector:
        return True
    if node is None:
        return False
    labels = dict((spec.get("podMetadata") or {}).get("labels") or {})
    for template in spec.get("templates") or ():
        if template.get("name") == node.template:
            labels |= (template.get("metadata") or {}).get("labels") or {}
    return label_selector_of(selector).matches({str(key): str(value) for key, value in labels.items()})


def _seconds(stamp: str) -> str | None:
    """Return a time in Kubernetes' format, in whole seconds."""
    at = moment(stamp) if stamp else None
    return at.strftime("%Y-%m-%dT%H:%M:%SZ") if at is not None else None


def typed(obj: Obj) -> Obj:
    """Return the object with its kind, which lists leave out."""
    return {"apiVersion": WORKFLOWS.api_version, "kind": WORKFLOWS.kind} | obj
