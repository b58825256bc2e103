"""Replay of a trace of pods on a cluster, to compare packing policies by your own load.

Two runs for each policy and seed. *Fill*: pods arrive in random order and none leaves, as in Weng et al. (USENIX
ATC 2023); it shows how full the cluster gets. *Churn*: Poisson arrivals drawn from the trace, exponential
lifetimes; it shows the refusals of a normal day. They rank policies differently, so both are printed.

Points come from `Scoreboard`, the choice between equals from `winner`, both the extender's own, or all of it
from the extender's handler (`Extender`), with the same outcome. Around it is a model of kube-scheduler: it
looks at a part of the nodes (`numFeasibleNodesToFind`), adds its own scores where they are on, and takes one of
the best at random. A pod that does not fit on any node is refused and does not wait.

Columns of a trace, further ones are ignored:

    nodes   sn, cpu_milli, memory_mib, gpu, model[, resource]
    pods    name, cpu_milli, memory_mib, num_gpu, gpu_milli[, gpu_spec: types joined by "|"][, resource]

`resource` is the resource name of the devices, `nvidia.com/gpu` where it is empty: a MIG profile
(`nvidia.com/mig-1g.10gb`) or a GPU shared in time (`nvidia.com/gpu.shared`) is a separate resource. A node
offers one, a pod asks for one, and each device counts as one GPU.

https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2023
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Struct

from moorage.decide.packing.fragmentation import Mix, make_mix
from moorage.decide.packing.policies import WHOLE, Ask, Room, gpus_asked, take
from moorage.decide.packing.winner import winner
from moorage.decide.usage.intervals import Interval
from moorage.extender.policies import Fragmentation, Policy, make_policy
from moorage.extender.scoreboard import Scoreboard
from moorage_kube.errors import UsageError
from moorage_kube.scheduling import NodeInfo, is_gpu

GPU = "nvidia.com/gpu"  # where a trace names no resource
MIB = 2**20
POINT = 10  # kube-scheduler multiplies an extender's points by this and by the weight, without a limit
WARM_LIFETIMES = 2.5  # mean lifetimes before churn is measured; after them 92 % of the final load is there
MEASURED_LIFETIMES = 2.5
FILLED = 1.0  # arrivals of GPUs per GPU at which allocation is read, averaged over events within
AROUND = 0.005  # this of it: `allo_discrete[100]` of the paper's analysis


class TraceNode(Struct, frozen=True):
    name: str
    cpu: int  # millicores
    memory: int  # MiB
    gpus: int
    kind: str
    resource: str = GPU


class TracePod(Struct, frozen=True):
    name: str
    ask: Ask
    memory: int  # MiB

    @property
    def devices(self) -> int:
        return self.ask.gpus[0][1] if self.ask.gpus else 0

    @property
    def demand(self) -> int:
        """Thousandths of GPUs."""
        return self.devices * self.ask.milli


class Scheduler(Struct, frozen=True, kw_only=True):
    """The simulated kube-scheduler around the policy.

    `default_scores`: LeastAllocated and BalancedAllocation, by CPU and memory, stay on.
    """

    weight: int = 5
    default_scores: bool = False
    percentage: int = 0  # percentageOfNodesToScore; 0: adaptive, the default

    def sample(self, nodes: int) -> int:
        """The number of feasible nodes to search for: `numFeasibleNodesToFind`.

        https://github.com/kubernetes/kubernetes/blob/v1.32.0/pkg/scheduler/schedule_one.go
        """
        if nodes < 100:
            return nodes
        percentage = self.percentage or max(5, 50 - nodes // 125)
        return nodes if percentage >= 100 else max(100, nodes * percentage // 100)


class Extender(Protocol):
    """An extender that gets events of pods and is asked for scores, as by the API server and kube-scheduler."""

    def created(self, uid: str, pod: TracePod) -> None: ...

    def asked(self, uid: str, names: Sequence[str]) -> list[int]: ...

    def bound(self, uid: str, node: str) -> None: ...

    def gone(self, uid: str) -> None: ...


class Filled(Struct, frozen=True, kw_only=True):
    """The result of a fill run. Numbers are shares of all GPUs, 0 to 1."""

    allocated: float
    refused: float  # demand refused by 100 % arrival
    large: int  # pods of eight GPUs and more that came by then
    large_refused: int
    fragmented: float  # GPUs that the trace's mix could not use, at 100 % arrival
    curve: tuple[tuple[float, float], ...]  # (arrived, allocated)


class Churned(Struct, frozen=True, kw_only=True):
    """The result of a churn run, measured after the warm-up. Numbers are shares of the arrived demand, 0 to 1."""

    refused: float
    large: int
    large_refused: int
    bound: float  # demand refused by any policy: with all GPUs in one place, or too large for an empty node


def read_nodes(rows: Iterable[Mapping[str, str | None]]) -> list[TraceNode]:
    """Parse the nodes of a trace (rows of `csv.DictReader`). Raises UsageError with the line."""
    nodes = []
    for line, row in enumerate(rows, 2):
        name = row.get("sn") or ""
        cpu, memory, gpus = _numbers(row, line, "cpu_milli", "memory_mib", "gpu")
        nodes.append(TraceNode(name, cpu, memory, gpus, row.get("model") or "", _resource(row, line)))
    if len({node.name for node in nodes}) != len(nodes):
        raise UsageError("two nodes of the trace have the same name (column sn)")
    return nodes


def read_pods(rows: Iterable[Mapping[str, str | None]], *, whole: bool = False) -> list[TracePod]:
    """Parse the pods of a trace, sorted by name. `whole`: only pods with whole GPUs.

    Raises UsageError with the line.
    """
    pods = []
    for line, row in enumerate(rows, 2):
        cpu, memory, count, milli = _numbers(row, line, "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
        if count and not 0 < milli <= WHOLE:
            raise UsageError(f"line {line}: gpu_milli {milli} is not between 1 and {WHOLE}")
        if whole and (not count or (count == 1 and milli < WHOLE)):
            continue
        kinds = tuple(sorted({part for part in (row.get("gpu_spec") or "").split("|") if part}))
        if count:
            ask = Ask(((_resource(row, line), count),), milli if count == 1 else WHOLE, cpu, kinds)
        else:
            ask = Ask((), WHOLE, cpu)
        pods.append(TracePod(row.get("name") or f"pod-{line}", ask, memory))
    return sorted(pods, key=lambda pod: pod.name)


def pods_of(history: Iterable[Interval]) -> list[TracePod]:
    """The pods of a cluster's own history, by name. It stores no resource name and no requested types: any GPU
    fits.
    """
    trace_pods = [
        TracePod(
            f"{interval.namespace}/{interval.pod}/{interval.pod_uid}",
            Ask(((GPU, interval.gpus),) if interval.gpus else (), WHOLE, interval.cpu_milli),
            interval.memory_bytes // MIB,
        )
        for interval in history
    ]
    return sorted(trace_pods, key=lambda pod: pod.name)


def node_of(node: NodeInfo, kind: str) -> TraceNode:
    """A node of a cluster: all its GPUs, of all kinds."""
    gpus = sum(gpus_asked(node.allocatable).values())
    memory = node.allocatable.get("memory", 0) // MIB
    return TraceNode(node.name, node.allocatable.get("cpu", 0), memory, gpus, kind)


def _resource(row: Mapping[str, str | None], line: int) -> str:
    name = row.get("resource") or GPU
    if not is_gpu(name):
        raise UsageError(
            f"line {line}: resource is {name!r}, which counts no GPUs",
            hint="nvidia.com/gpu, nvidia.com/gpu.shared, nvidia.com/mig-1g.10gb, amd.com/gpu, ...",
        )
    return name


def _numbers(row: Mapping[str, str | None], line: int, *columns: str) -> tuple[int, ...]:
    values = []
    for column in columns:
        text = row.get(column)
        if text is None:
            raise UsageError(f"the trace has no column {column} (line {line})")
        try:
            value = int(text)
        except ValueError:
            raise UsageError(f"line {line}: {column} is {text!r}, not a whole number") from None
        if value < 0:
            raise UsageError(f"line {line}: {column} is {value}, less than 0")
        values.append(value)
    return tuple(values)


@dataclass(slots=True)
class _Node:
    trace: TraceNode
    devices: list[int]  # thousandths left, by device
    cpu: int
    memory: int
    room: Room = field(init=False)

    def __post_init__(self) -> None:
        self.refresh()

    def rooms(self) -> dict[str, Room]:
        return {self.trace.resource: self.room} if self.trace.gpus else {}

    def refresh(self) -> None:
        free = tuple(sorted((left for left in self.devices if left), reverse=True))
        self.room = Room(self.trace.gpus, free, self.cpu, self.trace.cpu, self.trace.kind)


class Placed(Struct, frozen=True):
    node: int
    pod: TracePod
    devices: tuple[int, ...]
    uid: str


class _Totals:
    """Total scores (points and default scores) of all nodes for one kind of pod; None if the pod does not fit."""

    __slots__ = ("seen", "totals", "version")

    def __init__(self, nodes: int) -> None:
        self.totals: list[int | None] = [None] * nodes
        self.seen = 0
        self.version = -1


class Cluster:
    """A simulated cluster with its scheduler and the extender's scoreboard."""

    def __init__(
        self,
        nodes: Sequence[TraceNode],
        policy: Policy,
        scheduler: Scheduler,
        rng: random.Random,
        extender: Extender | None = None,
    ) -> None:
        """`extender` None: the cluster computes the scores itself, with the same scoreboard and `winner`."""
        self.gpus = sum(node.gpus for node in nodes)
        self._nodes = [_Node(node, [WHOLE] * node.gpus, node.cpu, node.memory) for node in nodes]
        self._at = {node.name: at for at, node in enumerate(nodes)}
        self._policy = policy
        self._scheduler = scheduler
        self._rng = rng
        self._extender = extender
        self._asked = 0
        self._board: Scoreboard[int] = Scoreboard(policy, lambda _, points: points)
        self._sample = scheduler.sample(len(nodes))
        self._start = 0  # where the scheduler starts its next search, in turn
        self._changes: list[int] = []
        self._tables: dict[tuple[Ask, int], _Totals] = {}
        for node in self._nodes:
            policy.offer(node.trace.name, node.rooms())
            self._board.put(node.trace.name, node.rooms())

    def arrive(self, pod: TracePod) -> Placed | None:
        """Place a pod on the node that kube-scheduler would choose. None if the pod fits on no node."""
        self._policy.learn(pod.ask)
        self._asked += 1
        uid = f"{self._asked:08}-{self._rng.getrandbits(64):016x}"
        if self._extender is not None:
            self._extender.created(uid, pod)
        totals = self._totals(pod)
        start = self._start
        order = totals[start:] + totals[:start]
        fits = [at for at, total in enumerate(order) if total is not None]
        if not fits:
            if self._extender is not None:
                self._extender.gone(uid)
            return None
        if len(fits) >= self._sample:
            fits = fits[: self._sample]
            self._start = (start + fits[-1] + 1) % len(order)
        at = self._choose(
            pod, uid, [(start + offset) % len(order) for offset in fits], [order[offset] or 0 for offset in fits]
        )
        if self._extender is not None:
            self._extender.bound(uid, self._nodes[at].trace.name)
        node = self._nodes[at]
        devices = self._devices(node, pod)
        for device in devices:
            node.devices[device] -= pod.ask.milli
        node.cpu -= pod.ask.cpu
        node.memory -= pod.memory
        self._changed(at)
        return Placed(at, pod, devices, uid)

    def _choose(self, pod: TracePod, uid: str, able: list[int], totals: list[int]) -> int:
        """The node that kube-scheduler chooses among those with free capacity.

        `totals`: points, plus kube-scheduler's own scores if the extender lets it choose.
        """
        if self._extender is not None:
            points = self._extender.asked(uid, [self._nodes[at].trace.name for at in able])
            totals = [self._total(self._nodes[at], pod, score) for at, score in zip(able, points, strict=True)]
        elif pod.devices:
            return able[winner(totals, uid)]
        best = max(totals)
        ties = [at for at, total in zip(able, totals, strict=True) if total == best]
        return ties[0] if len(ties) == 1 else self._rng.choice(ties)

    def leave(self, placed: Placed) -> None:
        """The pod ends."""
        if self._extender is not None:
            self._extender.gone(placed.uid)
        node, pod = self._nodes[placed.node], placed.pod
        for device in placed.devices:
            node.devices[device] += pod.ask.milli
        node.cpu += pod.ask.cpu
        node.memory += pod.memory
        self._changed(placed.node)

    def lost(self, mixes: Mapping[str, Mix]) -> float:
        """The number of free GPUs that the mix of their resource cannot use."""
        return sum(
            mixes[node.trace.resource].lost(node.room.kind, node.room.free, node.room.cpu)
            for node in self._nodes
            if node.trace.resource in mixes
        )

    def _changed(self, at: int) -> None:
        node = self._nodes[at]
        node.refresh()
        self._board.put(node.trace.name, node.rooms())
        self._changes.append(at)

    def _devices(self, node: _Node, pod: TracePod) -> tuple[int, ...]:
        """Indexes of the devices for the pod.

        For whole GPUs: idle devices. Otherwise: the device that the policy prefers, or the fullest one with
        enough left.
        """
        if not pod.devices:
            return ()
        milli = pod.ask.milli
        able = [at for at, left in enumerate(node.devices) if left >= milli]
        if milli == WHOLE:
            return tuple(able[: pod.devices])
        if isinstance(self._policy, Fragmentation):
            left = self._policy.devices_left(pod.ask, node.trace.resource, node.room)
            for at in able:
                rest = [*node.devices[:at], node.devices[at] - milli, *node.devices[at + 1 :]]
                if tuple(sorted((milli_left for milli_left in rest if milli_left), reverse=True)) == left:
                    return (at,)
        return (min(able, key=lambda at: node.devices[at]),)

    def _totals(self, pod: TracePod) -> list[int | None]:
        key = (pod.ask, pod.memory)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = _Totals(len(self._nodes))
        points = self._board.table(pod.ask)
        if table.version != self._policy.version:
            changed: Iterable[int] = range(len(self._nodes))
            table.version = self._policy.version
        else:
            changed = set(self._changes[table.seen :])
        table.seen = len(self._changes)
        for at in changed:
            node = self._nodes[at]
            if not _fits(node, pod):
                table.totals[at] = None
            elif pod.devices:
                table.totals[at] = points[node.trace.name]  # one of them outvotes all that the scheduler says
            else:
                table.totals[at] = self._total(node, pod, points[node.trace.name])
        return table.totals

    def _total(self, node: _Node, pod: TracePod, points: int) -> int:
        total = points * POINT * self._scheduler.weight
        if self._scheduler.default_scores:
            cpu = (node.trace.cpu - node.cpu + pod.ask.cpu) / max(1, node.trace.cpu)
            memory = (node.trace.memory - node.memory + pod.memory) / max(1, node.trace.memory)
            least = (int((1 - cpu) * 100) + int((1 - memory) * 100)) // 2
            total += least + int((1 - abs(cpu - memory) / 2) * 100)
        return total


def _fits(node: _Node, pod: TracePod) -> bool:
    if node.cpu < pod.ask.cpu or node.memory < pod.memory:
        return False
    if pod.ask.kinds and node.trace.kind not in pod.ask.kinds:
        return False
    if not pod.devices:
        return True
    return pod.ask.gpus[0][0] == node.trace.resource and bool(take(node.room.free, pod.devices, pod.ask.milli))


def fill(
    nodes: Sequence[TraceNode],
    pods: Sequence[TracePod],
    *,
    policy: str,
    seed: int,
    scheduler: Scheduler,
    extender: Extender | None = None,
) -> Filled:
    """Start pods of the trace in random order, then more pods drawn from it, until they have requested all
    GPUs.
    """
    # separate generators: the policy does not change the arrivals
    arrivals = random.Random(f"fill {seed}")
    cluster = Cluster(nodes, make_policy(policy), scheduler, random.Random(f"ties {seed}"), extender)
    queue = list(pods)
    arrivals.shuffle(queue)
    capacity = cluster.gpus * WHOLE
    arrived = used = refused = large = large_refused = at = 0
    # results: use near full load, and the curve of use by share asked for
    near: list[float] = []
    curve: list[tuple[float, float]] = [(0.0, 0.0)]
    fragmented: float | None = None
    whole = trace_mix(nodes, pods)
    while arrived < (FILLED + AROUND) * capacity:
        pod = queue[at] if at < len(queue) else arrivals.choice(pods)
        at += 1
        arrived += pod.demand
        placed = cluster.arrive(pod)
        used += pod.demand if placed else 0
        # refusals count until the load is full; after it the fragmentation is measured once
        share = arrived / capacity
        if share <= FILLED:
            refused += 0 if placed else pod.demand
            if pod.devices >= 8:
                large += 1
                large_refused += placed is None
        elif fragmented is None:
            fragmented = cluster.lost(whole) / cluster.gpus
        if share >= FILLED - AROUND:
            near.append(used / capacity)
        if share - curve[-1][0] >= 0.01:
            curve.append((share, used / capacity))
    # shares of the capacity
    return Filled(
        allocated=sum(near) / len(near),
        refused=refused / capacity,
        large=large,
        large_refused=large_refused,
        fragmented=fragmented or 0.0,
        curve=tuple(curve),
    )


def churn(
    nodes: Sequence[TraceNode],
    pods: Sequence[TracePod],
    *,
    policy: str,
    seed: int,
    scheduler: Scheduler,
    load: float,
    extender: Extender | None = None,
) -> Churned:
    """Simulate arrivals and departures at an offered load of `load` times all GPUs.

    Time is in mean lifetimes. Arrivals and lifetimes are the same for every policy.
    """
    # separate generators: the policy does not change the arrivals
    arrivals = random.Random(f"churn {seed}")
    cluster = Cluster(nodes, make_policy(policy), scheduler, random.Random(f"ties {seed}"), extender)
    capacity = cluster.gpus * WHOLE
    # arrivals per mean lifetime, for the wanted load
    rate = load * capacity * len(pods) / sum(pod.demand for pod in pods)
    possible = {id(pod) for pod in _possible(nodes, pods)}
    # `pool` is a bound: a cluster with all GPUs on one node
    now = 0.0
    ends: list[tuple[float, int, Placed]] = []
    pool: list[tuple[float, int]] = []  # the same arrivals with all GPUs in one place: (end, demand)
    pooled = 0
    asked = refused = unavoidable = large = large_refused = number = 0
    while True:
        now += arrivals.expovariate(rate)
        pod = arrivals.choice(pods)
        lasts = arrivals.expovariate(1.0)
        if now > WARM_LIFETIMES + MEASURED_LIFETIMES:
            break
        # departures until now
        while ends and ends[0][0] <= now:
            cluster.leave(heapq.heappop(ends)[2])
        while pool and pool[0][0] <= now:
            pooled -= heapq.heappop(pool)[1]
        number += 1
        # the cluster and the bound get the same pod
        placed = cluster.arrive(pod)
        if placed:
            heapq.heappush(ends, (now + lasts, number, placed))
        room = not pod.demand or (id(pod) in possible and pooled + pod.demand <= capacity)
        if room:
            pooled += pod.demand
            heapq.heappush(pool, (now + lasts, pod.demand))
        # count only after the warm-up
        if now > WARM_LIFETIMES:
            asked += pod.demand
            refused += 0 if placed else pod.demand
            unavoidable += 0 if room else pod.demand
            if pod.devices >= 8:
                large += 1
                large_refused += placed is None
    return Churned(
        refused=refused / max(1, asked),
        large=large,
        large_refused=large_refused,
        bound=unavoidable / max(1, asked),
    )


def trace_mix(nodes: Sequence[TraceNode], pods: Sequence[TracePod]) -> dict[str, Mix]:
    """The mix of a whole trace by resource. It is the reference for fragmentation, the same for every policy."""
    weights: dict[str, dict[Ask, float]] = {}
    for pod in pods:
        if pod.ask.gpus:
            of = weights.setdefault(pod.ask.gpus[0][0], {})
            of[pod.ask] = of.get(pod.ask, 0.0) + 1.0
    return {
        name: make_mix(of, offered([node for node in nodes if node.resource == name]), stranded=0.0)
        for name, of in weights.items()
    }


def offered(nodes: Sequence[TraceNode]) -> dict[Room, int]:
    """The number of nodes for each room of an empty node."""
    counts: dict[Room, int] = {}
    for node in nodes:
        room = Room(node.gpus, (WHOLE,) * node.gpus, node.cpu, node.cpu, node.kind)
        counts[room] = counts.get(room, 0) + 1
    return counts


def impossible(nodes: Sequence[TraceNode], pods: Sequence[TracePod]) -> float:
    """The share (0 to 1) of the demand from pods that do not fit on any node, even if it is empty."""
    demand = sum(pod.demand for pod in pods)
    return 1 - sum(pod.demand for pod in _possible(nodes, pods)) / demand if demand else 0.0


def _possible(nodes: Sequence[TraceNode], pods: Sequence[TracePod]) -> list[TracePod]:
    sizes = {(node.resource, node.gpus, node.cpu, node.memory, node.kind) for node in nodes}
    able = {
        (ask, memory)
        for ask, memory in {(pod.ask, pod.memory) for pod in pods}
        if ask.gpus
        and any(
            ask.gpus[0][0] == resource
            and gpus >= ask.gpus[0][1]
            and cpu >= ask.cpu
            and there >= memory
            and (not ask.kinds or kind in ask.kinds)
            for resource, gpus, cpu, there, kind in sizes
        )
    }
    return [pod for pod in pods if (pod.ask, pod.memory) in able]


def bound(nodes: Sequence[TraceNode], pods: Sequence[TracePod]) -> float:
    """Share of all GPUs that any placement could reach at 100 % arrival, 0 to 1: not below the possible share.

    From three losses that every placement has: demand that fits on no node; demand beyond the GPUs of the
    resource or of the types asked for (for each set of types together with the sets within it); and the rest
    of a device with a share so large that no other fits (placed or refused, the smaller loss).
    """
    demand = sum(pod.demand for pod in pods)
    capacity = sum(node.gpus for node in nodes) * WHOLE
    if not demand or not capacity:
        return 0.0
    possible = _possible(nodes, pods)
    scale = capacity / demand  # arrivals of 100 % hold each pod this often
    placeable = 0.0
    for resource in sorted({node.resource for node in nodes}):
        there = [node for node in nodes if node.resource == resource]
        wanted: dict[tuple[str, ...], float] = {}
        for pod in possible:
            if pod.ask.gpus[0][0] == resource:
                wanted[pod.ask.kinds] = wanted.get(pod.ask.kinds, 0.0) + pod.demand * scale
        excess = 0.0
        for kinds in wanted:
            able = sum(node.gpus for node in there if not kinds or node.kind in kinds) * WHOLE
            within = sum(
                milli for other, milli in wanted.items() if not kinds or (other and set(other) <= set(kinds))
            )
            excess = max(excess, within - able)
        placeable += sum(wanted.values()) - excess
    smallest = min((pod.ask.milli for pod in possible), default=WHOLE)
    wasted = sum(
        (WHOLE - pod.ask.milli) * pod.ask.milli / WHOLE * scale
        for pod in possible
        if pod.ask.milli < WHOLE and pod.ask.milli + smallest > WHOLE
    )
    return max(0.0, min(1.0, round(placeable / capacity, 9), 1.0 - wasted / capacity))
