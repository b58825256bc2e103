"""API types of workflow schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from moorage.api.fields import Answer, Name, Request, Time, about


class CronRun(Answer, frozen=True, omit_defaults=True):
    """One Workflow that a schedule started."""

    name: Annotated[str, about("Name of the Workflow.")]
    phase: Annotated[str, about("Pending, Running, Succeeded, Failed or Error.")]
    scheduled: Annotated[Time | None, about("The slot that it is of; left out: it was started by hand.")] = None
    started: Annotated[Time | None, about("When it started; left out: not yet.")] = None
    finished: Annotated[Time | None, about("When it ended; left out: not yet.")] = None
    message: Annotated[str, about("Why it failed.")] = ""
    gone: Annotated[bool, about("Whether its object was deleted; the record remains.")] = False


class Cron(Answer, frozen=True, omit_defaults=True):
    """One CronWorkflow."""

    namespace: Annotated[str, about("Its namespace.")]
    name: Annotated[str, about("Its name.")]
    schedules: Annotated[tuple[str, ...], about("When it is due, as written.")]
    in_words: Annotated[tuple[str, ...], about("Each schedule as a phrase.")] = ()
    time_zone: Annotated[str, about("The zone of its schedules.")] = "UTC"
    concurrency_policy: Annotated[str, about("Allow, Forbid or Replace.")] = "Allow"
    suspended: Annotated[bool, about("Whether the schedule is suspended; slots are not run.")] = False
    stopped: Annotated[bool, about("Whether its stop strategy applies; slots are not run any more.")] = False
    created: Annotated[Time | None, about("When it was created.")] = None
    since: Annotated[
        Time | None, about("Slots after it are due, or were missed; left out: the operator has not looked yet.")
    ] = None
    next: Annotated[Time | None, about("The next slot; left out: there is none.")] = None
    last: Annotated[Time | None, about("The newest slot that was run.")] = None
    last_run: Annotated[CronRun | None, about("The Workflow of the newest slot, while it is stored.")] = None
    active: Annotated[tuple[str, ...], about("Workflows that go on.")] = ()
    succeeded: Annotated[int, about("Runs that succeeded so far.")] = 0
    failed: Annotated[int, about("Runs that failed, and Workflows that could not be created.")] = 0
    backfill: Annotated[str, about("The id of the backfill that is running.")] = ""
    problem: Annotated[str, about("Why slots cannot be run, or why the newest could not.")] = ""


class CronList(Answer, frozen=True):
    """A page of schedules."""

    crons: tuple[Cron, ...]
    after: Annotated[str | None, about("The `continue` of the next page; left out: this is the last.")] = (
        msgspec.field(default=None, name="continue")
    )


class NewCron(Request):
    """A schedule to create."""

    manifest: Annotated[dict[str, Any], about("The CronWorkflow, in Argo's format.")]
    namespace: Annotated[Name, about("Its namespace.")]


class CronStart(Request):
    """A start outside of the schedule."""

    parameters: Annotated[dict[str, str], about("Arguments of the workflow, by name.")] = {}


class BackfillRequest(Request):
    """Past times of a schedule to run now."""

    begin: Annotated[datetime, about("The first moment, with its zone.")]
    end: Annotated[datetime, about("The last moment, with its zone.")]
    parallel: Annotated[Annotated[int, msgspec.Meta(ge=1, le=100)], about("How many run at a time, 1 to 100.")] = 1
    dry_run: Annotated[bool, about("Say which slots would run; start nothing.")] = False


class BackfillAnswer(Answer, frozen=True):
    """The slots that a backfill runs."""

    slots: Annotated[tuple[Time, ...], about("Slots that are run, in order.")]
    skipped: Annotated[tuple[Time, ...], about("Slots that have a Workflow, or had one.")] = ()
    id: Annotated[str, about("Its id, in the label moorage.dev/cron-backfill; empty: nothing is run.")] = ""


class CronHistory(Answer, frozen=True):
    """The runs of a schedule, newest first."""

    runs: tuple[CronRun, ...]
