"""The scheduler's view of the cluster at one moment, and the cache that updates it.

Every decision uses one `Snapshot`. `Cache` is fed by informers; it also holds the scheduler's own decisions
that the informers do not show yet: pods assumed on a node while their binding is under way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moorage_kube.meta import Key, annotations_of, condition, controller_ref, is_deleting, labels_of
from moorage_kube.resources import Obj
from moorage_kube.scheduling import (
    Amounts,
    NodeInfo,
    NodeSelectorTerm,
    PodInfo,
    Taint,
    parse_node,
    parse_pod,
    pod_requests,
)
from moorage_kube.selectors import LabelSelector, Requirement, label_selector_of, requirement_of

HOSTNAME_LABEL = "kubernetes.io/hostname"
ZONE_LABEL = "topology.kubernetes.io/zone"
SELECTED_NODE = "volume.kubernetes.io/selected-node"  # the node on which the provisioner creates a delayed volume
NO_PROVISIONER = "kubernetes.io/no-provisioner"
SPREAD_OWNERS = frozenset({"ReplicaSet", "StatefulSet", "ReplicationController"})

# The request of a container without one, in scores (never in filters):
# https://github.com/kubernetes/kubernetes/blob/master/pkg/scheduler/util/pod_resources.go
DEFAULT_CPU = "100m"
DEFAULT_MEMORY = "200Mi"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadConstraint:
    """One entry of `spec.topologySpreadConstraints`; `hard` means that whenUnsatisfiable is DoNotSchedule."""

    max_skew: int
    topology_key: str
    hard: bool
    selector: LabelSelector | None  # None matches no pod
    min_domains: int | None = None
    honor_affinity: bool = True  # nodes that the pod's node affinity refuses are not counted
    honor_taints: bool = False  # nor those whose taints it does not tolerate


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """A pod in the scheduler's form: the parsed fields, and the object for extenders and patches."""

    info: PodInfo
    obj: Obj = field(compare=False, repr=False)
    nonzero: Mapping[str, int] = field(default_factory=dict)  # cpu and memory with defaults filled in
    spread: tuple[SpreadConstraint, ...] = ()
    owner: str = ""  # uid of the ReplicaSet or StatefulSet whose pods are spread by default
    claims: tuple[str, ...] = ()  # with those of ephemeral volumes
    preempted: bool = False  # being deleted to make room

    @property
    def key(self) -> Key:
        return Key(self.info.namespace, self.info.name)

    @property
    def cares_for_others(self) -> bool:
        """Whether a new pod elsewhere can make this pod schedulable."""
        return bool(self.info.affinity) or any(constraint.hard for constraint in self.spread)

    @property
    def has_terms(self) -> bool:
        info = self.info
        return bool(info.affinity or info.anti_affinity or info.preferred_affinity or info.preferred_anti_affinity)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node with the pods that use its resources (bound or assumed, not finished)."""

    info: NodeInfo
    obj: Obj = field(default_factory=dict, compare=False, repr=False)
    pods: tuple[PodView, ...] = ()
    with_terms: tuple[PodView, ...] = ()  # those of `pods` with affinity terms about other pods
    used: Amounts = field(default_factory=dict)
    nonzero: Amounts = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.info.name

    def with_pods(self, *more: PodView) -> NodeState:
        used, nonzero = dict(self.used), dict(self.nonzero)
        for pod in more:
            _add(used, pod.info.requests, 1)
            _add(nonzero, pod.nonzero, 1)
        terms = self.with_terms + tuple(pod for pod in more if pod.has_terms)
        return dataclasses.replace(self, pods=self.pods + more, with_terms=terms, used=used, nonzero=nonzero)

    def without_pods(self, *keys: Key) -> NodeState:
        gone = [pod for pod in self.pods if pod.key in keys]
        used, nonzero = dict(self.used), dict(self.nonzero)
        for pod in gone:
            _add(used, pod.info.requests, -1)
            _add(nonzero, pod.nonzero, -1)
        kept = tuple(pod for pod in self.pods if pod.key not in keys)
        terms = tuple(pod for pod in self.with_terms if pod.key not in keys)
        return dataclasses.replace(self, pods=kept, with_terms=terms, used=used, nonzero=nonzero)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A PersistentVolumeClaim. `volume` is its `spec.volumeName`, or "" without one."""

    volume: str = ""
    bound: bool = False
    lost: bool = False
    deleting: bool = False
    storage_class: str = ""
    single_pod: bool = False  # ReadWriteOncePod
    selected_node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A PersistentVolume. `terms` is None if all nodes can use it. `claim` is "namespace/name" or ""."""

    terms: tuple[NodeSelectorTerm, ...] | None = None
    storage_class: str = ""
    available: bool = False
    claim: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageClass:
    delayed: bool  # volumeBindingMode WaitForFirstConsumer
    provisioner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A PodDisruptionBudget. A selector without requirements matches nothing, as in kube-scheduler."""

    namespace: str
    selector: LabelSelector
    allowed: int
    disrupted: frozenset[str] = frozenset()

    def covers(self, pod: PodInfo) -> bool:
        return (
            pod.namespace == self.namespace
            and bool(self.selector.requirements)
            and pod.name not in self.disrupted
            and self.selector.matches(pod.labels)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All data on which a decision may depend."""

    nodes: Mapping[str, NodeState]
    nominated: Mapping[str, tuple[PodView, ...]] = field(default_factory=dict)
    claims: Mapping[Key, Claim] = field(default_factory=dict)
    volumes: Mapping[str, Volume] = field(default_factory=dict)
    classes: Mapping[str, StorageClass] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # labels by name
    budgets: tuple[Budget, ...] = ()
    ignored_resources: frozenset[str] = frozenset()  # left to an extender

    def with_node(self, node: NodeState) -> Snapshot:
        return dataclasses.replace(self, nodes={**self.nodes, node.name: node})


def parse_pod_view(obj: Obj) -> PodView:
    """Read a `v1.Pod`. Raises ValueError, KeyError or TypeError for a pod that API servers would not store."""
    info = parse_pod(obj)
    spec = obj.get("spec") or {}
    owner = controller_ref(obj)
    target = condition(obj, "DisruptionTarget")
    return PodView(
        info=info,
        obj=obj,
        nonzero=_nonzero(spec),
        spread=tuple(
            _spread(constraint, info.labels) for constraint in spec.get("topologySpreadConstraints") or ()
        ),
        owner=owner["uid"] if owner is not None and owner.get("kind") in SPREAD_OWNERS else "",
        claims=info.claims
        + tuple(
            f"{info.name}-{volume['name']}" for volume in spec.get("volumes") or () if volume.get("ephemeral")
        ),
        preempted=info.deleting
        and target is not None
        and target.get("status") == "True"
        and target.get("reason") == "PreemptionByScheduler",
    )


def parse_node_info(obj: Obj) -> NodeInfo:
    """Read a `v1.Node`.

    A node that is not Ready gets the taint that the node controller is about to add, so that it gets no pods
    in between. A node without a Ready condition is not tainted.
    """
    info = parse_node(obj)
    ready = condition(obj, "Ready")
    if ready is None or ready.get("status") == "True":
        return info
    kind = "not-ready" if ready.get("status") == "False" else "unreachable"
    taint = Taint(f"node.kubernetes.io/{kind}", "", "NoSchedule")
    if any(other.key == taint.key and other.effect in ("NoSchedule", "NoExecute") for other in info.taints):
        return info
    return dataclasses.replace(info, taints=(*info.taints, taint))


def parse_claim(obj: Obj) -> Claim:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    volume = spec.get("volumeName") or ""
    return Claim(
        volume=volume,
        bound=bool(volume) and status.get("phase") == "Bound",
        lost=status.get("phase") == "Lost",
        deleting=is_deleting(obj),
        storage_class=spec.get("storageClassName") or "",
        single_pod="ReadWriteOncePod" in (spec.get("accessModes") or ()),
        selected_node=annotations_of(obj).get(SELECTED_NODE, ""),
    )


def parse_volume(obj: Obj) -> Volume:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    required = (spec.get("nodeAffinity") or {}).get("required")
    claim = spec.get("claimRef") or {}
    return Volume(
        terms=None
        if required is None
        else tuple(
            NodeSelectorTerm(
                tuple(requirement_of(expression) for expression in term.get("matchExpressions") or ()),
                tuple(requirement_of(match_field) for match_field in term.get("matchFields") or ()),
            )
            for term in required.get("nodeSelectorTerms") or ()
        ),
        storage_class=spec.get("storageClassName") or "",
        available=status.get("phase") == "Available",
        claim=f"{claim.get('namespace')}/{claim.get('name')}" if claim else "",
    )


def parse_storage_class(obj: Obj) -> StorageClass:
    return StorageClass(
        delayed=obj.get("volumeBindingMode") == "WaitForFirstConsumer", provisioner=obj.get("provisioner") or ""
    )


def parse_budget(obj: Obj) -> Budget:
    status = obj.get("status") or {}
    return Budget(
        namespace=obj["metadata"].get("namespace") or "",
        selector=label_selector_of((obj.get("spec") or {}).get("selector")),
        allowed=int(status.get("disruptionsAllowed") or 0),
        disrupted=frozenset(status.get("disruptedPods") or ()),
    )


class Cache:
    """The latest known state of the cluster. Not thread-safe. All methods are fast and do no I/O."""

    def __init__(self) -> None:
        self._infos: dict[str, tuple[NodeInfo, Obj]] = {}
        self._nodes: dict[str, NodeState] = {}  # also of nodes not yet seen: info is then a bare name
        self._where: dict[Key, str] = {}  # pods that hold resources → node
        self._assumed: dict[Key, PodView] = {}  # binding under way: as it was before
        self._nominations: dict[Key, str] = {}
        self.released = 0  # how often room reserved for a pod became free for others
        self.pending: dict[Key, PodView] = {}  # not bound, for this scheduler; gated ones too
        self.claims: dict[Key, Claim] = {}
        self.volumes: dict[str, Volume] = {}
        self.classes: dict[str, StorageClass] = {}
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.budgets: dict[Key, Budget] = {}

    @property
    def has_terms(self) -> bool:
        """Whether a pod on a node has affinity terms about other pods."""
        return any(state.with_terms for state in self._nodes.values())

    def snapshot(self, ignored_resources: frozenset[str] = frozenset()) -> Snapshot:
        nominated: dict[str, tuple[PodView, ...]] = {}
        for key, node in self._nominations.items():
            pod = self.pending.get(key)
            if pod is not None and key not in self._assumed:
                nominated[node] = (*nominated.get(node, ()), pod)
        return Snapshot(
            nodes={name: self._nodes[name] for name in self._infos},
            nominated=nominated,
            claims=dict(self.claims),
            volumes=dict(self.volumes),
            classes=dict(self.classes),
            namespaces=dict(self.namespaces),
            budgets=tuple(self.budgets.values()),
            ignored_resources=ignored_resources,
        )

    # nodes

    def put_node(self, obj: Obj) -> bool:
        """Add or update a node. Return whether the change affects placement."""
        info = parse_node_info(obj)
        known = self._infos.get(info.name)
        self._infos[info.name] = (info, obj)
        state = self._nodes.get(info.name)
        self._nodes[info.name] = (
            NodeState(info=info, obj=obj) if state is None else dataclasses.replace(state, info=info, obj=obj)
        )
        return known is None or known[0] != info

    def remove_node(self, name: str) -> None:
        self._infos.pop(name, None)
        state = self._nodes.get(name)
        if state is not None and not state.pods:
            del self._nodes[name]

    # pods

    def put_bound(self, pod: PodView) -> None:
        """Add a pod that holds resources on its node; it replaces the known or assumed one."""
        self.remove_pod(pod.key)
        self._place(pod, pod.info.node)

    def put_pending(self, pod: PodView, *, nominated_before: str = "") -> None:
        """Add a pending pod.

        A node that this scheduler nominated is retained until the API names another, or removes it.
        """
        self.pending[pod.key] = pod
        if pod.info.nominated_node:
            self.nominate(pod.key, pod.info.nominated_node)
        elif nominated_before:
            self.nominate(pod.key, "")

    def remove_pod(self, key: Key) -> bool:
        """Remove a pod completely. Return whether it used resources or had a nomination."""
        self._assumed.pop(key, None)
        self.pending.pop(key, None)
        nominated = bool(self.nomination(key))
        self.nominate(key, "")
        return self._displace(key) or nominated

    def holds(self, key: Key) -> PodView | None:
        """The pod as it is on its node, or None if it holds nothing."""
        node = self._where.get(key)
        if node is None:
            return None
        return next((pod for pod in self._nodes[node].pods if pod.key == key), None)

    def is_assumed(self, key: Key) -> bool:
        return key in self._assumed

    def assume(self, pod: PodView, node: str) -> None:
        """Count the pod on the node from now on, although its binding has not finished."""
        self._assumed[pod.key] = pod
        if self._nominations.get(pod.key, node) != node:
            self.released += 1  # the room reserved for it on another node
        placed = dataclasses.replace(pod, info=dataclasses.replace(pod.info, node=node))
        self._displace(pod.key)
        self._place(placed, node)

    def forget(self, key: Key) -> bool:
        """Remove an assumed pod after its binding failed. False when it was seen bound or deleted meanwhile."""
        if self._assumed.pop(key, None) is None:
            return False
        self._displace(key)
        return True

    def nominate(self, key: Key, node: str) -> None:
        """Record the node on which pods are removed for this pod; "" removes the nomination."""
        if self._nominations.get(key, node) != node:
            self.released += 1
        if node:
            self._nominations[key] = node
        else:
            self._nominations.pop(key, None)

    def nomination(self, key: Key) -> str:
        return self._nominations.get(key, "")

    def mark_preempted(self, key: Key) -> None:
        """Record that the deletion of this pod was requested: neither it nor other victims are chosen again."""
        pod = self.holds(key)
        if pod is not None:
            info = dataclasses.replace(pod.info, deleting=True)
            node = self._where[key]
            self._displace(key)
            self._place(dataclasses.replace(pod, info=info, preempted=True), node)

    def _place(self, pod: PodView, node: str) -> None:
        state = self._nodes.get(node) or NodeState(info=NodeInfo(name=node))
        self._nodes[node] = state.with_pods(pod)
        self._where[pod.key] = node

    def _displace(self, key: Key) -> bool:
        node = self._where.pop(key, None)
        if node is None:
            return False
        state = self._nodes[node].without_pods(key)
        if state.pods or node in self._infos:
            self._nodes[node] = state
        else:
            del self._nodes[node]
        return True


def placement_relevant(before: Obj, after: Obj) -> bool:
    """Whether a change of a waiting pod can make it schedulable (a change of its status cannot)."""
    return (
        before.get("spec") != after.get("spec")
        or labels_of(before) != labels_of(after)
        or is_deleting(before) != is_deleting(after)
    )


def _add(total: dict[str, int], more: Mapping[str, int], sign: int) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + sign * value


def _nonzero(spec: Mapping[str, Any]) -> dict[str, int]:
    def filled(container: Mapping[str, Any]) -> dict[str, Any]:
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        wanted = {"cpu": asked.get("cpu", DEFAULT_CPU), "memory": asked.get("memory", DEFAULT_MEMORY)}
        return {"resources": {"requests": wanted}, "restartPolicy": container.get("restartPolicy")}

    total = pod_requests(
        {
            "containers": [filled(container) for container in spec.get("containers") or ()],
            "initContainers": [filled(container) for container in spec.get("initContainers") or ()],
            "overhead": spec.get("overhead"),
        }
    )
    return {name: total.get(name, 0) for name in ("cpu", "memory")}


def _spread(constraint: Mapping[str, Any], labels: Mapping[str, str]) -> SpreadConstraint:
    selector = constraint.get("labelSelector")
    parsed = None if selector is None else label_selector_of(selector)
    if parsed is not None:
        same = tuple(
            Requirement(key, "In", (labels[key],))
            for key in constraint.get("matchLabelKeys") or ()
            if key in labels
        )
        parsed = LabelSelector(parsed.requirements + same)
    return SpreadConstraint(
        max_skew=int(constraint["maxSkew"]),
        topology_key=constraint["topologyKey"],
        hard=constraint.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule",
        selector=parsed,
        min_domains=constraint.get("minDomains"),
        honor_affinity=constraint.get("nodeAffinityPolicy") != "Ignore",
        honor_taints=constraint.get("nodeTaintsPolicy") == "Honor",
    )
