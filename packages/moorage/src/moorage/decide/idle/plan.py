"""The next step for one piece of work that holds GPUs: none, a notice, or its suspension.

    step = plan(Observed(work=…, verdict=…, policy=…, record=…, now=…))

Nothing here reads the clock or sends anything. The caller writes `step.record` first, then does `step.act`, then
writes the result of `after_notice` or `after_suspension`. A server that was killed in between finds `pending` in
the record: a notice is not sent twice, and nothing is suspended until some notice was surely delivered. A
suspension is repeated, which changes nothing if it was done before.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
from msgspec import Struct, field

from moorage.decide.idle.evidence import Idle, InUse, Unseen, Verdict
from moorage.decide.idle.quiet import add_loud, quiet_until
from moorage.decide.idle.states import Record, State, move
from moorage.model.idle import MAP, RUN, WORKFLOW, Exemptions, Policy
from moorage.model.spans import format_span
from moorage_kube.errors import UsageError
from moorage_kube.globs import fits

IDLE_WINDOWS = 2  # from here on it is called idle
REFRESH = timedelta(minutes=10)  # `why` of a record is written again after this


class Act(StrEnum):
    """The action of the caller after it has written the record."""

    NOTHING = ""
    WARN = "warn"
    REMIND = "remind"
    SUSPEND = "suspend"
    REPORT = "report"  # report a suspension that was done


class Work(Struct, frozen=True, kw_only=True):
    """One piece of work: a workspace, a run, a map or a workflow."""

    kind: str  # of moorage.model.idle.WORK
    namespace: str
    name: str
    uid: str
    owner: str = ""
    tenant: str = ""
    gpus: int = 0
    nodes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()  # "NODE/ID" of its GPUs; empty: the nodes name none
    labels: Mapping[str, str] = field(default_factory=dict)
    suspended: bool = False  # by its spec, no matter which user did it
    queued: bool = False  # is or was in a queue of Kueue, which resumes runs also after others' suspension
    started: datetime | None = None
    checkpoint_at: datetime | None = None

    @property
    def title(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Observed(Struct, frozen=True, kw_only=True):
    """One piece of work and all data that its next step depends on. `verdict` is None if the work does not run."""

    work: Work
    verdict: Verdict | None
    policy: Policy | None  # None: no policy holds for it
    record: Record
    now: datetime
    next_holder: str = ""  # the next user of the GPUs that it released; empty: none yet
    reachable: bool = True  # whether notices have a recipient, other than annotations and events


class Step(Struct, frozen=True):
    """The record to write, and the action after that. `changed`: whether it has to be written."""

    record: Record
    act: Act = Act.NOTHING
    changed: bool = False


def plan(seen: Observed) -> Step:
    """The next step. Planning again on its result, at the same moment, changes nothing more."""
    before = seen.record
    record, act = _decide(seen)
    record = _with_outlook(seen, record)
    return Step(record, act, changed=_differs(before, record, seen.now))


def recover(record: Record) -> Record:
    """The record for a server that has just become active.

    A notification that was being sent may have been delivered. It is not sent again, and it does not count as
    delivered.
    """
    if record.pending in ("", Act.SUSPEND):
        return record
    return msgspec.structs.replace(record, pending="")


def after_notice(record: Record, *, delivered: bool) -> Record:
    """The record after a notification was sent or failed."""
    return msgspec.structs.replace(record, pending="", delivered=record.delivered or delivered)


def after_suspension(record: Record) -> Record:
    """The record once the work is suspended: a report to its owner is pending."""
    return msgspec.structs.replace(record, pending=Act.REPORT)


def no_suspension(work: Work, policy: Policy) -> str:
    """The reason why this work is never suspended; "" if it may be suspended."""
    if policy.suspend_after is None:
        return f"policy {policy.name} only warns"
    if work.kind in (MAP, WORKFLOW):
        return f"a {work.kind} is only warned about"
    if work.kind == RUN:
        if work.queued:
            return "Kueue suspends and resumes it"
        if work.checkpoint_at is None:
            return "it has no checkpoint"
        if work.started is None or work.checkpoint_at <= work.started:
            return "it has no checkpoint newer than its start"
    return ""


def exempt_by(work: Work, exempt: Exemptions) -> str:
    """The exemption of a policy that applies to this work; "" if none applies."""
    if work.owner and work.owner in exempt.users:
        return f"its owner {work.owner} is exempt"
    for pattern in exempt.names:
        name = f"{work.namespace}/{work.name}" if "/" in pattern else work.name
        if fits(name, pattern):
            return f"its name is exempt ({pattern})"
    if exempt.labels and all(work.labels.get(key) == value for key, value in exempt.labels.items()):
        return "its labels are exempt"
    return ""


def snooze(record: Record, policy: Policy, span: timedelta, *, by: str, now: datetime) -> Record:
    """The record after a snooze. Raises UsageError if the policy does not allow it."""
    if record.state is State.EXEMPT:
        raise UsageError(f"policy {policy.name} exempts it: there is nothing to snooze")
    if record.state is State.SUSPENDED:
        raise UsageError("it is suspended: resume it instead of snoozing it")
    if policy.snooze_times == 0:
        raise UsageError(f"policy {policy.name} allows no snooze")
    if span > policy.snooze_longest:
        raise UsageError(
            f"cannot snooze for {format_span(span)}: policy {policy.name} allows"
            f" {format_span(policy.snooze_longest)} at most"
        )
    if record.snoozes >= policy.snooze_times:
        times = f"{policy.snooze_times} time{'' if policy.snooze_times == 1 else 's'}"
        raise UsageError(
            f"it was snoozed {record.snoozes} times in a row: policy {policy.name} allows {times}",
            hint="start using it again, or ask an administrator for an exemption",
        )
    after = move(
        record,
        State.SNOOZED,
        now,
        snoozed_until=now + span,
        snoozed_by=by,
        snoozes=record.snoozes + 1,
        warned_at=None,
        delivered=False,
        pending="",
        policy=policy.name,
    )
    return msgspec.structs.replace(after, next="end", next_at=now + span)


# --- the decision


def _decide(seen: Observed) -> tuple[Record, Act]:
    record, now, policy = seen.record, seen.now, seen.policy
    if record.state is State.SUSPENDED:
        return _suspended(seen)
    if policy is None or seen.work.suspended or seen.verdict is None:
        return _rest(record, now), Act.NOTHING
    if why := exempt_by(seen.work, policy.exempt):
        if record.state is State.EXEMPT:
            return msgspec.structs.replace(record, why=why), Act.NOTHING
        return move(_clean(record), State.EXEMPT, now, why=why, since=None), Act.NOTHING
    if record.state is State.EXEMPT:
        record = move(record, State.ACTIVE, now, why="")
    if record.state is State.SNOOZED:
        if record.snoozed_until is not None and now < min(
            record.snoozed_until, (record.at or now) + policy.snooze_longest
        ):
            return record, Act.NOTHING
        is_idle = isinstance(seen.verdict, Idle)
        record = move(record, State.IDLE if is_idle else State.ACTIVE, now, snoozed_until=None)
    match seen.verdict:
        case InUse() | Unseen():
            return _rest(record, now), Act.NOTHING
        case Idle(why, since, windows, until):
            record = msgspec.structs.replace(record, why=why, since=since)
            return _idle(seen, record, policy, since, windows, until)


def _idle(
    seen: Observed, record: Record, policy: Policy, since: datetime, windows: int, until: datetime
) -> tuple[Record, Act]:
    now = seen.now
    if record.state is State.ACTIVE:
        if windows < IDLE_WINDOWS and now - since < IDLE_WINDOWS * policy.window:
            return msgspec.structs.replace(record, since=None, why=""), Act.NOTHING
        record = move(record, State.IDLE, now)
    if _is_used_since_warning(record, seen.verdict):
        record = move(_clean(record), State.ACTIVE, now)
        return _idle(seen, msgspec.structs.replace(record, snoozes=0), policy, since, windows, until)
    if record.pending or quiet_until(policy.quiet, now) is not None:
        return record, Act.NOTHING
    due = _due(seen.work, policy, record, since)
    if due is None or due[1] > now or until - since < policy.warn_after:  # idle for so long, and measured
        return record, Act.NOTHING
    match due[0]:
        case Act.WARN:
            return _warn(record, now), Act.WARN
        case Act.REMIND:
            return move(record, State.REMINDED, now, pending=Act.REMIND), Act.REMIND
        case _:
            if not record.delivered:  # notices may have been lost: begin again with a warning
                return _warn(record, now), Act.WARN
            node = ", ".join(seen.work.nodes)
            suspended = move(
                record,
                State.SUSPENDED,
                now,
                suspended_at=now,
                pending=Act.SUSPEND,
                gpus=seen.work.gpus,
                node=node,
                devices=seen.work.devices,
            )
            return suspended, Act.SUSPEND


def _is_used_since_warning(record: Record, verdict: Verdict | None) -> bool:
    """Whether idle work was used after its warning, while no server watched it."""
    return isinstance(verdict, Idle) and record.warned_at is not None and verdict.since > record.warned_at


def _warn(record: Record, now: datetime) -> Record:
    return move(
        record, State.WARNED, now, warned_at=now, warnings=record.warnings + 1, delivered=False, pending=Act.WARN
    )


def _due(work: Work, policy: Policy, record: Record, since: datetime) -> tuple[Act, datetime] | None:
    """The next act while the work stays idle, and its time. None if no act follows."""
    if record.state is State.IDLE or record.warned_at is None:
        at = since + policy.warn_after
        return Act.WARN, quiet_until(policy.quiet, at) or at
    ways: list[tuple[Act, datetime]] = []
    if record.state is State.WARNED and policy.remind_after is not None:
        ways.append((Act.REMIND, add_loud(policy.quiet, record.warned_at, policy.remind_after)))
    if policy.suspend_after is not None and not no_suspension(work, policy):
        ways.append((Act.SUSPEND, add_loud(policy.quiet, record.warned_at, policy.suspend_after)))
    return min(ways, key=lambda way: way[1], default=None)


def _suspended(seen: Observed) -> tuple[Record, Act]:
    record = seen.record
    if record.pending == Act.SUSPEND:
        if seen.work.suspended:
            return after_suspension(record), Act.REPORT
        # a server stopped before it suspended the work: it may have been used since
        if isinstance(seen.verdict, InUse) or _is_used_since_warning(record, seen.verdict):
            return _rest(record, seen.now), Act.NOTHING
        return record, Act.SUSPEND if isinstance(seen.verdict, Idle) else Act.NOTHING
    if seen.work.suspended or record.pending == Act.REPORT:
        return msgspec.structs.replace(record, went_to=record.went_to or seen.next_holder), Act.NOTHING
    return _rest(record, seen.now), Act.NOTHING


def _rest(record: Record, now: datetime) -> Record:
    """The record of work that is used, or may be."""
    if record.state is State.SNOOZED:
        return record
    if record.state is State.ACTIVE:
        return msgspec.structs.replace(_clean(record), snoozes=0)
    return msgspec.structs.replace(move(_clean(record), State.ACTIVE, now), snoozes=0)


def _clean(record: Record) -> Record:
    """The record without the fields that describe its idle time."""
    return msgspec.structs.replace(
        record,
        since=None,
        why="",
        warned_at=None,
        warnings=0,
        delivered=False,
        pending="",
        suspended_at=None,
        snoozed_until=None,
        snoozed_by="",
        node="",
        devices=(),
        went_to="",
    )


def _with_outlook(seen: Observed, record: Record) -> Record:
    """The record with the next action, and its time."""
    policy, upcoming, at = seen.policy, "", None
    if record.state is State.SNOOZED:
        upcoming, at = "end", record.snoozed_until
    elif (
        policy is not None
        and record.since is not None
        and record.state is not State.SUSPENDED
        and (due := _due(seen.work, policy, record, record.since)) is not None
    ):
        upcoming, at = str(due[0]), due[1]
    gpus = record.gpus if record.state is State.SUSPENDED else seen.work.gpus
    name = policy.name if policy is not None else record.policy
    return msgspec.structs.replace(record, next=upcoming, next_at=at, policy=name, gpus=gpus)


def _differs(before: Record, after: Record, now: datetime) -> bool:
    """Whether the record must be written: more than its text changed, or it is old."""
    if before == after:
        return False
    if after.state is State.ACTIVE and before.state is State.ACTIVE:
        return before.snoozes != after.snoozes or before.pending != after.pending
    words = {"why": "", "told_at": None, "gpus": 0, "next_at": None, "since": None}
    if msgspec.structs.replace(before, **words) != msgspec.structs.replace(after, **words):
        return True
    return before.told_at is None or now - before.told_at >= REFRESH
