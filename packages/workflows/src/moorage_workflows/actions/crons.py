"""Schedules of workflows: create, list, read, suspend, resume, run, backfill and delete CronWorkflows."""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from moorage.actions.objects import InvalidObject, Kind, create_object, get_object
from moorage.api.crons import BackfillAnswer, Cron, CronRun
from moorage.api.errors import ErrorCode
from moorage.model.argo import (
    COMPLETED_LABEL,
    CRON_LABEL,
    CRON_WORKFLOWS,
    INSTANCE_LABEL,
    OUR_INSTANCE,
    WORKFLOWS,
    is_ours,
)
from moorage.model.machine import Fault
from moorage.model.names import CRON_BACKFILL_ANNOTATION, is_dns_label
from moorage_kube.api import Api
from moorage_kube.changes import write_as_read
from moorage_kube.errors import AlreadyExists, Conflict, NotFound, UsageError
from moorage_kube.meta import labels_of
from moorage_kube.moments import moment, rfc3339
from moorage_kube.resources import Obj
from moorage_workflows.actions.workflows import (
    Check,
    Choice,
    NoRecords,
    Records,
    Submitted,
    list_workflows,
    no_check,
    read_source,
    submit_workflow,
)
from moorage_workflows.decide.workflows.controllers import Controller
from moorage_workflows.decide.workflows.schedules import (
    ScheduleError,
    Timetable,
    in_words,
    next_slot,
    parse_timetable,
    slots,
)
from moorage_workflows.decide.workflows.submission import Additions
from moorage_workflows.decide.workflows.views import WorkflowView, view_workflow
from moorage_workflows.model.cronworkflow import BACKFILL_MAX, Backfill, CronView, parse_cron, run_name
from moorage_workflows.model.workflow import CRON_NAME_MAX

CRON = Kind(CRON_WORKFLOWS, "cron")
HISTORY_MAX = 500  # runs in one answer
_SERVERS = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "selfLink", "generation")


class BackfillPlan(Struct, frozen=True):
    """Slots to run, and skipped slots, for which a Workflow exists or existed."""

    slots: tuple[datetime, ...]
    skipped: tuple[datetime, ...]


def plan_cron(document: Mapping[str, Any], namespace: str, controller: Controller) -> Obj:
    """Return the CronWorkflow to send. It gets our label if Moorage is known to run the workflows.

    Raises InvalidObject with all errors, each with its field, and UsageError for another kind.
    """
    kind, version = document.get("kind"), document.get("apiVersion")
    if kind != CRON_WORKFLOWS.kind or version != CRON_WORKFLOWS.api_version:
        raise UsageError(
            f"cannot create {version or 'no apiVersion'}/{kind or 'no kind'} as a schedule: use a"
            f" {CRON_WORKFLOWS.kind} of {CRON_WORKFLOWS.api_version}",
            hint="convert a CronJob: moor workflow convert FILE",
            code=ErrorCode.INVALID,
            field="kind",
        )
    made: Obj = json.loads(json.dumps(document))
    for field in ("metadata", "metadata.labels", "metadata.annotations"):
        value: Any = made
        for name in field.split("."):
            value = (value or {}).get(name)
        if not isinstance(value, dict | None):
            raise InvalidObject([Fault(field, value, "it must be a mapping of names to values")])
    meta = {key: value for key, value in (made.get("metadata") or {}).items() if key not in _SERVERS}
    made["metadata"] = meta
    made.pop("status", None)
    stated = str(meta.get("namespace") or "")
    if stated and stated != namespace:
        raise UsageError(
            f"the manifest is for namespace {stated!r}, the request for {namespace!r}: use one of them",
            code=ErrorCode.INVALID,
            field="metadata.namespace",
        )
    meta |= {"namespace": namespace, "name": meta.get("name") or ""}
    faults = _faults(made)
    if faults:
        raise InvalidObject(faults)
    if controller is Controller.MOORAGE:
        meta["labels"] = {**(meta.get("labels") or {}), INSTANCE_LABEL: OUR_INSTANCE}
    return made


def _faults(made: Obj) -> list[Fault]:
    name = str(made["metadata"].get("name") or "")
    faults = []
    if not is_dns_label(name) or len(name) > CRON_NAME_MAX:
        rule = f"use at most {CRON_NAME_MAX} of a-z, 0-9 and '-', with a letter or digit at both ends"
        faults.append(Fault("metadata.name", name, rule))
    view = parse_cron(made)
    faults += [_fault_of(problem) for problem in view.problems]
    if view.schedules:
        try:
            timetable = parse_timetable(view.schedules, view.timezone, anchor=datetime(2026, 1, 1, tzinfo=UTC))
        except ScheduleError as error:
            faults.append(Fault(error.field or "spec.schedules", "", error.message))
        else:
            if next_slot(timetable, timetable.anchor) is None:
                faults.append(
                    Fault("spec.schedules", ", ".join(view.schedules), "never comes: name a day that exists")
                )
    return faults


def _fault_of(problem: str) -> Fault:
    field, _, rest = problem.partition(": ")
    return Fault(field, "", rest)


async def create_cron(
    api: Api, made: Obj, *, check: Check = no_check, mark: str = "", dry_run: bool = False
) -> tuple[Obj, Sequence[str]]:
    """Create a planned CronWorkflow, once for each `mark`; return the object and warnings for the user.

    Raises Problems with all errors in its Workflows, AlreadyExists, ApiError.
    """
    notes = await check(made)
    try:
        return await create_object(api, CRON, made, mark=mark, dry_run=dry_run), notes
    except AlreadyExists as error:
        raise AlreadyExists(
            error.message,
            hint="replace it: moor cron create FILE --replace",
            code=ErrorCode.EXISTS,
            field="metadata.name",
        ) from error


async def replace_cron(api: Api, made: Obj, *, check: Check = no_check) -> tuple[Obj, Sequence[str]]:
    """Replace the spec of a stored CronWorkflow by a planned one, and add its labels and annotations.

    Its status and the operator's state of its slots do not change. Raises Problems, NotFound, ApiError.
    """
    name, namespace = made["metadata"]["name"], made["metadata"]["namespace"]
    notes = await check(made)
    tables = {key: made["metadata"][key] for key in ("labels", "annotations") if made["metadata"].get(key)}
    stored = await get_object(api, CRON, namespace, name)
    if tables:
        await api.patch(CRON_WORKFLOWS, name, {"metadata": tables}, namespace)
    if stored.get("spec") == made["spec"]:
        return stored, notes
    # a merge would keep fields that the manifest has no longer; a version would fail at each write of its status
    change = [{"op": "replace", "path": "/spec", "value": made["spec"]}]
    return await api.patch(CRON_WORKFLOWS, name, change, namespace, kind="json"), notes


async def list_crons(
    api: Api, namespace: str | None, now: datetime, *, limit: int | None = None, after: str | None = None
) -> tuple[list[Cron], str | None]:
    """Return the schedules of a namespace (None: of all), and the token of the next page.

    Raises ApiError, NotReady.
    """
    try:
        listed = await api.list(CRON_WORKFLOWS, namespace, limit=limit, cont=after)
        runs = (await api.list(WORKFLOWS, namespace, label_selector=CRON_LABEL)).items
    except NotFound as error:
        raise CRON.unknown(error) from error
    by_cron: dict[tuple[str, str], list[WorkflowView]] = {}
    for run in runs:
        view = view_workflow({**run, "status": _summary(run)})
        by_cron.setdefault((view.namespace, view.cron), []).append(view)
    rows = [
        cron_of(obj, by_cron.get((obj["metadata"].get("namespace") or "", obj["metadata"]["name"]), ()), now)
        for obj in listed.items
    ]
    return rows, listed.cont


def _summary(run: Obj) -> Obj:
    return {key: value for key, value in (run.get("status") or {}).items() if not key.endswith("odes")}


async def get_cron(api: Api, namespace: str, name: str, now: datetime) -> Cron:
    """Return a schedule with its next slot and its newest run. Raises NotFound."""
    obj = await get_object(api, CRON, namespace, name)
    runs = (await api.list(WORKFLOWS, namespace, label_selector=f"{CRON_LABEL}={name}")).items
    return cron_of(obj, [view_workflow({**run, "status": _summary(run)}) for run in runs], now)


def cron_of(obj: Obj, runs: Sequence[WorkflowView], now: datetime) -> Cron:
    """Return a CronWorkflow as a `Cron` for an answer."""
    view = parse_cron(obj)
    timetable, problem = _timetable(view)
    is_open = not (view.is_suspended or view.is_stopped) and timetable is not None
    of_slots = [run for run in runs if run.scheduled]
    newest = max(of_slots, key=lambda run: run.scheduled, default=None)
    going_on = sorted(run.name for run in runs if not run.has_ended)
    return Cron(
        namespace=view.namespace,
        name=view.name,
        schedules=view.schedules,
        in_words=tuple(in_words(schedule) for schedule in view.schedules),
        time_zone=view.timezone or "UTC",
        concurrency_policy=view.concurrency,
        suspended=view.is_suspended,
        stopped=view.is_stopped,
        created=view.created,
        since=_since(view),
        next=next_slot(timetable, now) if is_open and timetable is not None else None,
        last=view.last_scheduled,
        last_run=run_of(newest) if newest is not None else None,
        active=tuple(going_on),
        succeeded=view.succeeded,
        failed=view.failed,
        backfill=view.backfill.id if view.backfill is not None else "",
        problem=problem or view.spec_error or view.submission_error,
    )


def _since(view: CronView) -> datetime | None:
    """Return the time after which slots are due or missed; None before our operator has read the schedule."""
    if not view.state.cursor:
        return None
    cursor = max(view.created, datetime.fromtimestamp(view.state.cursor, UTC))
    if not view.state.missed:
        return cursor
    return min(cursor, datetime.fromtimestamp(view.state.missed, UTC) - timedelta(seconds=1))


def _timetable(view: CronView) -> tuple[Timetable | None, str]:
    if view.problem:
        return None, view.problem
    try:
        return parse_timetable(view.schedules, view.timezone, anchor=view.created), ""
    except ScheduleError as error:
        return None, error.message


def run_of(view: WorkflowView) -> CronRun:
    """Return a Workflow of a schedule as a `CronRun` for an answer."""
    return CronRun(
        name=view.name,
        phase=view.phase or "Pending",
        scheduled=moment(view.scheduled),
        started=view.started,
        finished=view.finished,
        message=view.message,
        gone=view.is_gone,
    )


async def suspend_cron(api: Api, namespace: str, name: str, now: datetime, *, is_suspended: bool) -> Cron:
    """Suspend or resume a schedule. Resuming also restarts a schedule that its stop strategy ended.

    Raises NotFound.
    """
    obj = await get_object(api, CRON, namespace, name)
    patch: Obj = {"spec": {"suspend": is_suspended}}
    if not is_suspended and (obj.get("status") or {}).get("phase") == "Stopped":
        patch |= {"metadata": {"labels": {COMPLETED_LABEL: None}}, "status": {"phase": "Active"}}
    changed = await api.patch(CRON_WORKFLOWS, name, patch, namespace)
    return cron_of(changed, (), now)


async def run_cron(
    api: Api,
    namespace: str,
    name: str,
    parameters: Mapping[str, str],
    *,
    controller: Controller,
    check: Check = no_check,
    mark: str = "",
) -> Submitted:
    """Start the workflow of a schedule now, outside of the schedule, as the caller.

    Raises NotFound, UsageError, ApiError.
    """
    document = await read_source(api, namespace, f"cronworkflow/{name}")
    additions = Additions(parameters=tuple(f"{key}={value}" for key, value in parameters.items()))
    return await submit_workflow(
        api, namespace, document, additions, controller=controller, check=check, mark=mark
    )


async def delete_cron(api: Api, namespace: str, name: str) -> None:
    """Delete a schedule; Kubernetes deletes its Workflows with it. Raises NotFound."""
    obj = await get_object(api, CRON, namespace, name)
    await api.delete(CRON_WORKFLOWS, name, namespace, uid=obj["metadata"]["uid"], propagation="Background")


async def cron_history(
    api: Api, namespace: str, name: str, records: Records | None = None, *, limit: int = HISTORY_MAX
) -> list[CronRun]:
    """The runs of a schedule, newest first, with deleted ones on record.

    Raises NotFound for a schedule that does not exist and has no runs.
    """
    views = await list_workflows(api, namespace, Choice(cron=name, limit=limit), records)
    if not views:
        await get_object(api, CRON, namespace, name)
    return [run_of(view) for view in views]


async def backfill_cron(
    api: Api,
    namespace: str,
    name: str,
    begin: datetime,
    end: datetime,
    *,
    now: datetime,
    parallel: int = 1,
    dry_run: bool = False,
    records: Records | None = None,
) -> BackfillAnswer:
    """Ask the operator to run the slots in [begin, end] that did not run, oldest first, `parallel` at a time.

    The Workflows have the slot's name and time. Raises NotFound; UsageError for an empty or too long period;
    Conflict while another backfill runs, and where Argo runs the schedule.
    """
    identity = secrets.token_hex(4)

    async def read() -> Callable[[], Awaitable[BackfillAnswer]]:
        obj, timetable = await _for_backfill(api, namespace, name, dry_run=dry_run)
        kept = await list_workflows(api, namespace, Choice(cron=name), records or NoRecords())
        plan = plan_backfill(timetable, name, begin, min(end, now), {view.name for view in kept})
        wish = Backfill(id=identity, slots=tuple(int(slot.timestamp()) for slot in plan.slots), parallel=parallel)

        async def write() -> BackfillAnswer:
            if not plan.slots or dry_run:
                return BackfillAnswer(slots=plan.slots, skipped=plan.skipped, id="")
            annotations = {CRON_BACKFILL_ANNOTATION: msgspec.json.encode(wish).decode()}
            meta = {"resourceVersion": obj["metadata"]["resourceVersion"], "annotations": annotations}
            await api.patch(CRON_WORKFLOWS, name, {"metadata": meta}, namespace)
            return BackfillAnswer(slots=plan.slots, skipped=plan.skipped, id=identity)

        return write

    return await write_as_read(read)


async def _for_backfill(api: Api, namespace: str, name: str, *, dry_run: bool) -> tuple[Obj, Timetable]:
    """Return a schedule that may be backfilled, and its timetable. Raises as `run_cron`.

    Raises Conflict if another controller runs it, a backfill is running, or it has no slots.
    """
    obj = await get_object(api, CRON, namespace, name)
    view = parse_cron(obj)
    if not is_ours(obj) and labels_of(obj).get(INSTANCE_LABEL) is not None:
        raise Conflict(
            f"another controller runs schedule {name!r}: the label {INSTANCE_LABEL} is"
            f" {labels_of(obj)[INSTANCE_LABEL]!r}",
            hint="use that controller's own command: argo cron backfill",
            code=ErrorCode.CONFLICT,
        )
    if view.backfill is not None and not dry_run:
        raise Conflict(
            f"backfill {view.backfill.id} of schedule {name!r} is still running",
            hint=f"wait for its end: moor cron get {name}",
            code=ErrorCode.CONFLICT,
        )
    timetable, problem = _timetable(view)
    if timetable is None:
        raise Conflict(f"schedule {name!r} has no slots: {problem}", code=ErrorCode.CONFLICT)
    return obj, timetable


def plan_backfill(
    timetable: Timetable, name: str, begin: datetime, end: datetime, known: set[str]
) -> BackfillPlan:
    """Return the slots in [begin, end]; slots whose Workflow is in `known` are skipped. Raises UsageError."""
    if end < begin:
        raise UsageError(
            f"invalid stretch: it ends at {rfc3339(end)}, before it begins at {rfc3339(begin)}",
            code=ErrorCode.INVALID,
            field="end",
        )
    wanted: list[datetime] = []
    skipped: list[datetime] = []
    for slot in slots(timetable, begin - timedelta(microseconds=1), end):
        (skipped if run_name(name, slot) in known else wanted).append(slot)
        if len(wanted) > BACKFILL_MAX:
            raise UsageError(
                f"the stretch has more than {BACKFILL_MAX} slots: choose a later begin or an earlier end",
                hint=f"the slot number {BACKFILL_MAX} is at {rfc3339(wanted[BACKFILL_MAX - 1])}",
                code=ErrorCode.INVALID,
                field="end",
            )
    return BackfillPlan(tuple(wanted), tuple(skipped))
