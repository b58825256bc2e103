"""What the extender knows: GPUs and CPU per node, total and used, kept current by informers.

Counters are moved by each change, and points worked out anew only for nodes that changed (`decide.scoreboard`).

What counts as used: pods bound to the node and not finished, and pods with the node as `status.nominatedNodeName`,
for which the scheduler is making room there. What the extender itself scored highest does *not* count: the
scheduler decides, with other scores, other extenders and a random choice between equals, and does not tell.

Instead the extender waits. kube-scheduler works on one pod at a time, so when it asks about the next pod, the one
before is already placed and its binding is on its way to our cache. `settled` waits for such pods, each at most
`settle_seconds` after it was asked about. Without it two pods made at once would both be scored on an empty
cluster and be spread over it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from moorage.apimachinery.api import Api
from moorage.apimachinery.informer import Informer
from moorage.apimachinery.meta import Key, key_of, labels_of
from moorage.apimachinery.resources import NODES, PODS, Obj
from moorage.apimachinery.scheduling import parse_node, pod_requests
from moorage.clock import SYSTEM, Clock
from moorage.decide.packing import Ask, GpuNode, Policy, Room, gpus_asked, make_ask, make_rooms
from moorage.decide.scoreboard import Scoreboard, make_policy
from moorage.model.names import GPU_TYPE_LABELS

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.2  # well under the 500 ms we ask the scheduler to wait for us; a binding takes some 10 ms


@dataclass(frozen=True, slots=True)
class _Hold:
    """GPUs and CPU (millicores) that a pod holds or was promised on a node."""

    node: str
    gpus: Mapping[str, int]
    cpu: int


class ExtenderCache:
    """GPUs of every node. `run` keeps it current until cancelled; `synced` is set once it is whole."""

    def __init__(
        self,
        api: Api,
        *,
        policy: Policy | None = None,
        clock: Clock = SYSTEM,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        """`policy` None: `pack`."""
        self.clock = clock
        self.policy = policy if policy is not None else make_policy("pack")
        self.board: Scoreboard[bytes] = Scoreboard(self.policy, host_priority)
        self._settle_seconds = settle_seconds
        self._nodes = Informer(api, NODES, keep=_needed_of_node)
        self._pods = Informer(api, PODS, keep=_needed_of_pod)
        self._totals: dict[str, dict[str, int]] = {}
        self._types: dict[str, str] = {}
        self._used: dict[str, dict[str, int]] = {}  # also of nodes not seen yet
        self._cpus: dict[str, int] = {}  # millicores of each node
        self._cpu_used: dict[str, int] = {}  # also of nodes not seen yet
        self._holds: dict[Key, _Hold] = {}
        self._unsettled: dict[str, float] = {}  # uid of a pod asked about → until when it is waited for
        self._moved = asyncio.Event()
        self._heard = clock.monotonic()
        self._versions = ("", "")
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """Follow nodes and pods until cancelled."""
        self._nodes.on_change(self._node_changed)
        self._pods.on_change(self._pod_changed)
        tasks = [asyncio.create_task(one.run()) for one in (self._nodes, self._pods)]
        try:
            for one in (self._nodes, self._pods):
                waiter = asyncio.create_task(one.synced.wait())
                await asyncio.wait([waiter, *tasks], return_when=asyncio.FIRST_COMPLETED)
                waiter.cancel()
                for task in tasks:
                    if task.done():
                        task.result()  # raises
            self.age_seconds()
            self.synced.set()
            log.info("the extender knows the cluster", extra={"nodes": len(self._nodes), "pods": len(self._pods)})
            await asyncio.gather(*tasks)
        finally:
            self.synced.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def gpu_node(self, name: str) -> GpuNode | None:
        """The node's GPUs, or None when it is not known."""
        total = self._totals.get(name)
        return None if total is None else GpuNode(name=name, total=total, used=dict(self._used.get(name, {})))

    def nominated_to(self, key: Key) -> str | None:
        """The node on which the pod is counted already."""
        hold = self._holds.get(key)
        return hold.node if hold is not None else None

    def rooms(
        self, name: str, *, without: Key | None = None, total: Mapping[str, int] | None = None
    ) -> dict[str, Room]:
        """Rooms of a node; `without`: do not count that pod; `total`: GPUs as another knows them."""
        used, cpu_used = self._used.get(name, {}), self._cpu_used.get(name, 0)
        hold = self._holds.get(without) if without is not None else None
        if hold is not None and hold.node == name:
            used = {resource: count - hold.gpus.get(resource, 0) for resource, count in used.items()}
            cpu_used -= hold.cpu
        if total is None:
            total = self._totals.get(name, {})
        return make_rooms(total, used, self._cpus.get(name, 0), cpu_used, self._types.get(name, ""))

    def nodes(self) -> list[tuple[GpuNode, str]]:
        """Every node with GPUs, and the type of its GPUs ("unknown" when no label tells)."""
        return [
            (GpuNode(name=name, total=total, used=self._used.get(name, {})), self._types.get(name, "unknown"))
            for name, total in self._totals.items()
            if total
        ]

    def age_seconds(self) -> float:
        """Seconds since a change or bookmark of nodes or pods was last heard of, as far as was looked."""
        versions = (self._nodes.resource_version, self._pods.resource_version)
        if versions != self._versions:
            self._versions = versions
            self._heard = self.clock.monotonic()
        return self.clock.monotonic() - self._heard

    def asked_about(self, uid: str) -> None:
        """The scheduler is about to place this pod: wait for it before the next."""
        if uid and self._settle_seconds > 0:
            self._unsettled[uid] = self.clock.monotonic() + self._settle_seconds

    async def settled(self, uid: str) -> bool:
        """Wait until the pods asked about before this one were seen placed, changed or gone; False when the time
        given to one of them ran out."""
        whole = True
        self._unsettled.pop(uid, None)
        while self._unsettled:
            self._moved.clear()
            left = max(self._unsettled.values()) - self.clock.monotonic()
            if left <= 0:
                self._unsettled.clear()
                return False
            waiting = asyncio.ensure_future(self._moved.wait())
            end = asyncio.ensure_future(self.clock.sleep(left))
            try:
                await asyncio.wait({waiting, end}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in (waiting, end):
                    one.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await one
            now = self.clock.monotonic()
            for late in [other for other, until in self._unsettled.items() if until <= now]:
                del self._unsettled[late]
                whole = False
        return whole

    def _settle(self, obj: Obj) -> None:
        if self._unsettled.pop(obj["metadata"].get("uid") or "", None) is not None:
            self._moved.set()

    def _node_changed(self, before: Obj | None, after: Obj | None) -> None:
        if after is None:
            if before is not None:
                name = before["metadata"]["name"]
                self._totals.pop(name, None)
                self._types.pop(name, None)
                self._cpus.pop(name, None)
                self.policy.offer(name, None)
                self.board.put(name, None)
            return
        try:
            node = parse_node(after)
        except (ValueError, KeyError, TypeError) as error:
            log.warning("a node cannot be read", extra={"node": str(key_of(after)), "error": repr(error)})
            return
        self._totals[node.name] = gpus_asked(node.allocatable)
        self._cpus[node.name] = node.allocatable.get("cpu", 0)
        kind = next((labels_of(after)[label] for label in GPU_TYPE_LABELS if label in labels_of(after)), None)
        if kind is None:
            self._types.pop(node.name, None)
        else:
            self._types[node.name] = kind
        empty = make_rooms(self._totals[node.name], {}, self._cpus[node.name], 0, kind or "")
        self.policy.offer(node.name, empty)
        self.board.put(node.name, self.rooms(node.name))

    def _pod_changed(self, before: Obj | None, after: Obj | None) -> None:
        obj = after if after is not None else before
        if obj is None:
            return
        key = key_of(obj)
        held = self._holds.pop(key, None)
        if held is not None:
            self._count(held, -1)
        try:
            hold = _hold_of(after) if after is not None else None
        except (ValueError, KeyError, TypeError) as error:
            log.warning("a pod cannot be read", extra={"pod": str(key), "error": repr(error)})
            hold = None
        if hold is not None:
            self._holds[key] = hold
            self._count(hold, 1)
        if held != hold:
            for node in {one.node for one in (held, hold) if one is not None} & self._totals.keys():
                self.board.put(node, self.rooms(node))
        if before is None and after is not None:
            self._learn(after)
        if before is not None or (after is not None and (after.get("spec") or {}).get("nodeName")):
            self._settle(obj)  # not on its creation alone, which the scheduler may have seen before us

    def _learn(self, pod: Obj) -> None:
        try:
            self.policy.learn(ask_of(pod))
        except (ValueError, KeyError, TypeError):
            return  # said where it was counted

    def _count(self, hold: _Hold, sign: int) -> None:
        self._cpu_used[hold.node] = self._cpu_used.get(hold.node, 0) + sign * hold.cpu
        if not self._cpu_used[hold.node]:
            del self._cpu_used[hold.node]
        used = self._used.setdefault(hold.node, {})
        for resource, count in hold.gpus.items():
            used[resource] = used.get(resource, 0) + sign * count
            if not used[resource]:
                del used[resource]
        if not used:
            del self._used[hold.node]


def _hold_of(pod: Obj) -> _Hold | None:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    node = spec.get("nodeName") or status.get("nominatedNodeName")
    if not node or status.get("phase") in ("Succeeded", "Failed"):
        return None
    requests = pod_requests(spec)
    gpus, cpu = gpus_asked(requests), requests.get("cpu", 0)
    return _Hold(node, gpus, cpu) if gpus or cpu else None


def ask_of(pod: Obj) -> Ask:
    """What a pod asks for. GPU types are those of its node selector, else those that every term of its required
    node affinity names (operator In)."""
    spec = pod.get("spec") or {}
    selector = spec.get("nodeSelector") or {}
    kinds = {selector[label] for label in GPU_TYPE_LABELS if label in selector}
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = [_kinds_in(term) for term in required.get("nodeSelectorTerms") or ()]
    if not kinds and all(terms):
        kinds = {kind for term in terms for kind in term}
    return make_ask(pod_requests(spec), tuple(sorted(kinds)))


def _kinds_in(term: Obj) -> list[str]:
    return [
        kind
        for one in term.get("matchExpressions") or ()
        if one.get("key") in GPU_TYPE_LABELS and one.get("operator") == "In"
        for kind in one.get("values") or ()
    ]


def host_priority(name: str, points: int) -> bytes:
    """HostPriority of the extender's wire format, as JSON."""
    return msgspec.json.encode({"Host": name, "Score": points})


def _needed_of_node(node: Obj) -> Obj:
    """Names, labels and what it offers: nodes carry lists of images that are of no use here."""
    meta, status = node["metadata"], node.get("status") or {}
    labels = labels_of(node)
    return {
        "metadata": {
            "name": meta["name"],
            "resourceVersion": meta.get("resourceVersion"),
            "labels": {label: labels[label] for label in GPU_TYPE_LABELS if label in labels},
        },
        "status": {"allocatable": status.get("allocatable") or {}},
    }


def _needed_of_pod(pod: Obj) -> Obj:
    """What is read of a pod here; a fiftieth of it."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    kept: Obj = {
        "metadata": {
            field: meta[field] for field in ("name", "namespace", "uid", "resourceVersion") if field in meta
        },
        "spec": {field: spec[field] for field in ("nodeName", "nodeSelector", "overhead") if field in spec},
        "status": {field: status[field] for field in ("phase", "nominatedNodeName") if field in status},
    }
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity")
    if node_affinity:
        kept["spec"]["affinity"] = {"nodeAffinity": node_affinity}
    for field in ("containers", "initContainers"):
        if spec.get(field):
            kept["spec"][field] = [
                {name: one[name] for name in ("resources", "restartPolicy") if name in one} for one in spec[field]
            ]
    return kept
