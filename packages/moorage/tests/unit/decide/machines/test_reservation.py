"""Places and guests: no guest removed, no place given twice, counts right, wherever the operator is stopped."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.decide.machines.reservation import (
    Action,
    Add,
    ChangeImage,
    Count,
    Drop,
    Guest,
    HandOver,
    Keep,
    MoveOn,
    Plan,
    Reservation,
    Seen,
    Share,
    Unmark,
    plan,
    reservation_name,
    shares_now,
)
from moorage.model.machine import FAIR, MachineType, Pool
from moorage.model.names import MACHINE_TYPE_PREFIX, PLACE_PREFIX
from moorage_kube.scheduling import NodeInfo, PodInfo
from moorage_kube.testing.examples import examples

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
GPU = "nvidia.com/gpu"
SIZE = {"cpu": 4000, "memory": 2**30, GPU: 1}


def a_type(name: str = "red", available: int = 1) -> MachineType:
    return MachineType(name=name, size=SIZE, texts={"cpu": "4", "memory": "1Gi", GPU: "1"}, available=available)


def a_pool(*types: MachineType, nodes: int = 1, order: str = "fifo") -> Pool:
    types = types or (a_type(), a_type("blue", available=0))
    names = tuple(one.name for one in types)
    return Pool(
        name="pool",
        uid="u",
        group="group",
        types={one.name: one for one in types},
        offers={f"n{number}": names for number in range(nodes)},
        order=order,
        half_life=3600,
    )


def a_node(
    name: str = "n0", *types: str, ready: bool = True, unschedulable: bool = False, **labels: str
) -> NodeInfo:
    marks = {MACHINE_TYPE_PREFIX + kind: "group" for kind in types or ("red",)}
    return NodeInfo(name=name, labels=marks | labels, ready=ready, unschedulable=unschedulable)


def a_guest(name: str = "ada", **more: object) -> Guest:
    pod = PodInfo(namespace="lab", name=name, requests=SIZE | {"pods": 1})
    guest = Guest(namespace="lab", name=name, uid=f"uid-{name}", type="red", created="2026", gated=True, pod=pod)
    return replace(guest, **more)  # type: ignore[arg-type]


def a_seen(**more: object) -> Seen:
    seen = Seen(pool=a_pool(), nodes={"n0": a_node()}, reservations=(), guests=(), now=NOON, was_ready=True)
    return replace(seen, **more)  # type: ignore[arg-type]


TROUBLE = "image old:1 cannot be pulled (ErrImagePull); set pauseImage"
R0 = Reservation(name=reservation_name("pool", "red", 0), uid="r0", type="red", node="n0")
PLACED = {"gated": False, "place": "n0", "placed_at": NOON, "pod": None}


@pytest.mark.parametrize(
    ("seen", "want"),
    [
        pytest.param(a_seen(), (Add("red", R0.name),), id="a place is made"),
        pytest.param(a_seen(reservations=[R0]), (), id="a place that stands is left alone"),
        pytest.param(
            a_seen(reservations=[R0], guests=[a_guest()]), (HandOver(R0, a_guest()),), id="a guest gets the place"
        ),
        pytest.param(
            a_seen(reservations=[replace(R0, node="")], guests=[a_guest()]),
            (),
            id="no gate is lifted before the reservation stands",
        ),
        pytest.param(
            a_seen(reservations=[replace(R0, promised_to="uid-ada")], guests=[a_guest()]),
            (HandOver(replace(R0, promised_to="uid-ada"), a_guest()),),
            id="stopped between promise and gate: the gate is lifted",
        ),
        pytest.param(
            a_seen(reservations=[replace(R0, promised_to="uid-gone")]),
            (Keep(replace(R0, promised_to="uid-gone")),),
            id="promised to a guest that went: kept again",
        ),
        pytest.param(
            a_seen(reservations=[replace(R0, promised_to="uid-ada")], guests=[a_guest(**PLACED)]),
            (),
            id="on its way: waited for",
        ),
        pytest.param(
            a_seen(reservations=[replace(R0, ending=True)], guests=[a_guest(**PLACED, nominated="n0")]),
            (),
            id="its reservation is leaving: no other is made",
        ),
        pytest.param(
            a_seen(reservations=[replace(R0, promised_to="uid-ada")], guests=[a_guest(**PLACED, node="n0")]),
            (Drop(replace(R0, promised_to="uid-ada"), "fewer are wanted"),),
            id="the guest found room beside it: the reservation goes",
        ),
        pytest.param(
            a_seen(reservations=[R0], nodes={"n0": a_node(unschedulable=True)}),
            (Drop(R0, "node n0 does not offer the type now"),),
            id="a cordoned node: its places are let go, and a drain is not held up",
        ),
        pytest.param(
            a_seen(pool=a_pool(a_type(available=0)), reservations=[R0]),
            (Drop(R0, "fewer are wanted"),),
            id="fewer offered: reservations go",
        ),
        pytest.param(
            a_seen(pool=a_pool(a_type(available=0)), guests=[a_guest(**PLACED, node="n0")]),
            (),
            id="fewer offered: guests stay",
        ),
        pytest.param(
            a_seen(reservations=[R0], guests=[a_guest(other_gates=True)]), (), id="another's gate is waited for"
        ),
        pytest.param(
            a_seen(reservations=[replace(R0, type="blue")], pool=a_pool(a_type(available=0))),
            (Drop(replace(R0, type="blue"), "its machine type no longer exists"),),
            id="a type that no longer exists",
        ),
        pytest.param(
            a_seen(nodes={"n0": a_node(**{PLACE_PREFIX + "uid-gone": "group"})}, reservations=[R0]),
            (Unmark("n0", PLACE_PREFIX + "uid-gone"),),
            id="the mark of a second place is taken off",
        ),
        pytest.param(
            a_seen(deleting=True, reservations=[R0]), (Drop(R0, "the Machine is deleted"),), id="deleted"
        ),
    ],
)
def test_each_case_has_its_step(seen: Seen, want: tuple[Action, ...]) -> None:
    assert plan(seen).actions == want


def test_a_guest_whose_node_went_gets_another_place() -> None:
    other = replace(R0, node="n1")
    seen = a_seen(
        pool=a_pool(nodes=2), nodes={"n1": a_node("n1")}, reservations=[other], guests=[a_guest(**PLACED)]
    )
    guest = seen.guests[0]
    assert plan(seen).actions == (MoveOn(other, guest),)
    promised = replace(other, promised_to=guest.uid)
    assert plan(replace(seen, reservations=[promised])).actions == (MoveOn(promised, guest),)
    marked = a_node("n1", **{PLACE_PREFIX + guest.uid: "group"})
    assert plan(replace(seen, reservations=[promised], nodes={"n1": marked})).actions == ()


def test_a_guest_that_the_scheduler_refuses_for_long_gets_another_place() -> None:
    other = replace(R0, node="n0")
    guest = a_guest(**PLACED, unschedulable=True)
    early = a_seen(reservations=[], guests=[guest])
    assert plan(early).actions == ()
    assert plan(early).look_again_in == timedelta(seconds=10)
    late = replace(early, now=NOON + timedelta(seconds=10))
    assert plan(late).actions == (Add("red", R0.name),)
    assert plan(replace(late, reservations=[other])).actions == (MoveOn(other, guest),)


def test_a_guest_that_wants_more_than_a_machine_stays_behind_the_gate_and_is_named() -> None:
    big = a_guest(pod=PodInfo(namespace="lab", name="ada", requests=SIZE | {GPU: 2}))
    decided = plan(a_seen(reservations=[R0], guests=[big, a_guest("bob", created="2027")]))
    assert decided.actions == (HandOver(R0, a_guest("bob", created="2027")),)
    assert [(misfit.guest.name, misfit.why) for misfit in decided.misfits] == [
        ("ada", "it asks for more than a red has: nvidia.com/gpu 2 of 1")
    ]


def test_first_come_first_served() -> None:
    guests = [a_guest("late", created="2026-02"), a_guest("early", created="2026-01")]
    decided = plan(a_seen(reservations=[R0], guests=guests))
    assert decided.actions == (HandOver(R0, guests[1]),)
    assert decided.line == ("uid-early", "uid-late")


def test_fair_lets_through_who_used_least_lately() -> None:
    guests = [a_guest("heavy", owner="heavy", created="1"), a_guest("light", owner="light", created="2")]
    seen = a_seen(
        pool=a_pool(order=FAIR),
        reservations=[R0],
        guests=guests,
        shares={"heavy": Share(used=5000)},
        shares_at=NOON,
    )
    assert plan(seen).actions == (HandOver(R0, guests[1]),)


@pytest.mark.parametrize("order", ["fifo", FAIR])
def test_guests_of_who_is_over_budget_are_let_through_after_all_others(order: str) -> None:
    guests = tuple(
        a_guest(name, owner=owner, gated=True, created=str(at), is_last=is_last)
        for at, (name, owner, is_last) in enumerate(
            [("first", "ada", True), ("second", "ben", False), ("third", "ada", False), ("last", "cyd", True)]
        )
    )
    plan_made = plan(a_seen(pool=a_pool(order=order), guests=guests))
    assert plan_made.line == ("uid-second", "uid-third", "uid-first", "uid-last")


def test_what_was_used_counts_half_after_a_half_life() -> None:
    seen = a_seen(
        pool=a_pool(order=FAIR),
        shares={"ada": Share(used=8000), "bob": Share(used=0, holding=2)},
        shares_at=NOON - timedelta(hours=1),
    )
    found = shares_now(seen)
    assert found["ada"] == Share(used=4000)
    assert found["bob"].used == pytest.approx(2 * 3600 / 0.6931 * 0.5, rel=0.001)


def test_places_for_which_there_is_no_room_are_said_and_not_counted() -> None:
    pool = a_pool(a_type(available=2))
    stuck = replace(R0, name=reservation_name("pool", "red", 1), uid="r1", node="", unschedulable=True)
    decided = plan(a_seen(pool=pool, reservations=[R0, stuck]))
    assert decided.counts == {"red": Count(maximum=1, reserved=1, unplaced=1)}
    assert (decided.conditions[0].status, decided.conditions[0].reason) == ("False", "Unplaced")


def test_pods_that_never_passed_the_webhook_are_counted_and_get_nothing() -> None:
    stray = a_guest(gated=False, pod=None, node="n0")
    decided = plan(a_seen(reservations=[R0], guests=[stray]))
    assert decided.actions == ()
    assert decided.counts["red"] == Count(maximum=1, reserved=1, unmanaged=1)
    assert [condition.status for condition in decided.conditions if condition.type == "UnmanagedGuests"] == [
        "True"
    ]


ALONE = a_pool(a_type(available=2))
A0, A1 = (
    Reservation(name=reservation_name("pool", "red", n), uid=f"a{n}", type="red", node="n0", alone=True)
    for n in range(2)
)
BLUE = Reservation(name="b", uid="b", type="blue", node="n0", alone=True)


def test_on_nodes_of_one_type_reservations_are_made_alone_and_handed_over_without_a_promise() -> None:
    assert plan(a_seen(pool=ALONE)).actions == (Add("red", A0.name, True), Add("red", A1.name, True))
    guest = a_guest()
    decided = plan(a_seen(pool=ALONE, reservations=[A0, A1], guests=[guest]))
    assert decided.actions == (HandOver(A0, guest),)
    on_its_way = a_guest(**PLACED)
    assert plan(a_seen(pool=ALONE, reservations=[A0, A1], guests=[on_its_way])).actions == ()


@pytest.mark.parametrize(
    ("reservations", "nominated", "reserved"),
    [
        pytest.param([A0, A1], "", 2, id="not yet taken"),
        pytest.param([A0, A1], "n0", 2, id="the guest is nominated first"),
        pytest.param([replace(A0, ending=True, preempted=True), A1], "", 1, id="the place ends first"),
        pytest.param([A1], "n0", 1, id="it has ended"),
    ],
)
def test_a_place_alone_on_its_node_that_a_guest_takes_is_counted_once(
    reservations: list[Reservation], nominated: str, reserved: int
) -> None:
    decided = plan(a_seen(pool=ALONE, reservations=reservations, guests=[a_guest(**PLACED, nominated=nominated)]))
    assert decided.actions == ()
    assert decided.counts["red"] == Count(maximum=2, reserved=reserved, pending=2 - reserved)


@pytest.mark.parametrize("blue", [BLUE, replace(BLUE, node="")], ids=["stands there", "may come there"])
def test_a_node_hands_nothing_over_while_another_type_has_places_there_under_no_budget(blue: Reservation) -> None:
    pool = a_pool(a_type(), a_type("blue", available=1))
    guest = a_guest()
    seen = a_seen(pool=pool, nodes={"n0": a_node("n0", "red", "blue")}, reservations=[R0, blue], guests=[guest])
    assert plan(seen).actions == (Keep(blue),)
    kept = replace(blue, alone=False)
    assert plan(replace(seen, reservations=[R0, kept])).actions == (HandOver(R0, guest),)


def test_a_type_whose_nodes_come_to_offer_no_other_has_its_places_alone_from_then_on() -> None:
    kept = replace(A0, alone=False)
    assert plan(a_seen(pool=ALONE, reservations=[kept, A1])).actions == (Keep(kept, True),)


# --- a small world


@dataclass
class World:
    """Nodes with devices, a scheduler that preempts as kube-scheduler does, and the pods."""

    pool: Pool
    devices: dict[str, int]  # node → devices; every machine has one
    ready: dict[str, bool]
    marks: dict[str, set[str]] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)  # by name
    guests: dict[str, Guest] = field(default_factory=dict)  # by uid
    ordinary: dict[str, str] = field(default_factory=dict)  # name → node, "" waiting
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    now: datetime = NOON
    stolen: list[str] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)

    def seen(self) -> Seen:
        nodes = {
            name: NodeInfo(
                name=name,
                ready=self.ready[name],
                labels={MACHINE_TYPE_PREFIX + kind: "group" for kind in self.pool.offers.get(name, ())}
                | dict.fromkeys((PLACE_PREFIX + uid for uid in self.marks.get(name, ())), "group"),
            )
            for name in self.devices
        }
        return Seen(
            pool=self.pool,
            nodes=nodes,
            reservations=sorted(self.reservations.values(), key=lambda reservation: reservation.name),
            guests=sorted(self.guests.values(), key=lambda guest: guest.uid),
            now=self.now,
        )

    def do(self, action: Action, writes: int) -> None:
        """Carry out one step, or only its first write."""
        match action:
            case Add(kind, name, alone):
                assert name not in self.reservations
                made = Reservation(name=name, uid=f"r{next(self.numbers)}", type=kind, alone=alone)
                self.reservations[name] = made
            case Drop(reservation):
                del self.reservations[reservation.name]
            case Keep(reservation, alone):
                self.reservations[reservation.name] = replace(reservation, promised_to="", alone=alone)
            case HandOver(reservation, guest):
                now = self.reservations[reservation.name]
                assert now.promised_to in ("", guest.uid) or now.promised_to not in self.waiting_for_place()
                if not reservation.alone:
                    self.reservations[reservation.name] = replace(now, promised_to=guest.uid)
                if writes > 1 or reservation.alone:
                    self.guests[guest.uid] = replace(
                        self.guests[guest.uid], gated=False, place=reservation.node, placed_at=self.now, pod=None
                    )
            case MoveOn(reservation, guest):
                now = self.reservations[reservation.name]
                self.reservations[reservation.name] = replace(now, promised_to=guest.uid, alone=False)
                if writes > 1:
                    self.marks.setdefault(reservation.node, set()).add(guest.uid)
            case Unmark(node, label):
                self.marks[node].discard(label.removeprefix(PLACE_PREFIX))

    def waiting_for_place(self) -> set[str]:
        return {uid for uid, one in self.guests.items() if not one.node}

    def free(self, node: str) -> int:
        taken = [one.node for one in (*self.reservations.values(), *self.guests.values())]
        return self.devices[node] - (taken + list(self.ordinary.values())).count(node)

    def schedule(self) -> None:
        """Guests first, by preemption where they must; then ordinary pods, which may not; then reservations."""
        for uid, guest in list(self.guests.items()):
            if guest.gated or guest.node or not guest.place:
                continue
            for node in sorted({guest.place} | {name for name, uids in self.marks.items() if uid in uids}):
                if node not in self.devices or not self.ready[node]:
                    continue
                if guest.type not in self.pool.offers.get(node, ()):
                    continue
                if self.free(node) <= 0:
                    # those without the budget are given back last: they are the victims
                    victims = [
                        reservation for reservation in self.reservations.values() if reservation.node == node
                    ]
                    bare = [victim for victim in victims if victim.promised_to or victim.alone]
                    if not victims:
                        continue
                    victim = (bare or victims)[-1]
                    if victim.type != guest.type:
                        self.stolen.append(f"{uid} took {victim.name}")
                    del self.reservations[victim.name]
                self.guests[uid] = replace(self.guests[uid], node=node, unschedulable=False, type=guest.type)
                break
            else:
                self.guests[uid] = replace(self.guests[uid], unschedulable=True)
        for name, node in self.ordinary.items():
            if not node:
                self.ordinary[name] = next(
                    (device for device in self.devices if self.ready[device] and self.free(device) > 0), ""
                )
        for name, one in list(self.reservations.items()):
            if not one.node:
                node = next(
                    (
                        node
                        for node in self.devices
                        if self.ready[node] and self.free(node) > 0 and one.type in self.pool.offers.get(node, ())
                    ),
                    "",
                )
                self.reservations[name] = replace(one, node=node, unschedulable=not node)

    def settle(self) -> Plan:
        for _ in range(60):
            self.schedule()
            decided = plan(self.seen())
            for action in decided.actions:
                self.do(action, 2)
            if not decided.actions:
                before = (dict(self.reservations), dict(self.guests))
                self.schedule()
                if (self.reservations, self.guests) == before and not decided.look_again_in:
                    return plan(self.seen())
                self.now += timedelta(seconds=11)
        return plan(self.seen())

    def check_counts(self, decided: Plan) -> None:
        for kind in self.pool.types.values():
            count = decided.counts[kind.name]
            mine = [guest for guest in self.guests.values() if guest.type == kind.name]
            assert count.maximum == count.reserved + count.used + count.pending
            assert count.used == sum(1 for one in mine if one.node)
            assert count.waiting == sum(1 for one in mine if one.gated)
            standing = [
                reservation
                for reservation in self.reservations.values()
                if reservation.type == kind.name and reservation.node
            ]
            assert count.reserved <= len(standing)


BOTH = ("red", "blue")
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("guest"), st.sampled_from(["red", "blue"])),
        st.tuples(st.just("ordinary"), st.just("")),
        st.tuples(st.just("end"), st.integers(0, 20)),
        st.tuples(st.just("available"), st.tuples(st.sampled_from(["red", "blue"]), st.integers(0, 4))),
        st.tuples(st.just("node"), st.tuples(st.sampled_from(["n0", "n1", "n2"]), st.booleans())),
        st.tuples(
            st.just("offer"),
            st.tuples(st.sampled_from(["n0", "n1", "n2"]), st.sampled_from([(), ("red",), ("blue",), BOTH])),
        ),
        st.tuples(st.just("schedule"), st.just("")),
        st.tuples(st.just("operator"), st.tuples(st.integers(0, 6), st.integers(1, 2))),
    ),
    max_size=40,
)


def happen(world: World, what: str, how: object) -> None:
    match what, how:
        case "guest", str(kind):
            number = next(world.numbers)
            guest = a_guest(f"g{number}", type=kind, created=f"{number:04}")
            world.guests[guest.uid] = guest
        case "ordinary", _:
            world.ordinary[f"o{next(world.numbers)}"] = ""
        case "end", int(at):
            if world.guests:
                uid = sorted(world.guests)[at % len(world.guests)]
                del world.guests[uid]
                world.ended.add(uid)
        case "available", (str(kind), int(count)):
            types = dict(world.pool.types)
            types[kind] = replace(types[kind], available=count)
            world.pool = replace(world.pool, types=types)
        case "node", (str(name), bool(ready)):
            world.ready[name] = ready
        case "offer", (str(name), tuple(offered)):
            offers = dict(world.pool.offers)
            offers[name] = offered
            world.pool = replace(world.pool, offers=offers)
        case "schedule", _:
            world.schedule()
        case "operator", (int(steps), int(writes)):
            actions = plan(world.seen()).actions[:steps]
            for number, action in enumerate(actions):
                world.do(action, writes if number == len(actions) - 1 else 2)


@settings(max_examples=examples(62, full=250), deadline=None)
@given(EVENTS, st.sampled_from([(BOTH, BOTH, BOTH), (("red",), ("red",), ("blue",)), (("red",), BOTH, ("blue",))]))
def test_stopped_at_any_write_no_guest_is_evicted_no_place_is_taken_by_another_and_counts_are_right(
    events: list[tuple[str, object]], offered: tuple[tuple[str, ...], ...]
) -> None:
    nodes = ("n0", "n1", "n2")
    offers = dict(zip(nodes, offered, strict=True))
    pool = replace(a_pool(a_type("red", 2), a_type("blue", 2), nodes=3), offers=offers)
    world = World(pool=pool, devices=dict.fromkeys(nodes, 3), ready=dict.fromkeys(nodes, True))
    bound: dict[str, str] = {}
    for what, how in events:
        happen(world, what, how)
        for uid, node in bound.items():
            assert uid in world.ended or world.guests[uid].node == node
        bound = {uid: one.node for uid, one in world.guests.items() if one.node}
        world.check_counts(plan(world.seen()))
    assert world.stolen == []
    # quiet: every node well, everything offered, nobody in the way
    world.ordinary.clear()
    world.ready = dict.fromkeys(nodes, True)
    world.pool = replace(world.pool, offers=offers)
    decided = world.settle()
    assert decided.actions == ()
    world.check_counts(decided)
    assert world.stolen == []
    for kind in world.pool.types.values():
        count = decided.counts[kind.name]
        assert count.pending == 0
        assert count.maximum == count.reserved + count.used
        if count.unplaced == 0:
            assert count.maximum == max(kind.available, count.used)
            assert count.waiting == 0 or count.used >= kind.available


# --- reservations alone on their nodes, while the scheduler and the kubelet are at it


@dataclass
class Flight:
    """One node, full, of one type. The scheduler takes what it likes, and what it did is seen in any order."""

    available: int
    reservations: dict[str, Reservation] = field(default_factory=dict)
    guests: dict[str, Guest] = field(default_factory=dict)
    victims: dict[str, str] = field(default_factory=dict)  # guest's uid → reservation's uid
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def seen(self) -> Seen:
        return a_seen(
            pool=a_pool(a_type("red", self.available)),
            reservations=list(self.reservations.values()),
            guests=list(self.guests.values()),
        )

    def state(self) -> tuple[dict[str, Reservation], dict[str, Guest], dict[str, str]]:
        return dict(self.reservations), dict(self.guests), dict(self.victims)

    def flying(self) -> list[Guest]:
        return [guest for guest in self.guests.values() if guest.place and not guest.node]

    def left(self) -> list[Reservation]:
        """What the scheduler can still take."""
        gone = set(self.victims.values())
        return [
            reservation
            for reservation in self.reservations.values()
            if reservation.node and reservation.uid not in gone and not reservation.ending
        ]

    def operate(self, steps: int = 100) -> None:
        for action in plan(self.seen()).actions[:steps]:
            match action:
                case Add(kind, name, alone):
                    assert alone
                    uid = f"r{next(self.numbers)}"
                    self.reservations[uid] = Reservation(name=name, uid=uid, type=kind, alone=True)
                case HandOver(reservation, guest):
                    assert reservation.alone
                    self.guests[guest.uid] = replace(guest, gated=False, place="n0", placed_at=NOON, pod=None)
                case _:
                    raise AssertionError(f"{action} is not wanted: no place is too many here")
        made = len(self.left()) + sum(1 for reservation in self.reservations.values() if not reservation.node)
        without = [one for one in self.flying() if one.uid not in self.victims]
        assert len(without) <= len(self.left()), "somebody was let through to no place"
        assert made - len(without) + sum(1 for guest in self.guests.values() if guest.place) <= self.available

    def happen(self, what: str, at: int) -> None:
        flying = self.flying()
        guest = flying[at % len(flying)] if flying else None
        victim = self.reservations.get(self.victims.get(guest.uid, "")) if guest else None
        match what:
            case "come":
                number = next(self.numbers)
                one = a_guest(f"g{number}", created=f"{number:04}")
                self.guests[one.uid] = one
            case "end" if done := [guest for guest in self.guests.values() if guest.node]:
                del self.guests[done[at % len(done)].uid]
            case "operate":
                self.operate(at)
            case "preempt" if guest and guest.uid not in self.victims:
                self.victims[guest.uid] = self.left()[at % len(self.left())].uid
            case "nominated" if guest and guest.uid in self.victims:
                self.guests[guest.uid] = replace(guest, nominated="n0")
            case "ending" if victim:
                self.reservations[victim.uid] = replace(victim, ending=True, preempted=True)
            case "gone" if victim and victim.ending and guest and guest.nominated:
                del self.reservations[victim.uid]
            case "bind" if guest and guest.uid in self.victims and victim is None:
                self.guests[guest.uid] = replace(guest, node="n0", nominated="")
            case "stand":
                held = sum(1 for reservation in self.reservations.values() if reservation.node)
                held += sum(1 for guest in self.guests.values() if guest.node)
                for one in list(self.reservations.values()):
                    if not one.node and held < self.available:
                        self.reservations[one.uid] = replace(one, node="n0")
                        held += 1


FLIGHTS = ["come", "end", "operate", "preempt", "nominated", "ending", "gone", "bind", "stand"]


@settings(max_examples=examples(62, full=250), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(FLIGHTS), st.integers(0, 6)), max_size=80), st.integers(1, 4))
def test_whatever_is_seen_first_of_a_hand_over_no_place_alone_on_its_node_is_dropped_doubled_or_given_twice(
    events: list[tuple[str, int]], available: int
) -> None:
    flight = Flight(available)
    flight.operate()
    flight.happen("stand", 0)
    for what, at in events:
        flight.happen(what, at)
        count = plan(flight.seen()).counts["red"]
        assert count.maximum == count.reserved + count.used + count.pending
    for _ in range(60):
        before = flight.state()
        for what in FLIGHTS[2:]:
            for at in range(available):
                flight.happen(what, 100 if what == "operate" else at)
                flight.operate()
        if flight.state() == before:
            break  # at rest: every further round would be the same
    assert flight.flying() == []
    count = plan(flight.seen()).counts["red"]
    used = sum(1 for guest in flight.guests.values() if guest.node)
    assert (count.maximum, count.used, count.pending) == (available, used, 0)
    assert count.waiting == 0 or count.used == available


@pytest.mark.parametrize(
    ("image", "reservation", "want"),
    [
        pytest.param(
            "new:1", replace(R0, image="old:1", trouble=TROUBLE), True, id="it gets the one of the setting"
        ),
        pytest.param("new:1", replace(R0, image="old:1"), False, id="it runs: left alone"),
        pytest.param("old:1", replace(R0, image="old:1", trouble=TROUBLE), False, id="it has that one already"),
        pytest.param("", replace(R0, image="old:1", trouble=TROUBLE), False, id="pods are processes here"),
        pytest.param(
            "new:1", replace(R0, image="old:1", trouble=TROUBLE, ending=True), False, id="it goes: left alone"
        ),
    ],
)
def test_a_reservation_that_cannot_start_gets_another_image(
    image: str, reservation: Reservation, want: bool
) -> None:
    steps = plan(a_seen(reservations=[reservation], image=image)).actions
    assert [step for step in steps if isinstance(step, ChangeImage)] == (
        [ChangeImage(reservation)] if want else []
    )


def test_a_machine_whose_reservations_do_not_start_is_not_ready_and_says_why() -> None:
    ready = plan(a_seen(reservations=[replace(R0, trouble=TROUBLE)])).conditions[0]
    assert (ready.status, ready.reason) == ("False", "NotStarting")
    assert ready.message == f"1 reservation pod does not start: {TROUBLE}"
    assert plan(a_seen(reservations=[R0])).conditions[0].reason == "Ready"
