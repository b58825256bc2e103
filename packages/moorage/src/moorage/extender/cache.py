"""The extender's knowledge: GPUs and CPU per node, total and held, updated by informers.

Each change moves counters; points are computed only for nodes that changed (`extender.scoreboard`).
`extender.ledger` decides which GPUs count as held, and how a placement counts before it is seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

import msgspec

from moorage.decide.packing.policies import Ask, GpuNode, Room, gpus_asked, make_ask, make_rooms
from moorage.extender.ledger import ASSUME_SECONDS, Hold, Ledger, Sight
from moorage.extender.policies import Policy, make_policy
from moorage.extender.scoreboard import Scoreboard
from moorage.model.names import GPU_TYPE_LABELS
from moorage_kube.api import Api
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.informer import Informer
from moorage_kube.integers import UINT64_MAX, integer_or
from moorage_kube.meta import Key, condition, key_of, labels_of
from moorage_kube.resources import NODES, PODS, Obj
from moorage_kube.scheduling import Taint, parse_node, pod_requests

log = logging.getLogger(__name__)

NEVER_KEPT = 64  # kinds of requests


class ExtenderCache:
    """The GPUs of all nodes. `run` updates them until cancelled; `synced` is set once they are complete."""

    def __init__(
        self,
        api: Api,
        *,
        policy: Policy | None = None,
        clock: Clock = SYSTEM,
        assume_seconds: float = ASSUME_SECONDS,
    ) -> None:
        """`policy` None: `pack`."""
        self.clock = clock
        self.policy = policy if policy is not None else make_policy("pack")
        self.board: Scoreboard[int] = Scoreboard(self.policy, lambda _, points: points)
        self.ledger = Ledger(assume_seconds=assume_seconds)
        self.heads: dict[str, bytes] = {}  # the beginning of each node's HostPriority
        self._never: dict[
            tuple[object, ...], dict[str, str]
        ] = {}  # by requested resources: why nodes cannot take them
        self.soft_taints: dict[str, tuple[Taint, ...]] = {}  # PreferNoSchedule, of nodes that have any
        self._nodes = Informer(api, NODES, keep=_needed_of_node)
        self._pods = Informer(api, PODS, keep=_needed_of_pod)
        self.informers = (self._nodes, self._pods)
        self._totals: dict[str, dict[str, int]] = {}
        self._types: dict[str, str] = {}
        self._cpus: dict[str, int] = {}  # millicores of each node
        self._heard = clock.monotonic()
        self._versions = ("", "")
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """Watch nodes and pods until cancelled."""
        self._nodes.on_change(self.node_changed)
        self._pods.on_change(self.pod_changed)
        tasks = [asyncio.create_task(informer.run()) for informer in (self._nodes, self._pods)]
        try:
            for informer in (self._nodes, self._pods):
                waiter = asyncio.create_task(informer.synced.wait())
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
        """The node's GPUs; None if the node is unknown."""
        total = self._totals.get(name)
        return None if total is None else GpuNode(name=name, total=total, used=dict(self.ledger.gpus(name)))

    def total(self, name: str) -> Mapping[str, int] | None:
        """The GPUs that the node offers; None if the node is unknown."""
        return self._totals.get(name)

    def kind(self, name: str) -> str:
        """The type of the node's GPUs; "" without a label for it."""
        return self._types.get(name, "")

    def rooms(
        self, name: str, *, without: Key | None = None, total: Mapping[str, int] | None = None
    ) -> dict[str, Room]:
        """The rooms of a node. `without`: a pod to ignore; `total`: the node's GPUs from another source."""
        used, cpu_used = self.ledger.gpus(name), self.ledger.cpu(name)
        hold = self.ledger.counted(without) if without is not None else None
        if hold is not None and hold.node == name:
            used = {resource: count - hold.gpus.get(resource, 0) for resource, count in used.items()}
            cpu_used -= hold.cpu
        if total is None:
            total = self._totals.get(name, {})
        return make_rooms(total, used, self._cpus.get(name, 0), cpu_used, self._types.get(name, ""))

    def never(self, ask: Ask) -> Mapping[str, str]:
        """The nodes that could not run such a pod even if empty, with the reasons."""
        key = (ask.gpus, ask.kinds)
        reasons = self._never.get(key)
        if reasons is None:
            if len(self._never) >= NEVER_KEPT:
                self._never.clear()
            reasons = self._never[key] = {
                name: why
                for name, total in self._totals.items()
                if (why := why_never(ask, total, self._types.get(name, ""))) is not None
            }
        return reasons

    def nodes(self) -> list[tuple[GpuNode, str]]:
        """Every node with GPUs, and the type of its GPUs ("unknown" without a label for it)."""
        return [
            (GpuNode(name=name, total=total, used=self.ledger.gpus(name)), self._types.get(name, "unknown"))
            for name, total in self._totals.items()
            if total
        ]

    def age_seconds(self) -> float:
        """Seconds since the last change or bookmark of nodes or pods that a call of this method has noticed."""
        versions = (self._nodes.resource_version, self._pods.resource_version)
        if versions != self._versions:
            self._versions = versions
            self._heard = self.clock.monotonic()
        return self.clock.monotonic() - self._heard

    def asked_about(self, key: Key) -> str | None:
        """Record that the scheduler asks about this pod. Returns the node of a failed earlier attempt."""
        self._put(self.ledger.expire(self.clock.monotonic()))
        failed = self.ledger.assumed(key)
        if failed is not None:
            self._put(self.ledger.asked_again(key))
        return failed

    def assume(self, key: Key, uid: str, hold: Hold, *, version: int) -> None:
        """Assume that the scheduler places the pod on the node of `hold`."""
        self._put(self.ledger.assume(key, uid, hold, version=version, now=self.clock.monotonic()))

    def _put(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            if node in self._totals:
                self.board.put(node, self.rooms(node))

    def node_changed(self, before: Obj | None, after: Obj | None) -> None:
        if after is None:
            if before is not None:
                name = before["metadata"]["name"]
                self._totals.pop(name, None)
                self._types.pop(name, None)
                self._cpus.pop(name, None)
                self.heads.pop(name, None)
                self._never.clear()
                self.soft_taints.pop(name, None)
                self.policy.offer(name, None)
                self.board.put(name, None)
            return
        try:
            node = parse_node(after)
        except (ValueError, KeyError, TypeError) as error:
            log.warning("a node cannot be read", extra={"node": str(key_of(after)), "error": repr(error)})
            return
        totals = gpus_asked(node.allocatable)
        kind = next((labels_of(after)[label] for label in GPU_TYPE_LABELS if label in labels_of(after)), None)
        if totals != self._totals.get(node.name) or kind != self._types.get(node.name):
            self._never.clear()
        self._totals[node.name] = totals
        self._cpus[node.name] = node.allocatable.get("cpu", 0)
        self.heads.setdefault(node.name, host_head(node.name))
        if node.taints:
            self.soft_taints[node.name] = node.taints
        else:
            self.soft_taints.pop(node.name, None)
        if kind is None:
            self._types.pop(node.name, None)
        else:
            self._types[node.name] = kind
        empty = make_rooms(self._totals[node.name], {}, self._cpus[node.name], 0, kind or "")
        self.policy.offer(node.name, empty)
        self.board.put(node.name, self.rooms(node.name))

    def pod_changed(self, before: Obj | None, after: Obj | None) -> None:
        if after is None:
            if before is not None:
                self._put(self.ledger.gone(key_of(before), before["metadata"].get("uid") or ""))
            return
        key = key_of(after)
        try:
            self._put(self.ledger.see(key, _sight(after)))
            if before is None:
                self.policy.learn(ask_of(after))
        except (ValueError, KeyError, TypeError) as error:
            log.warning("a pod cannot be read", extra={"pod": str(key), "error": repr(error)})
            self._put(self.ledger.gone(key, after["metadata"].get("uid") or ""))


def _sight(pod: Obj) -> Sight:
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    bound = spec.get("nodeName") or ""
    node = bound or status.get("nominatedNodeName")
    finished = status.get("phase") in ("Succeeded", "Failed")
    hold = None
    if node and not finished:
        requests = pod_requests(spec)
        hold = Hold(node, gpus_asked(requests), requests.get("cpu", 0))
    return Sight(
        uid=meta.get("uid") or "",
        hold=hold if hold is not None and (hold.gpus or hold.cpu) else None,
        bound=bool(bound),
        finished=finished,
        refused=not bound and (condition(pod, "PodScheduled") or {}).get("status") == "False",
        version=version_of(pod),
    )


def version_of(obj: Obj) -> int:
    """The resourceVersion as a number, to find the newer of two; 0 if invalid.

    https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
    """
    return integer_or(obj["metadata"].get("resourceVersion"), 0, maximum=UINT64_MAX)


def ask_of(pod: Obj) -> Ask:
    """The requests of a pod. GPU types are those of its node selector, else those that every term of its required
    node affinity names (operator In).
    """
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
        for expression in term.get("matchExpressions") or ()
        if expression.get("key") in GPU_TYPE_LABELS and expression.get("operator") == "In"
        for kind in expression.get("values") or ()
    ]


def why_never(ask: Ask, total: Mapping[str, int], kind: str) -> str | None:
    """The reason why a node with these GPUs can never run such a pod; None if it can. `kind` "" means any type."""
    if any(total.get(resource, 0) < count for resource, count in ask.gpus):
        short = [
            f"{count} {resource} asked for, {total.get(resource, 0)} there"
            for resource, count in ask.gpus
            if total.get(resource, 0) < count
        ]
        return f"the node is too small: {', '.join(short)}"
    if ask.gpus and ask.kinds and kind and kind not in ask.kinds:
        return f"its GPUs are {kind}, the pod asks for {' or '.join(ask.kinds)}"
    return None


def host_head(name: str) -> bytes:
    """The start of a HostPriority in JSON: everything before the points and the closing brace."""
    return b'{"Host":%b,"Score":' % msgspec.json.encode(name)


def _needed_of_node(node: Obj) -> Obj:
    """Names, labels, soft taints and resources: the lists of images on nodes are not needed here."""
    meta, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    labels = labels_of(node)
    soft = [taint for taint in spec.get("taints") or () if taint.get("effect") == "PreferNoSchedule"]
    return {
        **({"spec": {"taints": soft}} if soft else {}),
        "metadata": {
            "name": meta["name"],
            "resourceVersion": meta.get("resourceVersion"),
            "labels": {label: labels[label] for label in GPU_TYPE_LABELS if label in labels},
        },
        "status": {"allocatable": status.get("allocatable") or {}},
    }


def _needed_of_pod(pod: Obj) -> Obj:
    """The fields of a pod that are read here; a fiftieth of it."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    kept: Obj = {
        "metadata": {
            field: meta[field] for field in ("name", "namespace", "uid", "resourceVersion") if field in meta
        },
        "spec": {field: spec[field] for field in ("nodeName", "nodeSelector", "overhead") if field in spec},
        "status": {field: status[field] for field in ("phase", "nominatedNodeName") if field in status},
    }
    scheduled = condition(pod, "PodScheduled")
    if scheduled is not None and scheduled.get("status") == "False":
        kept["status"]["conditions"] = [{"type": "PodScheduled", "status": "False"}]
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity")
    if node_affinity:
        kept["spec"]["affinity"] = {"nodeAffinity": node_affinity}
    for field in ("containers", "initContainers"):
        if spec.get(field):
            kept["spec"][field] = [
                {name: container[name] for name in ("resources", "restartPolicy") if name in container}
                for container in spec[field]
            ]
    return kept
