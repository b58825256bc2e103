"""Pods killed for their memory, and what becomes of those made in their place.

A pod that grows is killed, its owner makes it again, and the scheduler puts the new one on the next node, where it
grows with the same memory: a bomb that wanders. Whatever the owner (ReplicaSet, StatefulSet, Job, or a kind that
we do not know), the replacement is held by a scheduling gate instead, or gets more memory if the policy says so.

What counts as killed for memory is a pod that *failed* so: a container that ended as OOMKilled and is not started
again in place, or a pod evicted by its kubelet for memory while a container of it used more than its request. One
that is evicted below its requests is a victim, not a bomb; a container restarted in place does not wander.

Pods that stand for each other share a *slot*: all pods of a ReplicaSet or Job, one index of an indexed Job, one
ordinal of one revision of a StatefulSet, and of other owners the pods with the same containers. Each kill in a
slot holds at most one new pod, and only one with no more memory than was killed: another template passes at once.

`answer` is what the webhook does with a new pod; `plan` what the operator does about a kill. The webhook may have
seen too little (a kill that is milliseconds old) or too much (two replicas holding for one kill): the operator
corrects both, once per kill.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction
from math import ceil
from typing import Any, Literal

from moorage.apimachinery.documents import parse_json
from moorage.apimachinery.meta import annotations_of, controller_ref, is_deleting, labels_of
from moorage.apimachinery.moments import moment
from moorage.apimachinery.quantity import amount, format_bytes
from moorage.apimachinery.resources import Obj
from moorage.apimachinery.scheduling import has_gate
from moorage.errors import DocumentError, QuantityError
from moorage.model.names import (
    MEMORY_GATE,
    MEMORY_HELD_ANNOTATION,
    MEMORY_KILL_ANNOTATION,
    MEMORY_LABEL,
    MEMORY_RELEASE_ANNOTATION,
    RELEASED,
)
from moorage.model.policy import Policy

RULE = "restartBomb"
OOM_KILLED, EVICTED = "OOMKilled", "Evicted"
REMEMBERED = 10  # kills kept on an owner, the newest; more would only lengthen the annotation
REMEMBERED_GONE = 512  # killed pods that no longer exist, in each process
SLIP_SECONDS = 120  # a replacement that slipped past the webhook is stopped while it is younger than this
LOOK_SECONDS = 5  # how often an unanswered kill is looked at while a replacement may still slip past
MIB = 2**20

_REVISION_LABEL = "controller-revision-hash"  # on pods of StatefulSets and DaemonSets
_INDEX = "batch.kubernetes.io/job-completion-index"
_OVER = re.compile(r"Container (\S+) was using (\S+), request is (\S+), has larger consumption of memory")
_FOR_MEMORY = re.compile(r"low on resource: memory|had condition: \[?MemoryPressure")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A container that went over its memory. Bytes; None: not stated, or not known."""

    container: str
    limit: int | None = None
    request: int | None = None
    used: int | None = None  # as the kubelet measured it; a container killed at its limit used that much

    def __str__(self) -> str:
        known = (("used", self.used), ("request", self.request), ("limit", self.limit))
        said = ", ".join(f"{name} {format_bytes(value)}" for name, value in known if value is not None)
        return f"container {self.container} ({said or 'no memory stated'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One pod that was killed for its memory. `at`: RFC 3339; `by`: OOMKilled or Evicted."""

    pod: str
    uid: str
    slot: str
    at: str
    by: str
    node: str = ""
    hits: tuple[Hit, ...] = ()

    def __str__(self) -> str:
        how = "killed" if self.by == OOM_KILLED else "evicted"
        where = f" on node {self.node}" if self.node else ""
        return f"pod {self.pod} was {how} for memory{where}: {', '.join(map(str, self.hits))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalation:
    """More memory for the replacement: times `factor`, as often as it takes, up to `most` bytes."""

    factor: Fraction
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BombRule:
    """The rule `restartBomb` in one namespace. `allowed`: kills in a slot until a replacement is held."""

    level: str = "off"
    allowed: int = 1
    escalation: Escalation | None = None

    @property
    def holds(self) -> bool:
        return self.level in ("fill", "deny")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The controlling owner of a pod."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a slot when a new pod of it comes: kills not forgiven, and how many pods are held."""

    kills: tuple[Kill, ...] = ()
    held: int = 0


@dataclass(frozen=True, slots=True)
class Pass:
    """The pod goes as it is."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The pod waits behind the gate, for this kill."""

    kill: Kill


@dataclass(frozen=True, slots=True)
class Raise:
    """The pod gets more memory: by container name, bytes of (request, limit)."""

    kill: Kill
    memory: Mapping[str, tuple[int, int]]


Answer = Pass | Hold | Raise


# --- reading


def rule_of(policy: Policy | None) -> BombRule:
    """What a policy says of restart bombs; total: what its schema would refuse counts as not said."""
    if policy is None:
        return BombRule()
    settings = policy.rules.get(RULE) or {}
    allowed, factor = settings.get("allowed"), None
    escalation = settings.get("escalation")
    if isinstance(escalation, Mapping):
        try:
            factor, most = Fraction(str(escalation.get("factor", 2))), amount("memory", escalation["max"])
        except (ValueError, KeyError, TypeError, ZeroDivisionError, QuantityError):
            factor = None
    return BombRule(
        level=policy.level(RULE, "warn"),
        allowed=allowed if isinstance(allowed, int) and not isinstance(allowed, bool) and allowed >= 1 else 1,
        escalation=Escalation(factor=factor, most=most) if factor is not None and factor > 1 else None,
    )


def owner_of(pod: Mapping[str, Any]) -> Owner | None:
    """Whoever makes the pod again; None for bare pods, and for those that their node brought with it."""
    ref = controller_ref(pod)
    if ref is None or ref.get("kind") == "Node":
        return None
    return Owner(
        api_version=str(ref.get("apiVersion") or ""),
        kind=str(ref.get("kind") or ""),
        name=str(ref.get("name") or ""),
        uid=str(ref.get("uid") or ""),
    )


def slot_of(pod: Mapping[str, Any], owner: Owner) -> str:
    """Which pods of the owner stand for each other; see the module's docstring."""
    group = owner.api_version.rpartition("/")[0]
    labels = labels_of(pod)
    match (group, owner.kind):
        case ("apps", "ReplicaSet") | ("", "ReplicationController"):
            return ""
        case ("apps", "StatefulSet" | "DaemonSet"):
            return f"{pod['metadata'].get('name')}@{labels.get(_REVISION_LABEL, '')}"
        case ("batch", "Job"):
            return labels.get(_INDEX) or annotations_of(pod).get(_INDEX) or ""
    same = [
        [one.get(key) for key in ("name", "image", "command", "args")]
        for table in ("initContainers", "containers")
        for one in (pod.get("spec") or {}).get(table) or ()
    ]
    return hashlib.sha256(json.dumps(same).encode()).hexdigest()[:16]


def wanders(owner: Owner) -> bool:
    """Whether the owner's replacement goes to another node; a DaemonSet's stays on its own."""
    return owner.kind != "DaemonSet"


def kill_of(pod: Mapping[str, Any]) -> Kill | None:
    """How a failed pod was killed for its memory; None: it was not, or nobody would make it again."""
    status = pod.get("status") or {}
    owner = owner_of(pod)
    if status.get("phase") != "Failed" or owner is None:
        return None
    meta = pod["metadata"]
    evicted = status.get("reason") == EVICTED and _FOR_MEMORY.search(str(status.get("message") or ""))
    hits = tuple(_evicted(pod) if evicted else _out_of_memory(pod))
    if not hits:
        return None
    return Kill(
        pod=meta["name"],
        uid=meta.get("uid") or "",
        slot=slot_of(pod, owner),
        at=_ended_at(pod),
        by=EVICTED if evicted else OOM_KILLED,
        node=(pod.get("spec") or {}).get("nodeName") or "",
        hits=hits,
    )


def kill_to_json(kill: Kill) -> Obj:
    """As it is kept in an annotation."""
    hits = [
        {"container": one.container}
        | {
            key: value
            for key, value in (("limit", one.limit), ("request", one.request), ("used", one.used))
            if value is not None
        }
        for one in kill.hits
    ]
    return {
        "pod": kill.pod,
        "uid": kill.uid,
        "slot": kill.slot,
        "at": kill.at,
        "by": kill.by,
        "node": kill.node,
        "hits": hits,
    }


def kill_from_json(found: Any) -> Kill | None:
    """What `kill_to_json` wrote; None for anything else: annotations are anybody's to write."""
    if not isinstance(found, Mapping):
        return None
    texts = {key: found.get(key) for key in ("pod", "uid", "slot", "at", "by", "node")}
    if not all(isinstance(one, str) for one in texts.values()):
        return None
    hits = []
    for one in found.get("hits") or ():
        if not isinstance(one, Mapping) or not isinstance(one.get("container"), str):
            return None
        numbers = {key: one.get(key) for key in ("limit", "request", "used")}
        if any(isinstance(value, bool) or not isinstance(value, int | None) for value in numbers.values()):
            return None
        hits.append(Hit(container=one["container"], **numbers))
    return Kill(**texts, hits=tuple(hits))  # type: ignore[arg-type]  # all of them are text


def kill_held_for(pod: Mapping[str, Any]) -> Kill | None:
    """The kill that a pod of ours says it was held for."""
    return kill_from_json(_json(annotations_of(pod).get(MEMORY_KILL_ANNOTATION)))


def is_gated(pod: Mapping[str, Any]) -> bool:
    return has_gate(pod.get("spec") or {}, MEMORY_GATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What is written on an owner: kills, those forgiven by people, those for which a pod was stopped (uids)."""

    kills: tuple[Kill, ...] = ()
    forgiven: frozenset[str] = frozenset()
    stopped: frozenset[str] = frozenset()
    count: int = 0  # of all kills ever, also those no longer listed

    def to_text(self) -> str:
        return json.dumps(
            {
                "count": self.count,
                "kills": [kill_to_json(one) for one in self.kills],
                "forgiven": sorted(self.forgiven),
                "stopped": sorted(self.stopped),
            },
            separators=(",", ":"),
        )


def ledger_from(text: str | None) -> Ledger:
    """What `Ledger.to_text` wrote; what cannot be read is as if it were not there."""
    found = _json(text)
    if not isinstance(found, Mapping):
        return Ledger()
    listed = found.get("kills") if isinstance(found.get("kills"), list) else []
    kills = tuple(one for one in map(kill_from_json, listed or ()) if one is not None)
    count = found.get("count")
    return Ledger(
        kills=kills,
        forgiven=_texts(found.get("forgiven")),
        stopped=_texts(found.get("stopped")),
        count=count if isinstance(count, int) and not isinstance(count, bool) else len(kills),
    )


def known_of(
    pods: Iterable[Mapping[str, Any]], ledger: Ledger, owner_uid: str, slot: str | None = None
) -> tuple[dict[str, Kill], frozenset[str], list[Mapping[str, Any]]]:
    """From an owner's failed and marked pods and its ledger: kills by uid, those forgiven, and the pods held.

    `slot`: only what concerns that one.
    """
    kills = {one.uid: one for one in ledger.kills}
    forgiven, held = set(ledger.forgiven), []
    for pod in pods:
        owner = owner_of(pod)
        if owner is None or owner.uid != owner_uid:
            continue
        if (kill := kill_of(pod)) is not None:
            kills[kill.uid] = kill
        if MEMORY_LABEL not in labels_of(pod):
            continue
        meant = kill_held_for(pod)
        if is_gated(pod):
            if meant is not None:
                kills.setdefault(meant.uid, meant)
            if not is_deleting(pod) and (slot is None or slot_of(pod, owner) == slot):
                held.append(pod)
        elif meant is not None and labels_of(pod)[MEMORY_LABEL] in (RELEASED, "held"):
            forgiven.add(meant.uid)  # let through, by us at somebody's word or by hand
    found = {uid: one for uid, one in kills.items() if slot is None or one.slot == slot}
    return found, frozenset(forgiven), held


class Vanished:
    """Killed pods that are gone again: a StatefulSet deletes its failed pod before it makes the next.

    The last `REMEMBERED_GONE` of them, by owner.
    """

    def __init__(self) -> None:
        self._pods: dict[str, Obj] = {}  # by uid, oldest first

    def changed(self, before: Obj | None, after: Obj | None) -> None:
        """An informer's handler."""
        if before is None or after is not None or kill_of(before) is None:
            return
        self._pods[before["metadata"]["uid"]] = before
        while len(self._pods) > REMEMBERED_GONE:
            del self._pods[next(iter(self._pods))]

    def of(self, owner_uid: str) -> Iterator[Obj]:
        for pod in self._pods.values():
            owner = owner_of(pod)
            if owner is not None and owner.uid == owner_uid:
                yield pod


# --- at admission


def answer(pod: Mapping[str, Any], known: Known, rule: BombRule, *, may_raise: bool = True) -> Answer:
    """What becomes of a new pod. Never holds one with more memory than was killed, nor more than one per kill."""
    if not rule.holds or not known.kills:
        return Pass()
    mine = [one for one in known.kills if not has_grown(pod, one)]
    if len(mine) < rule.allowed:
        return Pass()
    newest = max(mine, key=_newest)
    if rule.level == "fill" and rule.escalation is not None and may_raise:
        memory = _raised(pod, mine, rule.escalation)
        if memory:
            return Raise(newest, memory)
    if known.held > len(mine) - rule.allowed:
        return Pass()
    return Hold(newest)


def has_grown(pod: Mapping[str, Any], kill: Kill) -> bool:
    """Whether every container of the kill has more memory in this pod, or is not in it."""
    spec = pod.get("spec") or {}
    found = {one.get("name"): one for one in _containers(spec)}
    return all(
        hit.container not in found or _is_more(hit, kill.by, *_memory(spec, found[hit.container]))
        for hit in kill.hits
    )


def hold(pod: Obj, kill: Kill) -> None:
    """Put the gate, and why, on a new pod; changed in place."""
    spec = pod["spec"]
    spec["schedulingGates"] = [*(spec.get("schedulingGates") or ()), {"name": MEMORY_GATE}]
    _mark(pod, "held", kill, f"held: {kill}; made again with the same memory it would only take the next node")


def give_more(pod: Obj, raised: Raise) -> str:
    """Write more memory into a new pod, in place; returns what was done, for people."""
    said = []
    for container in _containers(pod["spec"]):
        if (more := raised.memory.get(str(container.get("name")))) is None:
            continue
        limit, request = _memory(pod["spec"], container)
        had = limit if limit is not None else request
        resources = container.get("resources") or {}
        container["resources"] = resources
        for table, value in zip(("requests", "limits"), more, strict=True):
            resources[table] = dict(resources.get(table) or {}) | {"memory": _text(value)}
        was = format_bytes(had) if had is not None else "no limit"
        said.append(f"memory of {container.get('name')} raised from {was} to {format_bytes(more[1])}")
    text = f"{', '.join(said)}: {raised.kill}"
    _mark(pod, "raised", raised.kill, text)
    return text


def _mark(pod: Obj, state: Literal["held", "raised"], kill: Kill, text: str) -> None:
    meta = pod["metadata"]
    meta["labels"] = dict(meta.get("labels") or {}) | {MEMORY_LABEL: state}
    meta["annotations"] = dict(meta.get("annotations") or {}) | {
        MEMORY_HELD_ANNOTATION: text,
        MEMORY_KILL_ANNOTATION: json.dumps(kill_to_json(kill), separators=(",", ":")),
    }


def _newest(kill: Kill) -> tuple[str, int, str]:
    """Of those of one second, the one that had most memory came last."""
    return kill.at, max((hit.limit or 0 for hit in kill.hits), default=0), kill.uid


def _raised(
    pod: Mapping[str, Any], kills: Sequence[Kill], escalation: Escalation
) -> dict[str, tuple[int, int]] | None:
    """Requests and limits above all that was killed; None where that cannot be."""
    spec = pod.get("spec") or {}
    if (spec.get("resources") or {}).get("limits"):
        return None  # limited as a whole: which container may have more is not ours to say
    found = {one.get("name"): one for one in _containers(spec)}
    memory: dict[str, tuple[int, int]] = {}
    for kill in kills:
        for hit in kill.hits:
            if hit.container not in found:
                continue
            bound = hit.limit if kill.by == OOM_KILLED else hit.request
            floor = max(bound or 0, hit.used or 0)
            limit, request = _memory(spec, found[hit.container])
            if floor <= 0:
                return None  # it had no bound, and nobody measured it
            start = (limit if kill.by == OOM_KILLED else request) or floor
            more = start
            while more <= floor and more < escalation.most:
                more = min(escalation.most, ceil(more * escalation.factor / MIB) * MIB)
            if more <= floor:
                return None
            before = memory.get(hit.container, (0, 0))
            memory[hit.container] = (max(before[0], more), max(before[1], more, limit or 0))
    return memory


def _is_more(hit: Hit, by: str, limit: int | None, request: int | None) -> bool:
    if hit.limit is not None and (limit is None or limit > hit.limit):
        return True
    if hit.limit is None and limit is not None:
        return True  # it was without a bound, and has one now: it will be killed alone
    return by == EVICTED and (request or 0) > max(hit.request or 0, 0)


# --- in the operator


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """A pod of the owner that is not finished."""

    name: str
    uid: str
    slot: str
    created: datetime | None
    gated: bool = False
    state: str = ""  # of MEMORY_LABEL
    kill_uid: str = ""  # what it says it was held for
    asked: bool = False  # somebody annotated it to be released
    outdated: bool = False  # its StatefulSet would make it of a newer revision now
    grown: frozenset[str] = frozenset()  # kills, by uid, than which it has more memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One owner, and all that was read about it at one moment."""

    rule: BombRule
    owner: Owner
    kills: Mapping[str, Kill]
    forgiven: frozenset[str]
    ledger: Ledger
    pods: tuple[PodSeen, ...] = ()
    now: datetime


@dataclass(frozen=True, slots=True)
class Write:
    """Keep this ledger on the owner, before anything else is done. `news`: the kills that were not in it."""

    ledger: Ledger
    news: tuple[Kill, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """Lift the gate. `state` of the pod's label afterwards; None: no mark of ours is left on it."""

    pod: PodSeen
    state: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Renew:
    """Delete a held pod, which has never run, so that its StatefulSet makes it of the new revision."""

    pod: PodSeen


@dataclass(frozen=True, slots=True)
class Stop:
    """Delete a replacement that slipped past the webhook; the next one will be held."""

    pod: PodSeen
    kill: Kill


Action = Write | Release | Renew | Stop


@dataclass(frozen=True, slots=True)
class Plan:
    actions: tuple[Action, ...] = ()
    look_again_in: timedelta | None = None


@dataclass(slots=True)
class _Work:
    seen: Seen
    forgiven: set[str] = field(default_factory=set)
    stopped: set[str] = field(default_factory=set)
    steps: list[Action] = field(default_factory=list)
    waits: bool = False


def plan(seen: Seen) -> Plan:
    """Return the steps about one owner's kills, in the order in which they must be done.

    Safe to stop after any step; planning on what was reached finishes the work. A settled owner needs no step.
    """
    if seen.rule.level == "off":
        steps = tuple(Release(one, None, "no policy holds such pods here") for one in seen.pods if one.gated)
        return Plan(steps)
    work = _Work(seen, set(seen.forgiven), set(seen.ledger.stopped))
    for pod in seen.pods:
        if not pod.gated:
            continue
        if not seen.rule.holds:
            work.steps.append(Release(pod, None, "no policy holds such pods here"))
        elif pod.asked:
            work.forgiven |= {pod.kill_uid} if pod.kill_uid else set()
            work.steps.append(Release(pod, RELEASED, "somebody asked for it"))
        elif pod.outdated:
            work.steps.append(Renew(pod))
    if seen.rule.holds and wanders(seen.owner):
        for slot in sorted({one.slot for one in seen.pods} | {one.slot for one in seen.kills.values()}):
            _settle(work, slot)
    ledger = _ledger(seen, work)
    had = {one.uid for one in seen.ledger.kills}
    news = tuple(one for one in ledger.kills if one.uid not in had)
    first = (Write(ledger, news),) if ledger != seen.ledger else ()
    return Plan((*first, *work.steps), timedelta(seconds=LOOK_SECONDS) if work.waits else None)


def _settle(work: _Work, slot: str) -> None:
    """As many held as there are kills beyond those allowed: let go of too many, stop what slipped past."""
    seen = work.seen
    done = {one.pod.uid for one in work.steps if isinstance(one, Release | Renew)}
    kills = [one for one in seen.kills.values() if one.slot == slot and one.uid not in work.forgiven]
    held = sorted(
        (one for one in seen.pods if one.slot == slot and one.gated and one.uid not in done),
        key=lambda one: (one.created.isoformat() if one.created else "", one.uid),
    )
    needed = max(0, len(kills) - seen.rule.allowed + 1)
    for pod in held[needed:]:
        work.steps.append(Release(pod, None, "as many are held as were killed"))
    open_kills = [
        one
        for one in sorted(kills, key=lambda one: (one.at, one.uid))
        if one.uid not in work.stopped and 0 <= _age(seen, moment(one.at)) < SLIP_SECONDS
    ]
    unanswered = min(needed - len(held), len(open_kills))
    if unanswered <= 0:
        return
    work.waits = True
    slipped = sorted(
        (
            one
            for one in seen.pods
            if one.slot == slot and not one.gated and not one.state and one.created is not None
        ),
        key=lambda one: (str(one.created), one.uid),
    )
    for kill in open_kills[-unanswered:]:
        since = moment(kill.at)
        for pod in slipped:
            if pod.created is None or since is None or pod.created < since or kill.uid in pod.grown:
                continue
            if _age(seen, pod.created) >= SLIP_SECONDS:
                continue
            slipped.remove(pod)
            work.stopped.add(kill.uid)
            work.steps.append(Stop(pod, kill))
            break


def _ledger(seen: Seen, work: _Work) -> Ledger:
    """The newest kills, and of the rest only what concerns them."""
    before = {one.uid for one in seen.ledger.kills}
    kept = sorted(seen.kills.values(), key=lambda one: (one.at, one.uid))[-REMEMBERED:]
    count = seen.ledger.count + sum(
        1 for uid, one in seen.kills.items() if uid not in before and (one in kept or not before)
    )
    return Ledger(
        kills=tuple(kept),
        forgiven=frozenset(work.forgiven & set(seen.kills)),
        stopped=frozenset(work.stopped & set(seen.kills)),
        count=count,
    )


def _age(seen: Seen, since: datetime | None) -> float:
    """Seconds; a moment that cannot be read is long ago. A clock that is ahead of ours counts as now."""
    return max(0.0, (seen.now - since).total_seconds()) if since is not None else SLIP_SECONDS


def pod_seen(pod: Mapping[str, Any], owner: Owner, kills: Iterable[Kill], *, outdated: bool = False) -> PodSeen:
    """Read one pod of the owner that is neither finished nor being deleted."""
    meta = pod["metadata"]
    meant = kill_held_for(pod)
    return PodSeen(
        name=meta["name"],
        uid=meta.get("uid") or "",
        slot=slot_of(pod, owner),
        created=moment(meta.get("creationTimestamp")),
        gated=is_gated(pod),
        state=labels_of(pod).get(MEMORY_LABEL, ""),
        kill_uid=meant.uid if meant is not None else "",
        asked=MEMORY_RELEASE_ANNOTATION in annotations_of(pod),
        outdated=outdated,
        grown=frozenset(one.uid for one in kills if has_grown(pod, one)),
    )


def is_outdated(pod: Mapping[str, Any], stateful_set: Mapping[str, Any] | None) -> bool:
    """Whether a StatefulSet would make this pod of its newer revision, were it made again.

    Left to itself it does not: it waits for the held pod to be ready first (kubernetes#67250).
    """
    if stateful_set is None:
        return False
    spec, status = stateful_set.get("spec") or {}, stateful_set.get("status") or {}
    newest = status.get("updateRevision")
    if not newest or status.get("observedGeneration", 0) < (stateful_set["metadata"].get("generation") or 0):
        return False
    if labels_of(pod).get(_REVISION_LABEL) in (None, newest):
        return False
    ordinal = pod["metadata"]["name"].rpartition("-")[2]
    start = (spec.get("ordinals") or {}).get("start") or 0
    partition = ((spec.get("updateStrategy") or {}).get("rollingUpdate") or {}).get("partition") or 0
    return ordinal.isdigit() and int(ordinal) >= start + partition


# --- small readings


def _out_of_memory(pod: Mapping[str, Any]) -> Iterator[Hit]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    by_name = {one.get("name"): one for one in _containers(spec)}
    for table in ("initContainerStatuses", "containerStatuses"):
        for one in status.get(table) or ():
            ended = (one.get("state") or {}).get("terminated") or {}
            if ended.get("reason") == OOM_KILLED and one.get("name") in by_name:
                limit, request = _memory(spec, by_name[one["name"]])
                yield Hit(container=one["name"], limit=limit, request=request, used=limit)


def _evicted(pod: Mapping[str, Any]) -> Iterator[Hit]:
    """containerMessageFmt of https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/eviction/helpers.go"""
    spec = pod.get("spec") or {}
    by_name = {one.get("name"): one for one in _containers(spec)}
    for name, used, _ in _OVER.findall(str((pod.get("status") or {}).get("message") or "")):
        if name in by_name:
            limit, request = _memory(spec, by_name[name])
            yield Hit(container=name, limit=limit, request=request, used=_bytes(used))


def _ended_at(pod: Mapping[str, Any]) -> str:
    status = pod.get("status") or {}
    ends = [
        str(ended["finishedAt"])
        for table in ("initContainerStatuses", "containerStatuses")
        for one in status.get(table) or ()
        if (ended := (one.get("state") or {}).get("terminated") or {}).get("finishedAt")
    ]
    told = [
        str(one["lastTransitionTime"])
        for one in status.get("conditions") or ()
        if one.get("lastTransitionTime") and one.get("type") == "DisruptionTarget"
    ]
    # evicted: the kubelet says so first and stops the containers then; the earlier moment counts
    return min([*ends, *told], default=str(pod["metadata"].get("creationTimestamp") or ""))


def _containers(spec: Mapping[str, Any]) -> list[Any]:
    return [one for table in ("initContainers", "containers") for one in spec.get(table) or ()]


def _memory(spec: Mapping[str, Any], container: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Limit and request in bytes; what the pod has as a whole where the container has none."""
    out: list[int | None] = []
    for table in ("limits", "requests"):
        own = ((container.get("resources") or {}).get(table) or {}).get("memory")
        whole = ((spec.get("resources") or {}).get(table) or {}).get("memory")
        out.append(_bytes(own if own is not None else whole))
    return out[0], out[1] if out[1] is not None else out[0]


def _bytes(value: Any) -> int | None:
    try:
        return amount("memory", value) if isinstance(value, str | int | float) else None
    except QuantityError:
        return None


def _text(value: int) -> str:
    return f"{value // MIB}Mi" if value % MIB == 0 else str(value)


def _json(text: str | None) -> Any:
    try:
        return parse_json(text) if text else None
    except DocumentError:
        return None


def _texts(found: Any) -> frozenset[str]:
    return frozenset(one for one in found if isinstance(one, str)) if isinstance(found, list) else frozenset()
