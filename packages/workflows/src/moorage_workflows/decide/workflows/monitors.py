"""Heartbeats of workflows: which are due, and their addresses.

A run gets at most one of each beat, in this order: start, overdue, then success or failure. Sent beats
are stored with the run, so that another call returns nothing until something happens.

`moorage.dev/monitor: URL` speaks to a service by the address's host: cronitor.link and cronitor.io as Cronitor
(`?state=run`), others as Healthchecks (`URL/start`, `URL`, `URL/fail`).
https://cronitor.io/docs/telemetry-api https://healthchecks.io/docs/http_api/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from moorage.decide.maps.notices import Notice, plain
from moorage.model.names import MONITOR_ANNOTATION, MONITOR_PREFIX, NOTIFY_ANNOTATION
from moorage.model.targets import Command, Target, Webhook, parse_target
from moorage_kube.errors import MoorageError, UsageError
from moorage_kube.moments import format_duration, rfc3339
from moorage_workflows.decide.workflows.text.durations import parse_duration

OVERDUE_LEAST = timedelta(minutes=10)
OVERDUE_FACTOR = 1.5  # of the time that 95 % of the last runs stayed within
TIMES_KEPT = 20  # durations of successful runs that the usual time is found from
TIMES_NEEDED = 3  # fewer say little about the usual time
TOO_OLD = timedelta(hours=1)  # a run that ended so long ago, and of which nothing was sent, is left alone
TARGETS_MAX = 10
_CRONITOR_HOSTS = ("cronitor.link", "cronitor.io")


class Beat(StrEnum):
    """The kind of a heartbeat."""

    START = "start"
    SUCCESS = "success"
    FAILURE = "failure"
    OVERDUE = "overdue"


class MonitorEvent(StrEnum):
    """The events of notices."""

    FAILED = "workflow-failed"
    OVERDUE = "workflow-overdue"
    MISSED = "slot-missed"


class Monitor(Struct, frozen=True, kw_only=True):
    """The targets of a run's beats. `addresses`: by beat; `after`: when it is overdue, None: by earlier runs."""

    address: str = ""
    addresses: Mapping[Beat, str]
    targets: tuple[Target, ...] = ()
    after: timedelta | None = None


class RunState(Struct, frozen=True, kw_only=True):
    """The present state of a run. `is_deleted`: its object is being deleted."""

    namespace: str
    name: str
    uid: str
    phase: str
    created: datetime
    started: datetime | None = None
    finished: datetime | None = None
    message: str = ""
    cron: str = ""
    is_deleted: bool = False

    @property
    def has_ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed", "Error") or self.is_deleted


class Due(Struct, frozen=True):
    """The next heartbeat to send; None if none is due.

    `look_again_at`: the time when one may become due without a change of the run.
    """

    beat: Beat | None = None
    look_again_at: datetime | None = None
    is_done: bool = False  # nothing follows


def parse_monitor(annotations: Mapping[str, str]) -> tuple[Monitor | None, tuple[str, ...]]:
    """The monitor that annotations ask for (None: none), and the errors in them, each with its key.

    Messages do not repeat an address: addresses are secrets of the monitoring service.
    """
    # addresses: one for all beats, and one for each
    problems: list[str] = []
    address = _address(MONITOR_ANNOTATION, annotations, problems)
    addresses = {
        beat: text for beat in Beat if (text := _address(f"{MONITOR_PREFIX}{beat}", annotations, problems))
    }
    # targets of notices; commands are not possible here
    targets: list[Target] = []
    for text in annotations.get(NOTIFY_ANNOTATION, "").split():
        try:
            target = parse_target(text)
        except UsageError as error:
            problems.append(f"{NOTIFY_ANNOTATION}: {error.message}")
            continue
        if isinstance(target, Command):
            problems.append(f"{NOTIFY_ANNOTATION}: commands are not run for workflows: use https:// or mailto:")
            continue
        targets.append(target)
    if len(targets) > TARGETS_MAX:
        problems.append(f"{NOTIFY_ANNOTATION}: {len(targets)} targets; at most {TARGETS_MAX} are allowed")
        targets = targets[:TARGETS_MAX]
    # the time after which a run is overdue
    after = None
    after_key = f"{MONITOR_PREFIX}after"
    if after_key in annotations:
        try:
            after = parse_duration(annotations[after_key])
        except MoorageError as error:
            problems.append(f"{after_key}: {error.message}")
        else:
            if after <= timedelta():
                problems.append(
                    f"{after_key}: {annotations[after_key]!r} is not a time: use a duration such as 2h"
                )
                after = None
    if not (address or addresses or targets):
        return None, tuple(problems)
    return Monitor(address=address, addresses=addresses, targets=tuple(targets), after=after), tuple(problems)


def _address(key: str, annotations: Mapping[str, str], problems: list[str]) -> str:
    text = annotations.get(key, "").strip()
    if not text:
        return ""
    try:
        Webhook(text)
    except UsageError as error:
        problems.append(f"{key}: {error.message}")
        return ""
    return text


def beat_address(monitor: Monitor, beat: Beat, run_id: str, message: str = "") -> str:
    """The address of a beat; empty: it is not sent. `run_id`: the run's uid, which distinguishes beats of two
    runs.
    """
    if beat in monitor.addresses:
        return monitor.addresses[beat]
    if not monitor.address or beat is Beat.OVERDUE:  # these services find out themselves that a beat is missing
        return ""
    parts = urlsplit(monitor.address)
    host = parts.hostname or ""
    if any(host == known or host.endswith(f".{known}") for known in _CRONITOR_HOSTS):
        state = {Beat.START: "run", Beat.SUCCESS: "complete", Beat.FAILURE: "fail"}[beat]
        more = [("state", state), ("series", run_id), *([("message", message[:1000])] if message else [])]
        return urlunsplit(parts._replace(query=urlencode([*parse_qsl(parts.query), *more])))
    ending = {Beat.START: "/start", Beat.SUCCESS: "", Beat.FAILURE: "/fail"}[beat]
    query = urlencode([*parse_qsl(parts.query), ("rid", run_id)])
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + ending, query=query))


def usual_time(seconds: Sequence[int]) -> timedelta | None:
    """Return the time after which a run is overdue, computed from the run times of earlier runs.

    None if too few run times are known.
    """
    if len(seconds) < TIMES_NEEDED:
        return None
    ordered = sorted(seconds[-TIMES_KEPT:])
    percentile = ordered[min(len(ordered) - 1, -(-95 * len(ordered) // 100) - 1)]
    return max(OVERDUE_LEAST, timedelta(seconds=percentile * OVERDUE_FACTOR))


def due(run: RunState, sent: frozenset[Beat], now: datetime, after: timedelta | None) -> Due:
    """Return the next heartbeat of a run. `after`: the run is overdue this long after its start; None: never.

    A run that has not started is overdue after `OVERDUE_LEAST`, or after `after` if that is longer.
    """
    if sent & {Beat.SUCCESS, Beat.FAILURE}:
        return Due(is_done=True)
    if run.has_ended:
        if not sent and run.finished is not None and now - run.finished > TOO_OLD:
            return Due(is_done=True)
        if Beat.START not in sent and run.started is not None:
            return Due(Beat.START)
        return Due(Beat.SUCCESS if run.phase == "Succeeded" else Beat.FAILURE)
    if run.started is not None and Beat.START not in sent:
        return Due(Beat.START)
    if Beat.OVERDUE in sent:
        return Due()
    if run.started is None:
        limit: datetime | None = run.created + max(OVERDUE_LEAST, after or timedelta())
    else:
        limit = run.started + after if after is not None else None
    if limit is None:
        return Due()
    return Due(Beat.OVERDUE) if now >= limit else Due(look_again_at=limit)


def make_notice(run: RunState, beat: Beat, now: datetime) -> Notice | None:
    """The notice for a beat; None if it has none."""
    name = f"workflow {run.namespace}/{run.name}"
    lines = [f"schedule: {run.cron}"] if run.cron else []
    if run.message:
        lines.append(plain(run.message)[:500])
    lines.append(f"show it: moor workflow get {run.name} -n {run.namespace}")
    match beat:
        case Beat.FAILURE:
            title = f"{name} failed" if not run.is_deleted or run.phase else f"{name} was deleted"
            event = MonitorEvent.FAILED
        case Beat.OVERDUE if run.started is None:
            title = f"{name} has not started after {format_duration(now - run.created)}"
            event = MonitorEvent.OVERDUE
        case Beat.OVERDUE:
            title = f"{name} is overdue: it has run for {format_duration(now - (run.started or now))}"
            event = MonitorEvent.OVERDUE
        case _:
            return None
    return Notice(event=event, key=f"{run.uid}.{beat}", title=plain(title), lines=tuple(lines))


def missed_notice(namespace: str, name: str, slot: datetime, uid: str) -> Notice:
    """The notice about a slot that was not run."""
    return Notice(
        event=MonitorEvent.MISSED,
        key=f"{uid}.{int(slot.timestamp())}.missed",
        title=plain(f"schedule {namespace}/{name}: the slot of {rfc3339(slot)} was not run"),
        lines=(f"see why: moor cron get {name} -n {namespace}",),
    )
