"""The calendar of machines: which bookings are in force, who must wait for them, who leaves, and how they stand.

A booking keeps places of one machine type for its owner. No place is set apart: the calendar only says which guest
may be let through to a free place, and so the same reading serves the controller that hands places over
(`decide.reservation`) and the one that reports on bookings. A guest may go when, at every moment of its stay, the
bookings and the guests they do not cover fit into what there is, or when it makes no moment worse. So a guest that
ends before a booking starts fills the hole before it; one without a time limit is taken to run for the booking's
lead; a guest that works as backfill leaves when asked, and is asked in time. Nobody else ever has to leave.

All of it is worked out anew from bookings, guests and the time: stopped anywhere, the next reading is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar

from moorage.apimachinery.meta import Key
from moorage.apimachinery.moments import parse_rfc3339, rfc3339
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

MARGIN = timedelta(seconds=30)  # after the grace period: the node reports, the place is held again
WORTH = timedelta(seconds=60)  # backfill that could stay for less is not let through
LOOK_AGAIN_AT_MOST = timedelta(minutes=15)  # delays stand still while the computer sleeps, and clocks are set
BLOCKERS_SHOWN = 20
WAITS_SEPARATOR = " "  # of moment and sentence in the annotation of a guest that is held back

Clocked = Callable[[datetime], str]
"""How a message writes a moment."""


class Guest(Protocol):
    """What the calendar needs to know of a guest."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def owner(self) -> str: ...  # label-safe
    @property
    def created(self) -> str: ...  # sorts as text
    @property
    def limit(self) -> timedelta | None: ...  # running time allowed
    @property
    def grace(self) -> timedelta: ...  # between being told to end and being killed
    @property
    def backfill(self) -> bool: ...  # may be asked to leave
    @property
    def started(self) -> datetime | None: ...  # from when the limit counts
    @property
    def leaves(self) -> datetime | None: ...  # being deleted: gone by then


G = TypeVar("G", bound=Guest)


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


@dataclass(frozen=True, slots=True)
class HeldBack(Generic[G]):
    """A guest that would be let through now but for the calendar; `until`: the latest end of what it waits for."""

    guest: G
    until: datetime
    why: str

    @property
    def note(self) -> str:
        """What is noted on the pod: the moment (RFC 3339) and the sentence."""
        return f"{rfc3339(self.until)}{WAITS_SEPARATOR}{self.why}"


@dataclass(frozen=True, slots=True)
class Leave(Generic[G]):
    """Ask a backfilling guest to leave: its place is needed for the booking."""

    guest: G
    hold: Hold


@dataclass(frozen=True, slots=True)
class Said:
    """A condition: its type, "True" or "False", a reason of the list in the docs, a sentence."""

    type: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Blocking(Generic[G]):
    """A guest in the way of a booking; `until` None: nobody knows when it ends."""

    guest: G
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Generic[G]):
    """How a booking stands."""

    booking: Booking
    phase: str
    hold: Hold | None  # None: nothing was granted
    conditions: tuple[Said, ...]
    held: int = 0
    in_use: int = 0
    shortfall: int = 0
    full_at: datetime | None = None
    blocked_by: tuple[Blocking[G], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen(Generic[G]):
    """One machine type and the calendar over it, at one moment."""

    available: int | None  # machines offered; None: there is no such type
    bookings: Sequence[Booking]
    guests: Sequence[G]  # those that hold a place, or are promised one
    now: datetime
    missing: int = 0  # of those offered, for which no node has room


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Generic[G]):
    """What to do and to report, and when something will change by time alone."""

    leave: tuple[Leave[G], ...] = ()
    reports: tuple[Report[G], ...] = ()
    wake_at: datetime | None = None


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
            since = had.since if had is not None and _is_within(one.asked, had.terms) else now
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
    if had is not None and _is_within(asked, had):
        return "", ""  # no more than it had
    others = [hold for key, hold in force.items() if key != one.key]
    told = conflict(one.type, asked, others, available, now=now)
    if told and had is not None:
        told += f"; in force as before: {had.count} from {rfc3339(had.start)} to {rfc3339(had.end)}"
    return ("Conflict", told) if told else ("", "")


def _is_within(asked: Terms, had: Terms) -> bool:
    return asked.count <= had.count and had.start <= asked.start and asked.end <= had.end


# --- who may go


class _Moment(Generic[G]):
    """The calendar at one moment: what is kept then, and who is there."""

    def __init__(self, at: datetime, holds: Iterable[Hold]) -> None:
        self.at = at
        here = (one for one in holds if one.terms.start <= at < one.terms.end)
        self.holds = sorted(here, key=lambda one: one.order)
        self.mine: dict[Key, list[G]] = {one.key: [] for one in self.holds}
        self.others: list[G] = []  # not covered by a booking

    def copy(self) -> _Moment[G]:
        made: _Moment[G] = _Moment(self.at, self.holds)
        made.mine = {key: list(guests) for key, guests in self.mine.items()}
        made.others = list(self.others)
        return made

    @property
    def load(self) -> int:
        """Machines that are kept, or used by somebody for whom none is kept."""
        return sum(one.terms.count for one in self.holds) + len(self.others)

    def add(self, guest: G) -> bool:
        """Whether a booking covers the guest."""
        covered = self._cover(guest, set(), commit=True)
        if covered is None:
            self.others.append(guest)
        return covered is not None

    def has_room(self, guest: G, capacity: int) -> bool:
        """Whether one more guest takes nothing that is kept for somebody else.

        One that no booking covers must fit in beside all of them; one that is covered, beside what is kept by
        those that were granted before its own.
        """
        hold = self._cover(guest, set(), commit=False)
        if hold is None:
            return not self.holds or self.load + 1 <= capacity
        there = len(self.others) + sum(len(mine) for mine in self.mine.values())
        before = sum(one.terms.count - len(self.mine[one.key]) for one in self.holds if one.order < hold.order)
        return there + 1 + before <= capacity

    def _cover(self, guest: G, tried: set[Key], *, commit: bool) -> Hold | None:
        """One augmenting path of a bipartite matching: guests move to another booking that serves them too.

        Returns the booking that covers one more then.
        """
        for hold in self.holds:
            if hold.key in tried or not hold.serves(guest):
                continue
            tried.add(hold.key)
            mine = self.mine[hold.key]
            if len(mine) < hold.terms.count:
                if commit:
                    mine.append(guest)
                return hold
            for at, other in enumerate(mine):
                if (grown := self._cover(other, tried, commit=commit)) is not None:
                    if commit:
                        mine[at] = guest
                    return grown
        return None


class Pace(Generic[G]):
    """Who may be let through now; told of each that is."""

    def __init__(self, capacity: int, holds: Sequence[Hold], guests: Iterable[G], now: datetime) -> None:
        """`capacity`: places there are; `guests`: those that hold one."""
        self._capacity, self._now = capacity, now
        self._refused: dict[tuple[object, ...], HeldBack[G]] = {}  # by what decides; it stays so, whoever is taken
        starts = sorted({one.terms.start for one in holds if one.terms.start > now})
        self._moments: list[_Moment[G]] = [_Moment(at, holds) for at in (now, *starts)]
        for guest in sorted(guests, key=_age):
            for moment in self._moments:
                if moment.at == now or _is_there(guest, moment.at, now):
                    moment.add(guest)

    def kept_first(self, line: Sequence[G]) -> Sequence[G]:
        """The line, those first for whom something is kept right now."""
        if not self._moments[0].holds:
            return line
        trial = self._moments[0].copy()
        covered, full = set(), set()
        for guest in line:
            whose = (guest.owner, guest.namespace)
            if whose in full:
                continue
            if trial.add(guest):
                covered.add(guest.uid)
            else:
                full.add(whose)
        return sorted(line, key=lambda one: one.uid not in covered)

    def refuse(self, guest: G) -> HeldBack[G] | None:
        """Why a guest may not be let through now; None when it may."""
        alike = (guest.owner, guest.namespace, guest.limit, guest.grace, guest.backfill)
        if (known := self._refused.get(alike)) is not None:
            return HeldBack(guest, known.until, known.why)
        for moment in self._moments:
            if self._lasts(guest, moment) and not moment.has_room(guest, self._capacity):
                self._refused[alike] = self._held_back(guest, moment)
                return self._refused[alike]
        return None

    def take(self, guest: G) -> None:
        """The guest is let through."""
        for moment in self._moments:
            if self._lasts(guest, moment):
                moment.add(guest)

    def _lasts(self, guest: G, moment: _Moment[G]) -> bool:
        if moment.at == self._now:
            return True
        if guest.backfill:
            return moment.at < self._now + WORTH + guest.grace + MARGIN
        if guest.limit is not None:
            return moment.at < self._now + guest.limit + guest.grace + MARGIN
        leads = (one.booking.lead for one in moment.holds if one.terms.start == moment.at)
        return moment.at < self._now + max(leads, default=timedelta())

    def _held_back(self, guest: G, moment: _Moment[G]) -> HeldBack[G]:
        hold = next((one for one in moment.holds if not one.serves(guest)), moment.holds[0])
        terms = hold.terms
        text = (
            f"{terms.count} {hold.booking.type} are kept for {hold.whom} by the reservation {hold.key}"
            f" from {rfc3339(terms.start)} to {rfc3339(terms.end)}"
        )
        if moment.at > self._now and not guest.backfill:
            before = rfc3339(terms.start - guest.grace - MARGIN)
            has = "no time limit" if guest.limit is None else "a time limit that goes beyond"
            text += f", and it has {has}; one that ends by {before} may go"
        return HeldBack(guest, terms.end, text)


def end_of(guest: Guest, now: datetime) -> datetime | None:
    """When a guest that holds a place has left it at the latest; None: nobody knows."""
    if guest.leaves is not None:
        return max(now, guest.leaves)
    if guest.limit is None:
        return None
    return max(now, (guest.started or now) + guest.limit + guest.grace + MARGIN)


def next_change(holds: Iterable[Hold], now: datetime) -> datetime | None:
    """When a booking starts or ends next."""
    return min((at for one in holds for at in (one.terms.start, one.terms.end) if at > now), default=None)


def look_again_in(at: datetime | None, now: datetime) -> timedelta | None:
    """How long to wait for a moment to come."""
    return None if at is None else min(at - now, LOOK_AGAIN_AT_MOST)


def _is_there(guest: Guest, at: datetime, now: datetime) -> bool:
    """Whether a guest that holds a place still holds it later; backfill has left when asked now."""
    if guest.backfill and guest.leaves is None:
        return at < now + guest.grace + MARGIN
    end = end_of(guest, now)
    return end is None or end > at


def _age(guest: Guest) -> tuple[str, str, str]:
    return (guest.created, guest.namespace, guest.name)


def waits_of(note: str) -> tuple[datetime, str] | None:
    """What `HeldBack.note` put down: until when, and why; None for what is no note of ours."""
    at, _, why = note.partition(WAITS_SEPARATOR)
    try:
        return parse_rfc3339(at), why
    except ValueError:
        return None


# --- the plan


def plan(seen: Seen[G]) -> Plan[G]:
    """Who is to leave now, and how each booking stands.

    Only backfill is ever asked to leave. Safe to stop anywhere: planning again finishes the work.
    """
    now = seen.now
    rulings = judge(seen.bookings, seen.available, now)
    holds = in_force(rulings, now)
    capacity = max(0, (seen.available or 0) - seen.missing)
    guests = sorted(seen.guests, key=_age)
    leave, wakes = _leaving(holds, capacity, guests, now)
    standings = _standings(holds, capacity, guests, now)
    reports = tuple(_report(one, standings.get(one.booking.key), seen) for one in rulings)
    for hold in holds:
        moments = (hold.terms.start - hold.booking.lead, hold.terms.start, hold.terms.end)
        wakes += [at for at in moments if at > now]
    return Plan(leave=tuple(leave), reports=reports, wake_at=min(wakes, default=None))


def _leaving(
    holds: Sequence[Hold], capacity: int, guests: Sequence[G], now: datetime
) -> tuple[list[Leave[G]], list[datetime]]:
    """Backfill to be asked to leave now, and when others will be: as few as will do, the newest first."""
    found: dict[str, Leave[G]] = {}
    wakes = []
    staying = [one for one in guests if not one.backfill or one.leaves is not None]
    asked = [one for one in guests if one.backfill and one.leaves is None]
    for at in sorted({max(now, one.terms.start) for one in holds}):
        there: _Moment[G] = _Moment(at, holds)
        for guest in staying:
            if at == now or _is_there(guest, at, now):
                there.add(guest)
        still = [one for one in asked if at == now or (end := end_of(one, now)) is None or end > at]
        spare = [one for one in still if not there.add(one)]
        for guest in spare[::-1][: max(0, there.load - capacity)]:
            due = at - guest.grace - MARGIN
            if due <= now:
                found.setdefault(guest.uid, Leave(guest, max(there.holds, key=lambda one: one.terms.start)))
            else:
                wakes.append(due)
    return list(found.values()), wakes


@dataclass(slots=True)
class _Standing(Generic[G]):
    """What a hold has got."""

    held: int = 0
    in_use: int = 0
    shortfall: int = 0
    others: list[G] = field(default_factory=list)  # in the way
    at: datetime | None = None  # the moment that was looked at; None: too early to say


def _standings(
    holds: Sequence[Hold], capacity: int, guests: Sequence[G], now: datetime
) -> dict[Key, _Standing[G]]:
    found: dict[Key, _Standing[G]] = {one.key: _Standing() for one in holds}
    current: _Moment[G] = _Moment(now, holds)
    for guest in guests:
        current.add(guest)
    free = max(0, capacity - len(guests))
    for hold in sorted(holds, key=lambda one: (one.terms.start > now, one.order)):
        standing, count = found[hold.key], hold.terms.count
        if hold.terms.start <= now:
            standing.in_use = len(current.mine[hold.key])
            kept = min(count - standing.in_use, free)
            standing.held = standing.in_use + kept
            standing.shortfall = count - standing.held
            standing.others, standing.at = current.others, now
        elif hold.terms.start - hold.booking.lead <= now:
            kept = standing.held = min(count, free)
            then: _Moment[G] = _Moment(hold.terms.start, holds)
            for guest in guests:
                if _is_there(guest, hold.terms.start, now):
                    then.add(guest)
            ahead = sum(one.terms.count for one in then.holds if one.order < hold.order)
            standing.shortfall = count - max(0, min(count, capacity - len(then.others) - ahead))
            standing.others, standing.at = then.others, hold.terms.start
        else:
            kept = 0
        free -= kept
    return found


def _report(ruling: Ruling, standing: _Standing[G] | None, seen: Seen[G]) -> Report[G]:
    booking, hold, now = ruling.booking, ruling.hold, seen.now
    accepted = Said("Accepted", "False" if ruling.reason else "True", ruling.reason or "Accepted", ruling.message)
    if hold is None or standing is None:
        return Report(
            booking=booking,
            phase=REFUSED if hold is None else EXPIRED,
            hold=hold,
            conditions=(accepted, Said("Held", "False", "NotAccepted" if hold is None else "Ended", "")),
        )
    terms = hold.terms
    phase = ACTIVE if terms.start <= now else PREPARING if standing.at is not None else PENDING
    blockers = sorted(
        (Blocking(one, end_of(one, now)) for one in standing.others),
        key=lambda one: (one.until is None, one.until or now, _age(one.guest)),
    )
    ends = [one.until for one in blockers if one.until is not None]
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


def _held(phase: str, terms: Terms, short: int, full_at: datetime | None, blockers: int, missing: int) -> Said:
    if phase == PENDING:
        return Said("Held", "False", "NotYet", f"It starts at {rfc3339(terms.start)}")
    if not short:
        said = "All are kept" if phase == ACTIVE else f"All will be there at {rfc3339(terms.start)}"
        return Said("Held", "True", "AllHeld", said)
    text = f"{short} of {terms.count} " + ("are missing" if phase == ACTIVE else "will be missing at the start")
    if blockers:
        text += f": {blockers} in use by guests that were there before"
        text += f"; all there at {rfc3339(full_at)}" if full_at else "; not all of them have a time limit"
    if missing:
        text += f"; for {missing} no node has room"
    return Said("Held", "False", "Shortfall", text)


# --- GPUs instead of machines


def machines_for_gpus(pools: Iterable[Pool], gpus: int, gpu_type: str) -> list[tuple[Pool, MachineType, int]]:
    """The machine types whose devices are of that type and make up just so many GPUs, and how many of each."""
    wanted = gpu_type.lower()
    found = []
    for pool in sorted(pools, key=lambda one: one.group):
        for kind in pool.types.values():
            is_it = wanted in {kind.family.lower(), *(name.lower() for name in kind.size if "/" in name)}
            if is_it and kind.devices and gpus % kind.devices == 0:
                found.append((pool, kind, gpus // kind.devices))
    return found


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
    """Everything that the schema of a Reservation cannot say, and whether it fits; all at once.

    `old`: as it stands, when it is to be changed; `others`: the calendar.
    """
    try:
        asked = parse_reservation(obj)
        had = parse_reservation(old) if old is not None else None
    except (ValueError, KeyError, TypeError) as error:
        return [Fault("spec", "", f"cannot be read: {error}")]
    spec, found = obj["spec"], []
    if old is not None:
        found += [
            Fault(f"spec.{key}", str(spec.get(key, "")), f"must stay {before!r}: make another reservation")
            for key in ("machineGroup", "machineType", "user")
            if spec.get(key, "") != (before := old["spec"].get(key, ""))
        ]
    terms = asked.asked
    if terms.end <= terms.start:
        found.append(Fault("spec.to", spec["to"], f"must be after spec.from {spec['from']}"))
    elif terms.end <= now and (had is None or had.asked.end != terms.end):
        found.append(Fault("spec.to", spec["to"], "must lie ahead"))
    pool = next((one for one in pools if one.group == asked.group), None)
    kind = pool.types.get(asked.type) if pool is not None else None
    if pool is None:
        found.append(Fault("spec.machineGroup", asked.group, "is no machine group"))
    elif kind is None:
        known = ", ".join(sorted(pool.types)) or "none"
        found.append(
            Fault("spec.machineType", asked.type, f"is no machine type of {asked.group}; it has: {known}")
        )
    if found or kind is None or (had is not None and _is_within(terms, had.asked)):
        return found
    mine = [one for one in others if (one.group, one.type) == (asked.group, asked.type) and one.key != asked.key]
    holds = in_force(judge(mine, kind.available, now), now)
    if told := conflict(kind.name, terms, holds, kind.available, now=now, when=when):
        found.append(Fault("spec.count", str(terms.count), told))
    return found
