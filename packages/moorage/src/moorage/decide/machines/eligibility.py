"""The guests that may be let through to a free place without harm to the bookings of their machine type.

A guest may pass when, at every moment of its stay, the bookings and the guests they do not cover fit into the
capacity, or when it makes no moment worse. So a guest that ends before a booking starts fills the hole before it.
A guest without a time limit is taken to run for the booking's lead. A guest that works as backfill leaves when
asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Generic

from msgspec import Struct

from moorage.decide.machines.bookings import Hold
from moorage.decide.machines.guests import G, Guest
from moorage_kube.meta import Key
from moorage_kube.moments import parse_rfc3339, rfc3339

MARGIN = timedelta(seconds=30)  # after the grace period: the node reports, the place is held again
WORTH = timedelta(seconds=60)  # backfill that could stay for less is not let through
WAITS_SEPARATOR = " "  # of moment and sentence in the annotation of a guest that is held back


class HeldBack(Struct, Generic[G], frozen=True):
    """A guest that only the calendar holds back; `until`: the latest end of the bookings that it waits for."""

    guest: G
    until: datetime
    why: str

    @property
    def note(self) -> str:
        """The text of the pod's annotation: the moment (RFC 3339) and the sentence."""
        return f"{rfc3339(self.until)}{WAITS_SEPARATOR}{self.why}"


# --- who may go


class Moment(Generic[G]):
    """The calendar at one moment: the bookings in force, and the present guests."""

    def __init__(self, at: datetime, holds: Iterable[Hold]) -> None:
        self.at = at
        here = (hold for hold in holds if hold.terms.start <= at < hold.terms.end)
        self.holds = sorted(here, key=lambda hold: hold.order)
        self.mine: dict[Key, list[G]] = {hold.key: [] for hold in self.holds}
        self.others: list[G] = []  # not covered by a booking

    def copy(self) -> Moment[G]:
        made: Moment[G] = Moment(self.at, self.holds)
        made.mine = {key: list(guests) for key, guests in self.mine.items()}
        made.others = list(self.others)
        return made

    @property
    def load(self) -> int:
        """Machines that are booked, or used by guests without a booking."""
        return sum(hold.terms.count for hold in self.holds) + len(self.others)

    def add(self, guest: G) -> bool:
        """Count a guest. Returns whether a booking covers it."""
        covered = self._cover(guest, set(), commit=True)
        if covered is None:
            self.others.append(guest)
        return covered is not None

    def has_room(self, guest: G, capacity: int) -> bool:
        """Whether one more guest takes nothing that is booked for others.

        A guest without a booking must fit in next to all bookings; one with a booking, next to the unused machines
        of bookings that were granted before its own.
        """
        hold = self._cover(guest, set(), commit=False)
        if hold is None:
            return not self.holds or self.load + 1 <= capacity
        there = len(self.others) + sum(len(mine) for mine in self.mine.values())
        before = sum(
            other.terms.count - len(self.mine[other.key]) for other in self.holds if other.order < hold.order
        )
        return there + 1 + before <= capacity

    def _cover(self, guest: G, tried: set[Key], *, commit: bool) -> Hold | None:
        """Find an augmenting path of a bipartite matching: guests move to other bookings that they may use too.

        Returns the booking that covers one more guest then.
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


class Eligibility(Generic[G]):
    """The guests that may be let through now; `take` records each of them."""

    def __init__(self, capacity: int, holds: Sequence[Hold], guests: Iterable[G], now: datetime) -> None:
        """`capacity`: the number of existing places; `guests`: the guests that hold one."""
        self._capacity, self._now = capacity, now
        # by the fields that decide; a refused guest stays refused when others are taken
        self._refused: dict[tuple[object, ...], HeldBack[G]] = {}
        starts = sorted({hold.terms.start for hold in holds if hold.terms.start > now})
        self._moments: list[Moment[G]] = [Moment(at, holds) for at in (now, *starts)]
        for guest in sorted(guests, key=by_age):
            for moment in self._moments:
                if moment.at == now or is_there(guest, moment.at, now):
                    moment.add(guest)

    def kept_first(self, line: Sequence[G]) -> Sequence[G]:
        """The line, guests with a booking in force first."""
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
        return sorted(line, key=lambda guest: guest.uid not in covered)

    def refuse(self, guest: G) -> HeldBack[G] | None:
        """The reason why a guest must wait; None if it may start now."""
        alike = (guest.owner, guest.namespace, guest.limit, guest.grace, guest.backfill)
        if (known := self._refused.get(alike)) is not None:
            return HeldBack(guest, known.until, known.why)
        for moment in self._moments:
            if self._lasts(guest, moment) and not moment.has_room(guest, self._capacity):
                self._refused[alike] = self._held_back(guest, moment)
                return self._refused[alike]
        return None

    def take(self, guest: G) -> None:
        """Record that the guest was admitted."""
        for moment in self._moments:
            if self._lasts(guest, moment):
                moment.add(guest)

    def _lasts(self, guest: G, moment: Moment[G]) -> bool:
        if moment.at == self._now:
            return True
        if guest.backfill:
            return moment.at < self._now + WORTH + guest.grace + MARGIN
        if guest.limit is not None:
            return moment.at < self._now + guest.limit + guest.grace + MARGIN
        leads = (hold.booking.lead for hold in moment.holds if hold.terms.start == moment.at)
        return moment.at < self._now + max(leads, default=timedelta())

    def _held_back(self, guest: G, moment: Moment[G]) -> HeldBack[G]:
        hold = next((hold for hold in moment.holds if not hold.serves(guest)), moment.holds[0])
        terms = hold.terms
        text = (
            f"{terms.count} {hold.booking.type} are reserved for {hold.whom} by the reservation {hold.key}"
            f" from {rfc3339(terms.start)} to {rfc3339(terms.end)}"
        )
        if moment.at > self._now and not guest.backfill:
            before = rfc3339(terms.start - guest.grace - MARGIN)
            has = "no time limit" if guest.limit is None else "a time limit that ends later"
            text += f", and it has {has}; one that ends by {before} may go"
        return HeldBack(guest, terms.end, text)


def end_of(guest: Guest, now: datetime) -> datetime | None:
    """The latest end of a guest that holds a place; None if unknown."""
    if guest.leaves is not None:
        return max(now, guest.leaves)
    if guest.limit is None:
        return None
    return max(now, (guest.started or now) + guest.limit + guest.grace + MARGIN)


def is_there(guest: Guest, at: datetime, now: datetime) -> bool:
    """Whether a guest that holds a place now still holds it at a later moment.

    Backfill leaves if it is asked now.
    """
    if guest.backfill and guest.leaves is None:
        return at < now + guest.grace + MARGIN
    end = end_of(guest, now)
    return end is None or end > at


def by_age(guest: Guest) -> tuple[str, str, str]:
    return (guest.created, guest.namespace, guest.name)


def waits_of(note: str) -> tuple[datetime, str] | None:
    """Parse `HeldBack.note`: its end and its reason; None for any other text."""
    at, _, why = note.partition(WAITS_SEPARATOR)
    try:
        return parse_rfc3339(at), why
    except ValueError:
        return None
