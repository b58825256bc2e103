"""Keep pods without GPUs off nodes with GPUs (rule R7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moorage.model.names import GPU_PRESENT_LABEL, GPU_TYPE_LABELS
from moorage_kube.resources import Obj
from moorage_kube.scheduling import NodeInfo


def away_from_gpus(nodes: Iterable[NodeInfo], *, own: Mapping[str, str] | None = None) -> tuple[Obj, ...]:
    """The label expressions that keep a pod off nodes with GPUs and allow the others; R7.

    `own`: the labels of the dedicated nodes of its tenant, if any: it runs on these only. Empty when there are no
    other nodes. A node that is cordoned or tainted does not count as one for ordinary pods. Taints for node health
    (`node.kubernetes.io/…`) are temporary and are ignored.
    """
    known = list(nodes)
    with_gpus = [node for node in known if node.gpus]
    without = gpu_free(known, own=own)
    if not without:
        return ()
    expressions: list[Obj] = [{"key": GPU_PRESENT_LABEL, "operator": "NotIn", "values": ["true"]}]
    for key in GPU_TYPE_LABELS:
        if any(node.labels.get(key) for node in with_gpus) and not any(key in node.labels for node in without):
            expressions.append({"key": key, "operator": "DoesNotExist"})
    return tuple(expressions)


def gpu_free(nodes: Iterable[NodeInfo], *, own: Mapping[str, str] | None = None) -> list[NodeInfo]:
    """The nodes without GPUs on which an ordinary pod may run. `own`: as in `away_from_gpus`."""
    return [
        node
        for node in nodes
        if not node.gpus
        and node.labels.get(GPU_PRESENT_LABEL) != "true"
        and (own.items() <= node.labels.items() if own else not _is_shut(node))
    ]


def _is_shut(node: NodeInfo) -> bool:
    return node.unschedulable or any(
        taint.effect in ("NoSchedule", "NoExecute") and not taint.key.startswith("node.kubernetes.io/")
        for taint in node.taints
    )
