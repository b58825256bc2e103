"""Which pods fit the same nodes. Pure."""

from __future__ import annotations

from collections.abc import Hashable

from moorage_local.scheduler.snapshot import PodView


def shape_of(pod: PodView, *, by_labels: bool) -> Hashable | None:
    """Pods of the same shape are refused by the same nodes for the same reasons, and may remove the same pods.

    `by_labels`: whether there are pods whose anti-affinity may select this one by its namespace and labels. None:
    the pod is like no other, because its volumes have a say, or because a pod that appears elsewhere can help it.
    """
    if pod.claims or pod.cares_for_others:
        return None
    info = pod.info
    labels = (info.namespace, frozenset(info.labels.items())) if by_labels or info.anti_affinity else None
    return (
        labels,
        frozenset(info.requests.items()),
        info.priority,
        info.may_preempt,
        info.node_selector,
        info.node_terms,
        info.anti_affinity,
        info.tolerations,
        info.host_ports,
    )
