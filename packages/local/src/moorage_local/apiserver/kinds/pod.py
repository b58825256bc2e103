"""Pods.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from moorage_kube.meta import condition, is_condition_true
from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import NONE, age, created, spec_of, status_of
from moorage_local.apiserver.kinds.common import own_spec
from moorage_local.apiserver.kinds.kind import Rules, spec_changed
from moorage_local.apiserver.kinds.podspec.changes import validate_pod_update
from moorage_local.apiserver.kinds.podspec.checks import validate_pod_spec
from moorage_local.apiserver.kinds.podspec.defaults import default_pod
from moorage_local.apiserver.types.fields import FieldErrors
from moorage_local.podspecs import qos_class, sidecar_names

_FIELD_SELECTORS = frozenset(
    {
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    }
)


def _prepare(obj: Obj) -> None:
    spec = own_spec(obj)
    status: Obj = {"phase": "Pending", "qosClass": qos_class(spec)}
    if spec.get("schedulingGates"):
        status["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "lastProbeTime": None,
                "lastTransitionTime": obj["metadata"].get("creationTimestamp"),
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
        ]
        status["conditions"][0].pop("lastProbeTime")
    obj["status"] = status


def _prepare_status(new: Obj, old: Obj) -> None:
    meta = new["metadata"]
    if "ownerReferences" in old["metadata"]:
        meta["ownerReferences"] = old["metadata"]["ownerReferences"]
    else:
        meta.pop("ownerReferences", None)
    status = new.setdefault("status", {})
    if not status.get("qosClass") and (old.get("status") or {}).get("qosClass"):
        status["qosClass"] = old["status"]["qosClass"]


def _prepare_update(new: Obj, old: Obj) -> None:
    spec, had = own_spec(new), own_spec(old)
    for key in ("priority", "preemptionPolicy"):
        if spec.get(key) is None and had.get(key) is not None:
            spec[key] = had[key]


def _validate(obj: Obj, errors: FieldErrors) -> None:
    validate_pod_spec(own_spec(obj), "spec", errors)


def _validate_create(obj: Obj, errors: FieldErrors) -> None:
    spec = own_spec(obj)
    if spec.get("nodeName") and spec.get("schedulingGates"):
        errors.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")


def _validate_status(new: Obj, old: Obj, errors: FieldErrors) -> None:
    status, had = new.get("status") or {}, old.get("status") or {}
    if had.get("qosClass") and status.get("qosClass") != had["qosClass"]:
        errors.invalid("status.qosClass", status.get("qosClass", ""), "field is immutable")
    if had.get("phase") in ("Failed", "Succeeded") and status.get("phase") != had["phase"]:
        policy = own_spec(old).get("restartPolicy")
        if policy == "Never" and status.get("phase") in ("Pending", "Running"):
            return  # a kubelet that lost its state may do this; the real server lets it


def _grace(obj: Obj, asked: int | None) -> int:
    spec = own_spec(obj)
    period = asked if asked is not None else spec.get("terminationGracePeriodSeconds") or 0
    if not spec.get("nodeName") or (obj.get("status") or {}).get("phase") in ("Failed", "Succeeded"):
        period = 0
    return 1 if period < 0 else int(period)


def _row_conditions(obj: Obj) -> list[Obj]:
    phase = status_of(obj).get("phase")
    if phase == "Succeeded":
        message = "The pod has completed successfully."
    elif phase == "Failed":
        message = "The pod failed."
    else:
        return []
    return [{"type": "Completed", "status": "True", "reason": phase, "message": message}]


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = spec_of(obj), status_of(obj)
    phase = status.get("phase", "")
    reason = status.get("reason") or phase
    scheduled = condition(obj, "PodScheduled")
    if scheduled is not None and scheduled.get("reason") == "SchedulingGated":
        reason = "SchedulingGated"
    inits = _read_inits(spec, status)
    total = len(spec.get("containers") or ()) + inits.sidecars
    ready, restarts, last = inits.ready, inits.restarts, inits.last_end
    if inits.reason:
        reason = inits.reason
    if not inits.reason or is_condition_true(obj, "Initialized"):
        mains = _read_mains(obj, status, reason)
        reason = mains.reason
        ready += mains.ready
        restarts = inits.sidecar_restarts + mains.restarts
        last = max(inits.sidecar_last_end, mains.last_end)
    if obj["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            reason = "Unknown"
        elif phase not in ("Succeeded", "Failed"):
            reason = "Terminating"
    addresses = status.get("podIPs") or ()
    gates = spec.get("readinessGates") or ()
    passed = sum(is_condition_true(obj, gate["conditionType"]) for gate in gates)
    return (
        obj["metadata"]["name"],
        f"{ready}/{total}",
        reason,
        f"{restarts} ({age(last, now)} ago)" if restarts and last else str(restarts),
        created(obj, now),
        addresses[0].get("ip") if addresses else NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        f"{passed}/{len(gates)}" if gates else NONE,
    )


@dataclass(slots=True)
class _Inits:
    """The share of the init containers in the cells. `reason` is empty once all have run."""

    sidecars: int
    ready: int = 0
    restarts: int = 0
    last_end: str = ""
    sidecar_restarts: int = 0
    sidecar_last_end: str = ""
    reason: str = ""


def _read_inits(spec: Mapping[str, Any], status: Mapping[str, Any]) -> _Inits:
    """Read init containers in order, up to the first that has not finished yet."""
    containers = spec.get("initContainers") or ()
    sidecars = sidecar_names(spec)
    out = _Inits(len(sidecars))
    for at, report in enumerate(status.get("initContainerStatuses") or ()):
        count, ended = report.get("restartCount", 0), _last_end(report)
        is_sidecar = report["name"] in sidecars
        out.restarts += count
        out.last_end = max(out.last_end, ended)
        if is_sidecar:
            out.sidecar_restarts += count
            out.sidecar_last_end = max(out.sidecar_last_end, ended)
        state = report.get("state") or {}
        over, waiting = state.get("terminated"), state.get("waiting")
        if over is not None and not over.get("exitCode"):
            continue
        if is_sidecar and report.get("started"):
            out.ready += bool(report.get("ready"))
            continue
        if over is not None:
            out.reason = f"Init:{_end_reason(over)}"
        elif waiting is not None and waiting.get("reason") not in (None, "", "PodInitializing"):
            out.reason = f"Init:{waiting['reason']}"
        else:
            out.reason = f"Init:{at}/{len(containers)}"
        break
    return out


@dataclass(slots=True)
class _Mains:
    """The share of the other containers in the cells."""

    reason: str
    ready: int = 0
    restarts: int = 0
    last_end: str = ""


def _read_mains(obj: Obj, status: Mapping[str, Any], reason: str) -> _Mains:
    """Read the states of the main containers.

    `reason`: the reason of the pod, unless a container has another one.
    """
    out = _Mains(reason)
    is_running, error = False, ""
    for report in reversed(status.get("containerStatuses") or ()):
        out.restarts += report.get("restartCount", 0)
        out.last_end = max(out.last_end, _last_end(report))
        state = report.get("state") or {}
        over, waiting = state.get("terminated"), state.get("waiting")
        if waiting is not None and waiting.get("reason"):
            out.reason = waiting["reason"]
        elif over is not None:
            out.reason = _end_reason(over)
            if over.get("exitCode"):
                error = out.reason
        elif report.get("ready") and "running" in state:
            is_running = True
            out.ready += 1
    if out.reason == "Completed":
        if is_running and is_condition_true(obj, "Ready"):
            out.reason = "Running"
        elif error:
            out.reason = error
        elif is_running:
            out.reason = "NotReady"
    return out


def _last_end(status: Mapping[str, Any]) -> str:
    over = (status.get("lastState") or {}).get("terminated") or {}
    return str(over.get("finishedAt") or "")


def _end_reason(over: Mapping[str, Any]) -> str:
    if over.get("reason"):
        return str(over["reason"])
    if over.get("signal"):
        return f"Signal:{over['signal']}"
    return f"ExitCode:{over.get('exitCode', 0)}"


RULES = {
    ("", "pods"): Rules(
        default=default_pod,
        prepare_create=_prepare,
        prepare_update=_prepare_update,
        prepare_status=_prepare_status,
        validate=_validate,
        validate_create=_validate_create,
        validate_update=validate_pod_update,
        validate_status=_validate_status,
        generation=spec_changed,
        graceful=_grace,
        field_selectors=_FIELD_SELECTORS,
        row_conditions=_row_conditions,
        cells=_cells,
    ),
}
