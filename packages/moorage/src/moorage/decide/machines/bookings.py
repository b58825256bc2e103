"""The bookings of machines that are in force, and the reasons why another does not fit.

Granted bookings stay granted; places are promised to the bookings that were granted first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from moorage.decide.machines.guests import Guest
from moorage.model.reservation import Booking, Terms
from moorage_kube.meta import Key
from moorage_kube.moments import rfc3339

Clocked = Callable[[datetime], str]
"""How a message writes a moment."""


class Hold(Struct, frozen=True):
    """A granted booking with its granted terms."""

    booking: Booking
    terms: Terms
    since: datetime  # granted

    @property
    def key(self) -> Key:
        return self.booking.key

    def serves(self, guest: Guest) -> bool:
        """Whether the guest belongs to the owner of the booking."""
        if self.booking.user:
            return guest.owner == self.booking.user
        return guest.namespace == self.booking.namespace

    @property
    def whom(self) -> str:
        """The owner of the booking, for display."""
        return f"user {self.booking.user}" if self.booking.user else f"namespace {self.booking.namespace}"

    @property
    def order(self) -> tuple[datetime, tuple[str, str, str]]:
        """The order in which bookings get machines when there are too few: the earliest granted terms first."""
        return (self.since, self.booking.age)


class Ruling(Struct, frozen=True):
    """The terms of a booking that are in force, and why they differ from the requested ones."""

    booking: Booking
    hold: Hold | None
    reason: str = ""  # empty: the requested terms are in force
    message: str = ""


# --- which bookings are in force


def judge(bookings: Iterable[Booking], available: int | None, now: datetime) -> list[Ruling]:
    """The terms in force of each booking of one machine type, in the order of their creation.

    Granted bookings stay granted. A new or changed booking is granted if it fits next to the others at every
    coming moment; a change that does not fit leaves the old terms in force. `available` None: no such type.
    """
    known = sorted((booking for booking in bookings if not booking.cancelled), key=lambda booking: booking.age)
    force = {
        booking.key: Hold(booking, booking.granted, booking.granted_at or now)
        for booking in known
        if booking.granted is not None
    }
    rulings = []
    for booking in known:
        reason, message = _refusal(booking, force, available, now)
        had = force.get(booking.key)
        if not reason:
            since = had.since if had is not None and is_within(booking.asked, had.terms) else now
            force[booking.key] = Hold(booking, booking.asked, since)
        rulings.append(Ruling(booking, force.get(booking.key), reason, message))
    return rulings


def in_force(rulings: Iterable[Ruling], now: datetime) -> list[Hold]:
    """The bookings that hold machines now or later."""
    return [ruling.hold for ruling in rulings if ruling.hold is not None and ruling.hold.terms.end > now]


def promised(holds: Iterable[Hold], start: datetime, end: datetime) -> int:
    """The highest number of promised machines at any moment in [start, end)."""
    holds = [hold for hold in holds if hold.terms.start < end and hold.terms.end > start]
    moments = {start} | {hold.terms.start for hold in holds if hold.terms.start > start}
    return max(
        sum(hold.terms.count for hold in holds if hold.terms.start <= at < hold.terms.end) for at in moments
    )


def earliest(holds: Sequence[Hold], available: int, asked: Terms) -> datetime | None:
    """The first moment, from the requested start on, at which enough machines are free for the requested time.

    None if there is none.
    """
    length = asked.end - asked.start
    for at in sorted({asked.start} | {hold.terms.end for hold in holds if hold.terms.end > asked.start}):
        if promised(holds, at, at + length) + asked.count <= available:
            return at
    return None


def conflict(
    kind: str, asked: Terms, holds: Sequence[Hold], available: int, *, now: datetime, when: Clocked = rfc3339
) -> str:
    """Why a booking does not fit next to the others, and a booking that would; empty when it fits."""
    if asked.count > available:
        return f"{asked.count} {kind} are more than the {available} there are"
    start = max(now, asked.start)
    free = available - promised(holds, start, asked.end)
    if asked.count <= free:
        return ""
    span = Terms(count=asked.count, start=start, end=asked.end)
    others = sorted(
        (hold for hold in holds if hold.terms.start < asked.end and hold.terms.end > start),
        key=lambda hold: hold.order,
    )
    taken = ", ".join(
        f"{hold.key} has {hold.terms.count} from {when(hold.terms.start)} to {when(hold.terms.end)}"
        for hold in others[:5]
    ) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
    text = f"{asked.count} of {available} {kind} are not free from {when(start)} to {when(asked.end)}: {taken}"
    text += f"; free all the time: {max(0, free)}"
    if (at := earliest(holds, available, span)) is not None:
        text += f"; {asked.count} for as long from {when(at)}"
    return text


def _refusal(booking: Booking, force: Mapping[Key, Hold], available: int | None, now: datetime) -> tuple[str, str]:
    asked, had = booking.asked, booking.granted
    if asked.end <= asked.start:
        return "Invalid", f"spec.to {rfc3339(asked.end)} is not after spec.from {rfc3339(asked.start)}"
    if asked == had:
        return "", ""
    if available is None:
        return "UnknownMachine", f"machine type {booking.type} not found in group {booking.group}"
    if asked.end <= now:
        return (
            ("", "") if had is not None else ("Past", f"it ended at {rfc3339(asked.end)}, before it was granted")
        )
    if had is not None and is_within(asked, had):
        return "", ""  # no more than it had
    others = [hold for key, hold in force.items() if key != booking.key]
    reason = conflict(booking.type, asked, others, available, now=now)
    if reason and had is not None:
        reason += f"; in force as before: {had.count} from {rfc3339(had.start)} to {rfc3339(had.end)}"
    return ("Conflict", reason) if reason else ("", "")


def is_within(asked: Terms, had: Terms) -> bool:
    return asked.count <= had.count and had.start <= asked.start and asked.end <= had.end


def next_change(holds: Iterable[Hold], now: datetime) -> datetime | None:
    """The next moment at which a booking starts or ends."""
    return min((at for hold in holds for at in (hold.terms.start, hold.terms.end) if at > now), default=None)
