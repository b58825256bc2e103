"""The calendar: nothing promised twice, nobody but backfill asked to leave, machines there when it starts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.decide.machines import reservation
from moorage.decide.machines.bookings import Hold, conflict, in_force, judge, next_change, promised
from moorage.decide.machines.calendar import LOOK_AGAIN_AT_MOST, Report, Seen, machines_for_gpus, plan
from moorage.decide.machines.eligibility import MARGIN, Eligibility, end_of, waits_of
from moorage.decide.machines.reservation import Guest, HandOver, Note, Reservation
from moorage.model.machine import MachineType, Pool, parse_machine
from moorage.model.names import MACHINE_TYPE_PREFIX
from moorage.model.reservation import Booking, Terms, parse_reservation
from moorage_kube.meta import Key
from moorage_kube.scheduling import NodeInfo, PodInfo
from moorage_kube.testing.clock import NOON
from moorage_kube.testing.examples import examples

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)


def a_booking(
    name: str = "course", *, count: int = 2, start: float = 0, end: float = 24, granted: bool = True, **more: Any
) -> Booking:
    """`start` and `end` in hours from noon."""
    terms = Terms(count=count, start=NOON + start * HOUR, end=NOON + end * HOUR)
    booking = Booking(
        namespace="lab",
        name=name,
        group="gpu",
        type="big",
        asked=terms,
        granted=terms if granted else None,
        granted_at=NOON - 48 * HOUR if granted else None,
        created="2026-11-01T00:00:00Z",
    )
    return replace(booking, **more)


def a_guest(name: str = "g", namespace: str = "other", **more: Any) -> Guest:
    """One that holds a place and runs, unless told otherwise."""
    guest = Guest(
        namespace=namespace,
        name=name,
        uid=name,
        type="big",
        owner="bob",
        created=f"2026-11-02T{name}",
        place="n0",
        node="n0",
        started=NOON - HOUR,
    )
    return replace(guest, **more)


def report_of(guests: list[Guest], *bookings: Booking, available: int = 4, **more: Any) -> Report[Guest]:
    return plan(Seen(available=available, bookings=bookings, guests=guests, now=NOON, **more)).reports[0]


def waiting(**more: Any) -> Guest:
    return a_guest("w", place="", node="", started=None, gated=True, **more)


@pytest.mark.parametrize(
    ("guest", "booking", "running", "goes"),
    [
        pytest.param(waiting(), a_booking(start=-1), 1, True, id="beside what is kept there is room"),
        pytest.param(waiting(), a_booking(start=-1), 2, False, id="what is left over is in use"),
        pytest.param(waiting(namespace="lab"), a_booking(start=-1), 2, True, id="it is kept for this one"),
        pytest.param(
            waiting(namespace="lab"), a_booking(start=-1, user="ada"), 2, False, id="kept for a user, not this one"
        ),
        pytest.param(
            waiting(owner="ada"), a_booking(start=-1, user="ada"), 2, True, id="kept for this user, anywhere"
        ),
        pytest.param(waiting(limit=HOUR), a_booking(start=2), 2, True, id="it ends before: it fills the hole"),
        pytest.param(waiting(limit=2 * HOUR), a_booking(start=2), 2, False, id="its limit goes into the booking"),
        pytest.param(
            waiting(limit=2 * HOUR - 30 * SECOND - MARGIN),
            a_booking(start=2),
            2,
            True,
            id="limit, grace and margin end just when it starts",
        ),
        pytest.param(waiting(limit=2 * HOUR), a_booking(start=2), 1, True, id="it ends in it, beside the kept"),
        pytest.param(waiting(), a_booking(start=2), 2, False, id="no limit: taken to run for the lead"),
        pytest.param(waiting(), a_booking(start=25, end=48), 2, True, id="no limit: the booking is further away"),
        pytest.param(waiting(), a_booking(start=2, lead=HOUR), 2, True, id="no limit: a shorter lead"),
        pytest.param(waiting(namespace="lab"), a_booking(start=2), 2, True, id="no limit, but it is kept for it"),
        pytest.param(waiting(backfill=True), a_booking(start=2), 2, True, id="backfill will leave when asked"),
        pytest.param(
            waiting(backfill=True), a_booking(start=1 / 60), 2, False, id="backfill that would be asked at once"
        ),
        pytest.param(waiting(backfill=True), a_booking(start=-1), 2, False, id="no backfill once it began"),
        pytest.param(waiting(), a_booking(start=-2, end=-1), 2, True, id="it has ended: as if it had not been"),
        pytest.param(waiting(), a_booking(start=-1, cancelled=True), 2, True, id="it was cancelled"),
    ],
)  # fmt: skip
def test_who_may_go(guest: Guest, booking: Booking, running: int, goes: bool) -> None:
    others = [a_guest(str(number)) for number in range(running)]
    pace = Eligibility(4, in_force(judge([booking], 4, NOON), NOON), others, NOON)
    refused = pace.refuse(guest)
    assert (refused is None) == goes


def test_who_waits_is_told_for_what_until_when_and_what_would_go() -> None:
    pace = Eligibility(2, in_force(judge([a_booking(start=2)], 2, NOON), NOON), [], NOON)
    refused = pace.refuse(waiting())
    assert refused is not None
    assert waits_of(refused.note) == (NOON + 24 * HOUR, refused.why)
    assert waits_of("") is None
    assert refused.note == (
        "2026-11-22T12:00:00Z 2 big are reserved for namespace lab by the reservation lab/course from"
        " 2026-11-21T14:00:00Z to 2026-11-22T12:00:00Z, and it has no time limit; one that ends by"
        " 2026-11-21T13:59:00Z may go"
    )


def test_guests_are_spread_over_bookings_so_that_most_are_covered() -> None:
    """The user's own booking serves one that runs elsewhere; the namespace's the one that runs there."""
    mine, ours = a_booking("mine", count=1, user="ada"), a_booking("ours", count=1)
    both, elsewhere = a_guest("both", "lab", owner="ada"), waiting(owner="ada")
    assert Eligibility(2, in_force(judge([ours, mine], 2, NOON), NOON), [both], NOON).refuse(elsewhere) is None


def test_who_was_granted_first_goes_first_when_there_is_not_enough() -> None:
    early = a_booking("early", granted_at=NOON - HOUR)
    late = a_booking("late", namespace="other", granted_at=NOON)
    holds = in_force(judge([early, late], 4, NOON), NOON)
    assert Eligibility(3, holds, [], NOON).refuse(waiting()) is None
    assert Eligibility(3, holds, [a_guest()], NOON).refuse(waiting()) is not None
    assert Eligibility(3, holds, [a_guest()], NOON).refuse(waiting(namespace="lab")) is None


# --- what is granted


def test_of_two_that_do_not_fit_together_the_one_made_first_is_granted() -> None:
    late = a_booking("a", count=3, start=5, end=6, granted=False, created="2026-11-03")
    first = a_booking("b", count=2, start=4, end=8, granted=False, created="2026-11-02")
    rulings = {one.booking.name: one for one in judge([late, first], 4, NOON)}
    assert rulings["b"].hold == Hold(first, first.asked, NOON)
    assert rulings["a"].hold is None
    assert (rulings["a"].reason, rulings["a"].message) == (
        "Conflict",
        "3 of 4 big are not free from 2026-11-21T17:00:00Z to 2026-11-21T18:00:00Z: lab/b has 2 from"
        " 2026-11-21T16:00:00Z to 2026-11-21T20:00:00Z; free all the time: 2; 3 for as long from"
        " 2026-11-21T20:00:00Z",
    )


def test_a_change_that_does_not_fit_leaves_the_old_terms_in_force() -> None:
    other = a_booking("other", count=2, start=10, end=20)
    grown = a_booking(count=3, start=0, end=12)
    had = Terms(count=3, start=NOON, end=NOON + 10 * HOUR)
    (ruling,) = [
        one for one in judge([other, replace(grown, granted=had)], 4, NOON) if one.booking.name == "course"
    ]
    assert (ruling.reason, ruling.hold and ruling.hold.terms) == ("Conflict", had)
    assert ruling.message.endswith("in force as before: 3 from 2026-11-21T12:00:00Z to 2026-11-21T22:00:00Z")


@pytest.mark.parametrize(
    ("booking", "available", "reason"),
    [
        pytest.param(a_booking(start=2, end=1, granted=False), 4, "Invalid", id="it ends before it starts"),
        pytest.param(a_booking(start=-2, end=-1, granted=False), 4, "Past", id="it is over"),
        pytest.param(a_booking(granted=False), None, "UnknownMachine", id="no such machine"),
        pytest.param(a_booking(count=5, granted=False), 4, "Conflict", id="more than there are"),
        pytest.param(a_booking(count=5), 4, "", id="granted before there were fewer"),
        pytest.param(a_booking(start=-1, granted=False), 4, "", id="it has begun already"),
    ],
)  # fmt: skip
def test_what_is_refused(booking: Booking, available: int | None, reason: str) -> None:
    (ruling,) = judge([booking], available, NOON)
    assert ruling.reason == reason


def test_fewer_takes_effect_although_less_is_there_than_was_granted() -> None:
    fewer = replace(a_booking(count=3), granted=Terms(count=4, start=NOON, end=NOON + 24 * HOUR))
    (ruling,) = judge([fewer], 2, NOON)
    assert ruling.hold == Hold(fewer, fewer.asked, NOON - 48 * HOUR)  # and it keeps its turn


# --- how it stands


def test_a_booking_goes_through_its_phases() -> None:
    found = []
    for at in (-30, -24, 0, 5):
        now = NOON + at * HOUR
        (report,) = plan(Seen(available=4, bookings=[a_booking(end=5)], guests=[], now=now)).reports
        found.append((report.phase, report.held, report.conditions[1].reason))
    assert found == [
        ("Pending", 0, "NotYet"), ("Preparing", 2, "AllHeld"), ("Active", 2, "AllHeld"), ("Expired", 0, "Ended")
    ]  # fmt: skip


def test_what_is_missing_is_said_with_who_is_in_the_way_and_until_when() -> None:
    guests = [a_guest("0"), a_guest("1", limit=3 * HOUR), a_guest("2", limit=4 * HOUR), a_guest("3", "lab")]
    report = report_of(guests, a_booking(start=-1, count=3))
    assert (report.held, report.in_use, report.shortfall) == (1, 1, 2)
    assert report.full_at == NOON + 3 * HOUR + 30 * SECOND + MARGIN
    assert [(one.guest.name, one.until) for one in report.blocked_by] == [
        ("1", NOON + 2 * HOUR + 30 * SECOND + MARGIN),
        ("2", NOON + 3 * HOUR + 30 * SECOND + MARGIN),
        ("0", None),
    ]
    assert report.conditions[1].message == (
        "2 of 3 are missing: 3 in use by earlier guests; all there at 2026-11-21T15:01:00Z"
    )


def test_what_will_be_missing_is_said_before_it_starts() -> None:
    guests = [a_guest("0"), a_guest("1"), a_guest("2", limit=HOUR)]
    report = report_of(guests, a_booking(start=2, count=3))
    assert (report.phase, report.shortfall, report.full_at) == ("Preparing", 1, None)
    assert "not all of them have a time limit" in report.conditions[1].message


def test_places_that_have_no_node_are_missing() -> None:
    report = report_of([], a_booking(start=-1, count=4), missing=1)
    assert (report.held, report.shortfall, report.conditions[1].message) == (
        3, 1, "1 of 4 are missing; 1 have no room on any node"
    )  # fmt: skip


# --- backfill


def test_backfill_is_asked_to_leave_grace_and_margin_before() -> None:
    slow, quick = a_guest("0", backfill=True, grace=600 * SECOND), a_guest("1", backfill=True)
    others = [a_guest("2"), a_guest("3", "lab")]
    seen = Seen(available=4, bookings=[a_booking(count=3)], guests=[slow, quick, *others], now=NOON - HOUR)
    assert plan(seen).leave == ()
    assert plan(seen).wake_at == NOON - 600 * SECOND - MARGIN
    seen = replace(seen, now=NOON - 600 * SECOND - MARGIN)
    assert [one.guest.name for one in plan(seen).leave] == ["0"]
    left = replace(seen, guests=[replace(slow, leaves=NOON - MARGIN, deleting=True), quick, *others])
    assert plan(left).wake_at == NOON - 30 * SECOND - MARGIN
    left = replace(left, now=NOON - 30 * SECOND - MARGIN)
    assert [one.guest.name for one in plan(left).leave] == ["1"]


def test_only_as_much_backfill_leaves_as_is_needed_and_the_newest_does() -> None:
    guests = [a_guest("0", backfill=True), a_guest("1", backfill=True), a_guest("2", backfill=True)]
    seen = Seen(available=4, bookings=[a_booking(count=2)], guests=guests, now=NOON)
    assert [one.guest.name for one in plan(seen).leave] == ["2"]


def test_the_owners_own_backfill_stays() -> None:
    guests = [a_guest(str(number), "lab", backfill=True) for number in range(4)]
    seen = Seen(available=4, bookings=[a_booking(count=4)], guests=guests, now=NOON)
    assert plan(seen).leave == ()


# --- with the machine's own plan

SIZE = {"cpu": 4000, "nvidia.com/gpu": 1}
R0 = Reservation(name="r0", uid="r0", type="big", node="n0", alone=True)


def a_machine(*guests: Guest, bookings: tuple[Booking, ...], available: int = 1) -> reservation.Seen:
    kind = MachineType(name="big", size=SIZE, texts={}, available=available)
    pool = Pool(name="m", uid="u", group="gpu", types={"big": kind}, offers={"n0": ("big",)})
    node = NodeInfo(name="n0", labels={MACHINE_TYPE_PREFIX + "big": "gpu"}, ready=True)
    pods = [
        replace(guest, pod=PodInfo(namespace=guest.namespace, name=guest.name, requests=SIZE)) for guest in guests
    ]
    return reservation.Seen(
        pool=pool, nodes={"n0": node}, reservations=[R0], guests=pods, now=NOON, was_ready=True, bookings=bookings
    )


def test_the_owner_is_let_through_before_those_who_came_earlier() -> None:
    early, mine = waiting(created="1"), replace(waiting(created="2", namespace="lab"), uid="mine")
    decided = reservation.plan(a_machine(early, mine, bookings=(a_booking(count=1, start=-1),)))
    assert [action.guest.uid for action in decided.actions if isinstance(action, HandOver)] == ["mine"]


def test_who_is_held_back_by_the_calendar_alone_bears_a_note_and_only_as_long() -> None:
    guest = waiting()
    booked = a_machine(guest, bookings=(a_booking(count=1, start=1),))
    (note,) = reservation.plan(booked).actions
    assert isinstance(note, Note)
    assert note.text.startswith("2026-11-22T12:00:00Z 1 big are reserved for namespace lab")
    noted_guest = replace(booked.guests[0], waits_for=note.text)
    assert reservation.plan(replace(booked, guests=[noted_guest])).actions == ()
    assert reservation.plan(replace(booked, guests=[noted_guest])).look_again_in == LOOK_AGAIN_AT_MOST
    (over,) = reservation.plan(replace(booked, guests=[noted_guest], bookings=())).actions
    assert isinstance(over, HandOver)
    through = replace(noted_guest, gated=False, place="n0", node="n0")
    assert Note(through, "") in reservation.plan(replace(booked, guests=[through])).actions


def test_other_types_of_the_group_are_not_concerned() -> None:
    other = a_booking(count=1, start=-1, type="small")
    assert isinstance(reservation.plan(a_machine(waiting(), bookings=(other,))).actions[0], HandOver)


def test_gpus_of_a_type_are_so_many_machines() -> None:
    spec = {"cpu": 1, "memory": "1Gi", "gpu": {"type": "nvidia.com/gpu", "num": 2, "family": "a100"}}
    machine = {
        "metadata": {"name": "gpu"},
        "spec": {"machineTypes": [{"name": "two", "spec": spec, "available": 4}]},
    }
    pools = [parse_machine(machine)]
    assert [(kind.name, count) for _, kind, count in machines_for_gpus(pools, 8, "A100")] == [("two", 4)]
    assert machines_for_gpus(pools, 3, "a100") == []
    assert machines_for_gpus(pools, 2, "h100") == []


def test_a_reservation_is_read_field_by_field() -> None:
    spec = {"machineGroup": "gpu", "machineType": "big", "count": 2, "from": "2026-12-01T09:00:00.5+01:00",
            "to": "2026-12-02T09:00:00Z", "user": "ada@lab.org", "leadSeconds": 60}  # fmt: skip
    granted = {"machineGroup": "gpu", "machineType": "small", "count": 9, "from": spec["from"], "to": spec["to"]}
    meta = {"namespace": "lab", "name": "course", "creationTimestamp": "2026-11-21T12:00:00Z"}
    found = parse_reservation({"metadata": meta, "spec": spec, "status": {"granted": granted}})
    assert (found.asked.start.isoformat(), found.lead, found.granted) == (
        "2026-12-01T08:00:00+00:00",
        MINUTE,
        None,
    )
    assert found.user.startswith("ada-lab.org-")
    assert found.key == Key("lab", "course")


# --- a small world


@dataclass
class World:
    """Places of one type; guests that come, run and end; bookings; an operator that may be stopped anywhere."""

    places: int
    now: Any = NOON
    guests: dict[str, Guest] = field(default_factory=dict)
    bookings: dict[str, Booking] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    let_through: dict[str, Any] = field(default_factory=dict)  # uid → when
    judged: set[tuple[str, Any]] = field(default_factory=set)

    @property
    def holding(self) -> list[Guest]:
        return [guest for guest in self.guests.values() if guest.place]

    def operate(self, stop_after: int | None = None) -> Any:
        """One pass of both controllers, or its first writes; returns when to look again."""
        budget = itertools.count()

        def stopped() -> bool:
            return stop_after is not None and next(budget) >= stop_after

        seen = Seen(
            available=self.places, bookings=list(self.bookings.values()), guests=self.holding, now=self.now
        )
        decided = plan(seen)
        for report in decided.reports:
            booking = self.bookings[report.booking.name]
            if report.hold and (booking.granted, booking.granted_at) != (report.hold.terms, report.hold.since):
                if stopped():
                    return None
                self.bookings[booking.name] = replace(
                    booking, granted=report.hold.terms, granted_at=report.hold.since
                )
        for leave in decided.leave:
            assert leave.guest.backfill
            if stopped():
                return None
            uid = leave.guest.uid
            self.guests[uid] = replace(self.guests[uid], leaves=self.now + leave.guest.grace, deleting=True)
        holds = in_force(judge(self.bookings.values(), self.places, self.now), self.now)
        pace = Eligibility(self.places, holds, self.holding, self.now)
        line = [guest for guest in self.guests.values() if not guest.place]
        for guest in pace.kept_first(sorted(line, key=lambda one: one.created)):
            if len(self.holding) < self.places and pace.refuse(guest) is None:
                if stopped():
                    return None
                pace.take(guest)
                self.guests[guest.uid] = replace(guest, place="n0", node="n0", started=self.now, gated=False)
                self.let_through[guest.uid] = self.now
        wakes = [at for at in (decided.wake_at, next_change(holds, self.now)) if at is not None]
        return min(wakes, default=None)

    def settle(self) -> Any:
        """Each write brings a pass of its own, until nothing more is written."""
        while True:
            before = (dict(self.guests), dict(self.bookings))
            wake = self.operate()
            if (self.guests, self.bookings) == before:
                return wake

    def pass_time(self, until: Any, stop_after: int) -> None:
        """Until then, the operator is woken when it asked and when a guest goes; first it is stopped."""
        self.operate(stop_after)
        while True:
            wake = self.settle()
            self.check()
            ends = [end for one in self.holding if (end := end_of(one, self.now)) is not None]
            at = min([until, *ends, *([wake] if wake else [])])
            self.now = max(at, self.now)
            gone = [one.uid for one in self.holding if (end := end_of(one, self.now)) and end <= self.now]
            for uid in gone:
                del self.guests[uid]
            if self.now >= until and not gone:
                return

    def check(self) -> None:
        holds = in_force(judge(self.bookings.values(), self.places, self.now), self.now)
        for hold in holds:
            assert promised(holds, hold.terms.start, hold.terms.end) <= self.places
        assert len(self.holding) <= self.places
        reports = plan(
            Seen(available=self.places, bookings=list(self.bookings.values()), guests=self.holding, now=self.now)
        ).reports
        assert sum(report.held for report in reports) <= self.places
        for report in reports:
            if report.phase == "Active" and report.hold is not None:
                terms, name = report.hold.terms, report.booking.name
                if (name, terms) not in self.judged:
                    self.judged.add((name, terms))
                    there = {one.guest.uid for one in report.blocked_by} | self.taken_over(report, reports)
                    excused = [uid for uid in there if self.excused(self.guests[uid], report.hold)]
                    assert report.shortfall <= len(excused), (report, self.let_through)

    def taken_over(self, report: Report, reports: Sequence[Report]) -> set[str]:
        """Guests that were there, and whom a booking granted later than this one now counts as its own."""
        since = report.hold.since if report.hold else self.now
        later = [report.booking for report in reports if report.hold is not None and report.hold.since > since]
        return {
            guest.uid
            for guest in self.holding
            for one in later
            if (guest.owner == one.user if one.user else guest.namespace == one.namespace)
        }

    def excused(self, guest: Guest, hold: Hold) -> bool:
        """It was there when the booking was granted, or it has no limit and was there before the lead began."""
        through = self.let_through[guest.uid]
        if guest.backfill:  # asked too late only if the booking was made too late, or it fills in beside a booking
            return through <= hold.since and hold.since > hold.terms.start - guest.grace - MARGIN
        return through <= hold.since or (guest.limit is None and through <= hold.terms.start - hold.booking.lead)


OWNERS = st.tuples(st.sampled_from(["ada", "bob", "cyd"]), st.sampled_from(["lab", "other"]))
EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("guests"),
            st.integers(1, 4),
            OWNERS,
            st.one_of(st.none(), st.integers(1, 300)),
            st.booleans(),
            st.sampled_from([0, 30, 600]),
        ),
        st.tuples(
            st.just("book"),
            OWNERS,
            st.booleans(),
            st.integers(1, 4),
            st.integers(-30, 300),
            st.integers(1, 200),
            st.sampled_from([0, 30, 120]),
        ),
        st.tuples(st.just("change"), st.integers(0, 9), st.integers(1, 4), st.integers(-60, 60)),
        st.tuples(st.just("cancel"), st.integers(0, 9)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("time"), st.integers(1, 200), st.integers(0, 5)),
    ),
    max_size=30,
)


def happen(world: World, event: tuple[Any, ...]) -> None:
    match event:
        case ("guests", count, (owner, namespace), limit, backfill, grace):
            for number in itertools.islice(world.numbers, count):
                world.guests[f"g{number}"] = Guest(
                    namespace=namespace,
                    name=f"g{number}",
                    uid=f"g{number}",
                    type="big",
                    owner=owner,
                    created=f"{number:04}",
                    gated=True,
                    limit=None if limit is None else limit * MINUTE,
                    backfill=backfill,
                    grace=grace * SECOND,
                )
        case ("book", (owner, namespace), for_user, count, start, length, lead):
            number = next(world.numbers)
            begins = world.now + start * MINUTE
            world.bookings[f"b{number}"] = Booking(
                namespace=namespace,
                name=f"b{number}",
                group="gpu",
                type="big",
                user=owner if for_user else "",
                asked=Terms(count=count, start=begins, end=begins + length * MINUTE),
                lead=lead * MINUTE,
                created=f"{number:04}",
            )
        case ("change", at, count, minutes) if world.bookings:
            name = sorted(world.bookings)[at % len(world.bookings)]
            had = world.bookings[name]
            asked = replace(had.asked, count=count, end=had.asked.end + minutes * MINUTE)
            world.bookings[name] = replace(had, asked=asked)
        case ("cancel", at) if world.bookings:
            del world.bookings[sorted(world.bookings)[at % len(world.bookings)]]
        case ("end", at) if world.holding:
            del world.guests[world.holding[at % len(world.holding)].uid]
        case ("time", minutes, stop_after):
            world.pass_time(world.now + minutes * MINUTE, stop_after)
    world.pass_time(world.now + SECOND, len(world.guests) % 3)


@settings(max_examples=examples(50, full=200), deadline=None)
@given(EVENTS)
def test_whatever_happens_nothing_is_promised_twice_nobody_is_evicted_and_what_was_granted_is_there(
    events: list[tuple[Any, ...]],
) -> None:
    world = World(places=4)
    for event in events:
        happen(world, event)
    # after all have ended everything is as if nothing had been reserved
    ends = [booking.asked.end for booking in world.bookings.values()]
    granted = [booking.granted.end for booking in world.bookings.values() if booking.granted]
    world.pass_time(max([world.now, *ends, *granted]) + MINUTE, 3)
    seen = Seen(available=4, bookings=list(world.bookings.values()), guests=world.holding, now=world.now)
    assert (plan(seen).leave, plan(seen).wake_at) == ((), None)
    free = Eligibility(4, in_force(judge(seen.bookings, 4, world.now), world.now), world.holding, world.now)
    gated = [guest for guest in world.guests.values() if not guest.place]
    assert [one for one in gated if free.refuse(one)] == []
    assert not gated or len(world.holding) == 4


GUESTS = st.tuples(
    st.just("guests"),
    st.integers(1, 4),
    OWNERS,
    st.one_of(st.none(), st.integers(1, 300)),
    st.sampled_from([False, False, True]),
    st.sampled_from([0, 30, 600]),
)
BOOKS = st.tuples(
    st.just("book"), OWNERS, st.booleans(), st.integers(2, 4), st.integers(20, 120), st.integers(30, 200),
    st.sampled_from([0, 30, 120]),
)  # fmt: skip
TIMES = st.tuples(st.just("time"), st.integers(1, 40), st.integers(0, 5))


@settings(max_examples=examples(37, full=150), deadline=None)
@given(st.lists(BOOKS, min_size=1, max_size=3), st.lists(st.tuples(GUESTS, TIMES), min_size=2, max_size=8))
def test_who_comes_after_a_booking_was_granted_is_not_in_its_way(
    books: list[tuple[Any, ...]], then: list[tuple[tuple[Any, ...], tuple[Any, ...]]]
) -> None:
    world = World(places=4)
    for event in (*books, *itertools.chain.from_iterable(then)):
        happen(world, event)
    world.pass_time(NOON + 400 * MINUTE, 1)


@settings(max_examples=examples(25, full=100), deadline=None)
@given(EVENTS, st.integers(1, 4), st.integers(-30, 300), st.integers(1, 300))
def test_what_the_message_says_is_free_is_free(
    events: list[tuple[Any, ...]], count: int, start: int, length: int
) -> None:
    world = World(places=4)
    for event in events:
        happen(world, event)
    holds = in_force(judge(world.bookings.values(), 4, world.now), world.now)
    begins = max(world.now, world.now + start * MINUTE)
    asked = Terms(count=count, start=begins, end=begins + length * MINUTE)
    told = conflict("big", asked, holds, 4, now=world.now)
    assert (promised(holds, asked.start, asked.end) + count > 4) == bool(told)
    if told:
        assert f"; {count} for as long from " in told
