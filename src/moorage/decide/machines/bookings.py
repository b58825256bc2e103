"""Which bookings of machines are in force, and why another does not fit beside them.

What was granted stays granted; places are promised to the bookings that were granted first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from moorage.apimachinery.meta import Key
from moorage.apimachinery.moments import rfc3339
from moorage.decide.machines.guests import Guest
from moorage.model.reservation import Booking, Terms

Clocked = Callable[[datetime], str]
"""How a message writes a moment."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A booking in force, on the terms that are in force."""

    booking: Booking
    terms: Terms
    since: datetime  # granted

    @property
    def key(self) -> Key:
        return self.booking.key

    def serves(self, guest: Guest) -> bool:
        """Whether the guest is its owner's."""
        if self.booking.user:
            return guest.owner == self.booking.user
        return guest.namespace == self.booking.namespace

    @property
    def whom(self) -> str:
        """The owner, for people."""
        return f"user {self.booking.user}" if self.booking.user else f"namespace {self.booking.namespace}"

    @property
    def order(self) -> tuple[datetime, tuple[str, str, str]]:
        """Who gets what there is when it is not enough: whose terms were granted first."""
        return (self.since, self.booking.age)


@dataclass(frozen=True, slots=True)
class Ruling:
    """What is in force of a booking, and why it is not what was asked for."""

    booking: Booking
    hold: Hold | None
    reason: str = ""  # empty: what was asked for is in force
    message: str = ""


# --- which bookings are in force


def judge(bookings: Iterable[Booking], available: int | None, now: datetime) -> list[Ruling]:
    """What is in force of each booking of one machine type, in the order in which they were made.

    What was granted stays granted. A new or changed booking is granted if it fits beside the others at every
    moment still to come; a change that does not fit leaves the old terms in force. `available` None: no such type.
    """
    known = sorted((one for one in bookings if not one.cancelled), key=lambda one: one.age)
    force = {one.key: Hold(one, one.granted, one.granted_at or now) for one in known if one.granted is not None}
    found = []
    for one in known:
        reason, message = _refusal(one, force, available, now)
        had = force.get(one.key)
        if not reason:
            since = had.since if had is not None and is_within(one.asked, had.terms) else now
            force[one.key] = Hold(one, one.asked, since)
        found.append(Ruling(one, force.get(one.key), reason, message))
    return found


def in_force(rulings: Iterable[Ruling], now: datetime) -> list[Hold]:
    """The bookings that hold, or will hold, something."""
    return [one.hold for one in rulings if one.hold is not None and one.hold.terms.end > now]


def promised(holds: Iterable[Hold], start: datetime, end: datetime) -> int:
    """The most machines promised at any one moment from start until end."""
    holds = [one for one in holds if one.terms.start < end and one.terms.end > start]
    moments = {start} | {one.terms.start for one in holds if one.terms.start > start}
    return max(sum(one.terms.count for one in holds if one.terms.start <= at < one.terms.end) for at in moments)


def earliest(holds: Sequence[Hold], available: int, asked: Terms) -> datetime | None:
    """The first moment from the asked start on from which as many are free for as long; None: never so many."""
    length = asked.end - asked.start
    for at in sorted({asked.start} | {one.terms.end for one in holds if one.terms.end > asked.start}):
        if promised(holds, at, at + length) + asked.count <= available:
            return at
    return None


def conflict(
    kind: str, asked: Terms, holds: Sequence[Hold], available: int, *, now: datetime, when: Clocked = rfc3339
) -> str:
    """Why a booking does not fit beside the others, and what would; empty when it fits."""
    if asked.count > available:
        return f"{asked.count} {kind} are more than the {available} there are"
    start = max(now, asked.start)
    free = available - promised(holds, start, asked.end)
    if asked.count <= free:
        return ""
    span = Terms(count=asked.count, start=start, end=asked.end)
    others = sorted(
        (one for one in holds if one.terms.start < asked.end and one.terms.end > start), key=lambda one: one.order
    )
    told = ", ".join(
        f"{one.key} has {one.terms.count} from {when(one.terms.start)} to {when(one.terms.end)}"
        for one in others[:5]
    ) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
    text = f"{asked.count} of {available} {kind} are not free from {when(start)} to {when(asked.end)}: {told}"
    text += f"; free all the time: {max(0, free)}"
    if (at := earliest(holds, available, span)) is not None:
        text += f"; {asked.count} for as long from {when(at)}"
    return text


def _refusal(one: Booking, force: Mapping[Key, Hold], available: int | None, now: datetime) -> tuple[str, str]:
    asked, had = one.asked, one.granted
    if asked.end <= asked.start:
        return "Invalid", f"spec.to {rfc3339(asked.end)} is not after spec.from {rfc3339(asked.start)}"
    if asked == had:
        return "", ""
    if available is None:
        return "UnknownMachine", f"there is no machine type {one.type} in group {one.group}"
    if asked.end <= now:
        return (
            ("", "") if had is not None else ("Past", f"it ended at {rfc3339(asked.end)}, before it was granted")
        )
    if had is not None and is_within(asked, had):
        return "", ""  # no more than it had
    others = [hold for key, hold in force.items() if key != one.key]
    told = conflict(one.type, asked, others, available, now=now)
    if told and had is not None:
        told += f"; in force as before: {had.count} from {rfc3339(had.start)} to {rfc3339(had.end)}"
    return ("Conflict", told) if told else ("", "")


def is_within(asked: Terms, had: Terms) -> bool:
    return asked.count <= had.count and had.start <= asked.start and asked.end <= had.end


def next_change(holds: Iterable[Hold], now: datetime) -> datetime | None:
    """When a booking starts or ends next."""
    return min((at for one in holds for at in (one.terms.start, one.terms.end) if at > now), default=None)
