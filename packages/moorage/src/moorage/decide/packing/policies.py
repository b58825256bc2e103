"""Points for nodes by which a pod is placed so that GPUs stay usable: larger is better.

Policies of this module: `pack` fills nodes that are in use before opening an empty one; `spread` does the reverse.
The module `fragmentation` has the third. Whether a node *can* take the pod is not judged here: the scheduler asks
only about those.

A GPU is counted in thousandths, so that a share of one can be expressed (`moor simulate`). Kubernetes itself
allocates whole devices of a resource name: a MIG profile is a separate resource, a time-sliced GPU a resource with
more devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, field

from moorage_kube.scheduling import Amounts, is_gpu

MAX_SCORE = 10  # MaxExtenderPriority of kube-scheduler's extender protocol; `pack` and `spread` stay within
WHOLE = 1000  # thousandths of a GPU


class GpuNode(Struct, frozen=True, kw_only=True):
    """The GPUs of one node by resource name: their number, and how many are held or promised."""

    name: str
    total: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)


class Room(NamedTuple):
    """The free capacity of a node for one GPU resource."""

    gpus: int  # devices the node offers
    free: tuple[int, ...]  # thousandths left of each device that has any, largest first
    cpu: int  # millicores not requested
    cpus: int  # millicores the node offers
    kind: str  # GPU type; "" if unknown


Rooms = Mapping[str, Room]
"""Room by GPU resource name; empty for a node without GPUs."""


class Ask(NamedTuple):
    """The requests of a pod that matter for packing. Pods with equal asks get equal points."""

    gpus: tuple[tuple[str, int], ...] = ()  # (resource name, devices), by name; empty: no GPU
    milli: int = WHOLE  # thousandths of each device
    cpu: int = 0  # millicores
    kinds: tuple[str, ...] = ()  # GPU types it must have, sorted; empty: any


def gpus_asked(requests: Amounts) -> dict[str, int]:
    """The GPU resources in a pod's requests with nonzero counts."""
    return {name: count for name, count in requests.items() if count > 0 and is_gpu(name)}


def make_ask(requests: Amounts, kinds: tuple[str, ...] = ()) -> Ask:
    """The ask of a pod with these requests, in whole devices."""
    return Ask(tuple(sorted(gpus_asked(requests).items())), WHOLE, requests.get("cpu", 0), kinds)


def make_rooms(total: Amounts, used: Amounts, cpus: int, cpu_used: int, kind: str = "") -> dict[str, Room]:
    """The rooms of a node with whole devices, by GPU resource.

    A node with more devices held than present counts as full.
    """
    cpu = max(0, cpus - cpu_used)
    return {
        name: Room(count, (WHOLE,) * max(0, min(count, count - used.get(name, 0))), cpu, cpus, kind)
        for name, count in total.items()
        if count > 0
    }


def pack(ask: Ask, rooms: Rooms) -> int:
    """(requested + used) / total x 10 over the GPU resources asked for, rounded down, 0 to 10.

    0 where a requested resource is missing. More than the node has counts as full: the scheduler offers only nodes
    with room, so a pod that we still count has left and the node is about to be filled. A pod that asks for no GPU
    gets 10 on nodes without GPUs and 0 on nodes with them: it should not take room from pods with GPUs.
    """
    if not ask.gpus:
        return 0 if rooms else MAX_SCORE
    total = taken = 0
    for name, count in ask.gpus:
        room = rooms.get(name)
        if room is None:
            return 0
        total += room.gpus * WHOLE
        taken += count * ask.milli + room.gpus * WHOLE - sum(room.free)
    return min(MAX_SCORE, taken * MAX_SCORE // total)


def spread(ask: Ask, rooms: Rooms) -> int:
    """The reverse of `pack`: 10 for the emptiest. For clusters with GPUs to spare, where jobs disturb each other
    on a node; large requests starve under it. Pods without GPUs avoid GPU nodes, as in `pack`.
    """
    points = pack(ask, rooms)
    if not ask.gpus or any(name not in rooms for name, _ in ask.gpus):
        return points
    return MAX_SCORE - points


def take(free: tuple[int, ...], count: int, milli: int) -> list[tuple[int, ...]]:
    """The possible states of a node's devices after a request was placed: one entry per distinct choice, none when
    it does not fit. Whole devices are alike, a share may come from any device with room.
    """
    if milli == WHOLE:
        if len(free) < count or (count and free[count - 1] < WHOLE):
            return []
        return [free[count:]]
    choices: dict[tuple[int, ...], None] = {}
    for at, left in enumerate(free):
        if left < milli:
            break
        if at and left == free[at - 1]:
            continue
        rest = [*free[:at], *free[at + 1 :]]
        if left > milli:
            rest.append(left - milli)
            rest.sort(reverse=True)
        choices[tuple(rest)] = None
    return list(choices)
