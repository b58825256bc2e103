"""Group pods that fit the same nodes. Pure."""

from __future__ import annotations

from collections.abc import Hashable

from moorage_local.scheduler.snapshot import PodView


def shape_of(pod: PodView, *, by_labels: bool) -> Hashable | None:
    """Return the shape of a pod.

    Nodes refuse pods of one shape for the same reasons; the pods may preempt the same pods.

    `by_labels`: whether any pod has anti-affinity that may select this pod by its namespace and labels. None
    if the pod has no shape: its volumes limit its nodes, or a new pod elsewhere can help it.
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
