"""Why a pod waits: what is missing, who holds it, when it could start, and what would start now.

Pure: nodes, pods, volumes, machines, events and past runs in, one `Explanation` out; `decide.answers` makes it
prose. The rules of placement are those of `apimachinery.scheduling`, read one node at a time. Pod (anti-)affinity
and spreading are not judged here: the scheduler's own sentence is passed on for them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Literal

from moorage.apimachinery.meta import annotations_of, condition, labels_of
from moorage.apimachinery.moments import moment
from moorage.apimachinery.quantity import format_amount
from moorage.apimachinery.resources import Obj
from moorage.apimachinery.scheduling import (
    NodeInfo,
    PodInfo,
    has_gate,
    is_extended,
    is_gpu,
    parse_node,
    parse_pod,
    refusal_by_labels,
    refusal_by_taints,
    refusals,
    shortages,
    used_on,
)
from moorage.apimachinery.selectors import Requirement
from moorage.decide.explain.storage import PodVolumes, Storage, Trouble, volumes_of
from moorage.decide.machines.eligibility import waits_of
from moorage.decide.machines.reservation import Guest, Share, plan
from moorage.decide.machines.reservation import Seen as MachineSeen
from moorage.decide.runs.forecast import History, Like, Usual, work_of
from moorage.decide.usage.gpus import Holder, gpu_type, holder_of, is_reservation, owner_of
from moorage.errors import QuantityError
from moorage.model.machine import Pool, parse_machine
from moorage.model.names import (
    EXPECTED_SECONDS_ANNOTATION,
    GPU_TYPE_LABELS,
    MACHINE_GATE,
    MACHINE_GROUP_LABEL,
    MACHINE_TYPE_LABEL,
    MEMORY_GATE,
    MEMORY_HELD_ANNOTATION,
    OWNER_LABEL,
    PLACE_ANNOTATION,
    RUN_LABEL,
    WAITS_ANNOTATION,
)

QUEUE_LIMIT = 200  # pods ahead that are played through when the start is foretold; more is no forecast
SMALLER_SHOWN = 3
TYPE_COST = 0.25  # another GPU type counts as a change as large as a quarter fewer GPUs
NODE_COST = 0.4  # another node than the one named: its data may be there
LEAST_KEPT = 0.1  # less than a tenth of the CPU or memory asked for is no advice
TRANSIENT_TAINTS = ("node.kubernetes.io/",)  # set by the node controller: they pass with the node's trouble

State = Literal["fits", "waiting", "gated", "never", "running", "finished"]
Sure = Literal["limit", "usual", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One node: it fits, or every reason why not."""

    node: str
    gpu_type: str  # empty: no GPUs
    gpus: int
    gpus_free: int
    reasons: tuple[str, ...]  # empty: it fits

    @property
    def fits(self) -> bool:
        return not self.reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A resource of which no node that the pod may use has enough free."""

    resource: str
    gpu_types: tuple[str, ...]  # what the pod asks for, of GPUs; empty: any
    asks: int  # units of `quantity.amount`
    most_free: int  # on one node
    most_free_node: str  # empty: the pod may use no node
    free_in_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBy:
    """Who holds what is missing. `sure`: the end is a limit that is enforced, what is usual, or nobody knows."""

    holder: Holder
    node: str
    resource: str
    amount: int
    sure: Sure
    usual: Usual | None = None  # by past runs like it
    reserved_for: str = ""  # "group/type": no user holds it, but a machine's reservation

    @property
    def usual_until(self) -> datetime | None:
        """When past runs like it were done, counted from its start."""
        return _usual_end(self.holder, self.usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Earliest:
    """A forecast: when, where, and whose end makes the room (None: nobody's, there is room)."""

    at: datetime
    node: str
    after: Holder | None = None
    usual: Usual | None = None  # what the end of `after` was told by; None: its limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """A pod before this one in the line."""

    owner: str
    run: str
    namespace: str
    pod: str
    priority: int
    created: datetime | None
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Smaller:
    """A lesser or other wish that would start now."""

    gpus: int
    gpu_types: tuple[str, ...]  # the wish; empty: any type
    node: str
    node_type: str
    change: str = ""  # what is different, for people: "1 GPU", "4 cpu"
    options: str = ""  # the options of `moor run` that say so
    cost: float = 0.0  # how much of the wish is given up, 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why the pod can never run on this cluster as it is."""

    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLine:
    """How the machine type stands whose guest the pod is."""

    group: str
    type: str
    order: str  # fifo or fair
    available: int
    used: int  # places held by guests, or on their way to one
    waits_for: str = ""  # a sentence: a place is free, and kept for somebody's reservation
    waits_until: datetime | None = None  # the end of that reservation
    known: bool = True  # False: there is no such Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All that can be said about one pod's start, at `now`."""

    namespace: str
    name: str
    run: str
    owner: str
    state: State
    now: datetime
    asks: Mapping[str, int]
    gpus: int
    gpu_types: tuple[str, ...]
    node: str = ""  # where it runs, or (state fits) where it would land
    verdicts: tuple[Verdict, ...] = ()
    missing: tuple[Missing, ...] = ()
    obstacles: tuple[str, ...] = ()  # why no node that could serve takes pods: cordoned, not Ready
    held_by: tuple[HeldBy, ...] = ()
    earliest: Earliest | None = None  # if all who have one keep their limit
    likely: Earliest | None = None  # sooner than that, if all take as long as is usual
    line: tuple[Waiter, ...] = ()  # those ahead, first first
    machine: MachineLine | None = None
    gates: tuple[str, ...] = ()
    killed: str = ""  # why the gate for memory holds it, as admission wrote it
    missing_claims: tuple[str, ...] = ()
    troubles: tuple[Trouble, ...] = ()  # with volumes, the missing ones among them
    quota: str = ""  # the API server's own sentence
    not_made: str = ""  # why the pod cannot be created, in the API server's words
    suspended: bool = False  # the Job is
    scheduler_says: str = ""
    smaller: tuple[Smaller, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    until: Holder | None = None  # of a pod that has its place: since when, and its limit
    usual: Usual | None = None  # and how long what is like it took
    starting: str = ""  # it has its place, but its containers do not run: the kubelet's reason
    public: bool = False  # only what everybody may know

    @property
    def position(self) -> int:
        """1: next in line."""
        return len(self.line) + 1

    @property
    def fits(self) -> bool:
        """Some node would take it now."""
        return any(one.fits for one in self.verdicts)

    @property
    def usual_until(self) -> datetime | None:
        """When past runs like it were done, counted from its start."""
        return _usual_end(self.until, self.usual) if self.until else None


def pod_of_job(job: Mapping[str, Any]) -> Obj:
    """The pod that a `batch/v1` Job's template would make, for judging a Job that has none (yet)."""
    template = job["spec"]["template"]
    meta = template.get("metadata") or {}
    return {
        "metadata": {
            "namespace": job["metadata"].get("namespace") or "default",
            "name": job["metadata"].get("name") or "",
            "labels": (job["metadata"].get("labels") or {}) | (meta.get("labels") or {}),
            "annotations": (job["metadata"].get("annotations") or {}) | (meta.get("annotations") or {}),
            "creationTimestamp": job["metadata"].get("creationTimestamp"),
        },
        "spec": template.get("spec") or {},
        "status": {},
    }


def wanted_types(pod: PodInfo) -> tuple[str, ...]:
    """GPU types that the pod's node selector or required affinity names, sorted; empty: any type."""
    named = {value for one in pod.node_selector if _names_type(one) for value in one.values}
    for term in pod.node_terms or ():
        named |= {value for one in term.expressions if _names_type(one) for value in one.values}
    return tuple(sorted(named))


@dataclass(frozen=True, slots=True)
class Seen:
    """A pod, parsed. `holder` is set for unfinished pods that have a node."""

    pod: PodInfo
    obj: Obj
    holder: Holder | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster as `explain_in` reads it, parsed once for many explanations."""

    nodes: tuple[NodeInfo, ...]  # by name
    pods: tuple[Seen, ...]
    on_node: Mapping[str, Sequence[PodInfo]]
    used: Mapping[str, Mapping[str, int]]
    history: History = field(default_factory=History)
    machines: tuple[Obj, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)  # node with GPUs → their type
    allowed: dict[object, tuple[NodeInfo, ...]] = field(default_factory=dict)  # answers of `usable`, remembered
    usuals: dict[tuple[str, datetime], Usual | None] = field(default_factory=dict)  # and of `usual`

    def usable(self, pod: PodInfo) -> tuple[NodeInfo, ...]:
        """Ready nodes that labels, taints and cordons let the pod use."""
        key = _placing(pod)
        if key not in self.allowed:
            self.allowed[key] = tuple(node for node in self.nodes if node.ready and _may_use(pod, node))
        return self.allowed[key]

    def usual(self, one: Seen, now: datetime) -> Usual | None:
        """How long what is like this pod took; its elapsed time is from its start to `now`."""
        key = (one.pod.uid or f"{one.pod.namespace}/{one.pod.name}", now)
        if key not in self.usuals:
            since = one.holder.since if one.holder else None
            elapsed = max(timedelta(), now - since) if since else timedelta()
            self.usuals[key] = self.history.usual(self.like(one), elapsed)
        return self.usuals[key]

    def like(self, one: Seen) -> Like:
        """What the pod is compared by. One without a node is compared as on the first type that it names."""
        pod, kind = one.pod, ""
        if pod.gpus:
            named = wanted_types(pod)
            kind = self.types.get(pod.node) or (named[0] if named else self._only_type())
        name = pod.labels.get(RUN_LABEL) or pod.name
        return Like(owner=owner_of(pod), name=name, work=work_of(one.obj.get("spec") or {}), gpu_type=kind)

    def _only_type(self) -> str:
        kinds = set(self.types.values())
        return kinds.pop() if len(kinds) == 1 else ""


def snapshot(
    nodes: Iterable[Obj], pods: Iterable[Obj], *, history: History | None = None, machines: Iterable[Obj] = ()
) -> Snapshot:
    """Parse all nodes and all pods of a cluster."""
    infos = sorted((parse_node(obj) for obj in nodes), key=lambda node: node.name)
    read = tuple(_see(obj) for obj in pods)
    on_node: dict[str, list[PodInfo]] = {node.name: [] for node in infos}
    for one in read:
        if one.holder is not None and one.pod.node in on_node:
            on_node[one.pod.node].append(one.pod)
    used = {name: used_on(there) for name, there in on_node.items()}
    types = {node.name: gpu_type(node.labels) for node in infos if node.gpus}
    return Snapshot(tuple(infos), read, on_node, used, history or History(), tuple(machines), types)


def concerning(pod: Mapping[str, Any], pods: Iterable[Obj]) -> list[Obj]:
    """Of all pods those that change what `explain_in` says of this one: a guest behind the gate of its machine is
    explained by what stands on nodes and by its own group, whoever else waits. All of them for any other pod.

    Parsing a pod costs 60 µs; with 15,000 that wait, this is the greatest part of an answer.
    """
    labels, spec = labels_of(pod), pod.get("spec") or {}
    group = labels.get(MACHINE_GROUP_LABEL)
    if not group or not labels.get(MACHINE_TYPE_LABEL) or not has_gate(spec, MACHINE_GATE):
        return list(pods)
    return [one for one in pods if one["spec"].get("nodeName") or labels_of(one).get(MACHINE_GROUP_LABEL) == group]


def _see(obj: Obj) -> Seen:
    pod = parse_pod(obj)
    return Seen(pod, obj, holder_of(obj, pod) if pod.node and not pod.finished else None)


def explain(
    pod: Obj,
    *,
    nodes: Iterable[Obj],
    pods: Iterable[Obj],
    now: datetime,
    storage: Storage | None = None,
    events: Iterable[Obj] = (),
    history: History | None = None,
    machines: Iterable[Obj] = (),
    suspended: bool = False,
) -> Explanation:
    """Explain a pod, stored or hypothetical.

    `pods` are all pods of the cluster (the pod itself may be among them), `storage` what was read of volumes
    (None: nothing, so none is called missing), `events` those of the pod and of its Job.
    """
    seen = snapshot(nodes, pods, history=history, machines=machines)
    return explain_in(seen, pod, now=now, storage=storage, events=events, suspended=suspended)


def explain_in(
    seen: Snapshot,
    pod: Obj,
    *,
    now: datetime,
    storage: Storage | None = None,
    events: Iterable[Obj] = (),
    suspended: bool = False,
    brief: bool = False,
) -> Explanation:
    """As `explain`, on a snapshot that may serve many pods. `brief` leaves `held_by` and `smaller` empty."""
    one = _see(pod)
    me = one.pod
    base = Explanation(
        namespace=me.namespace,
        name=me.name,
        run=me.labels.get(RUN_LABEL, ""),
        owner=owner_of(me),
        state="finished" if me.finished else "running",
        now=now,
        asks={name: value for name, value in me.requests.items() if name != "pods"},
        gpus=me.gpus,
        gpu_types=wanted_types(me),
        node=me.node,
    )
    if me.finished:
        return base
    if me.node:
        return replace(base, until=one.holder, usual=seen.usual(one, now), starting=_starting(pod))
    return _Waiting(
        one, base, seen, storage or Storage(), tuple(events), brief=brief, suspended=suspended
    ).explain()


class _Waiting:
    """The explanation of one pod without a place. Used once."""

    def __init__(
        self,
        one: Seen,
        base: Explanation,
        seen: Snapshot,
        storage: Storage,
        events: tuple[Obj, ...],
        *,
        brief: bool,
        suspended: bool,
    ) -> None:
        self.me, self.obj, self.base, self.seen, self.brief = one.pod, one.obj, base, seen, brief
        self.now = base.now
        self.suspended = suspended
        self.events = events
        self.others = [other for other in seen.pods if not _same(other.obj, one.obj)]
        bound = (other.pod for other in self.others if other.holder is not None)
        self.volumes: PodVolumes = volumes_of(self.me, storage, bound if self.me.claims else ())
        self.usable = [node for node in seen.usable(self.me) if self.volumes.refusal(node) is None]
        self.left = seen.used  # what is used once those ahead that fit now have started

    def explain(self) -> Explanation:
        never = _never(self.me, self.base, self.seen.nodes)
        verdicts = tuple(self._verdict(node) for node in self.seen.nodes)
        found = replace(
            self.base,
            verdicts=verdicts,
            gates=self.me.gates,
            killed=annotations_of(self.obj).get(MEMORY_HELD_ANNOTATION, "")
            if MEMORY_GATE in self.me.gates
            else "",
            missing_claims=tuple(one.claim for one in self.volumes.troubles if one.missing),
            troubles=self.volumes.troubles,
            quota=_quota(self.obj, self.events),
            not_made=_not_made(self.obj, self.events),
            suspended=self.suspended,
            scheduler_says=_told(self.obj),
            refusals=never,
        )
        if never:
            self.left = self.seen.used
            return replace(found, state="never", smaller=() if self.brief else self._smaller())
        machine = self._machine()
        if machine is not None:
            return self._as_guest(found, *machine)
        return self._in_the_scheduler(found)

    def _in_the_scheduler(self, found: Explanation) -> Explanation:
        missing = () if found.fits else self._missing()
        line = self._line(missing)
        held = bool(found.troubles or found.quota or found.not_made or self.suspended)
        earliest = likely = None
        if not held:
            earliest, self.left = self._play(line, usual=False)
            likely, _ = self._play(line, usual=True) if self.seen.history.took else (None, {})
            if likely is not None and earliest is not None and likely.at >= earliest.at:
                likely = None
        now = not held and found.fits and earliest is not None and earliest.at <= self.now
        return replace(
            found,
            state="gated" if self.me.gates else "fits" if now else "waiting",
            node=self._landing() if now else "",
            missing=missing,
            obstacles=() if any(_holds(self.me, node) for node in self.usable) else self._obstacles(),
            held_by=() if self.brief else self._held_by(missing),
            line=() if now and not self.me.gates else tuple(_waiter(other.pod) for other in line),
            earliest=earliest,
            likely=likely,
            smaller=() if now or self.brief else self._smaller(),
        )

    # -- nodes

    def _verdict(self, node: NodeInfo) -> Verdict:
        there, used = self.seen.on_node[node.name], self.seen.used[node.name]
        held = sum(value for name, value in used.items() if is_gpu(name))
        reasons = refusals(self.me, node, there, used)
        if volume := self.volumes.refusal(node):
            reasons.append(volume)
        return Verdict(
            node=node.name,
            gpu_type=gpu_type(node.labels) if node.gpus else "",
            gpus=node.gpus,
            gpus_free=max(0, node.gpus - held) if node.ready and not node.unschedulable else 0,
            reasons=tuple(reasons),
        )

    def _obstacles(self) -> tuple[str, ...]:
        """For each node that could serve once its passing trouble is over: what that is."""
        found = []
        for node in self.seen.nodes:
            if not _could_use(self.me, node) or not _holds(self.me, node):
                continue
            if not node.ready:
                found.append(f"node {node.name} is not Ready")
            elif node.unschedulable:
                found.append(f"node {node.name} is cordoned")
            elif trouble := self.volumes.refusal(node):
                found.append(f"node {node.name}: {trouble}")
            else:
                taints = [str(one) for one in node.taints if one.key.startswith(TRANSIENT_TAINTS)]
                found.append(f"node {node.name} has the taint {', '.join(taints)}")
        return tuple(found)

    def _missing(self) -> tuple[Missing, ...]:
        used, types = self.seen.used, self.base.gpu_types
        short = [shortages(self.me, node, used[node.name]) for node in self.usable]
        every = set.intersection(*(set(one) for one in short)) if short else set()
        some = {name for one in short for name in one}
        if not short:
            every = {name for name in self.me.requests if is_extended(name)} or set(self.me.requests) - {"pods"}
        found = []
        for name in sorted(every or some, key=lambda one: (not is_gpu(one), one)):
            free = {node.name: _free(node, used[node.name], name) for node in self.usable}
            best = min(free, key=lambda node: (-free[node], node), default="")
            found.append(
                Missing(
                    resource=name,
                    gpu_types=types if is_gpu(name) else (),
                    asks=self.me.requests[name],
                    most_free=free.get(best, 0),
                    most_free_node=best,
                    free_in_total=sum(free.values()),
                )
            )
        return tuple(found)

    def _held_by(self, missing: Sequence[Missing]) -> tuple[HeldBy, ...]:
        """Holders of what is missing on nodes that the pod may use, those that end first first."""
        names = {node.name for node in self.usable}
        wanted = [one.resource for one in missing]
        return _sorted_holders(
            self._hold_of(other, resource)
            for other in self.others
            if other.holder is not None and other.pod.node in names
            for resource in wanted
            if other.pod.requests.get(resource, 0)
        )

    def _hold_of(self, other: Seen, resource: str) -> HeldBy:
        assert other.holder is not None
        usual = None if is_reservation(other.pod) else self.seen.usual(other, self.now)
        told = usual is not None and usual.total is not None
        labels = other.pod.labels
        return HeldBy(
            holder=other.holder,
            node=other.pod.node,
            resource=resource,
            amount=other.pod.requests.get(resource, 0),
            sure="limit" if other.holder.expected_until else "usual" if told else "unknown",
            usual=usual,
            reserved_for=f"{labels.get(MACHINE_GROUP_LABEL, '')}/{labels.get(MACHINE_TYPE_LABEL, '')}"
            if is_reservation(other.pod)
            else "",
        )

    # -- the line, and the future

    def _line(self, missing: Sequence[Missing]) -> list[Seen]:
        """Pods that the scheduler tries before this one and that want the same thing on some node both may use."""
        me = self.me
        wanted = {one.resource for one in missing} or {name for name in me.requests if is_extended(name)}
        wanted = wanted or {name for name in me.requests if name != "pods"}
        mine = {node.name for node in self.usable}
        ahead = []
        for other in self.others:
            pod = other.pod
            if other.holder is not None or pod.node or pod.finished or pod.deleting or pod.gates:
                continue
            if not wanted & set(pod.requests) or turn(pod) >= turn(me) or is_reservation(pod):
                continue
            if "persistentvolumeclaim" in _told(other.obj).lower():
                continue  # its volumes keep it from every node
            if any(node.name in mine for node in self.seen.usable(pod)):
                ahead.append(other)
        return sorted(ahead, key=lambda one: turn(one.pod))

    def _play(
        self, line: Sequence[Seen], *, usual: bool
    ) -> tuple[Earliest | None, Mapping[str, Mapping[str, int]]]:
        """Play the future forward: at each expected end the line is tried again, in its order.

        Holders past their expected end are taken to end now; those without one never do. None: not foreseeable.
        With `usual` an end is what past runs foretell, where that is before the limit or there is none.
        Given back too: what is used on each node once those ahead that fit now have started.
        """
        seen, now = self.seen, self.now
        mine = Seen(self.me, self.obj, None)
        queue = [*line[:QUEUE_LIMIT], mine]
        # pods of one number are alike to the scheduler: when one finds no room, the others need not be tried
        numbers: dict[object, int] = {}
        keys = [0] * len(queue)
        allowed = [{node.name: node for node in self.usable}]
        for place, one in enumerate(line[:QUEUE_LIMIT]):
            key = (_placing(one.pod), tuple(sorted(one.pod.requests.items())))
            if key not in numbers:
                numbers[key] = len(allowed)
                allowed.append({node.name: node for node in seen.usable(one.pod)})
            keys[place] = numbers[key]
        left: dict[str, dict[str, int]] = {}
        ticket = count()
        ends: list[tuple[datetime, int, str, Seen, Usual | None]] = []
        for other in self.others:
            if other.holder is None or other.pod.node not in allowed[0] or is_reservation(other.pod):
                continue
            end, by = self._end_of(other, usual=usual)
            if end is not None:
                ends.append((max(now, end), next(ticket), other.pod.node, other, by))
        heapq.heapify(ends)
        at, last = now, None
        freed: Sequence[str] = tuple(allowed[0])
        first: Mapping[str, Mapping[str, int]] | None = None
        while True:
            refused: set[int] = set()
            done: Earliest | None = None
            waiting = len(set(keys))
            started = []
            for place, (one, kind) in enumerate(zip(queue, keys, strict=True)):
                if kind in refused:
                    continue
                there = allowed[kind]
                node = next(
                    (
                        name
                        for name in freed
                        if name in there and not shortages(one.pod, there[name], left.get(name) or seen.used[name])
                    ),
                    None,
                )
                if node is None:
                    refused.add(kind)
                    if len(refused) == waiting:
                        break
                elif one is mine:
                    after, by = last or (None, None)
                    done = Earliest(at=at, node=node, after=after.holder if after else None, usual=by)
                    break
                else:
                    started.append(place)
                    _hold(left.setdefault(node, dict(seen.used[node])), one.pod, 1)
                    if span := self._span_of(one, usual=usual):
                        heapq.heappush(ends, (at + span, next(ticket), node, one, None))
            for place in reversed(started):
                del queue[place], keys[place]
            if first is None:
                first = {**seen.used, **{name: dict(used) for name, used in left.items()}}
            if done is not None or not ends:
                return done, first
            at, gone = ends[0][0], set()
            while ends and ends[0][0] == at:
                _, _, where, ended, by = heapq.heappop(ends)
                _hold(left.setdefault(where, dict(seen.used[where])), ended.pod, -1)
                gone.add(where)
                last = (ended, by)
            freed = sorted(gone)

    def _end_of(self, other: Seen, *, usual: bool) -> tuple[datetime | None, Usual | None]:
        """When a holder is expected to end, and the past that says so (None: its limit does)."""
        holder = other.holder
        assert holder is not None
        limit = holder.expected_until
        if usual:
            known = self.seen.usual(other, self.now)
            told = _usual_end(holder, known)
            if told is not None and (limit is None or told < limit):
                return told, known
        return limit, None

    def _span_of(self, waiter: Seen, *, usual: bool) -> timedelta | None:
        limit = _expected_span(waiter.pod)
        if usual:
            known = self.seen.usual(waiter, self.now)
            if known is not None and known.total is not None:
                return min(limit, known.total) if limit else known.total
        return limit

    def _landing(self) -> str:
        """The fullest node that fits, as packing chooses it: (requested + used) / total of its GPUs."""
        me = self.me

        def fullness(node: NodeInfo) -> tuple[float, str]:
            held = sum(value for name, value in self.left[node.name].items() if is_gpu(name))
            if not me.gpus:
                return float(node.gpus), node.name  # those without GPUs first
            return -(held + me.gpus) / max(1, node.gpus), node.name

        fitting = [node for node in self.usable if self._takes(me, node)]
        return min(fitting, key=fullness).name if fitting else ""

    def _takes(self, pod: PodInfo, node: NodeInfo) -> bool:
        """Whether the node would take the pod now, after those ahead of it."""
        if self.volumes.refusal(node) is not None:
            return False
        return not refusals(pod, node, self.seen.on_node[node.name], self.left[node.name])

    # -- guests of machines

    def _machine(self) -> tuple[MachineLine, tuple[Seen, ...], Pool | None, Obj | None] | None:
        """The machine type that the pod waits for behind our gate, and all its guests; None: it does not."""
        labels = self.me.labels
        group, kind = labels.get(MACHINE_GROUP_LABEL, ""), labels.get(MACHINE_TYPE_LABEL, "")
        if MACHINE_GATE not in self.me.gates or not group or not kind:
            return None
        guests = tuple(
            one
            for one in self.others
            if one.pod.labels.get(MACHINE_GROUP_LABEL) == group
            and one.pod.labels.get(MACHINE_TYPE_LABEL) == kind
            and not one.pod.finished
            and not is_reservation(one.pod)
        )
        used = sum(bool(one.pod.node or one.pod.annotations.get(PLACE_ANNOTATION)) for one in guests)
        pool, machine = None, None
        for one in self.seen.machines:
            try:
                parsed = parse_machine(one)
            except (QuantityError, KeyError, TypeError, ValueError):
                continue  # its Ready condition says what is wrong with it
            if parsed.group == group and kind in parsed.types:
                pool, machine = parsed, one
        if pool is None:
            known = not self.seen.machines  # none could be read: that it is absent is not said
            return (
                MachineLine(group=group, type=kind, order="", available=0, used=used, known=known),
                guests,
                None,
                None,
            )
        until, why = waits_of(self.me.annotations.get(WAITS_ANNOTATION, "")) or (None, "")
        line = MachineLine(
            group=group,
            type=kind,
            order=pool.order,
            available=pool.types[kind].available,
            used=used,
            waits_for=why,
            waits_until=until,
        )
        return line, guests, pool, machine

    def _as_guest(
        self,
        found: Explanation,
        machine: MachineLine,
        guests: Sequence[Seen],
        pool: Pool | None,
        obj: Obj | None,
    ) -> Explanation:
        """A guest waits for a place of its machine type, in the order of the pool."""
        mine = Seen(self.me, self.obj, None)
        waiting = [one for one in guests if MACHINE_GATE in one.pod.gates and not one.pod.deleting]
        ahead = _ahead(mine, waiting, pool, obj, self.now)
        placed = [one for one in guests if one.holder is not None]
        resource = next((name for name in self.me.requests if is_gpu(name)), "")
        earliest = likely = None
        if machine.waits_until is not None:
            earliest = Earliest(at=max(self.now, machine.waits_until), node="")
        elif pool is not None and not found.troubles:
            earliest = self._turn_comes(machine, placed, ahead, usual=False)
            likely = self._turn_comes(machine, placed, ahead, usual=True) if self.seen.history.took else None
            if likely is not None and earliest is not None and likely.at >= earliest.at:
                likely = None
        return replace(
            found,
            state="gated",
            machine=machine,
            line=tuple(_waiter(one.pod) for one in ahead),
            held_by=() if self.brief else _sorted_holders(self._hold_of(one, resource) for one in placed),
            earliest=earliest,
            likely=likely,
            smaller=(),
        )

    def _turn_comes(
        self, machine: MachineLine, placed: Sequence[Seen], ahead: Sequence[Seen], *, usual: bool
    ) -> Earliest | None:
        """When a place is this guest's: each end gives one to the next in line."""
        ticket = count()
        free = max(0, machine.available - machine.used)
        ends: list[tuple[datetime, int, Holder | None, Usual | None]] = [
            (self.now, next(ticket), None, None) for _ in range(free)
        ]
        for one in placed:
            end, by = self._end_of(one, usual=usual)
            if end is not None:
                ends.append((max(self.now, end), next(ticket), one.holder, by))
        heapq.heapify(ends)
        for one in ahead:
            if not ends:
                return None
            at, _, _, _ = heapq.heappop(ends)
            if span := self._span_of(one, usual=usual):
                heapq.heappush(ends, (at + span, next(ticket), None, None))
        if not ends:
            return None
        at, _, after, by = ends[0]
        return Earliest(at=at, node="", after=after, usual=by)

    # -- lesser wishes

    def _smaller(self) -> tuple[Smaller, ...]:
        """Lesser or other wishes that would start now, the least change first; each was tried on its node."""
        if self.volumes.troubles or self.base.quota:
            return ()
        found = [one for one in (*self._fewer(), *self._other_type(), *self._less(), *self._anywhere()) if one]
        cheapest: dict[str, Smaller] = {}
        for one in sorted(found, key=lambda one: (one.cost, one.change)):
            cheapest.setdefault(one.change, one)
        return tuple(list(cheapest.values())[:SMALLER_SHOWN])

    def _first(self, pod: PodInfo) -> NodeInfo | None:
        return next((node for node in self.seen.nodes if self._takes(pod, node)), None)

    def _offer(self, pod: PodInfo, node: NodeInfo, cost: float, change: str, options: str) -> Smaller:
        kind = gpu_type(node.labels) if node.gpus else ""
        return Smaller(
            gpus=pod.gpus,
            gpu_types=wanted_types(pod),
            node=node.name,
            node_type=kind,
            change=change,
            options=options,
            cost=cost,
        )

    def _fewer(self) -> Iterable[Smaller]:
        """The most GPUs of the same kind that are fewer; with CPU and memory in proportion if need be."""
        me = self.me
        resource = next((name for name in me.requests if is_gpu(name)), None)
        if resource is None:
            return
        asked = me.requests[resource]
        for fewer in range(asked - 1, 0, -1):
            lost = 1 - fewer / asked
            smaller = {**me.requests, resource: fewer}
            if (node := self._first(pod := replace(me, requests=smaller))) is not None:
                yield self._offer(pod, node, lost, gpus_text(fewer), f"--gpus {fewer}")
                return
            for name in ("cpu", "memory"):
                if name in smaller:
                    smaller[name] = _rounded(name, smaller[name] * fewer // asked)
            if (node := self._first(pod := replace(me, requests=smaller))) is not None:
                given = {name: format_amount(name, smaller[name]) for name in ("cpu", "memory") if name in smaller}
                options = " ".join([f"--gpus {fewer}", *(f"--{name} {text}" for name, text in given.items())])
                change = ", ".join([gpus_text(fewer), *(f"{text} {name}" for name, text in given.items())])
                yield self._offer(pod, node, lost + 0.05, change, options)
                return

    def _other_type(self) -> Iterable[Smaller]:
        """As many GPUs of each other type; or as many of another GPU resource, such as a slice of one."""
        me = self.me
        if wanted_types(me):
            pod = _of_any_type(me)
            told = set()
            for node in self.seen.nodes:
                kind = gpu_type(node.labels) if node.gpus else ""
                if kind and kind not in told and kind not in wanted_types(me) and self._takes(pod, node):
                    told.add(kind)
                    change = f"{gpus_text(me.gpus)} of type {kind}"
                    yield self._offer(pod, node, TYPE_COST, change, f"--gpu-type {kind}")
        resource = next((name for name in me.requests if is_gpu(name)), None)
        if resource is None:
            return
        kinds = {
            name for node in self.seen.nodes for name, many in node.allocatable.items() if is_gpu(name) and many
        }
        for other in sorted(kinds - {resource}):
            requests = {name: value for name, value in me.requests.items() if name != resource}
            pod = replace(me, requests={**requests, other: me.requests[resource]})
            if (there := self._first(pod)) is not None:
                change = f"{me.requests[resource]} × {other}"
                yield self._offer(pod, there, TYPE_COST + 0.1, change, f"--gpu-resource {other}")

    def _less(self) -> Iterable[Smaller]:
        """Less CPU and memory on the node where the least is given up, and all else as asked."""
        me, best = self.me, None
        for node in self.usable:
            short = shortages(me, node, self.left[node.name])
            if not short or not set(short) <= {"cpu", "memory"}:
                continue
            given = {name: _rounded(name, free) for name, (_, free) in short.items()}
            if any(value < LEAST_KEPT * me.requests[name] or value <= 0 for name, value in given.items()):
                continue
            lost = max(1 - value / me.requests[name] for name, value in given.items())
            pod = replace(me, requests={**me.requests, **given})
            if (best is None or lost < best[0]) and self._takes(pod, node):
                best = (lost, pod, node, given)
        if best is not None:
            lost, pod, node, given = best
            texts = {name: format_amount(name, value) for name, value in sorted(given.items())}
            change = ", ".join(f"{text} {name}" for name, text in texts.items())
            options = " ".join(f"--{name} {text}" for name, text in texts.items())
            yield self._offer(pod, node, lost, change, options)

    def _anywhere(self) -> Iterable[Smaller]:
        """On another node than those the pod's own node selector names, its GPU type kept."""
        me = self.me
        named = [one for one in me.node_selector if not _names_type(one)]
        if not named:
            return
        pod = replace(me, node_selector=tuple(one for one in me.node_selector if _names_type(one)))
        if (node := self._first(pod)) is not None:
            left_out = ", ".join(f"{one.key}={','.join(one.values)}" for one in named)
            yield self._offer(pod, node, NODE_COST, f"no node selector {left_out}", "")


def _ahead(
    mine: Seen, waiting: Sequence[Seen], pool: Pool | None, machine: Obj | None, now: datetime
) -> list[Seen]:
    """Guests behind the gate that the pool lets through before this one."""
    by_age = sorted((*waiting, mine), key=lambda one: (_created(one.obj), one.pod.namespace, one.pod.name))
    order = [one.pod.uid for one in by_age]
    if pool is not None and machine is not None:
        status = machine.get("status") or {}
        shares = {
            one["owner"]: Share(used=int(one.get("used") or 0), holding=int(one.get("holding") or 0))
            for one in status.get("shares") or ()
        }
        guests = [
            Guest(
                namespace=one.pod.namespace,
                name=one.pod.name,
                uid=one.pod.uid,
                type=one.pod.labels.get(MACHINE_TYPE_LABEL, ""),
                owner=one.pod.labels.get(OWNER_LABEL, ""),
                created=_created(one.obj),
                gated=True,
            )
            for one in by_age
        ]
        at = status.get("sharesAt")
        decided = plan(
            MachineSeen(
                pool=pool,
                nodes={},
                reservations=(),
                guests=guests,
                now=now,
                shares=shares,
                shares_at=moment(at) if at else None,
            )
        )
        order = list(decided.line) or order
    place = {uid: at for at, uid in enumerate(order)}
    mine_at = place.get(mine.pod.uid, len(order))
    before = [one for one in waiting if place.get(one.pod.uid, len(order)) < mine_at]
    return sorted(before, key=lambda one: place[one.pod.uid])


def _created(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"].get("creationTimestamp") or "~")  # one not yet made comes last


def _sorted_holders(found: Iterable[HeldBy]) -> tuple[HeldBy, ...]:
    far = datetime.max

    def order(one: HeldBy) -> tuple[datetime, datetime, str, str, str]:
        ends = [end for end in (one.holder.expected_until, one.usual_until) if end is not None]
        return (
            min(ends).replace(tzinfo=None) if ends else far,
            (one.holder.since or far).replace(tzinfo=None),
            one.holder.namespace,
            one.holder.pod,
            one.resource,
        )

    return tuple(sorted(found, key=order))


def _usual_end(holder: Holder, usual: Usual | None) -> datetime | None:
    if usual is None or usual.total is None or holder.since is None:
        return None
    return holder.since + usual.total


def _placing(pod: PodInfo) -> object:
    """All of a pod that decides which nodes labels, taints and cordons let it use."""
    return pod.node_selector, pod.node_terms, pod.tolerations


def _may_use(me: PodInfo, node: NodeInfo) -> bool:
    """Labels, taints and cordon let the pod in."""
    return refusal_by_labels(me, node) is None and refusal_by_taints(me, node) is None


def _could_use(me: PodInfo, node: NodeInfo) -> bool:
    """As `_may_use`, once cordon and the node's passing troubles are over."""
    lasting = tuple(taint for taint in node.taints if not taint.key.startswith(TRANSIENT_TAINTS))
    return _may_use(me, replace(node, taints=lasting, unschedulable=False))


def _holds(me: PodInfo, node: NodeInfo) -> bool:
    """Whether the node is large enough, were it empty."""
    return not shortages(me, node, {})


def _free(node: NodeInfo, used: Mapping[str, int], resource: str) -> int:
    return max(0, node.allocatable.get(resource, 0) - used.get(resource, 0))


def turn(pod: PodInfo) -> tuple[int, float, str, str]:
    """The order of the scheduler's queue: priority, then age. A pod not yet made comes last of its priority."""
    created = pod.created.timestamp() if pod.created else float("inf")
    return -pod.priority, created, pod.namespace, pod.name


def _waiter(pod: PodInfo) -> Waiter:
    return Waiter(
        owner=owner_of(pod),
        run=pod.labels.get(RUN_LABEL, ""),
        namespace=pod.namespace,
        pod=pod.name,
        priority=pod.priority,
        created=pod.created,
        gpus=pod.gpus,
    )


def _hold(used: dict[str, int], pod: PodInfo, sign: int) -> None:
    for name, value in pod.requests.items():
        used[name] = used.get(name, 0) + sign * value


def _expected_span(pod: PodInfo) -> timedelta | None:
    said = pod.annotations.get(EXPECTED_SECONDS_ANNOTATION, "")
    return timedelta(seconds=int(said)) if said.isascii() and said.isdigit() and len(said) < 10 else None


def _rounded(resource: str, value: int) -> int:
    """Down to what a person would ask for: whole CPUs or tenths, GiB or MiB."""
    steps = (1000, 100) if resource == "cpu" else (2**30, 2**20)
    return next((value // step * step for step in steps if value >= step), 0)


def _of_any_type(me: PodInfo) -> PodInfo:
    terms = None
    if me.node_terms is not None:
        stripped = [
            replace(term, expressions=tuple(one for one in term.expressions if not _names_type(one)))
            for term in me.node_terms
        ]
        # a term left empty asked for nothing but a type: without it every node will do
        terms = None if any(not t.expressions and not t.fields for t in stripped) else tuple(stripped)
    return replace(
        me, node_selector=tuple(one for one in me.node_selector if not _names_type(one)), node_terms=terms
    )


def _never(me: PodInfo, base: Explanation, nodes: Sequence[NodeInfo]) -> tuple[Refusal, ...]:
    """What no patience can cure, as the cluster stands. Cordon and trouble of nodes pass, so they do not count."""
    who = f"{'run' if base.run else 'pod'} {base.namespace}/{base.run or base.name}"
    present: dict[str, int] = {}
    for node in nodes:
        if node.gpus:
            kind = gpu_type(node.labels)
            present[kind] = max(present.get(kind, 0), node.gpus)
    offered = ", ".join(f"{kind} (up to {most} on a node)" for kind, most in sorted(present.items()))
    if me.gpus and not present:
        return (
            Refusal(
                code="no_gpus",
                message=f"{who} asks for {gpus_text(me.gpus)}; no node of this cluster has any",
                hint="run it without `--gpus`, or ask the admin for a node with GPUs",
            ),
        )
    if base.gpu_types and me.gpus and not set(base.gpu_types) & set(present):
        return (
            Refusal(
                code="unknown_gpu_type",
                message=f"{who} asks for GPU type {' or '.join(base.gpu_types)}; no node has it",
                hint=f"choose one of: {offered}",
            ),
        )
    possible = [node for node in nodes if _could_use(me, node)]
    if not possible:
        return (_refused_everywhere(me, who, nodes),)
    found = []
    for name, asked in me.requests.items():
        if name == "pods" or asked <= 0:
            continue
        largest = min(possible, key=lambda node: (-node.allocatable.get(name, 0), node.name))
        most = largest.allocatable.get(name, 0)
        if asked > most:
            what = amount_text(name, asked)
            of_type = f" of type {' or '.join(base.gpu_types)}" if is_gpu(name) and base.gpu_types else ""
            if not most and is_extended(name):
                others = sorted({one for node in possible for one in node.allocatable if is_gpu(one)})
                found.append(
                    Refusal(
                        code="unknown_resource",
                        message=f"{who} asks for {what}; no node that it may use offers {name}",
                        hint=f"there are: {', '.join(others)}" if others else "`moor gpus` shows what there is",
                    )
                )
                continue
            found.append(
                Refusal(
                    code="more_than_any_node",
                    message=f"{who} asks for {what}{of_type}; the largest node has"
                    f" {format_amount(name, most)} ({largest.name})",
                    hint=f"ask for at most {format_amount(name, most)}"
                    + ("; `moor gpus` shows what each node has" if is_gpu(name) else ""),
                )
            )
    return tuple(found)


def _refused_everywhere(me: PodInfo, who: str, nodes: Sequence[NodeInfo]) -> Refusal:
    """Labels or lasting taints of every node refuse the pod. When only taints do, they are named."""
    taints: dict[str, int] = {}
    for node in nodes:
        if refusal_by_labels(me, node) is not None:
            continue
        for one in node.taints:
            lasting = one.effect in ("NoSchedule", "NoExecute") and not one.key.startswith(TRANSIENT_TAINTS)
            if lasting and not any(each.tolerates(one) for each in me.tolerations):
                taints[str(one)] = taints.get(str(one), 0) + 1
    if not nodes:
        return Refusal(code="no_node_accepts", message=f"{who}: the cluster has no nodes", hint="add a node first")
    if taints:
        named = ", ".join(f"{taint} ({many} node{'s' * (many > 1)})" for taint, many in sorted(taints.items()))
        return Refusal(
            code="no_node_accepts",
            message=f"{who} is kept off every node that would serve, by taints: {named}",
            hint="who may use those nodes is the admin's choice: ask to be let in by a toleration",
        )
    hint = "see the reason of each node; change `nodeSelector`, affinity or tolerations"
    return Refusal(code="no_node_accepts", message=f"{who} is refused by every node", hint=hint)


def _names_type(one: Requirement) -> bool:
    return one.key in GPU_TYPE_LABELS and one.operator == "In"


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    left, right = one["metadata"], other["metadata"]
    if left.get("uid") and right.get("uid"):
        return bool(left["uid"] == right["uid"])
    return bool(
        right.get("uid")
        and left.get("name") == right.get("name")
        and left.get("namespace") == right.get("namespace")
    )


def _quota(obj: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> str:
    """The newest sentence about an exceeded quota in the pod's conditions or its events."""
    for one in (obj.get("status") or {}).get("conditions") or ():
        if "exceeded quota" in str(one.get("message")):
            return str(one["message"])
    told = [one for one in events if "exceeded quota" in str(one.get("message"))]
    return _newest(told)


def _told(obj: Mapping[str, Any]) -> str:
    """What the scheduler said when it last tried the pod."""
    return str((condition(obj, "PodScheduled") or {}).get("message") or "")


def _not_made(obj: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> str:
    """Why there is no pod: the newest event of its Job that one could not be created, whatever the reason."""
    if obj["metadata"].get("uid"):
        return ""  # it is made
    return _newest([one for one in events if one.get("reason") == "FailedCreate"])


def _newest(events: list[Mapping[str, Any]]) -> str:
    events.sort(key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""))
    return str(events[-1].get("message") or "") if events else ""


def _starting(obj: Mapping[str, Any]) -> str:
    """Why a pod that has its place does not run yet; empty when it does."""
    status = obj.get("status") or {}
    every = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    waits = [((one.get("state") or {}).get("waiting") or {}).get("reason") for one in every]
    found = next((str(reason) for reason in waits if reason), "")
    return found or ("being started" if status.get("phase") == "Pending" else "")


def amount_text(resource: str, value: int) -> str:
    """An amount for people: "2 GPUs", "1 × nvidia.com/mig-1g.10gb", "4 cpu"."""
    if is_gpu(resource):
        return gpus_text(value) if resource.endswith("/gpu") else f"{value} × {resource}"
    return f"{format_amount(resource, value)} {resource}"


def gpus_text(many: int) -> str:
    return f"{many} GPU" if many == 1 else f"{many} GPUs"


def as_public(found: Explanation) -> Explanation:
    """The explanation with what everybody may know, and nothing else of it: whose it is, GPUs, where and when.

    Taken out: amounts of CPU and memory, names of volumes, what its labels, taints and selectors are, the words of
    the scheduler, of quotas and of admission.
    """
    hidden = Trouble("", "a volume is not ready")
    codes = {
        "no_gpus": "no node of this cluster has GPUs",
        "unknown_gpu_type": f"no node has GPU type {' or '.join(found.gpu_types)}",
        "more_than_any_node": "it asks for more than any node has",
    }
    return replace(
        found,
        public=True,
        asks={name: value for name, value in found.asks.items() if is_gpu(name)},
        missing=tuple(one for one in found.missing if is_gpu(one.resource)),
        held_by=tuple(one for one in found.held_by if is_gpu(one.resource)),
        verdicts=tuple(
            replace(one, reasons=_public_reasons(one, found.gpus) if one.reasons else ()) for one in found.verdicts
        ),
        obstacles=tuple(one for one in found.obstacles if one.endswith((" is cordoned", " is not Ready"))),
        missing_claims=(),
        troubles=(hidden,) if found.troubles else (),
        quota="its namespace's quota is used up" if found.quota else "",
        not_made="its pod could not be created" if found.not_made else "",
        scheduler_says="",
        gates=tuple(one if one == MACHINE_GATE else "of another part" for one in found.gates),
        killed="",
        smaller=(),
        starting="being started" if found.starting else "",
        refusals=tuple(
            Refusal(code=one.code, message=codes.get(one.code, "no node accepts it as it is"), hint="")
            for one in found.refusals
        ),
    )


def _public_reasons(one: Verdict, gpus: int) -> tuple[str, ...]:
    open_to_all = [text for text in one.reasons if text in ("it is not Ready", "it is cordoned (unschedulable)")]
    if open_to_all:
        return tuple(open_to_all)
    return ("too few GPUs free",) if gpus and one.gpus_free < gpus else ("it does not suit",)
