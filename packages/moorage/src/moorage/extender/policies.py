"""The packing policies by name, with their memory of pods and nodes.

`decide.packing` decides the value of a placement; this module holds the memory for such a decision.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from moorage.decide.packing import fragmentation
from moorage.decide.packing.fragmentation import PRIOR_GPUS, Mix, make_mix, make_prior
from moorage.decide.packing.policies import WHOLE, Ask, Room, Rooms, pack, spread
from moorage_kube.errors import UsageError

POLICIES = ("pack", "fragmentation", "spread")

HALF_LIFE_PODS = 2000  # about a fifth of the trace the policy was judged on: rare large requests stay known
REFRESH_SHARE = 8  # the mix is renewed when an eighth of its evidence, or of the free resources, has changed
LOSSES_KEPT = 50_000  # of one mix, some 300 bytes each: 5,000 nodes in ten states


class Policy(Protocol):
    """A policy that gives points to nodes."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int:
        """Changes when points may have changed for rooms that did not change."""
        ...

    def points(self, ask: Ask, rooms: Rooms) -> int: ...

    def learn(self, ask: Ask) -> None:
        """Record a new pod."""
        ...

    def offer(self, node: str, rooms: Rooms | None) -> None:
        """A node was added or changed in size, with its rooms as when empty; None: it was deleted."""
        ...

    def hold(self, node: str, rooms: Rooms | None) -> None:
        """A node has these rooms now; None: it was deleted. Moves no version."""
        ...


class Plain(Struct, frozen=True):
    """A policy without state: its points depend only on the request and the rooms."""

    name: str
    version: int = 0

    def points(self, ask: Ask, rooms: Rooms) -> int:
        match self.name:
            case "pack":
                return pack(ask, rooms)
            case "spread":
                return spread(ask, rooms)
            case _:
                return 0

    def learn(self, ask: Ask) -> None:
        pass

    def offer(self, node: str, rooms: Rooms | None) -> None:
        pass

    def hold(self, node: str, rooms: Rooms | None) -> None:
        pass


class RememberedMix:
    """A mix and its past answers: the same few rooms are asked about again and again."""

    __slots__ = ("_answers", "_mix")

    def __init__(self, mix: Mix) -> None:
        self._mix = mix
        self._answers: dict[tuple[str, tuple[int, ...], int], float] = {}

    def lost(self, kind: str, free: tuple[int, ...], cpu: int) -> float:
        """As `Mix.lost`."""
        key = (kind, free, cpu)
        answer = self._answers.get(key)
        if answer is None:
            if len(self._answers) >= LOSSES_KEPT:
                self._answers.clear()
            answer = self._answers[key] = self._mix.lost(kind, free, cpu)
        return answer


class Fragmentation:
    """Points by the change in lost capacity. The mix is learned from pods seen, from a neutral prior on: it is
    stored here, `decide.packing.fragmentation` decides by it.
    """

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
        self._mixes: dict[str, RememberedMix] = {}

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

    def mix(self, name: str) -> RememberedMix:
        """The current mix of a GPU resource."""
        mix = self._mixes.get(name)
        if mix is None:
            sizes = self._offered.get(name, {})
            weights = make_prior(name, sizes)
            for ask, pods in self._seen.get(name, {}).items():
                weights[ask] = weights.get(ask, 0.0) + pods / self._unit
            mix = self._mixes[name] = RememberedMix(make_mix(weights, sizes, self._free.get(name) or sizes))
        return mix

    def points(self, ask: Ask, rooms: Rooms) -> int:
        return fragmentation.points(ask, rooms, self.mix)

    def devices_left(self, ask: Ask, name: str, room: Room) -> tuple[int, ...] | None:
        """The remaining devices once the request takes the best of them; None: it does not fit."""
        return fragmentation.devices_left(ask, name, room, self.mix(name))


def make_policy(name: str) -> Policy:
    """The policy with this name: one of POLICIES, or "none" (0 for every node).

    Raises UsageError for other names.
    """
    if name not in (*POLICIES, "none"):
        raise UsageError(f"invalid packing policy {name!r}", hint=f"use one of {', '.join(POLICIES)}")
    return Fragmentation() if name == "fragmentation" else Plain(name)
