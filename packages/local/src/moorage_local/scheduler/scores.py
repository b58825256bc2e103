"""Score the nodes that can accept a pod: kube-scheduler's default scores, each 0-100, times its weight.

There is no score for image locality, because nodes of the local cluster pull no images.
https://kubernetes.io/docs/reference/scheduling/config/#scheduling-plugins
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence

from moorage_kube.scheduling import PodAffinityTerm
from moorage_kube.selectors import LabelSelector
from moorage_local.scheduler.filters import Domain, counts_for_spread, matching_pods
from moorage_local.scheduler.snapshot import (
    HOSTNAME_LABEL,
    ZONE_LABEL,
    NodeState,
    PodView,
    Snapshot,
    SpreadConstraint,
)

MAX_SCORE = 100

# https://github.com/kubernetes/kubernetes/blob/master/pkg/scheduler/apis/config/v1/default_plugins.go
WEIGHTS: Mapping[str, int] = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "NodeResourcesFit": 1,
    "NodeResourcesBalancedAllocation": 1,
}

HARD_AFFINITY_WEIGHT = 1  # the weight of a running pod's required affinity to the new one

Scores = dict[str, int]  # by node name


def score_parts(pod: PodView, nodes: Sequence[NodeState], snapshot: Snapshot) -> dict[str, Scores]:
    """Return the score (0-100) of each plugin for each node, before its weight."""
    return {
        "TaintToleration": _taint_toleration(pod, nodes),
        "NodeAffinity": _node_affinity(pod, nodes),
        "PodTopologySpread": _topology_spread(pod, nodes, snapshot),
        "InterPodAffinity": _inter_pod_affinity(pod, nodes, snapshot),
        "NodeResourcesFit": {node.name: least_allocated(pod, node) for node in nodes},
        "NodeResourcesBalancedAllocation": {node.name: balanced_allocation(pod, node) for node in nodes},
    }


def total_scores(pod: PodView, nodes: Sequence[NodeState], snapshot: Snapshot) -> Scores:
    """Return the weighted sum of all plugins, by node."""
    totals = {node.name: 0 for node in nodes}
    for plugin, scores in score_parts(pod, nodes, snapshot).items():
        for name, score in scores.items():
            totals[name] += WEIGHTS[plugin] * score
    return totals


def pick(totals: Mapping[str, int], rng: random.Random) -> str:
    """Return a node with the highest score, a random one if several are equal. `totals` must not be empty."""
    best = max(totals.values())
    return rng.choice(sorted(name for name, score in totals.items() if score == best))


def least_allocated(pod: PodView, node: NodeState) -> int:
    """Return the average free share of cpu and memory. A container without requests counts as 100m and 200Mi."""
    scores = []
    for resource in ("cpu", "memory"):
        total = node.info.allocatable.get(resource, 0)
        if total > 0:
            used = node.nonzero.get(resource, 0) + pod.nonzero.get(resource, 0)
            scores.append((total - used) * MAX_SCORE // total if used <= total else 0)
    return sum(scores) // len(scores) if scores else 0


def balanced_allocation(pod: PodView, node: NodeState) -> int:
    """Return 100 minus the deviation of the used shares of cpu and memory; 0 for a pod that requests neither."""
    asked = pod.info.requests
    if not asked.get("cpu") and not asked.get("memory"):
        return 0
    shares = [
        min(1.0, (node.used.get(resource, 0) + asked.get(resource, 0)) / node.info.allocatable[resource])
        for resource in ("cpu", "memory")
        if node.info.allocatable.get(resource, 0) > 0
    ]
    deviation = abs(shares[0] - shares[1]) / 2 if len(shares) == 2 else 0.0
    return int((1 - deviation) * MAX_SCORE)


def _normalised(raw: Scores, *, reverse: bool = False) -> Scores:
    highest = max(raw.values(), default=0)
    if highest == 0:
        return {name: MAX_SCORE if reverse else 0 for name in raw}
    return {
        name: MAX_SCORE - score * MAX_SCORE // highest if reverse else score * MAX_SCORE // highest
        for name, score in raw.items()
    }


def _taint_toleration(pod: PodView, nodes: Sequence[NodeState]) -> Scores:
    raw = {
        node.name: sum(
            1
            for taint in node.info.taints
            if taint.effect == "PreferNoSchedule"
            and not any(toleration.tolerates(taint) for toleration in pod.info.tolerations)
        )
        for node in nodes
    }
    return _normalised(raw, reverse=True)


def _node_affinity(pod: PodView, nodes: Sequence[NodeState]) -> Scores:
    return _normalised(
        {
            node.name: sum(
                weight for weight, term in pod.info.preferred_nodes if term.matches(node.info.labels, node.name)
            )
            for node in nodes
        }
    )


def _inter_pod_affinity(pod: PodView, nodes: Sequence[NodeState], snapshot: Snapshot) -> Scores:
    info = pod.info
    own = snapshot.namespaces.get(info.namespace)
    wants = [(term, term.weight) for term in info.preferred_affinity]
    wants += [(term, -term.weight) for term in info.preferred_anti_affinity]
    worth: Counter[Domain] = Counter()
    for node in snapshot.nodes.values():
        labels = node.info.labels
        for other in node.pods if wants else node.with_terms:
            if other.key == pod.key:
                continue
            theirs = snapshot.namespaces.get(other.info.namespace)
            judged: list[tuple[PodAffinityTerm, int]] = [
                (term, weight) for term, weight in wants if term.selects(other.info, theirs)
            ]
            if other.has_terms:
                terms = [(term, HARD_AFFINITY_WEIGHT) for term in other.info.affinity]
                terms += [(term, term.weight) for term in other.info.preferred_affinity]
                terms += [(term, -term.weight) for term in other.info.preferred_anti_affinity]
                judged += [(term, weight) for term, weight in terms if term.selects(info, own)]
            for term, weight in judged:
                if term.topology_key in labels:
                    worth[term.topology_key, labels[term.topology_key]] += weight
    raw = {
        node.name: sum(worth[pair] for pair in node.info.labels.items() if pair in worth) if worth else 0
        for node in nodes
    }
    low, high = min(raw.values(), default=0), max(raw.values(), default=0)
    if high == low:
        return {name: 0 for name in raw}
    return {name: MAX_SCORE * (score - low) // (high - low) for name, score in raw.items()}


def _topology_spread(pod: PodView, nodes: Sequence[NodeState], snapshot: Snapshot) -> Scores:
    constraints, strict = _soft_constraints(pod)
    if not constraints:
        return {node.name: 0 for node in nodes}
    keys = {constraint.topology_key for constraint in constraints}
    ignored = {node.name for node in nodes if strict and not keys <= node.info.labels.keys()}
    counted = [node for node in nodes if node.name not in ignored]
    raw = {node.name: 0.0 for node in counted}
    for constraint in constraints:
        key = constraint.topology_key
        per_host = key == HOSTNAME_LABEL
        domains = {node.info.labels.get(key, "") for node in counted}
        counts: Counter[str] = Counter()
        if not per_host:
            for node in snapshot.nodes.values():
                value = node.info.labels.get(key, "")
                if strict and not keys <= node.info.labels.keys():
                    continue
                if value in domains and counts_for_spread(pod, node, constraint):
                    counts[value] += _standing(pod, node, constraint)
        weight = math.log((len(counted) if per_host else len(domains)) + 2)
        for node in counted:
            if key in node.info.labels:
                count = _standing(pod, node, constraint) if per_host else counts[node.info.labels[key]]
                raw[node.name] += count * weight + (constraint.max_skew - 1)
    rounded = {name: round(score) for name, score in raw.items()}
    low, high = min(rounded.values(), default=0), max(rounded.values(), default=0)
    points = {
        name: MAX_SCORE if high == 0 else MAX_SCORE * (high + low - score) // high
        for name, score in rounded.items()
    }
    return {node.name: points.get(node.name, 0) for node in nodes}


def _soft_constraints(pod: PodView) -> tuple[list[SpreadConstraint], bool]:
    """Return the pod's soft constraints, and whether only nodes with all their labels count.

    For pods of a ReplicaSet or StatefulSet without constraints, these are the defaults of the cluster.
    """
    if pod.spread:
        return [constraint for constraint in pod.spread if not constraint.hard], True
    if not pod.owner:
        return [], False
    siblings = LabelSelector()  # by owner, see _standing
    return [
        SpreadConstraint(max_skew=3, topology_key=HOSTNAME_LABEL, hard=False, selector=siblings),
        SpreadConstraint(max_skew=5, topology_key=ZONE_LABEL, hard=False, selector=siblings),
    ], False


def _standing(pod: PodView, node: NodeState, constraint: SpreadConstraint) -> int:
    if pod.spread:
        return matching_pods(pod, node, constraint)
    return sum(1 for other in node.pods if other.owner == pod.owner and not other.info.deleting)
