"""Why a node that costs money stays: the pods that hold it and the rule of the autoscaler that each breaks.

The rules are those of its FAQ, "What types of pods can prevent CA from removing a node?" and "How does scale-down
work?", in the order its own code asks them. Facts that only the autoscaler knows (minimum sizes of node groups,
its wait after an addition, ten minutes of being unneeded) are not judged here.

https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from moorage.decide.tools.drain import MIRROR_ANNOTATION
from moorage_kube.errors import SelectorError
from moorage_kube.meta import Key, annotations_of, controller_ref, is_deleting, key_of, labels_of
from moorage_kube.quantity import format_amount
from moorage_kube.resources import Obj
from moorage_kube.scheduling import NodeInfo, PodInfo, is_gpu, parse_node, parse_pod, refusals, used_on
from moorage_kube.selectors import label_selector_of

FAQ = "https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md"
PREFIX = "cluster-autoscaler.kubernetes.io/"
SAFE_TO_EVICT = f"{PREFIX}safe-to-evict"
SAFE_VOLUMES = f"{PREFIX}safe-to-evict-local-volumes"
SCALE_DOWN_DISABLED = f"{PREFIX}scale-down-disabled"
SYSTEM = "kube-system"
EXPENDABLE_BELOW = -10  # --expendable-pods-priority-cutoff: pods of a lower priority hold nothing
THRESHOLD = 0.5  # --scale-down-utilization-threshold, and --scale-down-gpu-utilization-threshold
REPLICATING = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet", "Job"})  # controllers it trusts


class HoldRule(Struct, frozen=True):
    """One row of the table: its meaning, the fix, and the source in the autoscaler's documentation."""

    name: str
    means: str
    fix: str
    source: str


_PODS = f"{FAQ}#what-types-of-pods-can-prevent-ca-from-removing-a-node"
_EVICTABLE = f"annotate the pod {SAFE_TO_EVICT}=true, or move it to a cheap node"

HOLD_RULES: Mapping[str, HoldRule] = {
    rule.name: rule
    for rule in (
        HoldRule(
            "scale-down-disabled",
            "the node is annotated to stay",
            f"kubectl annotate node NODE {SCALE_DOWN_DISABLED}-",
            f"{FAQ}#how-can-i-prevent-cluster-autoscaler-from-scaling-down-a-particular-node",
        ),
        HoldRule(
            "utilisation",
            "requests on the node are at or above the threshold",
            "nothing: the node is in use; or lower requests, or raise --scale-down-utilization-threshold",
            f"{FAQ}#how-does-scale-down-work",
        ),
        HoldRule("no-controller", "nothing would make the pod again", f"run it as a Job; or {_EVICTABLE}", _PODS),
        HoldRule(
            "custom-controller",
            "its controller is of a kind the autoscaler does not know",
            f"{_EVICTABLE}; or start the autoscaler with --skip-nodes-with-custom-controller-pods=false",
            _PODS,
        ),
        HoldRule(
            "system-pod",
            "a pod of kube-system without a disruption budget",
            f"give it a PodDisruptionBudget; or {_EVICTABLE}",
            f"{FAQ}#how-to-set-pdbs-to-enable-ca-to-move-kube-system-pods",
        ),
        HoldRule(
            "not-safe-to-evict",
            "the pod is annotated to stay",
            f"remove the annotation {SAFE_TO_EVICT} when it may go",
            _PODS,
        ),
        HoldRule(
            "local-storage",
            "the pod keeps data on the node (hostPath, or emptyDir outside memory)",
            f"list the volumes in the annotation {SAFE_VOLUMES} if their data may be lost; or {_EVICTABLE}",
            _PODS,
        ),
        HoldRule(
            "budget",
            "its disruption budget allows no eviction now",
            "add replicas, or let the budget allow one: maxUnavailable 1",
            _PODS,
        ),
        HoldRule(
            "no-place",
            "the pod fits on no other node",
            "lower its requests, widen its selectors, or let it end",
            _PODS,
        ),
    )
}


class Hold(Struct, frozen=True):
    """One reason. `pod` None: the node's own. `why`: the fact that breaks the rule."""

    rule: str
    why: str
    pod: Key | None = None


class Utilisation(Struct, frozen=True, kw_only=True):
    """The decisive utilisation of a node: of its GPUs if it has some, else the higher of CPU and memory."""

    resource: str
    requested: int  # in the unit of `quantity.amount`
    allocatable: int

    @property
    def share(self) -> float:
        return self.requested / self.allocatable if self.allocatable else 0.0

    def __str__(self) -> str:
        asked, whole = (self._shown(amount) for amount in (self.requested, self.allocatable))
        return f"{self.resource} {100 * self.share:.0f} % ({asked} of {whole})"

    def _shown(self, value: int) -> str:
        return str(value) if self.resource == "gpu" else format_amount(self.resource, value)


class NodeReport(Struct, frozen=True, kw_only=True):
    """One node: whether the autoscaler could remove it now, and if not, why."""

    node: str
    utilisation: Utilisation
    threshold: float
    holds: tuple[Hold, ...]
    moving: int  # pods that would have to move

    @property
    def may_go(self) -> bool:
        return not self.holds


def diagnose(
    nodes: Sequence[Obj],
    pods: Iterable[Obj],
    budgets: Iterable[Obj],
    *,
    threshold: float = THRESHOLD,
    gpu_threshold: float = THRESHOLD,
) -> tuple[NodeReport, ...]:
    """Check for each node, sorted by name, whether this node alone could be removed. Thresholds: 0 to 1."""
    infos = sorted((parse_node(obj) for obj in nodes), key=lambda node: node.name)
    on_node: dict[str, list[tuple[Obj, PodInfo]]] = {node.name: [] for node in infos}
    for pod in sorted(pods, key=key_of):
        info = parse_pod(pod)
        if info.node in on_node and not info.finished:
            on_node[info.node].append((pod, info))
    disabled = {obj["metadata"]["name"] for obj in nodes if annotations_of(obj).get(SCALE_DOWN_DISABLED) == "true"}
    known = list(budgets)
    reports = []
    for node in infos:
        held: list[Hold] = []
        if node.name in disabled:
            held.append(Hold("scale-down-disabled", f"{SCALE_DOWN_DISABLED}=true"))
        use = utilisation(node, [info for _, info in on_node[node.name]])
        limit = gpu_threshold if use.resource == "gpu" else threshold
        if use.share >= limit and use.requested:
            held.append(Hold("utilisation", f"{use}, threshold {100 * limit:.0f} %"))
        moving = [(pod, info) for pod, info in on_node[node.name] if _must_move(pod, info)]
        for pod, _ in moving:
            held += holds_of(pod, known)
        stuck = {hold.pod for hold in held}
        held += _without_place(node, [info for pod, info in moving if key_of(pod) not in stuck], infos, on_node)
        reports.append(
            NodeReport(node=node.name, utilisation=use, threshold=limit, holds=tuple(held), moving=len(moving))
        )
    return tuple(reports)


def holds_of(pod: Obj, budgets: Sequence[Obj]) -> list[Hold]:
    """All rules that prevent moving a pod, in the autoscaler's order."""
    key, notes = key_of(pod), annotations_of(pod)
    holds = []
    mine = [budget for budget in budgets if _covers(budget, pod)]
    if notes.get(SAFE_TO_EVICT) != "true":  # overrides all but budgets
        holds += _held_by_kind(pod, key, mine)
        if notes.get(SAFE_TO_EVICT) == "false":
            holds.append(Hold("not-safe-to-evict", f"{SAFE_TO_EVICT}=false", key))
        if local := _local_volumes(pod):
            holds.append(Hold("local-storage", f"volume {', '.join(local)}", key))
    for budget in mine:
        if int((budget.get("status") or {}).get("disruptionsAllowed") or 0) < 1:
            holds.append(Hold("budget", f"{budget['metadata']['name']} allows 0 disruptions", key))
    if len(mine) > 1:
        names = ", ".join(sorted(str(budget["metadata"]["name"]) for budget in mine))
        holds.append(
            Hold("budget", f"more than one budget covers it, so it cannot be evicted at all: {names}", key)
        )
    return holds


def utilisation(node: NodeInfo, pods: Sequence[PodInfo]) -> Utilisation:
    """Requests of the pods on the node over its allocatable amounts; DaemonSets' pods count, as by default."""
    used = used_on(pods)
    if node.gpus:
        gpus = sum(count for name, count in used.items() if is_gpu(name))
        return Utilisation(resource="gpu", requested=gpus, allocatable=node.gpus)
    each = [
        Utilisation(resource=name, requested=used.get(name, 0), allocatable=node.allocatable.get(name, 0))
        for name in ("cpu", "memory")
    ]
    return max(each, key=lambda use: use.share)


def _must_move(pod: Obj, info: PodInfo) -> bool:
    """Whether a pod must move when its node is removed.

    Mirror pods of static pods, pods of DaemonSets, pods that are being deleted and expendable pods need not move.
    """
    if MIRROR_ANNOTATION in annotations_of(pod) or is_deleting(pod) or info.priority < EXPENDABLE_BELOW:
        return False
    owner = controller_ref(pod)
    return owner is None or owner.get("kind") != "DaemonSet"


def _held_by_kind(pod: Obj, key: Key, budgets: Sequence[Obj]) -> list[Hold]:
    holds = []
    owner = controller_ref(pod)
    if owner is None:
        holds.append(Hold("no-controller", "it has no controller", key))
    elif owner.get("kind") not in REPLICATING:
        holds.append(Hold("custom-controller", f"its controller is {owner.get('kind')} {owner.get('name')}", key))
    if key.namespace == SYSTEM and not budgets:
        holds.append(Hold("system-pod", "no PodDisruptionBudget covers it", key))
    return holds


def _local_volumes(pod: Mapping[str, Any]) -> list[str]:
    """Volumes whose data is lost with the node, without those that an annotation of the pod declares safe."""
    local = [
        str(volume.get("name"))
        for volume in (pod.get("spec") or {}).get("volumes") or ()
        if volume.get("hostPath") is not None
        or (volume.get("emptyDir") is not None and volume["emptyDir"].get("medium") != "Memory")
    ]
    safe = {name.strip() for name in annotations_of(pod).get(SAFE_VOLUMES, "").split(",")}
    return [name for name in local if name not in safe]


def _covers(budget: Obj, pod: Obj) -> bool:
    if (budget["metadata"].get("namespace") or "") != key_of(pod).namespace:
        return False
    selector = (budget.get("spec") or {}).get("selector")
    if selector is None:
        return False
    try:
        return label_selector_of(selector).matches(labels_of(pod))
    except (SelectorError, KeyError):
        return False


def _without_place(
    node: NodeInfo,
    moving: Sequence[PodInfo],
    nodes: Sequence[NodeInfo],
    on_node: Mapping[str, Sequence[tuple[Obj, PodInfo]]],
) -> list[Hold]:
    """Pods that do not fit on another node, when all are moved one after another to the first node that fits."""
    others = [other for other in nodes if other.name != node.name]
    there = {other.name: [info for _, info in on_node[other.name]] for other in others}
    holds = []
    for pod in moving:
        refused: dict[str, str] = {}
        for other in others:
            reasons = refusals(pod, other, there[other.name])
            if not reasons:
                there[other.name].append(pod)
                break
            refused[other.name] = reasons[0]
        else:
            why = "; ".join(f"{name}: {reason}" for name, reason in list(refused.items())[:3])
            more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
            holds.append(Hold("no-place", why + more or "there is no other node", Key(pod.namespace, pod.name)))
    return holds
