"""The policy `fragmentation`: put a pod where it costs the least GPU capacity for the pods to come.

The loss on a node is the GPUs that pods of the recent mix could not use there, weighted by the GPUs they ask for,
and by how few nodes could ever take them. The origin is FGD (Weng et al., USENIX ATC 2023); the differences and
their reasons are in docs/design/0003-packing.md.

https://www.usenix.org/conference/atc23/presentation/weng
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from moorage.decide.packing.policies import WHOLE, Ask, Room, Rooms, take

STRANDED = 0.8  # GPUs lost per GPU left without its share of CPU; 0.4 to 1.5 place alike, 0 loses a point of fill
TIGHTNESS = 1.5  # exponent: plentiful resources cost nearly nothing; 2 fills alike, 3 and more too late
SPARE = 1.0  # requests of its size that a class keeps in reserve; 0 refuses 0.5 % under churn, all of eight GPUs
CALM = 0.01  # share of all GPUs added to the free ones, so that prices stay calm when few are free
POINTS_PER_GPU = 20  # a twentieth of a GPU is one point: finer and coarser (10, 100) placed alike
MIDDLE = 500  # points of a placement that costs only its own GPUs; these are the same on every node
MAX_POINTS = 1000

PRIOR_SIZES = (1, 2, 4, 8)  # GPUs: equal capacity for each, one half of the neutral prior
PRIOR_WHOLE_CPU = 0.9  # share of a node's CPU: whole nodes of each size offered are the other half
PRIOR_CPU = 8000  # millicores per GPU in the prior: the share of a GPU on 8-GPU machines with 64 cores
PRIOR_GPUS = 64  # GPUs of evidence the prior stands for; outweighed after some 64 GPUs of real requests


class _Shape(Struct, frozen=True):
    """Requests that differ only in CPU."""

    count: int
    milli: int
    kinds: tuple[str, ...]
    cpus: tuple[int, ...]  # rising
    weights: tuple[float, ...]  # of the requests with at most that CPU; one longer than `cpus`, begins with 0


class Mix(Struct, frozen=True):
    """Requests for one GPU resource, each weighted by its share of the GPUs: see `make_mix`."""

    shapes: tuple[_Shape, ...]
    weight: float  # of all shapes
    cpu_per_gpu: float  # millicores
    stranded: float  # GPUs lost per GPU left without its share of CPU

    def lost(self, kind: str, free: tuple[int, ...], cpu: int) -> float:
        """The free GPUs of a node that requests of this mix cannot use, plus GPUs without enough CPU.

        Weighted, at least 0.
        """
        if not free:
            return 0.0
        gpus = sum(free) / WHOLE
        fits = slivers = 0.0
        for shape in self.shapes:
            if len(free) < shape.count or free[shape.count - 1] < shape.milli:
                continue
            if shape.kinds and kind not in shape.kinds:
                continue
            weight = shape.weights[bisect_right(shape.cpus, cpu)]
            fits += weight
            if free[-1] < shape.milli:
                slivers += weight * sum(left for left in free if left < shape.milli) / WHOLE
        return gpus * (self.weight - fits) + slivers + self.stranded * max(0.0, gpus - cpu / self.cpu_per_gpu)


class Losses(Protocol):
    """The interface of `Mix.lost`; a caller may cache its answers."""

    def lost(self, kind: str, free: tuple[int, ...], cpu: int) -> float: ...


def make_mix(
    weights: Mapping[Ask, float],
    offered: Mapping[Room, int],
    free: Mapping[Room, int] | None = None,
    *,
    stranded: float = STRANDED,
) -> Mix:
    """`weights`: pods by ask (each of one GPU resource); `offered`: nodes by their room when empty; `free`:
    nodes by their room now. Without `free`, and with `stranded` 0, the loss is plain expected GPUs.
    """
    # the wanted GPUs of each ask, and a bit for each node size that could take it
    total = cpu = 0.0
    wanted: dict[Ask, tuple[float, int]] = {}  # GPUs, and which of `sizes` could take it when empty
    sizes = list(offered)
    for ask, pods in weights.items():
        count = ask.gpus[0][1]
        gpus = pods * count * ask.milli / WHOLE
        total += gpus
        cpu += pods * ask.cpu
        able = 0
        for at, room in enumerate(sizes):
            if room.gpus >= count and room.cpus >= ask.cpu and (not ask.kinds or room.kind in ask.kinds):
                able |= 1 << at
        if able:  # an ask that is too large for all nodes does not matter for the placement of others
            wanted[ask] = gpus, able
    # asks that differ only in CPU share a shape, so that a loss is one search in a sorted list
    prices = _prices(wanted, total, offered, free) if free is not None else {}
    members_by_shape: dict[tuple[int, int, tuple[str, ...]], list[tuple[int, float]]] = {}
    for ask, (gpus, _) in wanted.items():
        weight = prices.get(ask, gpus / total)
        members_by_shape.setdefault((ask.gpus[0][1], ask.milli, ask.kinds), []).append((ask.cpu, weight))
    # running sums of the weights, by CPU
    shapes = []
    for (count, milli, kinds), members in members_by_shape.items():
        members.sort()
        sums = [0.0]
        for _, weight in members:
            sums.append(sums[-1] + weight)
        shapes.append(_Shape(count, milli, kinds, tuple(member for member, _ in members), tuple(sums)))
    return Mix(
        shapes=tuple(shapes),
        weight=sum(shape.weights[-1] for shape in shapes),
        cpu_per_gpu=max(1.0, cpu / total) if total else float(PRIOR_CPU),
        stranded=stranded,
    )


def make_prior(name: str, offered: Mapping[Room, int]) -> dict[Ask, float]:
    """The expected requests for a GPU resource before any pod was seen.

    Half of the weight is on PRIOR_SIZES, half on whole nodes.
    """
    share = PRIOR_GPUS / len(PRIOR_SIZES) / 2
    weights = {Ask(((name, size),), WHOLE, size * PRIOR_CPU): share / size for size in PRIOR_SIZES}
    all_gpus = sum(room.gpus * nodes for room, nodes in offered.items())
    for room, nodes in offered.items():
        ask = Ask(((name, room.gpus),), WHOLE, int(room.cpus * PRIOR_WHOLE_CPU))
        weights[ask] = weights.get(ask, 0.0) + PRIOR_GPUS / 2 * nodes / all_gpus
    return weights


def _prices(
    wanted: Mapping[Ask, tuple[float, int]], total: float, offered: Mapping[Room, int], free: Mapping[Room, int]
) -> dict[Ask, float]:
    """The cost of losing a GPU to a class of requests, in GPUs, by how tight its supply is.

    Tightness of a class: the likely requests for the nodes that could take it, by it and by all classes that fit
    nowhere else, divided by the GPUs that are free there now; coming demand is as large as the free GPUs. Above 1
    some requests will be refused in any case, and one GPU taken costs one GPU. Classes that share nodes share that
    price.
    """
    all_gpus = sum(room.gpus * nodes for room, nodes in offered.items())
    reserve = CALM * all_gpus
    all_free = sum(sum(room.free) * nodes for room, nodes in free.items()) / WHOLE + reserve
    by_nodes: dict[int, float] = {}
    for gpus, able in wanted.values():
        by_nodes[able] = by_nodes.get(able, 0.0) + gpus
    captive = {
        able: sum(gpus for other, gpus in by_nodes.items() if other & able == other) / total for able in by_nodes
    }
    empty = {
        able: sum(room.gpus * nodes for at, (room, nodes) in enumerate(offered.items()) if able >> at & 1)
        for able in by_nodes
    }
    supply: dict[tuple[int, int, tuple[str, ...]], tuple[list[int], list[float]]] = {}
    prices = {}
    for ask, (gpus, able) in wanted.items():
        count = ask.gpus[0][1]
        shape = (count, ask.milli, ask.kinds)
        if shape not in supply:
            supply[shape] = _supply(count, ask.milli, ask.kinds, free)
        cpus, sums = supply[shape]
        here = sums[-1] - sums[bisect_left(cpus, ask.cpu)] + CALM * empty[able]
        tightness = captive[able] * all_free / here + SPARE * count / max(1.0, here)
        prices[ask] = gpus / total / captive[able] * min(1.0, tightness) ** TIGHTNESS
    return prices


def _supply(
    count: int, milli: int, kinds: tuple[str, ...], free: Mapping[Room, int]
) -> tuple[list[int], list[float]]:
    """The free GPUs on nodes that can take such a request now.

    Returns the free CPU of these nodes, ascending, and the cumulative number of free GPUs.
    """
    there = sorted(
        (room.cpu, nodes * sum(left for left in room.free if left >= milli) / WHOLE)
        for room, nodes in free.items()
        if len(room.free) >= count and room.free[count - 1] >= milli and (not kinds or room.kind in kinds)
    )
    sums = [0.0]
    for _, gpus in there:
        sums.append(sums[-1] + gpus)
    return [cpu for cpu, _ in there], sums


def points(ask: Ask, rooms: Rooms, mix_of: Callable[[str], Losses]) -> int:
    """0 to 1000 (500: the placement makes nothing else useless); 0 where a requested resource is missing.
    `mix_of`: the mix of a GPU resource.

    Without GPUs: 10 times the points of `pack` on nodes without GPUs, and on others less the more GPUs are left
    without CPU.
    """
    if not ask.gpus:
        if not rooms:
            return MAX_POINTS
        return _scaled(sum(_gain(ask, 0, room, mix_of(name))[0] for name, room in rooms.items()))
    gain = 0.0
    for name, count in ask.gpus:
        room = rooms.get(name)
        if room is None:
            return 0
        gain += _gain(ask, count, room, mix_of(name))[0]
    return _scaled(gain)


def devices_left(ask: Ask, name: str, room: Room, mix: Losses) -> tuple[int, ...] | None:
    """The devices that are left once the ask takes the best of them; None: it does not fit."""
    count = next((count for resource, count in ask.gpus if resource == name), 0)
    return _gain(ask, count, room, mix)[1]


def _gain(ask: Ask, count: int, room: Room, mix: Losses) -> tuple[float, tuple[int, ...] | None]:
    before = mix.lost(room.kind, room.free, room.cpu)
    cpu = max(0, room.cpu - ask.cpu)
    choices = [room.free] if not count else take(room.free, count, ask.milli)
    if not choices:  # a pod we still count has left: as full as can be
        return before, None
    losses = [(before - mix.lost(room.kind, left, cpu), left) for left in choices]
    return max(losses) if len(losses) > 1 else losses[0]


def _scaled(gain: float) -> int:
    return max(0, min(MAX_POINTS, MIDDLE + round(gain * POINTS_PER_GPU)))
