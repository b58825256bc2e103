"""Pods killed for their memory: their detection, the pods that replace each other, and the record of a kill.

A pod that grows is killed, its owner creates it again, and the scheduler puts the new pod on the next node, where
it grows with the same memory: a bomb that wanders. For any owner (ReplicaSet, StatefulSet, Job, or an unknown
kind), the replacement is held by a scheduling gate instead, or gets more memory if the policy says so.

A pod counts as killed for memory when it *failed* so: a container ended as OOMKilled and is not started again in
place, or the kubelet evicted the pod for memory while a container of it used more than its request. A pod that is
evicted below its requests is a victim, not a bomb; a container restarted in place does not wander.

Pods that replace each other share a *slot*: all pods of a ReplicaSet or Job, one index of an indexed Job, one
ordinal of one revision of a StatefulSet, and of other owners the pods with the same containers. Each kill in a
slot holds at most one new pod, and only one with no more memory than was killed: another template passes at once.

`killanswer` is the webhook's decision on a new pod; `killplan` the operator's on a kill. The webhook may have read
too little (a kill that is milliseconds old) or too much (two replicas holding for one kill): the operator corrects
both, once per kill.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from msgspec import Struct

from moorage.model.names import MEMORY_GATE, MEMORY_KILL_ANNOTATION, MEMORY_LABEL, RELEASED
from moorage.model.policy import Policy
from moorage_kube.documents import parse_json
from moorage_kube.errors import DocumentError, QuantityError
from moorage_kube.meta import annotations_of, condition, controller_ref, is_deleting, labels_of
from moorage_kube.quantity import amount, format_bytes
from moorage_kube.resources import Obj
from moorage_kube.scheduling import has_gate

RULE = "restartBomb"
OOM_KILLED, EVICTED = "OOMKilled", "Evicted"
MIB = 2**20

REVISION_LABEL = "controller-revision-hash"  # on pods of StatefulSets and DaemonSets
_INDEX = "batch.kubernetes.io/job-completion-index"
_OVER = re.compile(r"Container (\S+) was using (\S+), request is (\S+), has larger consumption of memory")
_FOR_MEMORY = re.compile(r"low on resource: memory|had condition: \[?MemoryPressure")


class Hit(Struct, frozen=True, kw_only=True):
    """A container that exceeded its memory. Bytes; None if not set, or not known."""

    container: str
    limit: int | None = None
    request: int | None = None
    used: int | None = None  # as the kubelet measured it; a container killed at its limit used that much

    def __str__(self) -> str:
        known = (("used", self.used), ("request", self.request), ("limit", self.limit))
        amounts = ", ".join(f"{name} {format_bytes(value)}" for name, value in known if value is not None)
        return f"container {self.container} ({amounts or 'no memory stated'})"


class Kill(Struct, frozen=True, kw_only=True):
    """One kill of a pod for memory. `at`: RFC 3339; `by`: OOMKilled or Evicted."""

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


class Escalation(Struct, frozen=True, kw_only=True):
    """More memory for the replacement: multiplied by `factor` as often as needed, up to `most` bytes."""

    factor: Fraction
    most: int


class BombRule(Struct, frozen=True, kw_only=True):
    """The rule `restartBomb` of one namespace. `allowed`: the kills in a slot before a replacement is held."""

    level: str = "off"
    allowed: int = 1
    escalation: Escalation | None = None

    @property
    def holds(self) -> bool:
        return self.level in ("fill", "deny")


class Owner(Struct, frozen=True, kw_only=True):
    """The controlling owner of a pod."""

    api_version: str
    kind: str
    name: str
    uid: str


# --- reading


def rule_of(policy: Policy | None) -> BombRule:
    """A policy's rule on restart bombs. Total: a value that its schema would refuse counts as missing."""
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
    """The owner that would create the pod again. None for bare pods and mirror pods."""
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
    """The slot of a pod: pods of an owner in the same slot replace each other. See the module's docstring."""
    group = owner.api_version.rpartition("/")[0]
    labels = labels_of(pod)
    match (group, owner.kind):
        case ("apps", "ReplicaSet") | ("", "ReplicationController"):
            return ""
        case ("apps", "StatefulSet" | "DaemonSet"):
            return f"{pod['metadata'].get('name')}@{labels.get(REVISION_LABEL, '')}"
        case ("batch", "Job"):
            return labels.get(_INDEX) or annotations_of(pod).get(_INDEX) or ""
    same = [
        [container.get(key) for key in ("name", "image", "command", "args")]
        for table in ("initContainers", "containers")
        for container in (pod.get("spec") or {}).get(table) or ()
    ]
    return hashlib.sha256(json.dumps(same).encode()).hexdigest()[:16]


def wanders(owner: Owner) -> bool:
    """Whether the owner's replacement may run on another node; a DaemonSet's stays on its node."""
    return owner.kind != "DaemonSet"


def kill_of(pod: Mapping[str, Any]) -> Kill | None:
    """How a failed pod was killed for its memory. None: it was not, or it would not be created again."""
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
    """The value of the annotation."""
    hits = [
        {"container": hit.container}
        | {
            key: value
            for key, value in (("limit", hit.limit), ("request", hit.request), ("used", hit.used))
            if value is not None
        }
        for hit in kill.hits
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


def kill_from_json(document: Any) -> Kill | None:
    """Parse the output of `kill_to_json`. None for anything else: any user may write annotations."""
    if not isinstance(document, Mapping):
        return None
    texts = {key: document.get(key) for key in ("pod", "uid", "slot", "at", "by", "node")}
    if not all(isinstance(text, str) for text in texts.values()):
        return None
    hits = []
    for hit in document.get("hits") or ():
        if not isinstance(hit, Mapping) or not isinstance(hit.get("container"), str):
            return None
        numbers = {key: hit.get(key) for key in ("limit", "request", "used")}
        if any(isinstance(value, bool) or not isinstance(value, int | None) for value in numbers.values()):
            return None
        hits.append(Hit(container=hit["container"], **numbers))
    return Kill(**texts, hits=tuple(hits))  # type: ignore[arg-type]  # all of them are text


def kill_held_for(pod: Mapping[str, Any]) -> Kill | None:
    """The kill for which a pod is held, from our annotation."""
    return kill_from_json(_json(annotations_of(pod).get(MEMORY_KILL_ANNOTATION)))


def is_gated(pod: Mapping[str, Any]) -> bool:
    return has_gate(pod.get("spec") or {}, MEMORY_GATE)


class Ledger(Struct, frozen=True, kw_only=True):
    """The record on an owner: kills, kills forgiven by users, kills for which a pod was stopped (uids)."""

    kills: tuple[Kill, ...] = ()
    forgiven: frozenset[str] = frozenset()
    stopped: frozenset[str] = frozenset()
    count: int = 0  # of all kills ever, also those no longer listed

    def to_text(self) -> str:
        return json.dumps(
            {
                "count": self.count,
                "kills": [kill_to_json(kill) for kill in self.kills],
                "forgiven": sorted(self.forgiven),
                "stopped": sorted(self.stopped),
            },
            separators=(",", ":"),
        )


def ledger_from(text: str | None) -> Ledger:
    """Parse the output of `Ledger.to_text`; unreadable values count as missing."""
    value = _json(text)
    if not isinstance(value, Mapping):
        return Ledger()
    listed = value.get("kills") if isinstance(value.get("kills"), list) else []
    kills = tuple(kill for kill in map(kill_from_json, listed or ()) if kill is not None)
    count = value.get("count")
    return Ledger(
        kills=kills,
        forgiven=_texts(value.get("forgiven")),
        stopped=_texts(value.get("stopped")),
        count=count if isinstance(count, int) and not isinstance(count, bool) else len(kills),
    )


def known_of(
    pods: Iterable[Mapping[str, Any]], ledger: Ledger, owner_uid: str, slot: str | None = None
) -> tuple[dict[str, Kill], frozenset[str], list[Mapping[str, Any]]]:
    """From an owner's failed and marked pods and its ledger: kills by uid, those forgiven, and the pods held.

    `slot`: only the kills and pods of that slot.
    """
    kills = {kill.uid: kill for kill in ledger.kills}
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
            forgiven.add(meant.uid)  # released, by us on a user's request or by hand
    concerned = {uid: kill for uid, kill in kills.items() if slot is None or kill.slot == slot}
    return concerned, frozenset(forgiven), held


def has_grown(pod: Mapping[str, Any], kill: Kill) -> bool:
    """Whether every container of the kill has more memory in this pod, or does not exist in it."""
    spec = pod.get("spec") or {}
    by_name = {container.get("name"): container for container in containers_of(spec)}
    return all(
        hit.container not in by_name or _is_more(hit, kill.by, *memory_of(spec, by_name[hit.container]))
        for hit in kill.hits
    )


def _is_more(hit: Hit, by: str, limit: int | None, request: int | None) -> bool:
    if hit.limit is not None and (limit is None or limit > hit.limit):
        return True
    if hit.limit is None and limit is not None:
        return True  # it was without a bound, and has one now: it will be killed alone
    return by == EVICTED and (request or 0) > max(hit.request or 0, 0)


# --- small readings


def _out_of_memory(pod: Mapping[str, Any]) -> Iterator[Hit]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    by_name = {container.get("name"): container for container in containers_of(spec)}
    for table in ("initContainerStatuses", "containerStatuses"):
        for container_status in status.get(table) or ():
            ended = (container_status.get("state") or {}).get("terminated") or {}
            if ended.get("reason") == OOM_KILLED and container_status.get("name") in by_name:
                limit, request = memory_of(spec, by_name[container_status["name"]])
                yield Hit(container=container_status["name"], limit=limit, request=request, used=limit)


def _evicted(pod: Mapping[str, Any]) -> Iterator[Hit]:
    """containerMessageFmt of
    https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/eviction/helpers.go
    """
    spec = pod.get("spec") or {}
    by_name = {container.get("name"): container for container in containers_of(spec)}
    for name, used, _ in _OVER.findall(str((pod.get("status") or {}).get("message") or "")):
        if name in by_name:
            limit, request = memory_of(spec, by_name[name])
            yield Hit(container=name, limit=limit, request=request, used=_bytes(used))


def _ended_at(pod: Mapping[str, Any]) -> str:
    status = pod.get("status") or {}
    ends = [
        str(ended["finishedAt"])
        for table in ("initContainerStatuses", "containerStatuses")
        for container in status.get(table) or ()
        if (ended := (container.get("state") or {}).get("terminated") or {}).get("finishedAt")
    ]
    if disrupted := (condition(pod, "DisruptionTarget") or {}).get("lastTransitionTime"):
        # evicted: the kubelet says so first and stops the containers then; the earlier moment counts
        ends.append(str(disrupted))
    return min(ends, default=str(pod["metadata"].get("creationTimestamp") or ""))


def containers_of(spec: Mapping[str, Any]) -> list[Any]:
    return [container for table in ("initContainers", "containers") for container in spec.get(table) or ()]


def memory_of(spec: Mapping[str, Any], container: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Limit and request in bytes; those of the whole pod where the container has none."""
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


def _json(text: str | None) -> Any:
    try:
        return parse_json(text) if text else None
    except DocumentError:
        return None


def _texts(value: Any) -> frozenset[str]:
    return frozenset(text for text in value if isinstance(text, str)) if isinstance(value, list) else frozenset()
