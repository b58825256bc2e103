"""Notices to owners about their idle work: plain text, with the measurements and the possible actions."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

from moorage.decide.idle.plan import Act, Work, no_suspension
from moorage.decide.idle.states import Record
from moorage.decide.maps.notices import Notice, plain
from moorage.model.idle import RUN, WORKSPACE, Policy
from moorage.model.spans import format_span


class IdleEvent(StrEnum):
    """Events of notifications, as receivers get them."""

    WARNING = "idle-warning"
    REMINDER = "idle-reminder"
    SUSPENDED = "idle-suspended"


_EVENTS = {Act.WARN: IdleEvent.WARNING, Act.REMIND: IdleEvent.REMINDER, Act.REPORT: IdleEvent.SUSPENDED}


def make_notice(act: Act, work: Work, record: Record, policy: Policy, *, address: str = "") -> Notice:
    """The notification of an act (not SUSPEND). The same notification always has the same key."""
    event = _EVENTS[act]
    holds = f"{record.gpus} GPU{'' if record.gpus == 1 else 's'}"
    since = f"since {full_time(record.since)}" if record.since else ""
    key = f"{work.uid}/{event}/{full_time(record.warned_at)}"
    match event:
        case IdleEvent.SUSPENDED:
            title = f"{work.title} was suspended: it held {holds} and was idle {since}"
            lines = [
                record.why,
                f"Owner: {work.owner or 'unknown'}.",
                _kept(work),
                f"Resume it: {resume_command(work)}",
            ]
        case _:
            again = "still holds" if event is IdleEvent.REMINDER else "holds"
            title = f"{work.title} {again} {holds} and is idle {since}"
            lines = [
                record.why,
                f"Owner: {work.owner or 'unknown'}.",
                outlook(work, record, policy),
                *_ways(work, record, policy),
            ]
    lines = [plain(line) for line in lines if line]
    return Notice(event=event, key=key, title=plain(title), lines=tuple(lines), address=plain(address))


def outlook(work: Work, record: Record, policy: Policy) -> str:
    """The next step, in a sentence."""
    never = no_suspension(work, policy)
    if record.next_at is None:
        return f"It is not suspended: {never}." if never else ""
    match record.next:
        case Act.WARN:
            return f"Its owner is warned at {full_time(record.next_at)}."
        case Act.REMIND if never:
            return f"A reminder follows at {full_time(record.next_at)}. It is not suspended: {never}."
        case Act.REMIND:
            return f"A reminder follows at {full_time(record.next_at)}, then it is suspended."
        case Act.SUSPEND:
            return f"It is suspended at {full_time(record.next_at)}, unless it is used or snoozed."
        case "end":
            return f"It is snoozed until {full_time(record.next_at)}."
    return ""


def _ways(work: Work, record: Record, policy: Policy) -> list[str]:
    """The actions that its owner can take."""
    ways = [f"Not needed: {stop_command(work)}"]
    if record.snoozes < policy.snooze_times:
        longest = format_span(policy.snooze_longest)
        ways.append(f"Needed: use it, or snooze it: {snooze_command(work, policy)} (up to {longest})")
    else:
        ways.append("Needed: use it")
    return ways


def _kept(work: Work) -> str:
    if work.kind == WORKSPACE:
        return "Its volumes and all files on them are preserved; data that was only in memory is lost."
    return "Its checkpoint is preserved; it continues from there when it is resumed."


def stop_command(work: Work) -> str:
    where = f"{work.name} -n {work.namespace}"
    match work.kind:
        case "workspace":
            return f"moor workspace stop {where}"
        case "run":
            return f"moor cancel {where}"
        case "map":
            return f"moor map cancel {where}"
    return f"moor workflow stop {where}"


def snooze_command(work: Work, policy: Policy) -> str:
    where = f"-n {work.namespace} --for {format_span(policy.usual_snooze)}"
    if work.kind == WORKSPACE:
        return f"moor workspace snooze {work.name} {where}"
    return f"moor snooze {work.kind}/{work.name} {where}"


def resume_command(work: Work) -> str:
    """The command that undoes a suspension."""
    if work.kind == RUN:
        return f"moor resume {work.name} -n {work.namespace}"
    return f"moor workspace start {work.name} -n {work.namespace}"


def full_time(at: datetime | None) -> str:
    """Format a moment in UTC, to the minute."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if at is not None else "an unknown time"
