"""The content of the pages of schedules: from answers to words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct

from moorage.api.crons import Cron, CronRun
from moorage.server.pages.board import When, ago, span
from moorage_kube.moments import rfc3339
from moorage_workflows.decide.workflows.schedules import ScheduleError, latest_slot, parse_timetable
from moorage_workflows.server.pages.workflowboard import PILLS

LATE = timedelta(minutes=2)  # after its slot a run is late: the operator looks each few seconds
ACTIVE, SUSPENDED, STOPPED, BROKEN, OVERDUE = "Active", "Suspended", "Stopped", "Invalid", "Overdue"
STATES = (ACTIVE, OVERDUE, SUSPENDED, STOPPED, BROKEN)
_TONES = {ACTIVE: "good", SUSPENDED: "wait", STOPPED: "done", BROKEN: "bad", OVERDUE: "bad"}


class RunRow(Struct, frozen=True, kw_only=True):
    """A Workflow of a schedule. `slot` "": a user started it."""

    name: str
    state: str
    tone: str
    slot: str
    age: When | None
    took: str
    since: When | None
    why: str
    is_gone: bool


class CronRow(Struct, frozen=True, kw_only=True):
    """A schedule. `words`: each of its schedules as a phrase; `written`: as in the manifest."""

    namespace: str
    name: str
    state: str
    tone: str
    words: tuple[str, ...]
    written: tuple[str, ...]
    zone: str
    coming: str  # the next slot, on the clock of its zone
    coming_in: str
    last: RunRow | None
    active: tuple[str, ...]
    succeeded: int
    failed: int
    policy: str
    problem: str
    overdue: str
    backfill: str


def cron_row(cron: Cron, now: datetime) -> CronRow:
    late = overdue_slot(cron, now)
    state = (
        STOPPED if cron.stopped
        else SUSPENDED if cron.suspended
        else BROKEN if cron.problem and cron.next is None
        else OVERDUE if late is not None
        else ACTIVE
    )  # fmt: skip
    return CronRow(
        namespace=cron.namespace,
        name=cron.name,
        state=state,
        tone=_TONES[state],
        words=cron.in_words or cron.schedules,
        written=cron.schedules,
        zone=cron.time_zone,
        coming=local(cron.next, cron.time_zone),
        coming_in=span(cron.next - now) if cron.next is not None else "",
        last=run_row(cron.last_run, cron.time_zone, now) if cron.last_run is not None else None,
        active=cron.active,
        succeeded=cron.succeeded,
        failed=cron.failed,
        policy=cron.concurrency_policy,
        problem=cron.problem,
        overdue=_overdue_words(cron, late) if state == OVERDUE else "",
        backfill=cron.backfill,
    )


def run_row(run: CronRun, zone: str, now: datetime) -> RunRow:
    end = run.finished
    took = span(end - run.started) if run.started is not None and end is not None else ""
    return RunRow(
        name=run.name,
        state=run.phase,
        tone=PILLS.get(run.phase, "wait"),
        slot=local(run.scheduled, zone),
        age=ago(run.started, now),
        took=took,
        since=ago(run.started, now) if end is None and not run.gone else None,
        why=run.message,
        is_gone=run.gone,
    )


def run_rows(runs: Iterable[CronRun], zone: str, now: datetime) -> tuple[RunRow, ...]:
    return tuple(run_row(run, zone, now) for run in runs)


def overdue_slot(cron: Cron, now: datetime) -> datetime | None:
    """The newest slot after the last run that is overdue by LATE; None if there is none, or if it is unknown.

    For a schedule that has never run, the slots since the operator took it over count.
    """
    begin = cron.last or cron.since
    if cron.suspended or cron.stopped or begin is None:
        return None
    try:
        timetable = parse_timetable(cron.schedules, cron.time_zone, anchor=cron.created or begin)
    except ScheduleError:
        return None
    until = now - LATE
    return latest_slot(timetable, begin, until) if until > begin else None


def _overdue_words(cron: Cron, slot: datetime | None) -> str:
    words = f"The slot of {local(slot, cron.time_zone)} did not run"
    if cron.active and cron.concurrency_policy == "Forbid":
        return f"{words}: an earlier run is active, and the policy is Forbid"
    return words


def local(moment: datetime | None, zone: str) -> str:
    """Return a time in a zone: "2026-03-01 09:00 JST"; in UTC if the zone is unknown."""
    if moment is None:
        return ""
    try:
        there = moment.astimezone(ZoneInfo(zone or "UTC"))
    except (ZoneInfoNotFoundError, ValueError):
        return rfc3339(moment)
    return there.strftime("%Y-%m-%d %H:%M %Z")


def sorted_rows(crons: Sequence[Cron], now: datetime) -> tuple[CronRow, ...]:
    """Return the rows of schedules, sorted by namespace and name."""
    return tuple(cron_row(cron, now) for cron in sorted(crons, key=lambda cron: (cron.namespace, cron.name)))
