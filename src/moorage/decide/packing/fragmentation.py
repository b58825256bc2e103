"""The policy `fragmentation`: put a pod where it costs the least GPU capacity for the pods to come.

What is lost on a node is the GPUs that pods of the recent mix could not use there, weighted by the GPUs they ask
for, and by how few nodes could ever take them. The origin is FGD (Weng et al., USENIX ATC 2023); what differs, and
why, is in docs/design/0003-packing.md.

https://www.usenix.org/conference/atc23/presentation/weng
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from moorage.decide.packing.policies import WHOLE, Ask, Room, Rooms, take

STRANDED = 0.8  # GPUs lost per GPU left without its share of CPU; 0.4 to 1.5 place alike, 0 loses a point of fill
TIGHTNESS = 1.5  # exponent: what is plentiful costs nearly nothing; 2 fills alike, 3 and more too late
SPARE = 1.0  # requests of its size that a class keeps in reserve; 0 refuses 0.5 % under churn, all of eight GPUs
CALM = 0.01  # share of all GPUs added to what is free, so that prices stay calm when that is nearly nothing
POINTS_PER_GPU = 20  # a twentieth of a GPU is one point: finer and coarser (10, 100) placed alike
MIDDLE = 500  # points of a placement that costs what it takes; a request's own size is the same on every node
MAX_POINTS = 1000

PRIOR_SIZES = (1, 2, 4, 8)  # GPUs: equal capacity for each, one half of the neutral prior
PRIOR_WHOLE_CPU = 0.9  # share of a node's CPU: whole nodes of each size offered are the other half
PRIOR_CPU = 8000  # millicores per GPU in the prior: what 8-GPU machines leave per GPU at 64 cores
PRIOR_GPUS = 64  # GPUs of evidence the prior stands for; outweighed after some 64 GPUs of real requests
HALF_LIFE_PODS = 2000  # about a fifth of the trace the policy was judged on: rare large requests stay known
REFRESH_SHARE = 8  # the mix in use is renewed when an eighth of its evidence is new, or of what is free has moved


@dataclass(frozen=True, slots=True)
class _Shape:
    """Requests that differ in CPU only."""

    count: int
    milli: int
    kinds: tuple[str, ...]
    cpus: tuple[int, ...]  # rising
    weights: tuple[float, ...]  # of the requests with at most that CPU; one longer than `cpus`, begins with 0


class Mix:
    """Requests for one GPU resource, each weighted by the share of GPUs it stands for. Immutable but for a memory
    of what was asked."""

    def __init__(
        self,
        weights: Mapping[Ask, float],
        offered: Mapping[Room, int],
        free: Mapping[Room, int] | None = None,
        *,
        stranded: float = STRANDED,
    ) -> None:
        """`weights`: pods by ask (each of one GPU resource); `offered`: nodes by their room when empty; `free`:
        nodes by their room now. Without `free`, and with `stranded` 0, what is lost is plain expected GPUs."""
        self._stranded = stranded
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
            if able:  # what no node can ever take says nothing about where others should go
                wanted[ask] = gpus, able
        self.cpu_per_gpu = max(1.0, cpu / total) if total else float(PRIOR_CPU)
        prices = _prices(wanted, total, offered, free) if free is not None else {}
        shapes: dict[tuple[int, int, tuple[str, ...]], list[tuple[int, float]]] = {}
        for ask, (gpus, _) in wanted.items():
            weight = prices.get(ask, gpus / total)
            shapes.setdefault((ask.gpus[0][1], ask.milli, ask.kinds), []).append((ask.cpu, weight))
        self._shapes = []
        for (count, milli, kinds), members in shapes.items():
            members.sort()
            sums = [0.0]
            for _, weight in members:
                sums.append(sums[-1] + weight)
            self._shapes.append(_Shape(count, milli, kinds, tuple(member for member, _ in members), tuple(sums)))
        self._weight = sum(shape.weights[-1] for shape in self._shapes)
        self._lost: dict[tuple[str, tuple[int, ...], int], float] = {}

    def lost(self, kind: str, free: tuple[int, ...], cpu: int) -> float:
        """GPUs of a node that the mix cannot use, and those beyond its CPU, in (weighted) GPUs, 0 or more."""
        key = (kind, free, cpu)
        known = self._lost.get(key)
        if known is not None:
            return known
        if not free:
            return 0.0
        gpus = sum(free) / WHOLE
        fits = slivers = 0.0
        for shape in self._shapes:
            if len(free) < shape.count or free[shape.count - 1] < shape.milli:
                continue
            if shape.kinds and kind not in shape.kinds:
                continue
            weight = shape.weights[bisect_right(shape.cpus, cpu)]
            fits += weight
            if free[-1] < shape.milli:
                slivers += weight * sum(left for left in free if left < shape.milli) / WHOLE
        lost = gpus * (self._weight - fits) + slivers + self._stranded * max(0.0, gpus - cpu / self.cpu_per_gpu)
        self._lost[key] = lost
        return lost


def _prices(
    wanted: Mapping[Ask, tuple[float, int]], total: float, offered: Mapping[Room, int], free: Mapping[Room, int]
) -> dict[Ask, float]:
    """What losing a GPU to a class of requests costs, in GPUs, by how tight its supply is.

    Tightness of a class: what is likely to be asked of the nodes that could take it, by it and by all who can go
    nowhere else, over what is free there now; demand to come is as large as what is free. Above 1 somebody will be
    refused whatever is done, and one GPU taken costs one GPU. Classes that share nodes share that price.
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
    """Free GPUs on nodes that can take such a request now: CPU of the nodes, rising, and GPUs up to each."""
    there = sorted(
        (room.cpu, nodes * sum(left for left in room.free if left >= milli) / WHOLE)
        for room, nodes in free.items()
        if len(room.free) >= count and room.free[count - 1] >= milli and (not kinds or room.kind in kinds)
    )
    sums = [0.0]
    for _, gpus in there:
        sums.append(sums[-1] + gpus)
    return [cpu for cpu, _ in there], sums


class Fragmentation:
    """Points by the change in what is lost. The mix is learned from pods seen, from a neutral prior on."""

    name = "fragmentation"

    def __init__(self) -> None:
        self.version = 0
        self._growth = 0.5 ** (-1 / HALF_LIFE_PODS)
        self._unit = 1.0  # weight of a pod seen now; grows instead of all others shrinking
        self._seen: dict[str, dict[Ask, float]] = {}
        self._fresh = 0  # pods since the mixes were made
        self._pods = 0.0  # weight of pods in the mixes, in pods
        self._offered: dict[str, dict[Room, int]] = {}
        self._nodes: dict[str, Rooms] = {}
        self._held: dict[str, Rooms] = {}  # rooms of each node now
        self._free: dict[str, dict[Room, int]] = {}
        self._free_milli = 0
        self._moves = 0  # of rooms, since the mixes were made
        self._mixes: dict[str, Mix] = {}

    def learn(self, ask: Ask) -> None:
        if not ask.gpus:
            return
        self._unit *= self._growth
        for name, count in ask.gpus:
            single = ask if len(ask.gpus) == 1 else ask._replace(gpus=((name, count),))
            seen = self._seen.setdefault(name, {})
            seen[single] = seen.get(single, 0.0) + self._unit
        self._fresh += 1
        if self._fresh >= max(PRIOR_GPUS, self._pods / REFRESH_SHARE) or self._moves >= max(
            PRIOR_GPUS, self._free_milli / WHOLE / REFRESH_SHARE
        ):
            self._renew()

    def hold(self, node: str, rooms: Rooms | None) -> None:
        for name, room in self._held.get(node, {}).items():
            sizes = self._free[name]
            sizes[room] -= 1
            if not sizes[room]:
                del sizes[room]
            self._free_milli -= sum(room.free)
        for name, room in (rooms or {}).items():
            sizes = self._free.setdefault(name, {})
            sizes[room] = sizes.get(room, 0) + 1
            self._free_milli += sum(room.free)
        if rooms is None:
            self._held.pop(node, None)
        else:
            self._held[node] = rooms
        self._moves += 1

    def offer(self, node: str, rooms: Rooms | None) -> None:
        old, new = self._nodes.get(node, {}), rooms or {}
        if old == new:
            return
        for name, room in old.items():
            self._offered[name][room] -= 1
            if not self._offered[name][room]:
                del self._offered[name][room]
        for name, room in new.items():
            sizes = self._offered.setdefault(name, {})
            sizes[room] = sizes.get(room, 0) + 1
        if rooms is None:
            self._nodes.pop(node, None)
        else:
            self._nodes[node] = rooms
        if any(self._offered[name][room] == 1 for name, room in new.items()):
            self._renew()  # a size not seen before

    def _renew(self) -> None:
        self.version += 1
        self._mixes.clear()
        self._fresh = self._moves = 0
        self._pods = 0.0
        for seen in self._seen.values():
            for ask, weight in list(seen.items()):
                pods = weight / self._unit
                if pods < 0.01:  # nearly seven half-lives old
                    del seen[ask]
                else:
                    seen[ask] = pods
                    self._pods += pods
        self._unit = 1.0

    def mix(self, name: str) -> Mix:
        """The mix in use for a GPU resource."""
        mix = self._mixes.get(name)
        if mix is None:
            sizes = self._offered.get(name, {})
            each = PRIOR_GPUS / len(PRIOR_SIZES) / 2
            weights = {Ask(((name, n),), WHOLE, n * PRIOR_CPU): each / n for n in PRIOR_SIZES}
            all_gpus = sum(room.gpus * nodes for room, nodes in sizes.items())
            for room, nodes in sizes.items():
                ask = Ask(((name, room.gpus),), WHOLE, int(room.cpus * PRIOR_WHOLE_CPU))
                weights[ask] = weights.get(ask, 0.0) + PRIOR_GPUS / 2 * nodes / all_gpus
            for ask, pods in self._seen.get(name, {}).items():
                weights[ask] = weights.get(ask, 0.0) + pods / self._unit
            mix = self._mixes[name] = Mix(weights, sizes, self._free.get(name) or sizes)
        return mix

    def points(self, ask: Ask, rooms: Rooms) -> int:
        """0 to 1000 (500: the placement makes nothing else useless); 0 where a resource asked for is missing.

        Without GPUs: 10 times what `pack` gives on nodes without GPUs, and on others less the more GPUs are left
        without CPU.
        """
        if not ask.gpus:
            if not rooms:
                return MAX_POINTS
            return _scaled(sum(self._gain(ask, 0, name, room)[0] for name, room in rooms.items()))
        gain = 0.0
        for name, count in ask.gpus:
            room = rooms.get(name)
            if room is None:
                return 0
            gain += self._gain(ask, count, name, room)[0]
        return _scaled(gain)

    def device(self, ask: Ask, name: str, room: Room) -> tuple[int, ...] | None:
        """What is left of the devices once the ask takes the best of them; None: it does not fit."""
        count = next((count for resource, count in ask.gpus if resource == name), 0)
        return self._gain(ask, count, name, room)[1]

    def _gain(self, ask: Ask, count: int, name: str, room: Room) -> tuple[float, tuple[int, ...] | None]:
        mix = self.mix(name)
        before = mix.lost(room.kind, room.free, room.cpu)
        cpu = max(0, room.cpu - ask.cpu)
        choices = [room.free] if not count else take(room.free, count, ask.milli)
        if not choices:  # a pod we still count has left: as full as can be
            return before, None
        losses = [(before - mix.lost(room.kind, left, cpu), left) for left in choices]
        return max(losses) if len(losses) > 1 else losses[0]


def _scaled(gain: float) -> int:
    return max(0, min(MAX_POINTS, MIDDLE + round(gain * POINTS_PER_GPU)))
