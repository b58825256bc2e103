"""Constraints of a pod on nodes: its GPU types, and all fields that decide which nodes it may use."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from moorage.model.names import GPU_TYPE_LABELS
from moorage_kube.scheduling import NodeInfo, PodInfo, refusal_by_labels, refusal_by_taints
from moorage_kube.selectors import Requirement

TRANSIENT_TAINTS = ("node.kubernetes.io/",)  # set by the node controller: they pass with the node's trouble


def names_type(requirement: Requirement) -> bool:
    """Whether a requirement on node labels names GPU types."""
    return requirement.key in GPU_TYPE_LABELS and requirement.operator == "In"


def wanted_types(pod: PodInfo) -> tuple[str, ...]:
    """The GPU types in the pod's node selector or required affinity, sorted. Empty: any type."""
    named = {value for part in pod.node_selector if names_type(part) for value in part.values}
    for term in pod.node_terms or ():
        named |= {value for part in term.expressions if names_type(part) for value in part.values}
    return tuple(sorted(named))


def of_any_type(pod: PodInfo) -> PodInfo:
    """A copy of the pod without its requirements on GPU types."""
    terms = None
    if pod.node_terms is not None:
        stripped = [
            replace(term, expressions=tuple(part for part in term.expressions if not names_type(part)))
            for term in pod.node_terms
        ]
        # a term left empty asked for nothing but a type: without it every node will do
        terms = None if any(not term.expressions and not term.fields for term in stripped) else tuple(stripped)
    selector = tuple(part for part in pod.node_selector if not names_type(part))
    return replace(pod, node_selector=selector, node_terms=terms)


def placing(pod: PodInfo) -> Hashable:
    """A key of the pod's placement rules: pods with the same key may use the same nodes."""
    return pod.node_selector, pod.node_terms, pod.tolerations


def may_use(pod: PodInfo, node: NodeInfo) -> bool:
    """Whether labels, taints and cordon of the node allow the pod."""
    return refusal_by_labels(pod, node) is None and refusal_by_taints(pod, node) is None


def could_use(pod: PodInfo, node: NodeInfo) -> bool:
    """Like `may_use`, but cordon and temporary taints of the node are ignored."""
    lasting = tuple(taint for taint in node.taints if not taint.key.startswith(TRANSIENT_TAINTS))
    return may_use(pod, replace(node, taints=lasting, unschedulable=False))
