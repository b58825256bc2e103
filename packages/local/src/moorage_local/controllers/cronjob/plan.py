"""Decide the next step of a CronJob. Pure.

As kube-controller-manager's cronjob controller; schedules of the form `@every` are not run (an event says so).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from moorage_kube.clock import parse_rfc3339, rfc3339
from moorage_kube.meta import is_condition_true, is_deleting, owner_reference
from moorage_kube.moments import span_of
from moorage_kube.resources import Obj
from moorage_local.controllers.job.plan import is_job_finished

MANY_MISSED = 100
LATE = timedelta(milliseconds=100)  # how long after the moment it is looked at, for clocks that differ
SCHEDULED_ANNOTATION = "batch.kubernetes.io/cronjob-scheduled-timestamp"
MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A CronJob and the Jobs that it controls, at one moment (in UTC)."""

    cron: Obj
    jobs: Sequence[Obj]
    now: datetime


@dataclass(frozen=True, slots=True)
class Tell:
    """An event about the CronJob."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`status`: the status to write before a start. `start`: the Job to create, once `replace` is deleted."""

    status: Obj
    events: tuple[Tell, ...] = ()
    delete: tuple[Obj, ...] = ()  # of the history, the oldest
    replace: tuple[Obj, ...] = ()
    start: Obj | None = None
    scheduled: datetime | None = None  # the moment that `start` is for
    look_again: timedelta | None = None


class ScheduleError(Exception):
    """The schedule cannot be used; the error has the reason of the event."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Schedule:
    """A cron schedule in a time zone."""

    line: str
    zone: ZoneInfo

    @classmethod
    def of(cls, cron: Mapping[str, Any]) -> Schedule:
        """Raises ScheduleError."""
        spec = cron["spec"]
        name, text = spec.get("timeZone"), str(spec.get("schedule") or "")
        try:
            zone = ZoneInfo(name or "UTC")
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ScheduleError("UnknownTimeZone", f'invalid timeZone: "{name}": {error}') from None
        line = MACROS.get(text, text).replace("?", "*")
        try:
            CronSim(line, datetime(2026, 1, 1, tzinfo=zone))
        except (CronSimError, ValueError) as error:  # a ValueError: more digits than int() reads
            message = f'unparseable schedule: "{text[:200]}" : {error}'
            raise ScheduleError("UnparseableSchedule", message) from None
        return cls(line, zone)

    def after(self, moment: datetime) -> datetime | None:
        """Return the first scheduled moment after this moment; None if there is none."""
        return self._first(moment, reverse=False)

    def until(self, moment: datetime) -> datetime | None:
        """Return the last scheduled moment that is not after this moment."""
        return self._first(moment + timedelta(seconds=1), reverse=True)

    def _first(self, moment: datetime, *, reverse: bool) -> datetime | None:
        first = next(
            CronSim(self.line, moment.astimezone(self.zone).replace(microsecond=0), reverse=reverse), None
        )
        return first.astimezone(UTC) if first is not None else None


def plan(seen: Observed) -> Plan:
    """Return the next steps.

    It is safe to stop after any step: the name of a Job depends on its scheduled moment.
    """
    cron, spec = seen.cron, seen.cron["spec"]
    status, events = _settled(seen)
    delete = tuple(_history(seen))

    def done(*more: Tell, look_again: timedelta | None = None) -> Plan:
        return Plan(status=status, events=(*events, *more), delete=delete, look_again=look_again)

    # a CronJob that starts nothing now
    if is_deleting(cron):
        return Plan(status=status, events=tuple(events))
    try:
        schedule = Schedule.of(cron)
    except ScheduleError as error:
        return done(Tell("Warning", error.reason, str(error)))
    if spec.get("suspend"):
        return done()
    # the moment that is due, if there is one
    following = schedule.after(seen.now)
    look_again = following - seen.now + LATE if following is not None else None
    earliest = parse_rfc3339(status.get("lastScheduleTime") or cron["metadata"]["creationTimestamp"])
    deadline = spec.get("startingDeadlineSeconds")
    if deadline is not None:
        earliest = max(earliest, seen.now - span_of(deadline))
    scheduled = schedule.until(seen.now)
    if scheduled is None or scheduled <= earliest:
        return done(look_again=look_again)
    warnings = []
    if _missed(schedule, earliest, seen.now) > MANY_MISSED:
        text = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
        warnings.append(Tell("Warning", "TooManyMissedTimes", text))
    # start its Job, unless an earlier one blocks it
    name = job_name(cron, scheduled)
    active = status.get("active") or []
    if any(ref.get("name") == name for ref in active):
        return done(look_again=look_again)
    policy = spec.get("concurrencyPolicy")
    if policy == "Forbid" and active:
        text = "Not starting job because prior execution is running and concurrency policy is Forbid"
        return done(Tell("Normal", "JobAlreadyActive", text), look_again=look_again)
    running = [job for job in seen.jobs if not is_job_finished(job) and job["metadata"]["name"] != name]
    return Plan(
        status=status,
        events=(*events, *warnings),
        delete=delete,
        replace=tuple(job for job in running if not is_deleting(job)) if policy == "Replace" else (),
        start=make_job(cron, scheduled, schedule.zone),
        scheduled=scheduled,
        look_again=look_again,
    )


def started(status: Mapping[str, Any], job: Mapping[str, Any], scheduled: datetime, gone: Sequence[str]) -> Obj:
    """Return the status after `job` was created for a moment; `gone`: the uids of the Jobs that it replaced."""
    meta = job["metadata"]
    ref = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": meta["name"],
        "namespace": meta["namespace"],
        "resourceVersion": meta["resourceVersion"],
        "uid": meta["uid"],
    }
    kept = [entry for entry in status.get("active") or () if entry["uid"] not in (*gone, meta["uid"])]
    return {**status, "active": [*kept, ref], "lastScheduleTime": rfc3339(scheduled)}


def job_name(cron: Mapping[str, Any], scheduled: datetime) -> str:
    """The name of the Job for a moment; always the same, so that a Job is not created twice."""
    return f"{cron['metadata']['name']}-{int(scheduled.timestamp()) // 60}"


def make_job(cron: Mapping[str, Any], scheduled: datetime, zone: ZoneInfo) -> Obj:
    template = cron["spec"]["jobTemplate"]
    given = template.get("metadata") or {}
    moment = scheduled.astimezone(zone).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(cron, scheduled),
            "namespace": cron["metadata"]["namespace"],
            "labels": dict(given.get("labels") or {}),
            "annotations": dict(given.get("annotations") or {}) | {SCHEDULED_ANNOTATION: moment},
            "ownerReferences": [owner_reference({"apiVersion": "batch/v1", "kind": "CronJob"} | dict(cron))],
        },
        "spec": template["spec"],
    }


def _settled(seen: Observed) -> tuple[Obj, list[Tell]]:
    """Return the status with the state of its Jobs, and the events about them."""
    status, events = dict(seen.cron.get("status") or {}), []
    jobs = {job["metadata"]["uid"]: job for job in seen.jobs}
    active = []
    for ref in status.get("active") or ():
        job = jobs.get(ref.get("uid"))
        if job is None:
            events.append(Tell("Normal", "MissingJob", f"Active job went missing: {ref.get('name')}"))
        elif is_job_finished(job):
            how = "Complete" if is_condition_true(job, "Complete") else "Failed"
            text = f"Saw completed job: {ref.get('name')}, condition: {how}"
            events.append(Tell("Normal", "SawCompletedJob", text))
        else:
            active.append(ref)
    known = {ref.get("uid") for ref in active}
    for uid, job in jobs.items():
        if uid not in known and not is_job_finished(job) and not is_deleting(job):
            text = f"Saw a job that the controller did not create or forgot: {job['metadata']['name']}"
            events.append(Tell("Warning", "UnexpectedJob", text))
    ends = [
        (job.get("status") or {}).get("completionTime") for job in seen.jobs if is_condition_true(job, "Complete")
    ]
    last = max((end for end in (*ends, status.get("lastSuccessfulTime")) if end), key=parse_rfc3339, default=None)
    status.pop("active", None)
    if active:
        status["active"] = active
    if last:
        status["lastSuccessfulTime"] = last
    return status, events


def _history(seen: Observed) -> list[Obj]:
    """Return the finished Jobs beyond the history limits, the oldest first."""
    spec, out = seen.cron["spec"], []
    for kind, field in (("Complete", "successfulJobsHistoryLimit"), ("Failed", "failedJobsHistoryLimit")):
        limit = spec.get(field)
        if limit is None:
            continue
        ended = [job for job in seen.jobs if is_condition_true(job, kind) and not is_deleting(job)]
        ended.sort(
            key=lambda job: (str((job.get("status") or {}).get("startTime") or "~"), job["metadata"]["name"])
        )
        out += ended[: max(0, len(ended) - int(limit))]
    return out


def _missed(schedule: Schedule, earliest: datetime, now: datetime) -> int:
    """Count the scheduled moments after `earliest` up to now; stops counting just above `MANY_MISSED`."""
    count, moment = 0, schedule.after(earliest)
    while moment is not None and moment <= now and count <= MANY_MISSED:
        count += 1
        moment = schedule.after(moment)
    return count
