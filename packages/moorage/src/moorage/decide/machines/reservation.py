"""Assign the places of a Machine: reservations to add or drop, guests to let through, and the counts.

A reservation pod holds a place until a guest takes it. To hand one over, the reservation is promised to the guest
(which takes it out of the disruption budget that protects the others), and then the guest's gate is removed with
its node affinity tightened to that node. The scheduler preempts on that node, and of the pods that would make room
it removes the one without a budget: just the promised one. Nothing is free in between.

The promise is written before the gate is removed, and both are read from the cluster again: stopped between any
two writes, the next plan continues from the state of the cluster.

Where every node of a type offers that type only, any of its reservations is the right victim. They are under no
budget ("alone"), nothing is promised, and the gate is removed in one write. The owner of each reservation on a
node is not known then, and is not needed: they are counted.

This is a long module because it is one decision: the observed state, the steps, and their order.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct, field

from moorage.decide.machines.bookings import in_force, judge, next_change
from moorage.decide.machines.calendar import look_again_in
from moorage.decide.machines.eligibility import Eligibility, HeldBack
from moorage.decide.machines.moves import PLACE_MOVES, STAY_MOVES, Place, Stay
from moorage.model.machine import FAIR, MachineType, Pool
from moorage.model.names import MACHINE_TYPE_PREFIX, PLACE_PREFIX
from moorage.model.reservation import Booking
from moorage_kube.scheduling import NodeInfo, PodInfo, refusal_by_labels, refusal_by_taints

LOST_AFTER = timedelta(seconds=10)  # a guest that the scheduler still refuses so long after its gate was lifted
SHARE_FORGOTTEN = 1  # machine-seconds: a smaller share does not decide anything
HOLDING_CHARGE = 60  # machine-seconds charged for each machine held now, so that the owner with fewer wins a tie


class Reservation(Struct, frozen=True, kw_only=True):
    """The present state of a reservation pod."""

    name: str
    uid: str
    type: str
    node: str = ""  # empty: not bound
    promised_to: str = ""  # uid of a guest; empty: not promised
    ending: bool = False  # being deleted, or ended by itself
    unschedulable: bool = False  # the scheduler found no room
    alone: bool = False  # under no budget, and not promised
    preempted: bool = False  # the scheduler announced that it takes its place away
    image: str = ""
    trouble: str = ""  # why its container does not start, a reason and a sentence; empty: it does, or is about to

    @property
    def state(self) -> Place:
        if self.promised_to:
            return Place.PROMISED
        if self.node:
            return Place.RESERVED
        return Place.UNPLACED if self.unschedulable else Place.PENDING


class Guest(Struct, frozen=True, kw_only=True):
    """An unfinished pod that requests a machine type of the group."""

    namespace: str
    name: str
    uid: str
    type: str
    owner: str = ""
    created: str = ""  # RFC 3339: sorts as text
    gated: bool = False
    other_gates: bool = False
    place: str = ""  # the node whose place it was given; empty: none was
    placed_at: datetime | None = None
    node: str = ""  # empty: not bound
    nominated: str = ""
    deleting: bool = False
    unschedulable: bool = False
    pod: PodInfo | None = None  # fields for placement; only for guests behind the gate
    limit: timedelta | None = None  # running time allowed
    grace: timedelta = timedelta(seconds=30)  # between the request to end and the kill
    backfill: bool = False  # may be asked to leave
    started: datetime | None = None  # from when the limit counts
    leaves: datetime | None = None  # being deleted: the latest time of its end
    waits_for: str = ""  # the note about the calendar on it
    is_last: bool = False  # its owner's budget is used up: it is let through after all others

    @property
    def managed(self) -> bool:
        """Whether the pod passed our webhook: it is behind the gate, or we have admitted it."""
        return self.gated or bool(self.place)

    @property
    def state(self) -> Stay:
        if self.gated:
            return Stay.WAITING
        return Stay.USING if self.node else Stay.LET_THROUGH


class Share(Struct, frozen=True, kw_only=True):
    """The recent use of an owner, as of `Seen.shares_at`, and the number of devices that they held from then on.

    A machine without devices counts as one.
    """

    used: int  # machine-seconds × devices
    holding: int = 0


class Seen(Struct, frozen=True, kw_only=True):
    """One Machine and all data that was read for it, at one moment."""

    pool: Pool
    nodes: Mapping[str, NodeInfo]
    reservations: Sequence[Reservation]
    guests: Sequence[Guest]
    now: datetime
    was_ready: bool = False  # its Ready condition is True for this generation
    deleting: bool = False
    shares: Mapping[str, Share] = field(default_factory=dict)
    shares_at: datetime | None = None
    bookings: Sequence[Booking] = ()  # of the calendar, for types of this Machine
    image: str = ""  # the image for reservations; empty: unchanged


class Unmark(Struct, frozen=True):
    """Remove the label of a second place from a node."""

    node: str
    label: str


class Drop(Struct, frozen=True):
    """Delete a reservation."""

    reservation: Reservation
    why: str


class Keep(Struct, frozen=True):
    """Withdraw the promise, under the budget or `alone`: its guest is deleted or has a place."""

    reservation: Reservation
    alone: bool = False


class HandOver(Struct, frozen=True):
    """Promise the reservation to the guest, then lift the guest's gate.

    The promise is skipped if it was made before, or if the reservation is `alone`.
    """

    reservation: Reservation
    guest: Guest


class MoveOn(Struct, frozen=True):
    """Move an admitted guest that lost its place: promise it another place, then mark that node for it."""

    reservation: Reservation
    guest: Guest


class Add(Struct, frozen=True):
    """Create a reservation of this type with this name."""

    type: str
    name: str
    alone: bool = False


class Note(Struct, frozen=True):
    """Record on a guest the bookings that it waits for; empty: none any more."""

    guest: Guest
    text: str


class ChangeImage(Struct, frozen=True):
    """Change the image of a reservation that does not start. It keeps its place."""

    reservation: Reservation


Action = Unmark | Drop | Keep | MoveOn | HandOver | Add | Note | ChangeImage


class Count(Struct, frozen=True, kw_only=True):
    """Machines of one type. maximum = reserved + used + pending."""

    maximum: int = 0
    reserved: int = 0
    used: int = 0
    waiting: int = 0
    pending: int = 0
    unmanaged: int = 0
    unplaced: int = 0


class Misfit(Struct, frozen=True):
    """A guest that does not fit any place of its type, and the reason."""

    guest: Guest
    why: str


class Condition(Struct, frozen=True):
    """A condition: its type, its status ("True" or "False"), a reason from the list in the docs, and a message."""

    type: str
    status: str
    reason: str
    message: str


class Plan(Struct, frozen=True, kw_only=True):
    """The steps, in this order, and the status to report."""

    actions: tuple[Action, ...] = ()
    counts: Mapping[str, Count] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    misfits: tuple[Misfit, ...] = ()
    line: tuple[str, ...] = ()  # uids of the guests behind the gate, the next one first
    held_back: tuple[HeldBack[Guest], ...] = ()  # by the calendar alone: a place stands for each
    shares: Mapping[str, Share] = field(default_factory=dict)
    look_again_in: timedelta | None = None


def plan(seen: Seen) -> Plan:
    """The steps that bring the Machine closer to its spec.

    Steps never remove guests. Safe to stop after any: planning again on the reached state finishes the work, and
    planning on a settled Machine returns no steps.
    """
    # guests stay: only the reservations are ours to delete
    if seen.deleting:
        return Plan(
            actions=tuple(
                Drop(reservation, "the Machine is deleted")
                for reservation in seen.reservations
                if not reservation.ending
            )
        )
    # sort guests, places and nodes by machine type: each type is planned separately
    shares = shares_now(seen)
    busy = _busy(seen)
    guests: dict[str, list[Guest]] = {}
    for guest in seen.guests:
        guests.setdefault(guest.type, []).append(guest)
    places: dict[str, list[Reservation]] = {}
    for reservation in seen.reservations:
        places.setdefault(reservation.type, []).append(reservation)
    nodes: dict[str, set[str]] = {}
    for node, offered in seen.pool.offers.items():
        for name in offered:
            if serves(seen.nodes.get(node), seen.pool, name):
                nodes.setdefault(name, set()).add(node)
    # types share nodes: `busy` is shared, so that two types do not hand over on one node at once
    drafts = [
        _TypePlan(
            seen,
            kind,
            shares,
            busy,
            nodes.get(kind.name, set()),
            guests.get(kind.name, ()),
            places.get(kind.name, ()),
        )
        for kind in seen.pool.types.values()
    ]
    for draft in drafts:
        draft.decide()
    # reservations of types that were removed from the Machine
    known = set(seen.pool.types)
    strays = [
        Drop(reservation, "its machine type no longer exists")
        for reservation in seen.reservations
        if reservation.type not in known and not reservation.ending
    ]
    # check the moves before anything is written: an illegal one is a bug of the plan
    counts = {draft.kind.name: draft.count() for draft in drafts}
    steps = [step for draft in drafts for step in draft.steps]
    for step in (*strays, *steps):
        _check(step)
    waits = [draft.look_again for draft in drafts if draft.look_again is not None]
    # one line over all types, for display
    line = sorted(
        (guest for draft in drafts for guest in draft.waiting), key=lambda guest: _turn(guest, seen.pool, shares)
    )
    return Plan(
        actions=(*_unmark(seen), *strays, *steps, *_other_images(seen, (*strays, *steps))),
        counts=counts,
        conditions=_conditions(seen, counts, [draft for draft in drafts if not draft.nodes]),
        misfits=tuple(misfit for draft in drafts for misfit in draft.misfits),
        line=tuple(guest.uid for guest in line),
        held_back=tuple(guest for draft in drafts for guest in draft.held_back),
        shares=shares,
        look_again_in=min(waits) if waits else None,
    )


def _check(step: Action) -> None:
    """Raise IllegalMove for a step that is not allowed in the state of its machine or guest."""
    match step:
        case Drop(place):
            PLACE_MOVES.check(place.state, None, (place,))
        case Keep(Reservation(promised_to=uid) as place) if uid:
            PLACE_MOVES.check(place.state, Place.RESERVED, (place,))
        case HandOver(place, guest) | MoveOn(place, guest):
            if place.promised_to != guest.uid:
                PLACE_MOVES.check(place.state, Place.USED if place.alone else Place.PROMISED, (place,))
            STAY_MOVES.check(guest.state, Stay.LET_THROUGH, (guest,))


def reservation_name(pool: str, kind: str, number: int) -> str:
    """The computed name of a reservation: creating it twice is a conflict. At most 63 characters."""
    digest = hashlib.sha256(f"{pool}/{kind}".encode()).hexdigest()[:8]
    return f"{pool[:20]}-{kind[:20]}".replace(".", "-").strip("-") + f"-{digest}-{number}"


def serves(node: NodeInfo | None, pool: Pool, kind: str) -> bool:
    """Whether a node offers places of the type now: it is in the pool, marked, Ready, and not cordoned."""
    return (
        node is not None
        and node.ready
        and not node.unschedulable
        and kind in pool.offers.get(node.name, ())
        and node.labels.get(MACHINE_TYPE_PREFIX + kind) == pool.group
    )


def misfit(guest: Guest, kind: MachineType) -> str | None:
    """The reason why a guest requests more than one machine of its type has. None if it fits."""
    asked = guest.pod.requests if guest.pod is not None else {}
    more = [
        f"{name} {value} of {kind.size.get(name, 0)}"
        for name, value in sorted(asked.items())
        if value > kind.size.get(name, 0) and name not in ("pods", "ephemeral-storage")
    ]
    return f"it asks for more than a {kind.name} has: {', '.join(more)}" if more else None


def shares_now(seen: Seen) -> dict[str, Share]:
    """The use of each owner until now, older use counting half after each half-life; empty under `fifo`."""
    if seen.pool.order != FAIR:
        return {}
    age = max(0.0, (seen.now - seen.shares_at).total_seconds()) if seen.shares_at else 0.0
    half = seen.pool.half_life
    fade = 0.5 ** (age / half)
    grown = half / math.log(2) * (1 - fade)  # the use of one machine that was held all the time
    holding: dict[str, int] = {}
    for guest in seen.guests:
        kind = seen.pool.types.get(guest.type)
        if guest.place and kind is not None:
            holding[guest.owner] = holding.get(guest.owner, 0) + max(1, kind.devices)
    shares = {}
    for owner in sorted({*seen.shares, *holding}):
        before = seen.shares.get(owner, Share(used=0))
        used = round(before.used * fade + before.holding * grown)
        if used >= SHARE_FORGOTTEN or owner in holding:
            shares[owner] = Share(used=used, holding=holding.get(owner, 0))
    return shares


def _turn(guest: Guest, pool: Pool, shares: Mapping[str, Share]) -> tuple[bool, float, str, str, str]:
    share = shares.get(guest.owner) if pool.order == FAIR else None
    used = share.used + share.holding * HOLDING_CHARGE if share is not None else 0
    return (guest.is_last, used, guest.created, guest.namespace, guest.name)


class _TypePlan:
    """The plan for one machine type; methods add the steps."""

    def __init__(
        self,
        seen: Seen,
        kind: MachineType,
        shares: Mapping[str, Share],
        busy: dict[str, set[str]],
        nodes: set[str],
        guests: Sequence[Guest],
        places: Sequence[Reservation],
    ) -> None:
        """`nodes` offer the type; `guests` and `places` are of this type."""
        self.seen, self.kind, self.shares, self.busy = seen, kind, shares, busy
        self.nodes = nodes
        self.alone = all(len(set(offer)) == 1 for offer in seen.pool.offers.values() if kind.name in offer)
        self.placed = [
            guest for guest in guests if guest.place and not guest.gated and (guest.node or not guest.deleting)
        ]
        self.used = [guest for guest in self.placed if guest.node]
        self.flying = {guest.uid: guest for guest in self.placed if not guest.node}
        self.waiting = [guest for guest in guests if guest.gated and not guest.deleting]
        self.unmanaged = [guest for guest in guests if not guest.managed and (guest.node or not guest.deleting)]
        self.all = places
        self.live = [place for place in self.all if not place.ending]
        self.steps: list[Action] = []
        self.misfits: list[Misfit] = []
        self.held_back: list[HeldBack[Guest]] = []
        self.look_again: timedelta | None = None
        self.added = 0
        self.backed: set[str] = set()  # uids of guests that were let through and still have their place
        self.taken = 0  # places thought to stand for a guest who perhaps has taken another already

    def decide(self) -> None:
        # sort the live reservations: on a lost node, promised to a waiting guest, or free
        gated = {guest.uid: guest for guest in self.waiting}
        promised: dict[str, Reservation] = {}
        free: list[Reservation] = []
        awaited = {*gated, *self.flying}
        for place in self.live:
            if place.node and place.node not in self.nodes:
                self.steps.append(Drop(place, f"node {place.node} does not offer the type now"))
            elif place.node and place.promised_to in awaited and place.promised_to not in promised:
                promised[place.promised_to] = place
            else:
                free.append(place)
        # finish the promises that an earlier plan made
        free = self._pair(promised, free)
        granted = [uid for uid in promised if uid in gated]
        for uid in granted:  # promised already, its gate still to be lifted
            self.steps.append(HandOver(promised[uid], gated[uid]))
        for uid, guest in self.flying.items():
            self._check_mark(guest, promised.get(uid))
        # guests that lost their place come first: their gate cannot be put on again
        lost = [guest for uid, guest in self.flying.items() if uid not in promised and self._is_lost(guest)]
        wanted = max(0, self.kind.available - len(self.placed) - len(granted)) + len(lost) if self.nodes else 0
        standing = [place for place in free if place.node]
        handed: set[str] = set()
        for guest in lost:
            if given := self._first(standing, guest):
                handed.add(given.uid)
                self.steps.append(MoveOn(given, guest))
        # then the guests in line, as far as machines and the calendar allow
        room = self.kind.available - len(self.placed) - len(granted)
        eligibility = self._eligibility([*self.placed, *(gated[uid] for uid in granted)])
        line = self._line(gated, promised)
        for guest in line if eligibility is None else eligibility.kept_first(line):
            if why := misfit(guest, self.kind):
                self.misfits.append(Misfit(guest, why))
                continue
            if room <= 0:
                continue
            if eligibility is not None and (waits := eligibility.refuse(guest)) is not None:
                if len(self.held_back) < room:
                    self.held_back.append(waits)
                continue
            if given := self._first(standing, guest):
                handed.add(given.uid)
                room -= 1
                self.steps.append(HandOver(given, guest))
                if eligibility is not None:
                    eligibility.take(guest)
        # adjust the number of reservations to the places that are left
        self._fill([place for place in free if place.uid not in handed], wanted - len(handed))
        self._note(eligibility)

    def _pair(self, promised: dict[str, Reservation], free: list[Reservation]) -> list[Reservation]:
        """Find the place of each guest on its way that has no promise by name; return the remaining free places.

        Another guest of its type may have taken the very place it was promised. Of those alone on its node any
        will do; the scheduler's condition on the ending ones shows how many guests have theirs already. A guest
        that is nominated may be one with a place that has ended unseen.
        """
        self.backed = {uid for uid in promised if uid in self.flying}
        spare: dict[tuple[str, bool], list[Reservation]] = {}
        for place in free:
            if place.promised_to or place.alone:
                spare.setdefault((place.node, place.alone), []).append(place)
        ended: dict[str, int] = {}
        for place in self.all:
            if place.alone and place.ending and place.preempted:
                ended[place.node] = ended.get(place.node, 0) + 1
        guests: dict[str, list[Guest]] = {}
        for uid, guest in self.flying.items():
            if uid not in promised:
                guests.setdefault(guest.place, []).append(guest)
        used: set[str] = set()
        for node, mine in guests.items():
            mine.sort(key=lambda guest: (bool(guest.nominated), guest.uid))
            named = spare.get((node, False), [])[: len(mine)]
            rest = mine[len(named) :]
            open_ = spare.get((node, True), [])[: max(0, len(rest) - ended.get(node, 0))]
            for guest, place in zip(mine, [*named, *open_], strict=False):
                promised[guest.uid] = place
                used.add(place.uid)
                if place.alone and guest.nominated and self._age(guest) < LOST_AFTER:
                    self.taken += 1
                    self._look_again_by(LOST_AFTER)
                else:
                    self.backed.add(guest.uid)
        return [place for place in free if place.uid not in used]

    def _eligibility(self, holding: Sequence[Guest]) -> Eligibility[Guest] | None:
        """The guests that the calendar allows; None when nothing is booked of this type."""
        bookings = [
            booking
            for booking in self.seen.bookings
            if (booking.group, booking.type) == (self.seen.pool.group, self.kind.name)
        ]
        holds = in_force(judge(bookings, self.kind.available, self.seen.now), self.seen.now)
        if not holds:
            return None
        self._look_again_by(look_again_in(next_change(holds, self.seen.now), self.seen.now))
        without_room = sum(1 for place in self.live if not place.node and place.unschedulable)
        capacity = self.kind.available - without_room if self.nodes else len(holding)
        return Eligibility(capacity, holds, holding, self.seen.now)

    def _note(self, eligibility: Eligibility[Guest] | None) -> None:
        """Add notes to pods that must wait because of the calendar, and remove them from pods that need not
        wait.
        """
        waiting = {held.guest.uid: held.note for held in self.held_back} if eligibility is not None else {}
        let_through = {step.guest.uid for step in self.steps if isinstance(step, HandOver)}
        for guest in (*self.waiting, *self.placed):
            if guest.waits_for != (text := waiting.get(guest.uid, "")) and guest.uid not in let_through:
                self.steps.append(Note(guest, text))

    def _look_again_by(self, wait: timedelta | None) -> None:
        if wait is not None:
            self.look_again = wait if self.look_again is None else min(wait, self.look_again)

    def _line(self, gated: Mapping[str, Guest], promised: Mapping[str, Reservation]) -> Sequence[Guest]:
        """The guests to let through, the next one first; each counts as holding a machine from its turn on."""
        ready = [guest for uid, guest in gated.items() if uid not in promised and not guest.other_gates]
        if self.seen.pool.order != FAIR:
            return sorted(ready, key=lambda guest: _turn(guest, self.seen.pool, self.shares))
        queues: dict[tuple[bool, str], list[Guest]] = {}
        for guest in sorted(ready, key=lambda guest: (guest.created, guest.namespace, guest.name), reverse=True):
            queues.setdefault((guest.is_last, guest.owner), []).append(guest)
        charged = dict(self.shares)
        line = []
        while queues:
            next_queue = min(queues, key=lambda queue: _turn(queues[queue][-1], self.seen.pool, charged))
            line.append(queues[next_queue].pop())
            if not queues[next_queue]:
                del queues[next_queue]
            owner = next_queue[1]
            had = charged.get(owner, Share(used=0))
            charged[owner] = Share(used=had.used, holding=had.holding + max(1, self.kind.devices))
        return line

    def _first(self, standing: list[Reservation], guest: Guest) -> Reservation | None:
        """Take the first place on a node that the guest accepts, and where only this type is handed over now."""
        refused: set[str] = set()
        for at, place in enumerate(standing):
            if place.node in refused:
                continue
            if self.busy.get(place.node, set()) <= {self.kind.name} and _accepts(
                guest, self.seen.nodes[place.node]
            ):
                self.busy.setdefault(place.node, set()).add(self.kind.name)
                return standing.pop(at)
            refused.add(place.node)
        return None

    def _check_mark(self, guest: Guest, place: Reservation | None) -> None:
        if place is None:
            self._look_again_by(LOST_AFTER)
        elif place.node != guest.place and PLACE_PREFIX + guest.uid not in self.seen.nodes[place.node].labels:
            self.steps.append(MoveOn(place, guest))  # promised already, its node still to be marked

    def _is_lost(self, guest: Guest) -> bool:
        where = {guest.place} | {
            name for name, node in self.seen.nodes.items() if PLACE_PREFIX + guest.uid in node.labels
        }
        if not where & self.nodes:
            return True
        return guest.unschedulable and not guest.nominated and self._age(guest) >= LOST_AFTER

    def _age(self, guest: Guest) -> timedelta:
        """The time since the guest was admitted."""
        return self.seen.now - (guest.placed_at or self.seen.now)

    def _fill(self, free: list[Reservation], wanted: int) -> None:
        """Adjust the number of unpromised reservations to `wanted`."""
        free.sort(key=lambda place: (not place.node, bool(place.promised_to), place.name))
        keep, drop = free[: max(0, wanted)], free[max(0, wanted) :]
        self.steps += [Drop(place, "fewer are wanted") for place in drop]
        self.steps += [Keep(place, self.alone) for place in keep if place.promised_to or place.alone != self.alone]
        taken, number = {place.name for place in self.all}, 0
        for _ in range(wanted - len(keep) - self.taken):
            while (name := reservation_name(self.seen.pool.name, self.kind.name, number)) in taken:
                number += 1
            taken.add(name)
            self.added += 1
            self.steps.append(Add(self.kind.name, name, self.alone))

    def count(self) -> Count:
        """Count the present state, with the planned steps as pending."""
        standing = [place for place in self.live if place.node in self.nodes]
        places = max(self.kind.available, len(self.placed)) - len(self.used)
        reserved = min(len(standing), places)
        flying = sum(1 for uid in self.flying if uid not in self.backed)
        making = sum(1 for place in self.live if not place.node and not place.unschedulable) + self.added
        pending = min(flying + making, places - reserved)
        maximum = reserved + len(self.used) + pending
        return Count(
            maximum=maximum,
            reserved=reserved,
            used=len(self.used),
            waiting=len(self.waiting),
            pending=pending,
            unmanaged=len(self.unmanaged),
            unplaced=max(0, self.kind.available - maximum),
        )


def _busy(seen: Seen) -> dict[str, set[str]]:
    """Node → machine types whose places on the node are being handed over, or have reservations outside the
    budget.

    The scheduler could confuse two such reservations of different sizes on one node. A reservation that is
    `alone` and not bound yet may get any node that is marked for its type.
    """
    busy: dict[str, set[str]] = {}
    waiting = {guest.uid: guest for guest in seen.guests if not guest.node}
    for guest in waiting.values():
        if guest.place:
            busy.setdefault(guest.place, set()).add(guest.type)
    for reservation in seen.reservations:
        if reservation.node and (reservation.alone or reservation.promised_to in waiting):
            busy.setdefault(reservation.node, set()).add(reservation.type)
    for kind in {
        reservation.type for reservation in seen.reservations if reservation.alone and not reservation.node
    }:
        for name, node in seen.nodes.items():
            if MACHINE_TYPE_PREFIX + kind in node.labels:
                busy.setdefault(name, set()).add(kind)
    return busy


def _accepts(guest: Guest, node: NodeInfo) -> bool:
    """Whether selector, affinity and tolerations of the guest allow the node, if the node is marked for the
    guest.
    """
    pod = guest.pod
    if pod is None:
        return True
    return refusal_by_labels(pod, node) is None and refusal_by_taints(pod, node) is None


def _unmark(seen: Seen) -> list[Unmark]:
    """Labels of second places that are not needed any more."""
    flying = {
        PLACE_PREFIX + guest.uid for guest in seen.guests if guest.place and not guest.node and not guest.deleting
    }
    return [
        Unmark(node.name, label)
        for node in seen.nodes.values()
        for label, group in node.labels.items()
        if label.startswith(PLACE_PREFIX) and group == seen.pool.group and label not in flying
    ]


def _other_images(seen: Seen, steps: Sequence[Action]) -> list[ChangeImage]:
    """Image changes of remaining reservations that do not start with their current image."""
    going = {step.reservation.uid for step in steps if isinstance(step, Drop | HandOver | MoveOn)}
    return [
        ChangeImage(place)
        for place in seen.reservations
        if place.trouble and seen.image not in ("", place.image) and not place.ending and place.uid not in going
    ]


def _conditions(seen: Seen, counts: Mapping[str, Count], nodeless: Sequence[_TypePlan]) -> tuple[Condition, ...]:
    short = [f"{count.unplaced} {name}" for name, count in counts.items() if count.unplaced]
    bare = [draft.kind.name for draft in nodeless if draft.kind.available]
    making = sum(count.pending for count in counts.values())
    troubles = [place.trouble for place in seen.reservations if place.trouble and not place.ending]
    if bare:
        message = f"No Ready node in mode ready offers {', '.join(bare)}"
        ready = Condition("Ready", "False", "NoNodes", message)
    elif short:
        ready = Condition("Ready", "False", "Unplaced", f"No node of the pool has room for {', '.join(short)}")
    elif troubles:
        those = f"{len(troubles)} reservation pod{'s do' if len(troubles) > 1 else ' does'} not start"
        ready = Condition("Ready", "False", "NotStarting", f"{those}: {min(troubles)}")
    elif making and not seen.was_ready:
        ready = Condition("Ready", "False", "Placing", "Places are being made")
    else:
        ready = Condition("Ready", "True", "Ready", "Every place is held or in use")
    over = [
        f"{count.used - kind.available} {kind.name}"
        for kind in seen.pool.types.values()
        if (count := counts[kind.name]).used > kind.available
    ]
    message = f"More in use than offered, until their guests end: {', '.join(over)}" if over else ""
    stray = [f"{count.unmanaged} {name}" for name, count in counts.items() if count.unmanaged]
    return (
        ready,
        Condition(
            "Oversubscribed", "True" if over else "False", "OverAvailable" if over else "WithinAvailable", message
        ),
        Condition(
            "UnmanagedGuests",
            "True" if stray else "False",
            "NotInjected" if stray else "None",
            f"Pods that never passed the webhook: {', '.join(stray)}" if stray else "",
        ),
    )
