"""Runs without our runner: an annotation of the Job says whether it ended because its pod was stopped."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from moorage.decide.interruptions import STOPPED, stop_time
from moorage.model.names import REPORT_TOKEN_ANNOTATION, STOPPED_ANNOTATION, SUSPENDED_ANNOTATION
from moorage_kube.meta import annotations_of, condition, is_condition_true
from moorage_kube.moments import moment


def is_watched(job: Mapping[str, Any]) -> bool:
    """Whether our runner starts the command. Its exit code then shows whether the run had finished."""
    return REPORT_TOKEN_ANNOTATION in annotations_of(job)


def stop_time_while_running(pod: Mapping[str, Any]) -> datetime | None:
    """The time of the stop request for a pod that has not ended. None: there was none, or the pod had ended."""
    return None if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") else stop_time(pod)


def was_suspended(job: Mapping[str, Any]) -> bool:
    """Whether the Job failed because its suspension interrupted the program: the run can continue."""
    failed = condition(job, "Failed") or {}
    is_failed = failed.get("status") == "True" and f" exit code {STOPPED} " in str(failed.get("message"))
    return is_failed and bool(job["spec"].get("suspend")) and SUSPENDED_ANNOTATION in annotations_of(job)


def ended_suspended(job: Mapping[str, Any]) -> bool:
    """Whether the Job failed while it was suspended; also true after the run was resumed.

    The Job controller sets the condition Suspended, and does not change Jobs that have ended.
    """
    return is_condition_true(job, "Failed") and is_condition_true(job, "Suspended")


def was_interrupted(job: Mapping[str, Any]) -> bool:
    """Whether the Job ended with its stopped pod, and not with a pod after a suspension or a failure."""
    status = job.get("status") or {}
    try:
        stopped_at = moment(annotations_of(job).get(STOPPED_ANNOTATION))
    except ValueError:
        stopped_at = None
    if stopped_at is None or stopped_at < (moment(status.get("startTime")) or stopped_at):
        return False
    failures = 0 if is_condition_true(job, "Complete") else 1 if is_condition_true(job, "Failed") else -1
    return int(status.get("failed") or 0) <= failures
