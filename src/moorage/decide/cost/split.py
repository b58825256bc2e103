"""Who bears how much of a node's price: each pod by what it asks for, the rest is idle.

A node's price is shared by its resources in proportion to what it has of each, times the file's weights. Each
resource's part is shared by what pods ask of it. So a pod's money depends on the node and on itself alone: no
neighbour changes it. Where pods ask for more than there is, as after a device was lost, they share what there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from itertools import pairwise

from moorage.decide.cost.money import microseconds, part_of
from moorage.decide.cost.nodes import PricedNode
from moorage.decide.usage.devices import gpus_of
from moorage.decide.usage.intervals import Interval
from moorage.decide.usage.nodelives import NodeLife
from moorage.model.podprices import Weights

CPU, MEMORY, GPU = "cpu", "memory", "gpu"
RESOURCES = (GPU, CPU, MEMORY)
_NONE = Fraction(0)
Parts = Mapping[str, Fraction]  # resource → part of a whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a pod bore of a stretch of a node, in grains; `interval` None: nobody did, it was idle."""

    node: PricedNode
    interval: Interval | None
    since: datetime
    until: datetime
    money: int
    gpu_us: Fraction  # whole GPUs × microseconds


def capacity_of(life: NodeLife) -> dict[str, Fraction]:
    """Whole GPUs, CPUs and GiB of a node."""
    return {GPU: life.gpus, CPU: Fraction(life.cpu_milli, 1000), MEMORY: Fraction(life.memory_bytes, 2**30)}


def parts_of(capacity: Parts, weights: Weights) -> dict[str, Fraction]:
    """Which part of the node's price each resource bears; together one. All zero for a node that has nothing."""
    weighed = {
        GPU: capacity[GPU] * weights.gpu,
        CPU: capacity[CPU] * weights.cpu,
        MEMORY: capacity[MEMORY] * weights.memory,
    }
    whole = sum(weighed.values())
    return {name: weight / whole if whole else Fraction(0) for name, weight in weighed.items()}


def asked_by(interval: Interval, life: NodeLife) -> dict[str, Fraction]:
    """Whole GPUs, CPUs and GiB that a pod asked for on a node of this life."""
    gpus = gpus_of(interval.gpu_counts, life.shares) if interval.gpu_counts else _uncounted(interval, life)
    return {
        GPU: gpus,
        CPU: Fraction(interval.cpu_milli, 1000),
        MEMORY: Fraction(interval.memory_bytes, 2**30),
    }


def split(node: PricedNode, intervals: Iterable[Interval], weights: Weights) -> list[Share]:
    """The whole money of a stretch: one share for each pod and one, the last, for what was idle.

    `intervals` are of pods on this node, each at most once. Shares add up to the node's money to the grain.
    """
    rate = node.rate or 0
    capacity = capacity_of(node.life)
    parts = parts_of(capacity, weights)
    held: list[tuple[Interval, datetime, datetime, Parts]] = []
    known: dict[tuple[object, ...], Parts] = {}
    for interval in intervals:
        begin = max(node.since, interval.started_at)
        end = node.there_until if interval.ended_at is None else min(node.there_until, interval.ended_at)
        if begin < end:
            key = (interval.cpu_milli, interval.memory_bytes, interval.gpus, interval.gpu_counts)
            if key not in known:
                asked = asked_by(interval, node.life)
                known[key] = {
                    name: asked[name] / capacity[name] if capacity[name] else _NONE for name in RESOURCES
                }
            held.append((interval, begin, end, known[key]))
    whole = rate * microseconds(node.until - node.since)
    money = _money(rate, parts, held)
    shares = [
        Share(
            node=node,
            interval=interval,
            since=begin,
            until=end,
            money=amount,
            gpu_us=fractions[GPU] * capacity[GPU] * microseconds(end - begin),
        )
        for (interval, begin, end, fractions), amount in zip(held, money, strict=True)
    ]
    there = capacity[GPU] * microseconds(node.there_until - node.since)
    idle_gpus = max(Fraction(0), there - sum((share.gpu_us for share in shares), Fraction(0)))
    idle = Share(
        node=node,
        interval=None,
        since=node.since,
        until=node.until,
        money=whole - sum(money),
        gpu_us=idle_gpus,
    )
    return [*shares, idle]


def _money(rate: int, parts: Parts, held: Sequence[tuple[Interval, datetime, datetime, Parts]]) -> list[int]:
    scarce = _scarce(held)
    money = []
    for _, begin, end, fractions in held:
        cuts = sorted({begin, end, *(cut for cut in scarce if begin < cut < end)})
        amount = 0
        for start, stop in pairwise(cuts):
            sums = scarce.get(start, {})
            share = sum(
                (
                    parts[name] * fractions[name] / max(Fraction(1), sums.get(name, Fraction(1)))
                    for name in RESOURCES
                ),
                Fraction(0),
            )
            amount += part_of(rate * microseconds(stop - start), share)
        money.append(amount)
    return money


def _scarce(held: Sequence[tuple[Interval, datetime, datetime, Parts]]) -> dict[datetime, Parts]:
    """Nothing, where pods never ask for more than there is; else from when on they ask for how much of it."""
    changes: dict[datetime, list[tuple[int, Parts]]] = {}
    for _, begin, end, fractions in held:
        changes.setdefault(begin, []).append((1, fractions))
        changes.setdefault(end, []).append((-1, fractions))
    sums = dict.fromkeys(RESOURCES, Fraction(0))
    asked: dict[datetime, Parts] = {}
    is_scarce = False
    for moment in sorted(changes):
        for sign, fractions in changes[moment]:
            for name in RESOURCES:
                sums[name] += sign * fractions[name]
        asked[moment] = dict(sums)
        is_scarce = is_scarce or any(amount > 1 for amount in sums.values())
    return asked if is_scarce else {}


def _uncounted(interval: Interval, life: NodeLife) -> Fraction:
    """GPUs of a pod recorded before they were counted by resource: as many of the node's first resource."""
    if not interval.gpus:
        return Fraction(0)
    resource = life.devices[0][0] if life.devices else ""
    return interval.gpus * life.shares.get(resource, Fraction(1))
