"""CronWorkflows: their fields, the operator's state of each, and the Workflows that they create.

https://argo-workflows.readthedocs.io/en/latest/cron-workflows/
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from moorage.model.argo import (
    COMPLETED_LABEL,
    CRON_LABEL,
    CRON_WORKFLOWS,
    INSTANCE_LABEL,
    SCHEDULED_ANNOTATION,
    WORKFLOWS,
)
from moorage.model.names import (
    BEATS_FINALIZER,
    CATCH_UP_ANNOTATION,
    CRON_BACKFILL_ANNOTATION,
    CRON_BACKFILL_LABEL,
    CRON_STATE_ANNOTATION,
    MONITOR_ANNOTATION,
    MONITOR_PREFIX,
    NOTIFY_ANNOTATION,
    OWNER_ANNOTATION,
    OWNER_LABEL,
    SERVICE_MARKS,
)
from moorage_kube.meta import annotations_of, controller_ref, is_deleting, labels_of, owner_reference
from moorage_kube.moments import moment, rfc3339
from moorage_kube.resources import Obj
from moorage_workflows.model.workflow import ENDED_PHASES

SCHEDULE_ANNOTATION = (
    "workflows.argoproj.io/last-used-schedule"  # Argo's: the schedule by which slots were looked for
)
CREATOR_LABEL = "workflows.argoproj.io/creator"  # Argo's

SUCCESSFUL_KEPT, FAILED_KEPT = 3, 1  # Argo's defaults
CATCH_UP_MAX = 1000
BACKFILL_MAX = 1000  # slots of one backfill


class Concurrency(StrEnum):
    """The action at a slot while an earlier run is active."""

    ALLOW = "Allow"
    FORBID = "Forbid"
    REPLACE = "Replace"


class Pending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A slot whose Workflow is being created. `slot`: Unix seconds. `backfill`: the id of its backfill."""

    slot: int
    backfill: str = ""


class CronState(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The operator's state of a CronWorkflow between passes. Times are Unix seconds; 0: none.

    `cursor`: slots up to it are decided. `noted`: the newest slot with an event that explains why it waits.
    `backfill_done`: number of slots of the backfill `backfill_id` that were started or skipped.
    `seconds`: durations of the last successful runs. `missed`: the newest slot that was due and did not run.
    """

    cursor: int = 0
    pending: tuple[Pending, ...] = ()
    noted: int = 0
    is_suspended: bool = False
    backfill_id: str = ""
    backfill_done: int = 0
    seconds: tuple[int, ...] = ()
    missed: int = 0


class Beats(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Heartbeats that were sent or abandoned. `missed`: the newest slot that was reported, in Unix seconds."""

    sent: tuple[str, ...] = ()
    missed: int = 0


class Backfill(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Past slots to run. `slots`: Unix seconds, in order. `parallel`: the maximum number of runs at a time."""

    id: str
    slots: tuple[int, ...]
    parallel: int = 1


class CronView(Struct, frozen=True, kw_only=True):
    """The fields of one CronWorkflow, parsed leniently. `problems`: why it cannot run, each with its path."""

    name: str
    namespace: str
    uid: str
    created: datetime
    is_deleting: bool
    schedules: tuple[str, ...]
    timezone: str
    concurrency: Concurrency
    starting_deadline: timedelta | None
    successful_kept: int
    failed_kept: int
    is_suspended: bool
    when: str
    stop_expression: str
    catch_up: int
    state: CronState
    schedule_used: str  # the schedule that slots were looked for by; empty: none yet
    backfill: Backfill | None
    # status, in Argo's words
    last_scheduled: datetime | None
    active: tuple[str, ...]  # uids
    succeeded: int
    failed: int
    is_stopped: bool
    submission_error: str
    spec_error: str
    problems: tuple[str, ...] = ()

    @property
    def problem(self) -> str:
        """All problems as one text; "" if there are none."""
        return "; ".join(self.problems)

    @property
    def schedule_text(self) -> str:
        """The schedules and their zone as one string, as Argo writes it into `SCHEDULE_ANNOTATION`."""
        zone = f"CRON_TZ={self.timezone} " if self.timezone else ""
        return ",".join(f"{zone}{schedule}" for schedule in self.schedules)


def parse_cron(obj: Mapping[str, Any]) -> CronView:
    """Read a CronWorkflow. Each of `problems` has the path, the value and the allowed values."""
    # problems are collected: users see all of them at once
    problems: list[str] = []
    meta = obj["metadata"]
    spec = _mapping(obj.get("spec"))
    status = _mapping(obj.get("status"))
    annotations = annotations_of(obj)
    # schedules and policy, with Argo's defaults
    schedules = spec.get("schedules") if spec.get("schedules") is not None else spec.get("schedule")
    texts = [schedules] if isinstance(schedules, str) else schedules
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts) or not texts:
        problems.append(
            f"spec.schedules: {schedules!r} is not a list of schedules: use at least one, as '0 8 * * *'"
        )
        texts = []
    policy = spec.get("concurrencyPolicy")
    policy = Concurrency.ALLOW if policy in (None, "") else policy
    if policy not in list(Concurrency):
        problems.append(f"spec.concurrencyPolicy: {policy!r} is not known: use {', '.join(Concurrency)}")
        policy = Concurrency.ALLOW
    # annotations of ours: slots to catch up
    deadline = _whole(spec, "startingDeadlineSeconds", problems)
    stop = _mapping(spec.get("stopStrategy"))
    catch_up_text = annotations.get(CATCH_UP_ANNOTATION, "0")
    catch_up = int(catch_up_text) if catch_up_text.isascii() and catch_up_text.isdigit() else -1
    if not 0 <= catch_up <= CATCH_UP_MAX:
        problems.append(
            f"metadata.annotations[{CATCH_UP_ANNOTATION}]: {catch_up_text!r} is not a number"
            f" from 0 to {CATCH_UP_MAX}"
        )
    if not isinstance(spec.get("workflowSpec"), Mapping):
        problems.append("spec.workflowSpec: it is missing: give the spec of the Workflows to run")
    # a backfill that is under way
    backfill = None
    if CRON_BACKFILL_ANNOTATION in annotations:
        try:
            backfill = msgspec.json.decode(annotations[CRON_BACKFILL_ANNOTATION], type=Backfill)
        except msgspec.MsgspecError as error:
            problems.append(f"metadata.annotations[{CRON_BACKFILL_ANNOTATION}]: it cannot be read: {error}")
    # the status, which Argo may have written
    conditions = {
        str(each.get("type")): str(each.get("message") or "")
        for each in _sequence(status.get("conditions"))
        if isinstance(each, Mapping) and each.get("status") == "True"
    }
    return CronView(
        name=meta["name"],
        namespace=meta.get("namespace") or "",
        uid=str(meta.get("uid") or ""),
        created=moment(meta.get("creationTimestamp")) or datetime.fromisoformat("1970-01-01T00:00:00+00:00"),
        is_deleting=is_deleting(obj),
        schedules=tuple(texts),
        timezone=str(spec.get("timezone") or ""),
        concurrency=Concurrency(policy),
        starting_deadline=timedelta(seconds=deadline) if deadline is not None and deadline > 0 else None,
        successful_kept=_limit(_whole(spec, "successfulJobsHistoryLimit", problems), SUCCESSFUL_KEPT),
        failed_kept=_limit(_whole(spec, "failedJobsHistoryLimit", problems), FAILED_KEPT),
        is_suspended=spec.get("suspend") is True,
        when=str(spec.get("when") or ""),
        stop_expression=str(stop.get("expression") or stop.get("condition") or ""),
        catch_up=max(0, catch_up),
        state=_state(annotations.get(CRON_STATE_ANNOTATION, "")),
        schedule_used=annotations.get(SCHEDULE_ANNOTATION, ""),
        backfill=backfill,
        last_scheduled=_moment(status.get("lastScheduledTime")),
        active=tuple(
            str(each.get("uid") or "") for each in _sequence(status.get("active")) if isinstance(each, Mapping)
        ),
        succeeded=_count(status.get("succeeded")),
        failed=_count(status.get("failed")),
        is_stopped=status.get("phase") == "Stopped",
        submission_error=conditions.get("SubmissionError", ""),
        spec_error=conditions.get("SpecError", ""),
        problems=tuple(problems),
    )


def _state(text: str) -> CronState:
    try:
        return msgspec.json.decode(text or "{}", type=CronState)
    except msgspec.MsgspecError:
        return CronState()  # slots before the last one that ran are not looked for again


def _whole(spec: Mapping[str, Any], field: str, problems: list[str]) -> int | None:
    value = spec.get(field)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31):
        return value
    problems.append(f"spec.{field}: {value!r} is not a whole number of 32 bits")
    return None


def _limit(value: int | None, default: int) -> int:
    return default if value is None or value < 0 else value


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _moment(value: Any) -> datetime | None:
    try:
        return moment(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def run_name(name: str, slot: datetime) -> str:
    """Return the name of a slot's Workflow, as in Argo. One slot has one name, so it never gets two Workflows."""
    return f"{name}-{int(slot.timestamp())}"


def cron_of(workflow: Mapping[str, Any]) -> str:
    """Return the CronWorkflow that a Workflow names in its label; "" if it names none."""
    return labels_of(workflow).get(CRON_LABEL, "")


def is_run_of(workflow: Mapping[str, Any], uid: str) -> bool:
    """Whether a Workflow belongs to the CronWorkflow with this uid."""
    return (controller_ref(workflow) or {}).get("uid") == uid


def slot_of(workflow: Mapping[str, Any]) -> datetime | None:
    """Return the slot of a Workflow; None if it has none."""
    return _moment(annotations_of(workflow).get(SCHEDULED_ANNOTATION))


def is_monitor_key(key: str) -> bool:
    """Whether an annotation configures heartbeats or notifications."""
    return key in (MONITOR_ANNOTATION, NOTIFY_ANNOTATION) or key.startswith(MONITOR_PREFIX)


def make_run(
    cron: Mapping[str, Any],
    *,
    slot: datetime,
    name: str = "",
    parameters: Mapping[str, str] | None = None,
    backfill: str = "",
    finalizers: Sequence[str] = (),
) -> Obj:
    """Return the Workflow of a slot. `name` "": the name computed from the slot.

    `parameters` replace arguments of the workflow or add to them. The owner is that of the CronWorkflow.
    """
    spec = _mapping(cron.get("spec"))
    meta = _mapping(spec.get("workflowMetadata"))
    labels, annotations = metadata_of_runs(cron)
    if backfill:  # a heartbeat says that the schedule is alive, which old slots do not
        annotations = {
            key: text for key, text in annotations.items() if key == NOTIFY_ANNOTATION or not is_monitor_key(key)
        }
    held = (*finalizers, BEATS_FINALIZER) if any(map(is_monitor_key, annotations)) else finalizers
    typed = {"apiVersion": CRON_WORKFLOWS.api_version, "kind": CRON_WORKFLOWS.kind} | dict(cron)
    cron_name = cron["metadata"]["name"]
    instance = labels_of(cron).get(INSTANCE_LABEL)
    return {
        "apiVersion": WORKFLOWS.api_version,
        "kind": WORKFLOWS.kind,
        "metadata": {
            "name": name or run_name(cron_name, slot),
            "namespace": cron["metadata"].get("namespace") or "",
            "labels": labels
            | ({INSTANCE_LABEL: instance} if instance else {})
            | ({CRON_BACKFILL_LABEL: backfill} if backfill else {}),
            "annotations": annotations | {SCHEDULED_ANNOTATION: rfc3339(slot)},
            "finalizers": [*_sequence(meta.get("finalizers")), *held],
            "ownerReferences": [owner_reference(typed)],
        },
        "spec": _with_parameters(_mapping(spec.get("workflowSpec")), parameters or {}),
    }


def metadata_of_runs(cron: Mapping[str, Any]) -> tuple[Obj, Obj]:
    """Labels and annotations for each Workflow of a schedule: those of the spec, its monitors, its owner."""
    meta = _mapping(_mapping(cron.get("spec")).get("workflowMetadata"))
    labels, annotations = labels_of(cron), annotations_of(cron)
    return (
        _without(_mapping(meta.get("labels")), (OWNER_LABEL,))
        | {key: labels[key] for key in (OWNER_LABEL, CREATOR_LABEL) if key in labels}
        | {CRON_LABEL: cron["metadata"]["name"]},
        _without(_mapping(meta.get("annotations")), (OWNER_ANNOTATION, *SERVICE_MARKS))
        | {key: text for key, text in annotations.items() if key == OWNER_ANNOTATION or is_monitor_key(key)},
    )


def _without(table: Mapping[str, Any], keys: Collection[str]) -> Obj:
    """A table without some keys.

    `workflowMetadata` may not set the owner of a Workflow, or annotations that only our services write.
    """
    return {name: value for name, value in table.items() if name not in keys}


def _with_parameters(spec: Mapping[str, Any], parameters: Mapping[str, str]) -> Obj:
    if not parameters:
        return dict(spec)
    arguments = _mapping(spec.get("arguments"))
    kept = [
        each
        for each in _sequence(arguments.get("parameters"))
        if not (isinstance(each, Mapping) and each.get("name") in parameters)
    ]
    given = [{"name": name, "value": value} for name, value in parameters.items()]
    return dict(spec) | {"arguments": dict(arguments) | {"parameters": [*kept, *given]}}


def is_completed(workflow: Mapping[str, Any]) -> bool:
    """Whether a Workflow has ended."""
    phase = _mapping(workflow.get("status")).get("phase")
    return phase in ENDED_PHASES or labels_of(workflow).get(COMPLETED_LABEL) == "true"
