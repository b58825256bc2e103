"""200 machine types and guests that come and go at random: counts are right at every quiet moment."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from datetime import UTC, datetime, timedelta

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.decide.machines.reservation import (
    Add,
    Count,
    Drop,
    Guest,
    HandOver,
    Keep,
    Plan,
    Reservation,
    Seen,
    plan,
)
from moorage.model.machine import FAIR, FIFO, MachineType, Pool
from moorage.model.names import MACHINE_TYPE_PREFIX
from moorage_kube.scheduling import NodeInfo, PodInfo
from moorage_kube.testing.examples import examples

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
GPU = "nvidia.com/gpu"
SIZE = {"cpu": 1000, "memory": 2**30, GPU: 1}
TYPES, NODES, DEVICES = 200, 60, 8
SIZES = examples([500], full=[500, 5000])  # guests that are there at once
ARRIVALS_AFTER = examples(1500, full=4500)  # guests that come beside them


class Town:
    """The pods of one Machine, a scheduler that keeps to places, and guests that come and go."""

    def __init__(self, chance: random.Random, order: str) -> None:
        self.chance, self.now = chance, NOON
        self.names = [f"type-{number:03}" for number in range(TYPES)]
        offers: dict[str, list[str]] = {f"n{number:02}": [] for number in range(NODES)}
        for name in self.names:
            for node in chance.sample(sorted(offers), 3):
                offers[node].append(name)
        self.pool = Pool(
            name="pool",
            uid="u",
            group="group",
            types={
                name: MachineType(name=name, size=SIZE, texts={}, available=chance.randrange(0, 4))
                for name in self.names
            },
            offers={node: tuple(names) for node, names in offers.items()},
            order=order,
            half_life=3600,
        )
        self.nodes = {
            node: NodeInfo(name=node, labels={MACHINE_TYPE_PREFIX + name: "group" for name in names})
            for node, names in offers.items()
        }
        self.reservations: dict[str, Reservation] = {}
        self.guests: dict[str, Guest] = {}
        self.numbers = itertools.count()

    def seen(self) -> Seen:
        return Seen(
            pool=self.pool,
            nodes=self.nodes,
            reservations=list(self.reservations.values()),
            guests=list(self.guests.values()),
            now=self.now,
        )

    def come(self) -> None:
        number = next(self.numbers)
        pod = PodInfo(namespace="lab", name=f"g{number}", requests=SIZE)
        self.guests[f"uid-{number}"] = Guest(
            namespace="lab",
            name=f"g{number}",
            uid=f"uid-{number}",
            type=self.chance.choice(self.names),
            owner=self.chance.choice("abcdefgh"),
            created=f"{number:06}",
            gated=True,
            pod=pod,
        )

    def go(self) -> None:
        if self.guests:
            del self.guests[self.chance.choice(list(self.guests))]

    def schedule(self) -> None:
        """Guests take the places that they were promised; reservations go where there is room."""
        for uid, guest in self.guests.items():
            if guest.place and not guest.node:
                mine = next(
                    reservation for reservation in self.reservations.values() if reservation.promised_to == uid
                )
                assert (mine.type, mine.node) == (guest.type, guest.place)
                del self.reservations[mine.name]
                self.guests[uid] = replace(guest, node=guest.place)
        taken = Counter(one.node for one in (*self.reservations.values(), *self.guests.values()))
        for name, one in self.reservations.items():
            if not one.node:
                room = [
                    node for node in self.nodes if taken[node] < DEVICES and one.type in self.pool.offers[node]
                ]
                self.reservations[name] = replace(one, node=room[0] if room else "", unschedulable=not room)
                taken[self.reservations[name].node] += 1

    def operate(self) -> Plan:
        decided = plan(self.seen())
        for action in decided.actions:
            match action:
                case Add(kind, name):
                    assert name not in self.reservations
                    self.reservations[name] = Reservation(name=name, uid=f"r{next(self.numbers)}", type=kind)
                case Drop(one):
                    del self.reservations[one.name]
                case Keep(one):
                    self.reservations[one.name] = replace(one, promised_to="")
                case HandOver(one, guest):
                    self.reservations[one.name] = replace(one, promised_to=guest.uid)
                    placed = replace(guest, gated=False, place=one.node, placed_at=self.now, pod=None)
                    self.guests[guest.uid] = placed
                case _:
                    raise AssertionError(f"nobody lost a place: {action}")
        return decided

    def settle(self) -> Plan:
        for _ in range(20):
            self.schedule()
            decided = self.operate()
            if not decided.actions:
                return decided
        raise AssertionError("it never comes to rest")

    def counted(self) -> dict[str, Count]:
        """The counts from the pods themselves."""
        used, waiting, held = (Counter[str]() for _ in range(3))
        for guest in self.guests.values():
            (waiting if guest.gated else used)[guest.type] += 1
        for reservation in self.reservations.values():
            held[reservation.type] += bool(reservation.node)
        return {
            name: Count(
                maximum=held[name] + used[name],
                reserved=held[name],
                used=used[name],
                waiting=waiting[name],
                unplaced=max(0, kind.available - held[name] - used[name]),
            )
            for name, kind in self.pool.types.items()
        }


@settings(max_examples=examples(1, full=4))
@given(st.integers(0, 2**32 - 1), st.sampled_from([FIFO, FAIR]), st.sampled_from(SIZES))
@example(1, FIFO, 5000)
@example(2, FAIR, 500)
def test_counts_of_200_types_are_right_at_every_quiet_moment(seed: int, order: str, most: int) -> None:
    """`most` guests are there at once before the last has come."""
    chance = random.Random(seed)
    town = Town(chance, order)
    come, burst = (0.6, 400) if most == 500 else (0.9, 2000)
    made = peak = 0
    while made < most + ARRIVALS_AFTER:
        for _ in range(chance.randrange(1, burst)):
            if len(town.guests) < most and chance.random() < come:
                town.come()
                made += 1
            else:
                town.go()
            if chance.random() < 2 / burst:
                town.operate()  # between any two of them
        peak = max(peak, len(town.guests))
        if chance.random() < 0.3:
            name = chance.choice(town.names)
            kind = replace(town.pool.types[name], available=chance.randrange(0, 4))
            town.pool = replace(town.pool, types={**town.pool.types, name: kind})
        town.now += timedelta(seconds=chance.randrange(1, 60))
        decided = town.settle()
        assert decided.counts == town.counted(), made
        for name, count in decided.counts.items():
            assert count.maximum == count.reserved + count.used
            assert not count.waiting or count.used >= min(count.maximum, town.pool.types[name].available), name
    assert peak >= most * 0.9
