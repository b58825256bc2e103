"""The calendar of machines: the guests that leave for a booking, the status of each booking, and validation.

A booking reserves places of one machine type for its owner, but not particular ones: the calendar only says which
guest may be let through to a free place (`eligibility`). So the same reading serves the controller that hands
places over (`reservation`) and the one that reports on bookings. Only guests that work as backfill ever have to
leave.

All of it is computed again from bookings, guests and the time: stopped anywhere, the next reading is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic

from msgspec import Struct, field

from moorage.decide.machines.bookings import Clocked, Hold, Ruling, conflict, in_force, is_within, judge
from moorage.decide.machines.eligibility import MARGIN, Moment, by_age, end_of, is_there
from moorage.decide.machines.guests import G
from moorage.model.machine import Fault, MachineType, Pool
from moorage.model.reservation import (
    ACTIVE,
    EXPIRED,
    PENDING,
    PREPARING,
    REFUSED,
    Booking,
    Terms,
    parse_reservation,
)
from moorage_kube.meta import Key
from moorage_kube.moments import rfc3339

LOOK_AGAIN_AT_MOST = timedelta(minutes=15)  # a delay stops while the computer sleeps, and clocks may be set
BLOCKERS_SHOWN = 20


class Leave(Struct, Generic[G], frozen=True):
    """Ask a backfill guest to leave: the booking needs its place."""

    guest: G
    hold: Hold


class Condition(Struct, frozen=True):
    """A condition: its type, its status ("True" or "False"), a reason from the list in the docs, and a message."""

    type: str
    status: str
    reason: str
    message: str


class Blocking(Struct, Generic[G], frozen=True):
    """A guest in the way of a booking; `until` None: its end is unknown."""

    guest: G
    until: datetime | None


class Report(Struct, Generic[G], frozen=True, kw_only=True):
    """The status of a booking."""

    booking: Booking
    phase: str
    hold: Hold | None  # None: nothing was granted
    conditions: tuple[Condition, ...]
    held: int = 0
    in_use: int = 0
    shortfall: int = 0
    full_at: datetime | None = None
    blocked_by: tuple[Blocking[G], ...] = ()


class Seen(Struct, Generic[G], frozen=True, kw_only=True):
    """One machine type and its calendar, at one moment."""

    available: int | None  # machines offered; None: no such type exists
    bookings: Sequence[Booking]
    guests: Sequence[G]  # those that hold a place, or are promised one
    now: datetime
    missing: int = 0  # offered machines that have no room on any node


class Plan(Struct, Generic[G], frozen=True, kw_only=True):
    """The actions and reports, and the time of the next change that only needs time to pass."""

    leave: tuple[Leave[G], ...] = ()
    reports: tuple[Report[G], ...] = ()
    wake_at: datetime | None = None


def look_again_in(at: datetime | None, now: datetime) -> timedelta | None:
    """The time to wait until a moment, at most LOOK_AGAIN_AT_MOST."""
    return None if at is None else min(at - now, LOOK_AGAIN_AT_MOST)


# --- the plan


def plan(seen: Seen[G]) -> Plan[G]:
    """The guests that have to leave now, and the status of each booking.

    Only backfill is ever asked to leave. Safe to stop anywhere: planning again finishes the work.
    """
    now = seen.now
    rulings = judge(seen.bookings, seen.available, now)
    holds = in_force(rulings, now)
    capacity = max(0, (seen.available or 0) - seen.missing)
    guests = sorted(seen.guests, key=by_age)
    leave, wakes = _leaving(holds, capacity, guests, now)
    standings = _standings(holds, capacity, guests, now)
    reports = tuple(_report(ruling, standings.get(ruling.booking.key), seen) for ruling in rulings)
    for hold in holds:
        moments = (hold.terms.start - hold.booking.lead, hold.terms.start, hold.terms.end)
        wakes += [at for at in moments if at > now]
    return Plan(leave=tuple(leave), reports=reports, wake_at=min(wakes, default=None))


def _leaving(
    holds: Sequence[Hold], capacity: int, guests: Sequence[G], now: datetime
) -> tuple[list[Leave[G]], list[datetime]]:
    """The backfill guests that must leave now, and the times at which others must leave.

    As few guests as possible leave, the newest first.
    """
    leaving: dict[str, Leave[G]] = {}
    wakes = []
    staying = [guest for guest in guests if not guest.backfill or guest.leaves is not None]
    asked = [guest for guest in guests if guest.backfill and guest.leaves is None]
    for at in sorted({max(now, hold.terms.start) for hold in holds}):
        there: Moment[G] = Moment(at, holds)
        for guest in staying:
            if at == now or is_there(guest, at, now):
                there.add(guest)
        still = [guest for guest in asked if at == now or (end := end_of(guest, now)) is None or end > at]
        spare = [guest for guest in still if not there.add(guest)]
        for guest in spare[::-1][: max(0, there.load - capacity)]:
            due = at - guest.grace - MARGIN
            if due <= now:
                leaving.setdefault(guest.uid, Leave(guest, max(there.holds, key=lambda hold: hold.terms.start)))
            else:
                wakes.append(due)
    return list(leaving.values()), wakes


class _Standing(Struct, Generic[G]):
    """The machines of a hold."""

    held: int = 0
    in_use: int = 0
    shortfall: int = 0
    others: list[G] = field(default_factory=list)  # in the way
    at: datetime | None = None  # the moment that was looked at; None: too early to say


def _standings(
    holds: Sequence[Hold], capacity: int, guests: Sequence[G], now: datetime
) -> dict[Key, _Standing[G]]:
    standings: dict[Key, _Standing[G]] = {hold.key: _Standing() for hold in holds}
    current: Moment[G] = Moment(now, holds)
    for guest in guests:
        current.add(guest)
    free = max(0, capacity - len(guests))
    for hold in sorted(holds, key=lambda hold: (hold.terms.start > now, hold.order)):
        standing, count = standings[hold.key], hold.terms.count
        if hold.terms.start <= now:
            standing.in_use = len(current.mine[hold.key])
            kept = min(count - standing.in_use, free)
            standing.held = standing.in_use + kept
            standing.shortfall = count - standing.held
            standing.others, standing.at = current.others, now
        elif hold.terms.start - hold.booking.lead <= now:
            kept = standing.held = min(count, free)
            then: Moment[G] = Moment(hold.terms.start, holds)
            for guest in guests:
                if is_there(guest, hold.terms.start, now):
                    then.add(guest)
            ahead = sum(other.terms.count for other in then.holds if other.order < hold.order)
            standing.shortfall = count - max(0, min(count, capacity - len(then.others) - ahead))
            standing.others, standing.at = then.others, hold.terms.start
        else:
            kept = 0
        free -= kept
    return standings


def _report(ruling: Ruling, standing: _Standing[G] | None, seen: Seen[G]) -> Report[G]:
    booking, hold, now = ruling.booking, ruling.hold, seen.now
    accepted = Condition(
        "Accepted", "False" if ruling.reason else "True", ruling.reason or "Accepted", ruling.message
    )
    if hold is None or standing is None:
        return Report(
            booking=booking,
            phase=REFUSED if hold is None else EXPIRED,
            hold=hold,
            conditions=(accepted, Condition("Held", "False", "NotAccepted" if hold is None else "Ended", "")),
        )
    terms = hold.terms
    phase = ACTIVE if terms.start <= now else PREPARING if standing.at is not None else PENDING
    blockers = sorted(
        (Blocking(guest, end_of(guest, now)) for guest in standing.others),
        key=lambda blocking: (blocking.until is None, blocking.until or now, by_age(blocking.guest)),
    )
    ends = [blocker.until for blocker in blockers if blocker.until is not None]
    short = standing.shortfall
    full_at = ends[short - 1] if 0 < short <= len(ends) else None
    return Report(
        booking=booking,
        phase=phase,
        hold=hold,
        conditions=(accepted, _held(phase, terms, short, full_at, len(blockers), seen.missing)),
        held=standing.held,
        in_use=standing.in_use,
        shortfall=short,
        full_at=full_at,
        blocked_by=tuple(blockers[:BLOCKERS_SHOWN]) if short else (),
    )


def _held(
    phase: str, terms: Terms, short: int, full_at: datetime | None, blockers: int, missing: int
) -> Condition:
    if phase == PENDING:
        return Condition("Held", "False", "NotYet", f"It starts at {rfc3339(terms.start)}")
    if not short:
        message = "All are reserved" if phase == ACTIVE else f"All will be there at {rfc3339(terms.start)}"
        return Condition("Held", "True", "AllHeld", message)
    text = f"{short} of {terms.count} " + ("are missing" if phase == ACTIVE else "will be missing at the start")
    if blockers:
        text += f": {blockers} in use by earlier guests"
        text += f"; all there at {rfc3339(full_at)}" if full_at else "; not all of them have a time limit"
    if missing:
        text += f"; {missing} have no room on any node"
    return Condition("Held", "False", "Shortfall", text)


# --- GPUs instead of machines


def machines_for_gpus(pools: Iterable[Pool], gpus: int, gpu_type: str) -> list[tuple[Pool, MachineType, int]]:
    """The machine types with this GPU type whose GPUs add up to exactly `gpus`, with the number of machines
    of each.
    """
    wanted = gpu_type.lower()
    offers = []
    for pool in sorted(pools, key=lambda pool: pool.group):
        for kind in pool.types.values():
            is_it = wanted in {kind.family.lower(), *(name.lower() for name in kind.size if "/" in name)}
            if is_it and kind.devices and gpus % kind.devices == 0:
                offers.append((pool, kind, gpus // kind.devices))
    return offers


# --- at admission


def check(
    obj: Mapping[str, Any],
    old: Mapping[str, Any] | None,
    pools: Iterable[Pool],
    others: Iterable[Booking],
    *,
    now: datetime,
    when: Clocked = rfc3339,
) -> list[Fault]:
    """Validate a Reservation beyond its schema, and whether it fits; all faults at once.

    `old`: the stored version, for an update; `others`: the calendar.
    """
    # an unreadable spec hides all other faults
    try:
        asked = parse_reservation(obj)
        had = parse_reservation(old) if old is not None else None
    except (ValueError, KeyError, TypeError) as error:
        return [Fault("spec", "", f"cannot be read: {error}")]
    spec, faults = obj["spec"], []
    # the calendar counts by group, type and user: they cannot change
    if old is not None:
        faults += [
            Fault(f"spec.{key}", str(spec.get(key, "")), f"must stay {before!r}: make another reservation")
            for key in ("machineGroup", "machineType", "user")
            if spec.get(key, "") != (before := old["spec"].get(key, ""))
        ]
    # an update may leave a period that has ended unchanged
    terms = asked.asked
    if terms.end <= terms.start:
        faults.append(Fault("spec.to", spec["to"], f"must be after spec.from {spec['from']}"))
    elif terms.end <= now and (had is None or had.asked.end != terms.end):
        faults.append(Fault("spec.to", spec["to"], "must lie ahead"))
    # the machine type must exist: it limits the number
    pool = next((pool for pool in pools if pool.group == asked.group), None)
    kind = pool.types.get(asked.type) if pool is not None else None
    if pool is None:
        faults.append(Fault("spec.machineGroup", asked.group, "is not a machine group"))
    elif kind is None:
        known = ", ".join(sorted(pool.types)) or "none"
        faults.append(
            Fault("spec.machineType", asked.type, f"is not a machine type of {asked.group}; available: {known}")
        )
    # less than was granted always fits; everything else must fit next to the other bookings
    if faults or kind is None or (had is not None and is_within(terms, had.asked)):
        return faults
    mine = [
        booking
        for booking in others
        if (booking.group, booking.type) == (asked.group, asked.type) and booking.key != asked.key
    ]
    holds = in_force(judge(mine, kind.available, now), now)
    if reason := conflict(kind.name, terms, holds, kind.available, now=now, when=when):
        faults.append(Fault("spec.count", str(terms.count), reason))
    return faults
