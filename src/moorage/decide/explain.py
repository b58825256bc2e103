"""Why a pod waits: what is missing, who holds it, when it could start, and what would start now.

Pure: nodes, pods, claims and events in, one `Explanation` out; `explain_text` makes it prose. The rules of
placement are those of `apimachinery.scheduling`, read one node at a time. Pod (anti-)affinity and where a
volume may be attached are not judged here: the scheduler's own sentence is passed on for them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Literal

from moorage.apimachinery.meta import condition
from moorage.apimachinery.moments import format_duration, rfc3339
from moorage.apimachinery.quantity import format_amount
from moorage.apimachinery.resources import Obj
from moorage.apimachinery.scheduling import (
    NodeInfo,
    PodInfo,
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
from moorage.decide.gpus import Holder, gpu_type, holder_json, holder_of, owner_of
from moorage.model.names import EXPECTED_SECONDS_ANNOTATION, GPU_TYPE_LABELS, RUN_LABEL

QUEUE_LIMIT = 200  # pods ahead that are played through when the start is foretold; more is no forecast
TRANSIENT_TAINTS = ("node.kubernetes.io/",)  # set by the node controller: they pass with the node's trouble

State = Literal["fits", "waiting", "gated", "never", "running", "finished"]
Sure = Literal["limit", "unknown"]


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
    """Who holds what is missing. `sure`: the end is a limit that is enforced, or nobody knows."""

    holder: Holder
    node: str
    resource: str
    amount: int
    sure: Sure


@dataclass(frozen=True, slots=True, kw_only=True)
class Earliest:
    """The forecast: when, and where."""

    at: datetime
    node: str


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
    """A lesser wish that would start now."""

    gpus: int
    gpu_types: tuple[str, ...]  # the wish; empty: any type
    node: str
    node_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why the pod can never run on this cluster as it is."""

    code: str
    message: str
    hint: str


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
    held_by: tuple[HeldBy, ...] = ()
    earliest: Earliest | None = None
    line: tuple[Waiter, ...] = ()  # those ahead, first first
    gates: tuple[str, ...] = ()
    missing_claims: tuple[str, ...] = ()
    quota: str = ""  # the API server's own sentence
    scheduler_says: str = ""
    smaller: tuple[Smaller, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    @property
    def position(self) -> int:
        """1: next in line."""
        return len(self.line) + 1

    @property
    def fits(self) -> bool:
        """Some node would take it now."""
        return any(one.fits for one in self.verdicts)


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


def snapshot(nodes: Iterable[Obj], pods: Iterable[Obj]) -> Snapshot:
    """Parse all nodes and all pods of a cluster."""
    infos = sorted((parse_node(obj) for obj in nodes), key=lambda node: node.name)
    read = tuple(_see(obj) for obj in pods)
    on_node: dict[str, list[PodInfo]] = {node.name: [] for node in infos}
    for one in read:
        if one.holder is not None and one.pod.node in on_node:
            on_node[one.pod.node].append(one.pod)
    return Snapshot(tuple(infos), read, on_node, {name: used_on(there) for name, there in on_node.items()})


def _see(obj: Obj) -> Seen:
    pod = parse_pod(obj)
    return Seen(pod, obj, holder_of(obj, pod) if pod.node and not pod.finished else None)


def explain(
    pod: Obj,
    *,
    nodes: Iterable[Obj],
    pods: Iterable[Obj],
    now: datetime,
    claims: Iterable[Obj] | None = None,
    events: Iterable[Obj] = (),
) -> Explanation:
    """Explain a pod, stored or hypothetical.

    `pods` are all pods of the cluster (the pod itself may be among them), `claims` the PersistentVolumeClaims
    of its namespace (None: not known, so none is called missing), `events` those of the pod and of its Job.
    """
    return explain_in(snapshot(nodes, pods), pod, now=now, claims=claims, events=events)


def explain_in(
    seen: Snapshot,
    pod: Obj,
    *,
    now: datetime,
    claims: Iterable[Obj] | None = None,
    events: Iterable[Obj] = (),
    brief: bool = False,
) -> Explanation:
    """As `explain`, on a snapshot that may serve many pods. `brief` leaves `held_by` and `smaller` empty."""
    me = parse_pod(pod)
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
    if me.finished or me.node:
        return base
    return _explain_waiting(me, pod, base, seen, claims, events, brief=brief)


def _explain_waiting(
    me: PodInfo,
    obj: Obj,
    base: Explanation,
    seen: Snapshot,
    claims: Iterable[Obj] | None,
    events: Iterable[Obj],
    *,
    brief: bool,
) -> Explanation:
    nodes, used = seen.nodes, seen.used
    others = [one for one in seen.pods if not _same(one.obj, obj)]
    verdicts = tuple(_verdict(me, node, seen.on_node[node.name], used[node.name]) for node in nodes)
    usable = [node for node in nodes if node.ready and _may_use(me, node)]
    missing = () if any(one.fits for one in verdicts) else _missing(me, usable, used, base.gpu_types)
    line = _line(me, others, usable, missing)
    never = _never(me, base, nodes)
    known_claims = None if claims is None else {claim["metadata"]["name"] for claim in claims}
    found = replace(
        base,
        verdicts=verdicts,
        missing=missing,
        held_by=() if brief else _held_by(others, usable, missing),
        line=tuple(_waiter(other) for other in line),
        gates=me.gates,
        missing_claims=() if known_claims is None else tuple(c for c in me.claims if c not in known_claims),
        quota=_quota(obj, events),
        scheduler_says=str((condition(obj, "PodScheduled") or {}).get("message") or ""),
        refusals=never,
    )
    if never:
        return replace(found, state="never")
    held = bool(found.missing_claims or found.quota)
    fits = found.fits and not held and not line
    return replace(
        found,
        state="gated" if me.gates else "fits" if fits else "waiting",
        node=_landing(me, verdicts, nodes, used) if fits else "",
        earliest=None if held else _earliest(me, base.now, usable, others, line, used),
        smaller=() if found.fits or brief else _smaller(me, nodes, seen.on_node, used),
    )


def _verdict(me: PodInfo, node: NodeInfo, on_node: Sequence[PodInfo], used: Mapping[str, int]) -> Verdict:
    held = sum(value for name, value in used.items() if is_gpu(name))
    return Verdict(
        node=node.name,
        gpu_type=gpu_type(node.labels) if node.gpus else "",
        gpus=node.gpus,
        gpus_free=max(0, node.gpus - held) if node.ready and not node.unschedulable else 0,
        reasons=tuple(refusals(me, node, on_node, used)),
    )


def _may_use(me: PodInfo, node: NodeInfo) -> bool:
    """Labels, taints and cordon let the pod in."""
    return refusal_by_labels(me, node) is None and refusal_by_taints(me, node) is None


def _could_use(me: PodInfo, node: NodeInfo) -> bool:
    """As `_may_use`, once cordon and the node's passing troubles are over."""
    lasting = tuple(taint for taint in node.taints if not taint.key.startswith(TRANSIENT_TAINTS))
    return _may_use(me, replace(node, taints=lasting, unschedulable=False))


def _missing(
    me: PodInfo, usable: Sequence[NodeInfo], used: Mapping[str, Mapping[str, int]], types: tuple[str, ...]
) -> tuple[Missing, ...]:
    short = [shortages(me, node, used[node.name]) for node in usable]
    every = set.intersection(*(set(one) for one in short)) if short else set()
    some = {name for one in short for name in one}
    if not short:
        every = {name for name in me.requests if is_extended(name)} or set(me.requests) - {"pods"}
    found = []
    for name in sorted(every or some, key=lambda one: (not is_gpu(one), one)):
        free = {node.name: _free(node, used[node.name], name) for node in usable}
        best = min(free, key=lambda node: (-free[node], node), default="")
        found.append(
            Missing(
                resource=name,
                gpu_types=types if is_gpu(name) else (),
                asks=me.requests[name],
                most_free=free.get(best, 0),
                most_free_node=best,
                free_in_total=sum(free.values()),
            )
        )
    return tuple(found)


def _free(node: NodeInfo, used: Mapping[str, int], resource: str) -> int:
    return max(0, node.allocatable.get(resource, 0) - used.get(resource, 0))


def _held_by(others: Sequence[Seen], usable: Sequence[NodeInfo], missing: Sequence[Missing]) -> tuple[HeldBy, ...]:
    """Holders of what is missing on nodes that the pod may use, those that end first first."""
    names = {node.name for node in usable}
    far = datetime.max
    found = []
    for other in others:
        holder, node = other.holder, other.pod.node
        if holder is None or node not in names:
            continue
        for one in missing:
            if held := other.pod.requests.get(one.resource, 0):
                sure: Sure = "limit" if holder.expected_until else "unknown"
                found.append(HeldBy(holder=holder, node=node, resource=one.resource, amount=held, sure=sure))
    return tuple(
        sorted(
            found,
            key=lambda one: (
                (one.holder.expected_until or far).replace(tzinfo=None),
                (one.holder.since or far).replace(tzinfo=None),
                one.holder.namespace,
                one.holder.pod,
                one.resource,
            ),
        )
    )


def _line(
    me: PodInfo, others: Sequence[Seen], usable: Sequence[NodeInfo], missing: Sequence[Missing]
) -> list[PodInfo]:
    """Pods that the scheduler tries before this one and that want the same thing on some node both may use."""
    wanted = {one.resource for one in missing} or {name for name in me.requests if is_extended(name)}
    wanted = wanted or {name for name in me.requests if name != "pods"}
    ahead = []
    for other in (one.pod for one in others if one.holder is None):
        if other.node or other.finished or other.deleting or other.gates or not wanted & set(other.requests):
            continue
        if turn(other) < turn(me) and any(_may_use(other, node) for node in usable):
            ahead.append(other)
    return sorted(ahead, key=turn)


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


def _earliest(
    me: PodInfo,
    now: datetime,
    usable: Sequence[NodeInfo],
    others: Sequence[Seen],
    line: Sequence[PodInfo],
    used: Mapping[str, Mapping[str, int]],
) -> Earliest | None:
    """Play the future forward: at each expected end the line is tried again, in its order.

    Holders past their expected end are taken to end now; those without one never do. None: not foreseeable.
    """
    names = {node.name for node in usable}
    left = {name: dict(used[name]) for name in names}
    ticket = count()
    ends: list[tuple[datetime, int, str, PodInfo]] = []
    for other in others:
        if other.holder is not None and other.pod.node in names and other.holder.expected_until is not None:
            end = max(now, other.holder.expected_until)
            heapq.heappush(ends, (end, next(ticket), other.pod.node, other.pod))
    queue = [*line[:QUEUE_LIMIT], me]
    allowed = {id(one): [node for node in usable if _may_use(one, node)] for one in queue}
    at, freed = now, names
    while True:
        for one in list(queue):
            node = next(
                (n for n in allowed[id(one)] if n.name in freed and not shortages(one, n, left[n.name])), None
            )
            if node is None:
                continue
            if one is me:
                return Earliest(at=at, node=node.name)
            queue.remove(one)
            _hold(left[node.name], one, 1)
            if span := _expected_span(one):
                heapq.heappush(ends, (at + span, next(ticket), node.name, one))
        if not ends:
            return None
        at, freed = ends[0][0], set()
        while ends and ends[0][0] == at:
            _, _, where, ended = heapq.heappop(ends)
            _hold(left[where], ended, -1)
            freed.add(where)


def _hold(used: dict[str, int], pod: PodInfo, sign: int) -> None:
    for name, value in pod.requests.items():
        used[name] = used.get(name, 0) + sign * value


def _expected_span(pod: PodInfo) -> timedelta | None:
    said = pod.annotations.get(EXPECTED_SECONDS_ANNOTATION, "")
    return timedelta(seconds=int(said)) if said.isascii() and said.isdigit() and len(said) < 10 else None


def _landing(
    me: PodInfo, verdicts: Sequence[Verdict], nodes: Sequence[NodeInfo], used: Mapping[str, Mapping[str, int]]
) -> str:
    """The fullest node that fits, as packing chooses it: (requested + used) / total of its GPUs."""
    fitting = {one.node for one in verdicts if one.fits}

    def fullness(node: NodeInfo) -> tuple[float, str]:
        held = sum(value for name, value in used[node.name].items() if is_gpu(name))
        if not me.gpus:
            return float(node.gpus), node.name  # those without GPUs first
        return -(held + me.gpus) / max(1, node.gpus), node.name

    return min((node for node in nodes if node.name in fitting), key=fullness).name


def _smaller(
    me: PodInfo,
    nodes: Sequence[NodeInfo],
    on_node: Mapping[str, Sequence[PodInfo]],
    used: Mapping[str, Mapping[str, int]],
) -> tuple[Smaller, ...]:
    """The largest lesser wish that fits now: fewer GPUs of the same type; as many of another type."""
    found = []
    resource = next((name for name in me.requests if is_gpu(name)), None)
    if resource is None:
        return ()

    def first(pod: PodInfo) -> NodeInfo | None:
        return next((n for n in nodes if not refusals(pod, n, on_node[n.name], used[n.name])), None)

    for fewer in range(me.requests[resource] - 1, 0, -1):
        node = first(replace(me, requests={**me.requests, resource: fewer}))
        if node is not None:
            found.append(
                Smaller(gpus=fewer, gpu_types=wanted_types(me), node=node.name, node_type=gpu_type(node.labels))
            )
            break
    if wanted_types(me):
        node = first(_of_any_type(me))
        if node is not None:
            found.append(Smaller(gpus=me.gpus, gpu_types=(), node=node.name, node_type=gpu_type(node.labels)))
    return tuple(found)


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
                message=f"{who} asks for {_gpus(me.gpus)}; no node of this cluster has any",
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
        hint = "see the reason of each node; change `nodeSelector`, affinity or tolerations"
        return (Refusal(code="no_node_accepts", message=f"{who} is refused by every node", hint=hint),)
    found = []
    for name, asked in me.requests.items():
        if name == "pods" or asked <= 0:
            continue
        largest = min(possible, key=lambda node: (-node.allocatable.get(name, 0), node.name))
        most = largest.allocatable.get(name, 0)
        if asked > most:
            what = _amount(name, asked)
            of_type = f" of type {' or '.join(base.gpu_types)}" if is_gpu(name) and base.gpu_types else ""
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
    told.sort(key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""))
    return str(told[-1]["message"]) if told else ""


# -- as JSON ---------------------------------------------------------------------------------------------


def to_json(found: Explanation) -> Obj:
    """The body of `GET /api/v1/explain/{namespace}/{name}`. Amounts are Kubernetes quantities."""
    return {
        "namespace": found.namespace,
        "name": found.name,
        "run": found.run,
        "owner": found.owner,
        "state": found.state,
        "now": rfc3339(found.now),
        "asks": {name: format_amount(name, value) for name, value in found.asks.items()},
        "gpus": found.gpus,
        "gpuTypes": list(found.gpu_types),
        "node": found.node,
        "nodes": [
            {
                "name": one.node,
                "gpuType": one.gpu_type,
                "gpus": one.gpus,
                "gpusFree": one.gpus_free,
                "fits": one.fits,
                "reasons": list(one.reasons),
            }
            for one in found.verdicts
        ],
        "missing": [
            {
                "resource": one.resource,
                "gpuTypes": list(one.gpu_types),
                "asks": format_amount(one.resource, one.asks),
                "mostFree": format_amount(one.resource, one.most_free),
                "mostFreeNode": one.most_free_node,
                "freeInTotal": format_amount(one.resource, one.free_in_total),
            }
            for one in found.missing
        ],
        "heldBy": [
            holder_json(one.holder)
            | {
                "node": one.node,
                "resource": one.resource,
                "amount": format_amount(one.resource, one.amount),
                "sure": one.sure,
            }
            for one in found.held_by
        ],
        "earliest": {"at": rfc3339(found.earliest.at), "node": found.earliest.node} if found.earliest else None,
        "position": found.position,
        "line": [
            {
                "owner": one.owner,
                "run": one.run,
                "namespace": one.namespace,
                "pod": one.pod,
                "priority": one.priority,
                "created": rfc3339(one.created) if one.created else None,
                "gpus": one.gpus,
            }
            for one in found.line
        ],
        "gates": list(found.gates),
        "missingClaims": list(found.missing_claims),
        "quota": found.quota,
        "schedulerSays": found.scheduler_says,
        "smaller": [
            {
                "gpus": one.gpus,
                "gpuTypes": list(one.gpu_types),
                "node": one.node,
                "nodeType": one.node_type,
            }
            for one in found.smaller
        ],
        "refusals": [{"code": one.code, "message": one.message, "hint": one.hint} for one in found.refusals],
        "short": short_reason(found),
    }


# -- as prose --------------------------------------------------------------------------------------------


def short_reason(found: Explanation, *, typed: bool = True) -> str:
    """Why it waits, in one line without a full stop; empty when it runs or is over.

    Without `typed` the GPU type it asks for is left out, for a table that has it in a column of its own.
    """
    if found.state in ("running", "finished"):
        return ""
    if found.refusals:
        first = found.refusals[0]
        if first.code == "unknown_gpu_type":
            return f"no node has GPU type {' or '.join(found.gpu_types)}"
        return first.message.partition(" asks for ")[2] or first.message
    if found.quota:
        return "quota exceeded"
    if found.missing_claims:
        return f"volume {found.missing_claims[0]} does not exist"
    if found.gates:
        return f"held by gate {found.gates[0]}"
    if found.missing:
        return _short_of(found.missing[0], typed=typed)
    if found.line:
        return f"{len(found.line)} ahead in line"
    if found.fits:
        return "about to start"
    return found.scheduler_says or "every node refuses it"


def _short_of(one: Missing, *, typed: bool) -> str:
    needs = f"needs {_of_type(one) if typed else _amount(one.resource, one.asks)}"
    if not one.most_free_node:
        return f"{needs}; no node that it may use is ready"
    most, total = format_amount(one.resource, one.most_free), format_amount(one.resource, one.free_in_total)
    if not one.free_in_total:
        return f"{needs}; none is free"
    return f"{needs}; one node has at most {most} free" + (f" ({total} in all)" if total != most else "")


def explain_text(found: Explanation) -> str:
    """The explanation for people: the answer first, then each reason. No full stop after single sentences."""
    who = f"{'run' if found.run else 'pod'} {found.namespace}/{found.run or found.name}"
    lines = [_headline(found, who)]
    for one in found.refusals:
        lines += [f"error: {one.message}", f"hint: {one.hint}"]
    if found.quota:
        lines += [f"quota: {found.quota}"]
    for claim in found.missing_claims:
        lines += [f"volume {found.namespace}/{claim} does not exist; `moor volume create {claim}` makes it"]
    if found.gates:
        lines += [
            f"it is held back by scheduling gate{'s' if len(found.gates) > 1 else ''} {', '.join(found.gates)}"
        ]
    if found.state in ("running", "finished"):
        return "\n".join(lines)
    if found.missing:
        lines += ["", "What is missing"]
        lines += [f"  {_missing_text(one)}" for one in found.missing]
    if found.held_by:
        lines += ["", "Who holds it"]
        lines += _table([_held_row(one, found.now) for one in found.held_by])
    if found.line:
        lines += ["", f"In line: {len(found.line)} ahead of it"]
        lines += _table(
            [
                (one.owner, one.run or one.pod, _gpus(one.gpus), f"priority {one.priority}")
                for one in found.line[:10]
            ]
        )
        if len(found.line) > 10:
            lines += [f"  and {len(found.line) - 10} more"]
    if found.state != "never":
        lines += ["", _earliest_text(found)]
        for small in found.smaller:
            of_type = f" of type {small.node_type}" if not small.gpu_types else ""
            lines += [f"It would start now with {_gpus(small.gpus)}{of_type}, on {small.node}"]
    if found.verdicts:
        lines += ["", "Nodes"]
        lines += _table([(one.node, one.gpu_type, "; ".join(one.reasons) or "fits now") for one in found.verdicts])
    if found.scheduler_says and not found.fits:
        lines += ["", f"The scheduler says: {found.scheduler_says}"]
    return "\n".join(lines)


def _headline(found: Explanation, who: str) -> str:
    match found.state:
        case "running":
            return f"{who} has its place on {found.node}"
        case "finished":
            return f"{who} has ended" + (f" (on {found.node})" if found.node else "")
        case "fits":
            return f"{who} would start now, on {found.node}"
        case "never":
            return f"{who} cannot run on this cluster"
        case "gated":
            return f"{who} waits for its gate to be lifted"
        case "waiting":
            return f"{who} waits: {short_reason(found)}"


def _missing_text(one: Missing) -> str:
    if not one.most_free_node:
        return f"{_of_type(one)}: no node that the pod may use is ready"
    return (
        f"{_of_type(one)}: most free on one node {format_amount(one.resource, one.most_free)}"
        f" ({one.most_free_node}), in total {format_amount(one.resource, one.free_in_total)}"
    )


def _held_row(one: HeldBy, now: datetime) -> tuple[str, ...]:
    holder = one.holder
    since = f"since {_clock(holder.since)} ({format_duration(now - holder.since)})" if holder.since else "starting"
    if holder.expected_until is None:
        until = "end unknown"
    elif holder.expected_until <= now:
        until = "past its time limit"
    else:
        left = format_duration(holder.expected_until - now)
        until = f"until {_clock(holder.expected_until)} at the latest (in {left})"
    return (holder.owner, holder.run or holder.pod, _amount(one.resource, one.amount), one.node, since, until)


def _earliest_text(found: Explanation) -> str:
    if found.earliest is None:
        blocked = bool(found.quota or found.missing_claims)
        return (
            "It cannot start before that is mended"
            if blocked
            else "When it can start is not known: those who hold what it needs gave no `--time`"
            if found.held_by
            else "When it can start is not known"
        )
    after = "once the gate is lifted " if found.gates else ""
    if found.earliest.at <= found.now:
        return f"It could start {after}now, on {found.earliest.node}"
    span = format_duration(found.earliest.at - found.now)
    return (
        f"It could start {after}at {_clock(found.earliest.at)} (in {span})"
        f" on {found.earliest.node}, if all keep their time limits; earlier if somebody ends sooner"
    )


def _of_type(one: Missing) -> str:
    return _amount(one.resource, one.asks) + (f" of type {' or '.join(one.gpu_types)}" if one.gpu_types else "")


def _amount(resource: str, value: int) -> str:
    if is_gpu(resource):
        return _gpus(value) if resource.endswith("/gpu") else f"{value} × {resource}"
    return f"{format_amount(resource, value)} {resource}"


def _gpus(many: int) -> str:
    return f"{many} GPU" if many == 1 else f"{many} GPUs"


def _clock(moment: datetime) -> str:
    return moment.strftime("%d %b %H:%M UTC")


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows with two spaces before and between the columns; the last column is not padded."""
    if not rows:
        return []
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    return [
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]
