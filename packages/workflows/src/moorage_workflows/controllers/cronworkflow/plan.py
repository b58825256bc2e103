"""Decide the next steps of a CronWorkflow. Pure.

A slot starts at most one run. Its Workflow is named by the slot. The slot is saved as pending before the
Workflow is created, together with a cursor: slots up to it are not looked at again. The Workflow has a
finalizer until the slot is saved as started, so it cannot be created, run and deleted unseen. Each save
has the version that was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from moorage_kube.errors import MoorageError
from moorage_kube.moments import rfc3339
from moorage_kube.quantity import counted
from moorage_kube.resources import Obj
from moorage_workflows.decide.workflows.crons import cron_scope, is_to_stop, is_wanted
from moorage_workflows.decide.workflows.monitors import TIMES_KEPT
from moorage_workflows.decide.workflows.schedules import (
    ScheduleError,
    Timetable,
    latest_slot,
    next_slot,
    parse_timetable,
)
from moorage_workflows.model.cronworkflow import Concurrency, CronState, CronView, Pending, run_name

ON_TIME = timedelta(seconds=60)  # a slot seen so much later was not missed: an operator that restarts takes 20 s
LOOK_AGAIN_MAX = timedelta(minutes=10)  # a clock that is set right moves the slots
_SECOND = timedelta(seconds=1)


class RunSeen(Struct, frozen=True, kw_only=True):
    """One Workflow of the CronWorkflow. `is_held`: it has our finalizer."""

    name: str
    uid: str
    created: datetime
    phase: str = ""
    is_completed: bool = False
    finished: datetime | None = None
    seconds: int | None = None  # how long it ran; None: not known
    slot: datetime | None = None
    backfill: str = ""
    is_held: bool = False
    is_stopping: bool = False
    is_deleting: bool = False


class Seen(Struct, frozen=True, kw_only=True):
    """One CronWorkflow and all that was read about it, at one moment.

    `refused`: why the API refused the Workflow of a slot, by the Workflow's name.
    """

    cron: CronView
    document: Mapping[str, Any]
    now: datetime
    runs: Sequence[RunSeen] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


class Record(Struct, frozen=True, kw_only=True):
    """The data to write to a CronWorkflow: our own state, and the status in Argo's format."""

    state: CronState
    schedule_used: str
    last_scheduled: datetime | None
    active: tuple[tuple[str, str], ...]  # (name, uid)
    succeeded: int
    failed: int
    is_stopped: bool
    submission_error: str
    spec_error: str
    has_backfill: bool


class Save(Struct, frozen=True):
    """Write the record, unless the object has changed since it was read."""

    record: Record


class Terminate(Struct, frozen=True):
    """End a run at once, as `moor workflow terminate` does."""

    run: RunSeen


class Start(Struct, frozen=True):
    """Create the Workflow of a slot."""

    slot: datetime
    backfill: str = ""


class Release(Struct, frozen=True):
    """Remove our finalizer, because the slot is recorded."""

    run: RunSeen


class Drop(Struct, frozen=True):
    """Delete an old run."""

    run: RunSeen


class Tell(Struct, frozen=True):
    """Write an event about the CronWorkflow."""

    is_warning: bool
    reason: str
    message: str


Action = Save | Terminate | Start | Release | Drop | Tell


class Plan(Struct, frozen=True):
    actions: tuple[Action, ...] = ()
    look_again_in: timedelta | None = None


def plan(seen: Seen) -> Plan:
    """The next steps, in order. It is safe to stop after any of them: another plan finishes the work."""
    return _Planner(seen).plan()


def record_of(cron: CronView, runs: Sequence[RunSeen] = ()) -> Record:
    """The present state and status of the CronWorkflow."""
    names = {run.uid: run.name for run in runs}
    return Record(
        state=cron.state,
        schedule_used=cron.schedule_used,
        last_scheduled=cron.last_scheduled,
        active=tuple((names.get(uid, ""), uid) for uid in cron.active),
        succeeded=cron.succeeded,
        failed=cron.failed,
        is_stopped=cron.is_stopped,
        submission_error=cron.submission_error,
        spec_error=cron.spec_error,
        has_backfill=cron.backfill is not None,
    )


class _Planner:
    """Collects the steps of one pass; `record` is the new state and status of the CronWorkflow."""

    def __init__(self, seen: Seen) -> None:
        self.seen, self.cron, self.now = seen, seen.cron, seen.now
        self.before = record_of(seen.cron, seen.runs)
        self.record = self.before
        self.by_name = {run.name: run for run in seen.runs}
        self.events: list[Tell] = []
        self.terminated: list[RunSeen] = []
        self.started: list[Start] = []

    def plan(self) -> Plan:
        if self.cron.is_deleting:
            return Plan(tuple(Release(run) for run in self.seen.runs if run.is_held))
        self._settle_pending()
        self._settle_runs()
        timetable = self._timetable()
        if timetable is not None:
            self._follow_edits()
            self._stop()
            self._resume_pending()
            if not self.record.state.pending:
                if not (self.cron.is_suspended or self.record.is_stopped):
                    self._start_what_is_due(timetable)
                self._backfill()
        return Plan(self._actions(), self._look_again(timetable))

    # results of the last pass

    def _settle_pending(self) -> None:
        """Record the slots whose Workflow exists or was refused."""
        for pending in self.record.state.pending:
            slot = datetime.fromtimestamp(pending.slot, UTC)
            name = run_name(self.cron.name, slot)
            refusal = self.seen.refused.get(name, "")
            run = self.by_name.get(name)
            if run is None and not refusal:
                continue
            rest = tuple(each for each in self.record.state.pending if each != pending)
            self._state(pending=rest)
            if refusal:
                self._tell("SubmissionFailed", f"cannot create the workflow {name}: {refusal}", is_warning=True)
                if not pending.backfill:
                    self._state(missed=max(self.record.state.missed, pending.slot))
                    self.record = replace(
                        self.record, failed=self.record.failed + 1, submission_error=f"{name}: {refusal}"[:1000]
                    )
                continue
            if pending.backfill:
                continue
            last = self.record.last_scheduled
            self.record = replace(
                self.record,
                last_scheduled=slot if last is None else max(last, slot),
                submission_error="",
                active=(*self.record.active, (name, run.uid if run is not None else "")),
            )

    def _settle_runs(self) -> None:
        """Count the runs that have ended, and list the running ones."""
        listed = {uid for _, uid in self.record.active}
        own = [run for run in self.seen.runs if not run.backfill]
        for run in own:
            if run.is_completed and run.uid in listed:
                succeeded = run.phase == "Succeeded"
                if succeeded and run.seconds is not None:
                    self._state(seconds=(*self.record.state.seconds, run.seconds)[-TIMES_KEPT:])
                self.record = replace(
                    self.record,
                    succeeded=self.record.succeeded + succeeded,
                    failed=self.record.failed + (not succeeded),
                )
        waiting = self._pending_names()
        active = [run for run in own if not run.is_completed and run.name not in waiting]
        active.sort(key=lambda run: (run.slot or run.created, run.name))
        self.record = replace(self.record, active=tuple((run.name, run.uid) for run in active))

    # fields of the CronWorkflow

    def _timetable(self) -> Timetable | None:
        problem, timetable = self.cron.problem, None
        if not problem:
            try:
                timetable = parse_timetable(self.cron.schedules, self.cron.timezone, anchor=self.cron.created)
            except ScheduleError as error:
                problem = error.message
        if problem != self.record.spec_error:
            if problem:
                self._tell("InvalidSpec", problem, is_warning=True)
            self.record = replace(self.record, spec_error=problem)
        return timetable

    def _follow_edits(self) -> None:
        """After an edit of the schedule or a suspension, do not run the slots that have passed."""
        state, used = self.record.state, self.record.schedule_used
        now = int(self.now.timestamp())
        if used != self.cron.schedule_text:
            start = now if used or self.record.last_scheduled else int(self.cron.created.timestamp())
            self._state(cursor=max(state.cursor, start))
            self.record = replace(self.record, schedule_used=self.cron.schedule_text)
        if state.is_suspended != self.cron.is_suspended:
            self._state(is_suspended=self.cron.is_suspended)
            if not self.cron.is_suspended and self.cron.starting_deadline is None:
                self._state(cursor=max(self.record.state.cursor, now))

    def _scope(self) -> dict[str, Any]:
        return cron_scope(
            self.seen.document,
            last_scheduled=self.record.last_scheduled,
            succeeded=self.record.succeeded,
            failed=self.record.failed,
        )

    def _stop(self) -> None:
        if self.record.is_stopped or not self.cron.stop_expression:
            return
        try:
            is_over = is_to_stop(self.cron.stop_expression, self._scope(), self.now)
        except MoorageError as error:
            problem = f"spec.stopStrategy.expression: {error.message}"
            if self.record.spec_error != problem:
                self._tell("InvalidSpec", problem, is_warning=True)
            self.record = replace(self.record, spec_error=problem)
            return
        if is_over:
            self.record = replace(self.record, is_stopped=True)
            self._tell("Stopped", f"{self.cron.stop_expression} is true: further slots do not run")

    # due slots

    def _resume_pending(self) -> None:
        """Create the Workflows of pending slots again: a second creation is a conflict, not a second Workflow."""
        for pending in self.record.state.pending:
            slot = datetime.fromtimestamp(pending.slot, UTC)
            if not pending.backfill and self.cron.concurrency is Concurrency.REPLACE:
                self._replace_by(slot)
            self.started.append(Start(slot, pending.backfill))

    def _active(self) -> list[RunSeen]:
        uids = {uid for _, uid in self.record.active}
        return [run for run in self.seen.runs if run.uid in uids]

    def _replace_by(self, slot: datetime) -> None:
        self.terminated += [run for run in self._active() if not run.is_stopping and run.slot != slot]

    def _start_what_is_due(self, timetable: Timetable) -> None:
        cursor = datetime.fromtimestamp(max(self.record.state.cursor, int(self.cron.created.timestamp())), UTC)
        if self.record.last_scheduled is not None:
            cursor = max(cursor, self.record.last_scheduled)
        newest = latest_slot(timetable, cursor, self.now)
        if newest is None:
            return
        if self.cron.catch_up:
            self._catch_up(timetable, cursor, newest)
            return
        deadline = self.cron.starting_deadline
        is_on_time = self.now - newest <= ON_TIME
        may_be_late = (
            deadline is not None and self.record.last_scheduled is not None and self.now < newest + deadline
        )
        if not (is_on_time or may_be_late):
            self._pass_over(newest, "MissedSlot", self._missed(newest, deadline), is_warning=True)
            return
        if self.cron.concurrency is Concurrency.FORBID and self.record.active:
            if may_be_late:
                self._note(newest, f"{self._busy()} is active: {self._shown(newest)} waits until its deadline")
            else:
                self._pass_over(
                    newest, "SlotSkipped", f"{self._shown(newest)} was skipped: {self._busy()} is active"
                )
            return
        earlier = latest_slot(timetable, cursor, newest - _SECOND)
        if earlier is not None:
            self._tell(
                "MissedSlot", f"{self._shown(earlier)} was missed: only the newest slot is run", is_warning=True
            )
        self._begin([newest])

    def _catch_up(self, timetable: Timetable, cursor: datetime, newest: datetime) -> None:
        """Run the newest missed slots, oldest first; one at a time unless the policy allows more."""
        backlog = [newest]
        while len(backlog) <= self.cron.catch_up:
            earlier = latest_slot(timetable, cursor, backlog[-1] - _SECOND)
            if earlier is None:
                break
            backlog.append(earlier)
        is_on_time = self.now - newest <= ON_TIME
        allowed = self.cron.catch_up + is_on_time
        dropped, backlog = backlog[allowed:], backlog[:allowed][::-1]
        if dropped:
            self._pass_over(
                dropped[0],
                "MissedSlot",
                f"{self._shown(dropped[0])} and those before it were missed: "
                f"{CATCH_UP_WORDS} {counted(self.cron.catch_up, 'slot')}",
                is_warning=True,
            )
        if self.cron.concurrency is Concurrency.ALLOW:
            self._begin(backlog)
            return
        if self.record.active and not (self.cron.concurrency is Concurrency.REPLACE and len(backlog) == 1):
            self._note(newest, f"{self._busy()} is active: {counted(len(backlog), 'slot')} wait for it")
            return
        self._begin(backlog[:1])

    def _begin(self, due: Sequence[datetime]) -> None:
        for slot in due:
            try:
                is_run = is_wanted(self.cron.when, self._scope(), self.now)
            except MoorageError as error:
                problem = f"spec.when: {error.message}"
                self.record = replace(self.record, failed=self.record.failed + 1, submission_error=problem[:1000])
                self._pass_over(
                    slot, "SubmissionFailed", f"{self._shown(slot)} was not run: {problem}", is_warning=True
                )
                continue
            if not is_run:
                self._pass_over(slot, "SlotSkipped", f"{self._shown(slot)} was skipped: {self.cron.when} is false")
                continue
            if self.cron.concurrency is Concurrency.REPLACE:
                self._replace_by(slot)
            self._intend(slot, "")

    def _intend(self, slot: datetime, backfill: str) -> None:
        seconds = int(slot.timestamp())
        state = self.record.state
        self._state(pending=(*state.pending, Pending(slot=seconds, backfill=backfill)))
        if not backfill:
            self._state(cursor=max(state.cursor, seconds))
        self.started.append(Start(slot, backfill))

    def _backfill(self) -> None:
        """Run the requested past slots, a few at a time. Slots that have a Workflow are done."""
        wish = self.cron.backfill
        if wish is None:
            return
        state = self.record.state
        if state.backfill_id != wish.id:
            self._state(backfill_id=wish.id, backfill_done=0)
        going_on = sum(run.backfill == wish.id and not run.is_completed for run in self.seen.runs)
        while (done := self.record.state.backfill_done) < len(wish.slots):
            slot = datetime.fromtimestamp(wish.slots[done], UTC)
            if run_name(self.cron.name, slot) not in self.by_name:
                if going_on >= max(1, wish.parallel):
                    return
                going_on += 1
                self._intend(slot, wish.id)
            self._state(backfill_done=done + 1)
        if not going_on:
            self.record = replace(self.record, has_backfill=False)
            self._tell("BackfillDone", f"the backfill {wish.id} of {counted(len(wish.slots), 'slot')} has ended")

    # the record

    def _pending_names(self) -> set[str]:
        slots = (datetime.fromtimestamp(each.slot, UTC) for each in self.record.state.pending)
        return {run_name(self.cron.name, slot) for slot in slots}

    def _state(self, **changes: Any) -> None:
        self.record = replace(self.record, state=msgspec.structs.replace(self.record.state, **changes))

    def _tell(self, reason: str, message: str, *, is_warning: bool = False) -> None:
        self.events.append(Tell(is_warning, reason, message))

    def _pass_over(self, slot: datetime, reason: str, message: str, *, is_warning: bool = False) -> None:
        if is_warning:
            self._state(missed=max(self.record.state.missed, int(slot.timestamp())))
        self._state(cursor=max(self.record.state.cursor, int(slot.timestamp())))
        self._tell(reason, message, is_warning=is_warning)

    def _note(self, slot: datetime, message: str) -> None:
        """Report once for each slot why it waits."""
        seconds = int(slot.timestamp())
        if self.record.state.noted < seconds:
            self._state(noted=seconds)
            self._tell("SlotWaits", message)

    def _shown(self, slot: datetime) -> str:
        return f"the slot of {rfc3339(slot)}"

    def _busy(self) -> str:
        return f"run {self.record.active[0][0]}"

    def _missed(self, newest: datetime, deadline: timedelta | None) -> str:
        late = f"{self._shown(newest)} was missed: it was seen {int((self.now - newest).total_seconds())} s late"
        if deadline is None:
            return f"{late}; set startingDeadlineSeconds to let slots start late"
        return f"{late}, and startingDeadlineSeconds is {int(deadline.total_seconds())}"

    def _actions(self) -> tuple[Action, ...]:
        """The actions in order. A save precedes every start: it fails if the object has changed meanwhile."""
        is_needed = self.record != self.before or bool(self.started)
        pending = self._pending_names()
        released = [run for run in self.seen.runs if run.is_held and run.name not in pending]
        return (
            *([Save(self.record)] if is_needed else []),
            *self.events,
            *(Release(run) for run in released),
            *(Terminate(run) for run in self.terminated),
            *self.started,
            *(Drop(run) for run in self._old()),
        )

    def _old(self) -> list[RunSeen]:
        """Return the ended runs above the history limits, except those of backfills and of pending slots."""
        ended = [run for run in self.seen.runs if run.is_completed and not run.backfill and not run.is_deleting]
        pending = self._pending_names()
        ended.sort(key=lambda run: (run.finished or run.created, run.name), reverse=True)
        succeeded = [run for run in ended if run.phase == "Succeeded"][self.cron.successful_kept :]
        failed = [run for run in ended if run.phase != "Succeeded"][self.cron.failed_kept :]
        return [run for run in (*succeeded, *failed) if run.name not in pending]

    def _look_again(self, timetable: Timetable | None) -> timedelta | None:
        if timetable is None or self.cron.is_suspended or self.record.is_stopped:
            return None
        coming = next_slot(timetable, self.now)
        return LOOK_AGAIN_MAX if coming is None else min(LOOK_AGAIN_MAX, max(timedelta(), coming - self.now))


CATCH_UP_WORDS = "moorage.dev/catch-up allows"


def status_of(record: Record, namespace: str, api_version: str, kind: str) -> Obj:
    """Return the status in Argo's format, without empty fields."""
    conditions = [
        {"type": type_, "status": "True", "message": message}
        for type_, message in (("SpecError", record.spec_error), ("SubmissionError", record.submission_error))
        if message
    ]
    status: Obj = {
        "active": [
            {"apiVersion": api_version, "kind": kind, "name": name, "namespace": namespace, "uid": uid}
            for name, uid in record.active
        ],
        "conditions": conditions,
        "phase": "Stopped" if record.is_stopped else "Active",
        "succeeded": record.succeeded,
        "failed": record.failed,
    }
    if record.last_scheduled is not None:
        status["lastScheduledTime"] = rfc3339(record.last_scheduled)
    return status
