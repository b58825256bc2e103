"""API types of idle work: `/api/v1/idle`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from moorage.api.fields import Answer, Query, Request, Text, Time, about
from moorage.model.spans import SPAN_PATTERN


class IdleChoice(Query):
    """Filters for a list of idle work."""

    namespace: Annotated[Text, about("Only this namespace; empty: all.")] = ""


class IdleWork(Answer, frozen=True):
    """A piece of work that is idle, snoozed, exempt, or was suspended for being idle."""

    kind: Annotated[str, about("workspace, run, map or workflow.")]
    namespace: str
    name: str
    state: Annotated[str, about("idle, warned, reminded, snoozed, suspended or exempt.")]
    owner: Annotated[str, about("User who created it.")] = ""
    gpus: Annotated[int, about("GPUs that it holds, or held when it was suspended.")] = 0
    since: Annotated[Time | None, about("Idle since then; null: it is not.")] = None
    why: Annotated[str, about("The measurements that say so, as a sentence.")] = ""
    next: Annotated[str, about("Next step unless it is used: warn, remind, suspend, end (of its snooze).")] = ""
    next_at: Annotated[Time | None, about("When that comes; null: nothing comes.")] = None
    outlook: Annotated[str, about("The same as a sentence, or why it is not suspended.")] = ""
    policy: Annotated[str, about("Name of the IdlePolicy; built-in: the administrator wrote none.")] = ""
    snoozed_until: Annotated[Time | None, about("Its owner put it off until then; null: not snoozed.")] = None
    snoozes: Annotated[int, about("Snoozes in a row.")] = 0
    went_to: Annotated[str, about("Work that got its GPUs after it was suspended; empty: none yet.")] = ""


class IdleList(Answer, frozen=True):
    """All idle work."""

    now: Time
    work: tuple[IdleWork, ...] = ()


class Snooze(Request):
    """The time by which to delay a suspension."""

    time: Annotated[
        str,
        msgspec.Meta(pattern=SPAN_PATTERN, min_length=2, max_length=32),
        about("A span such as 90m, 4h or 1d, within the limits of the policy."),
    ]


class ReportRequest(Request):
    """An IdlePolicy to try on recorded use."""

    since: Annotated[Text, about("A span such as 14d before now, a day, or a time.")] = "14d"
    spec: Annotated[
        dict[str, Any] | None, about("`spec` of the IdlePolicy to try; null: the policies in force.")
    ] = None


class ReportRow(Answer, frozen=True):
    """The effect of the policy on one piece of work."""

    kind: str
    namespace: str
    name: str
    owner: str = ""
    gpus: Annotated[int, about("GPUs that it held.")] = 0
    idle_hours: Annotated[float, about("GPU-hours in which it was idle, by readings of GPU and CPU.")] = 0.0
    warned_at: Annotated[Time | None, about("When its owner would have been warned first; null: never.")] = None
    suspended_at: Annotated[Time | None, about("When it would have been suspended; null: never.")] = None
    reclaimed_hours: Annotated[float, about("GPU-hours from then until it was used again, or ended.")] = 0.0
    why: Annotated[str, about("The measurements, or why it would not have been suspended.")] = ""


class Report(Answer, frozen=True):
    """Most GPU-hours that the policy would have reclaimed: past kernels, browsers and checkpoints are unknown."""

    since: Time
    until: Time
    policy: str
    held_hours: Annotated[float, about("GPU-hours that all work held.")] = 0.0
    measured_hours: Annotated[float, about("GPU-hours with readings; the rest counts as used.")] = 0.0
    idle_hours: float = 0.0
    reclaimed_hours: float = 0.0
    rows: tuple[ReportRow, ...] = ()
