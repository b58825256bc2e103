"""Divide a node's price: each pod pays for the resources that it asks for, the rest is idle.

A node's price is divided among its resources. The part of a resource is proportional to the node's capacity, times
the weight in the price file. Pods pay for the share of each resource that they request. So a pod's cost depends
only on the node and the pod's own requests, not on other pods. If pods request more than the capacity, as after a
device was lost, they share the capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from itertools import pairwise
from math import ceil, lcm

from msgspec import Struct

from moorage.decide.cost.money import microseconds, part_of
from moorage.decide.cost.nodes import PricedNode
from moorage.decide.usage.devices import MIG_SLICES, gpus_of
from moorage.decide.usage.intervals import Interval
from moorage.decide.usage.nodelives import NodeLife
from moorage.model.podprices import Weights

CPU, MEMORY, GPU = "cpu", "memory", "gpu"
RESOURCES = (GPU, CPU, MEMORY)
_NONE = Fraction(0)
Parts = Mapping[str, Fraction]  # resource → part of a whole


class Share(Struct, frozen=True, kw_only=True):
    """A pod's cost for a time on a node, in grains (see `money`). `interval` is None for the idle part."""

    node: PricedNode
    interval: Interval | None
    since: datetime
    until: datetime
    money: int
    gpu_us: Fraction | int  # whole GPUs × microseconds


def capacity_of(life: NodeLife) -> dict[str, Fraction]:
    """The capacity of a node in whole GPUs, CPUs and GiB."""
    return {GPU: life.gpus, CPU: Fraction(life.cpu_milli, 1000), MEMORY: Fraction(life.memory_bytes, 2**30)}


def parts_of(capacity: Parts, weights: Weights) -> dict[str, Fraction]:
    """The part of the node's price for each resource; the sum is one. All zero for a node without capacity."""
    weighed = {
        GPU: capacity[GPU] * weights.gpu,
        CPU: capacity[CPU] * weights.cpu,
        MEMORY: capacity[MEMORY] * weights.memory,
    }
    whole = sum(weighed.values())
    return {name: weight / whole if whole else Fraction(0) for name, weight in weighed.items()}


class _Asked(Struct, frozen=True, kw_only=True):
    """The requests of pods of one size on a node, in the units of `_Room`, and the part of its price."""

    units: tuple[int, ...]  # by RESOURCES
    share: Fraction  # of the node's price, where there is enough of everything
    gpus: Fraction | int


class _Room(Struct, frozen=True, kw_only=True):
    """The capacity of a node in whole numbers: GPUs in fractions of a GPU, CPU in millicores, memory in bytes."""

    units: tuple[int, ...]  # by RESOURCES
    gpu_parts: int  # units of a whole GPU
    gpus: Fraction | int
    parts: tuple[Fraction, ...]  # of the price, by RESOURCES
    sizes: dict[tuple[object, ...], _Asked]


_Held = tuple[Interval, datetime, datetime, _Asked]


class Splitter:
    """Splits the money of nodes by the same weights, and caches the price of each pod size on each node."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._rooms: dict[tuple[str, datetime], _Room] = {}

    def split(self, node: PricedNode, intervals: Iterable[Interval]) -> list[Share]:
        """Split the cost of a node for its period: one share for each pod, then the idle share.

        `intervals` are of pods on this node. Shares add up exactly.
        """
        rate, room = node.rate or 0, self._room(node.life)
        held: list[_Held] = []
        for interval in intervals:
            begin = max(node.since, interval.started_at)
            end = node.there_until if interval.ended_at is None else min(node.there_until, interval.ended_at)
            if begin < end:
                held.append((interval, begin, end, _asked(interval, node.life, room)))
        money = _money(rate, room, held)
        shares = [
            Share(
                node=node,
                interval=interval,
                since=begin,
                until=end,
                money=amount,
                gpu_us=asked.gpus * microseconds(end - begin) if asked.gpus else 0,
            )
            for (interval, begin, end, asked), amount in zip(held, money, strict=True)
        ]
        there = room.gpus * microseconds(node.there_until - node.since)
        idle = Share(
            node=node,
            interval=None,
            since=node.since,
            until=node.until,
            money=rate * microseconds(node.until - node.since) - sum(money),
            gpu_us=max(0, there - sum(share.gpu_us for share in shares)),
        )
        return [*shares, idle]

    def _room(self, life: NodeLife) -> _Room:
        if life.key not in self._rooms:
            gpu_parts = lcm(MIG_SLICES, *(share.denominator for share in life.shares.values()))
            parts = parts_of(capacity_of(life), self._weights)
            self._rooms[life.key] = _Room(
                units=(int(life.gpus * gpu_parts), life.cpu_milli, life.memory_bytes),
                gpu_parts=gpu_parts,
                gpus=_plain(life.gpus),
                parts=tuple(parts[name] for name in RESOURCES),
                sizes={},
            )
        return self._rooms[life.key]


def split(node: PricedNode, intervals: Iterable[Interval], weights: Weights) -> list[Share]:
    """See `Splitter.split`."""
    return Splitter(weights).split(node, intervals)


def _asked(interval: Interval, life: NodeLife, room: _Room) -> _Asked:
    key = (interval.cpu_milli, interval.memory_bytes, interval.gpus, interval.gpu_counts)
    if key not in room.sizes:
        gpus = gpus_of(interval.gpu_counts, life.shares) if interval.gpu_counts else _uncounted(interval, life)
        units = (ceil(gpus * room.gpu_parts), interval.cpu_milli, interval.memory_bytes)
        terms = zip(room.parts, units, room.units, strict=True)
        share = sum((part * Fraction(asked, there) for part, asked, there in terms if there), Fraction(0))
        room.sizes[key] = _Asked(units=units, share=share, gpus=_plain(gpus) if room.units[0] else 0)
    return room.sizes[key]


def _money(rate: int, room: _Room, held: Sequence[_Held]) -> list[int]:
    scarce = _scarce(room, held)
    if not scarce:
        return [part_of(rate * microseconds(end - begin), asked.share) for _, begin, end, asked in held]
    money = []
    for _, begin, end, asked in held:
        cuts = sorted({begin, end, *(cut for cut in scarce if begin < cut < end)})
        amount = 0
        for start, stop in pairwise(cuts):
            terms = zip(room.parts, asked.units, room.units, scarce[start], strict=True)
            share = sum((part * Fraction(of, max(there, all_)) for part, of, there, all_ in terms if there), _NONE)
            amount += part_of(rate * microseconds(stop - start), share)
        money.append(amount)
    return money


def _scarce(room: _Room, held: Sequence[_Held]) -> dict[datetime, tuple[int, ...]]:
    """Moment → requested units from then on, by resource.

    Empty if the requests never exceed the node's capacity.
    """
    changes: dict[datetime, list[int]] = {}
    for _, begin, end, asked in held:
        begins, ends = changes.setdefault(begin, [0, 0, 0]), changes.setdefault(end, [0, 0, 0])
        for at, units in enumerate(asked.units):
            begins[at] += units
            ends[at] -= units
    sums = [0, 0, 0]
    at_moment: dict[datetime, tuple[int, ...]] = {}
    is_scarce = False
    for moment in sorted(changes):
        sums = [of + change for of, change in zip(sums, changes[moment], strict=True)]
        at_moment[moment] = tuple(sums)
        is_scarce = is_scarce or any(of > there for of, there in zip(sums, room.units, strict=True))
    return at_moment if is_scarce else {}


def _plain(number: Fraction) -> Fraction | int:
    """Convert a whole number to an int, which is faster."""
    return number.numerator if number.denominator == 1 else number


def _uncounted(interval: Interval, life: NodeLife) -> Fraction:
    """The GPUs of a pod from a record without GPU resources: they count as the node's first GPU resource."""
    if not interval.gpus:
        return Fraction(0)
    resource = life.devices[0][0] if life.devices else ""
    return interval.gpus * life.shares.get(resource, Fraction(1))
