"""The policy `fragmentation`: put a pod where it costs the least GPU capacity for the pods to come.

What is lost on a node is the GPUs that pods of the recent mix could not use there, weighted by the GPUs they ask
for, and by how few nodes could ever take them. The origin is FGD (Weng et al., USENIX ATC 2023); what differs, and
why, is in docs/design/0003-packing.md.

https://www.usenix.org/conference/atc23/presentation/weng
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from moorage.decide.packing import WHOLE, Ask, Room, Rooms, take

STRANDED = 0.8  # GPUs lost per GPU left without its share of CPU; 0.4 to 1.5 place alike, 0 loses a point of fill
SCARCITY = (
    1.25  # exponent of (all GPUs / GPUs on nodes that could ever take the class); 1.5 costs churn with types
)
POINTS_PER_GPU = 20  # a twentieth of a GPU is one point: finer and coarser (10, 100) placed alike
MIDDLE = 500  # points of a placement that costs what it takes; a request's own size is the same on every node
MAX_POINTS = 1000

PRIOR_SIZES = (1, 2, 4, 8)  # GPUs: equal capacity for each, one half of the neutral prior
PRIOR_WHOLE_CPU = 0.9  # share of a node's CPU: whole nodes of each size offered are the other half
PRIOR_CPU = 8000  # millicores per GPU in the prior: what 8-GPU machines leave per GPU at 64 cores
PRIOR_GPUS = 64  # GPUs of evidence the prior stands for; outweighed after some 64 GPUs of real requests
HALF_LIFE_PODS = 2000  # about a fifth of the trace the policy was judged on: rare large requests stay known
REFRESH_SHARE = 8  # the mix in use is renewed when an eighth of its evidence is new


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
        *,
        scarcity: float = SCARCITY,
        stranded: float = STRANDED,
    ) -> None:
        """`weights`: pods by ask (each of one GPU resource); `offered`: nodes by their room when empty. With
        `scarcity` and `stranded` 0 what is lost is plain expected GPUs."""
        self._stranded = stranded
        all_gpus = sum(room.gpus * nodes for room, nodes in offered.items())
        total = cpu = 0.0
        shapes: dict[tuple[int, int, tuple[str, ...]], list[tuple[int, float]]] = {}
        for ask, pods in weights.items():
            count = ask.gpus[0][1]
            gpus = pods * count * ask.milli / WHOLE
            total += gpus
            cpu += pods * ask.cpu
            able = sum(
                room.gpus * nodes
                for room, nodes in offered.items()
                if room.gpus >= count and room.cpus >= ask.cpu and (not ask.kinds or room.kind in ask.kinds)
            )
            if able:  # what no node can ever take says nothing about where others should go
                price = (all_gpus / able) ** scarcity
                shapes.setdefault((count, ask.milli, ask.kinds), []).append((ask.cpu, gpus * price))
        self.cpu_per_gpu = max(1.0, cpu / total) if total else float(PRIOR_CPU)
        self._shapes = []
        for (count, milli, kinds), members in shapes.items():
            members.sort()
            sums = [0.0]
            for _, weight in members:
                sums.append(sums[-1] + weight / total)
            self._shapes.append(_Shape(count, milli, kinds, tuple(one for one, _ in members), tuple(sums)))
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
        self._mixes: dict[str, Mix] = {}

    def learn(self, ask: Ask) -> None:
        if not ask.gpus:
            return
        self._unit *= self._growth
        for name, count in ask.gpus:
            one = ask if len(ask.gpus) == 1 else ask._replace(gpus=((name, count),))
            seen = self._seen.setdefault(name, {})
            seen[one] = seen.get(one, 0.0) + self._unit
        self._fresh += 1
        if self._fresh >= max(PRIOR_GPUS, self._pods / REFRESH_SHARE):
            self._renew()

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
        self._fresh = 0
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
        found = self._mixes.get(name)
        if found is None:
            sizes = self._offered.get(name, {})
            each = PRIOR_GPUS / len(PRIOR_SIZES) / 2
            weights = {Ask(((name, n),), WHOLE, n * PRIOR_CPU): each / n for n in PRIOR_SIZES}
            all_gpus = sum(room.gpus * nodes for room, nodes in sizes.items())
            for room, nodes in sizes.items():
                ask = Ask(((name, room.gpus),), WHOLE, int(room.cpus * PRIOR_WHOLE_CPU))
                weights[ask] = weights.get(ask, 0.0) + PRIOR_GPUS / 2 * nodes / all_gpus
            for ask, pods in self._seen.get(name, {}).items():
                weights[ask] = weights.get(ask, 0.0) + pods / self._unit
            found = self._mixes[name] = Mix(weights, sizes)
        return found

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
        count = next((count for one, count in ask.gpus if one == name), 0)
        return self._gain(ask, count, name, room)[1]

    def _gain(self, ask: Ask, count: int, name: str, room: Room) -> tuple[float, tuple[int, ...] | None]:
        mix = self.mix(name)
        before = mix.lost(room.kind, room.free, room.cpu)
        cpu = max(0, room.cpu - ask.cpu)
        choices = [room.free] if not count else take(room.free, count, ask.milli)
        if not choices:  # a pod we still count has left: as full as can be
            return before, None
        found = [(before - mix.lost(room.kind, left, cpu), left) for left in choices]
        return max(found) if len(found) > 1 else found[0]


def _scaled(gain: float) -> int:
    return max(0, min(MAX_POINTS, MIDDLE + round(gain * POINTS_PER_GPU)))
