"""Idle work in lists, in a few words: "idle 3h, suspended in 2h"."""

from __future__ import annotations

from datetime import datetime, timedelta

from moorage.api.jobs import JobSummary
from moorage.decide.idle.states import Record, State
from moorage_kube.moments import format_duration

_NEXT = {"warn": "warned", "remind": "reminded", "suspend": "suspended"}


def mark_of(record: Record, now: datetime) -> str:
    """The mark of a stored record of work; "" for work that is in use."""
    if record.state in (State.ACTIVE, State.EXEMPT):
        return ""
    if record.state is State.SUSPENDED:
        return "suspended: idle"
    if record.state is State.SNOOZED and record.snoozed_until is not None:
        return _mark(record.since, "end", record.snoozed_until, now)
    return _mark(record.since, record.next, record.next_at, now) or str(record.state)


def mark_of_run(run: JobSummary, now: datetime) -> str:
    """The idle label of a run; "" for an active run and for a suspended run: its reason says it already."""
    return "" if run.state == "Suspended" else _mark(run.idle_since, run.idle_next, run.idle_next_at, now)


def _mark(since: datetime | None, upcoming: str, at: datetime | None, now: datetime) -> str:
    if upcoming == "end" and at is not None:
        return f"snoozed for {format_duration(max(timedelta(), at - now))}"
    if since is None:
        return ""
    words = f"idle {format_duration(now - since)}"
    if upcoming in _NEXT and at is not None:
        return f"{words}, {_NEXT[upcoming]} in {format_duration(max(timedelta(), at - now))}"
    return words
