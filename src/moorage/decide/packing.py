"""Which node a pod should go to so that GPUs stay together: points from 0 to 10 per node.

One policy so far, `pack`: fill nodes that are in use before opening an empty one, so that a large request still
finds a whole node. Whether a node *can* take the pod is not judged here: the scheduler asks only about those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moorage.apimachinery.scheduling import Amounts, NodeInfo, PodInfo, is_gpu

MAX_SCORE = 10  # MaxExtenderPriority of kube-scheduler's extender protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNode:
    """GPUs of one node by resource name: how many there are, and how many are held or promised."""

    name: str
    total: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)


def gpus_asked(requests: Amounts) -> dict[str, int]:
    """The GPU resources in a pod's requests, with counts above zero."""
    return {name: count for name, count in requests.items() if count > 0 and is_gpu(name)}


def gpu_node(node: NodeInfo, pods: tuple[PodInfo, ...] = ()) -> GpuNode:
    """The GPU side of a node and of the pods on it; finished pods hold nothing."""
    used: dict[str, int] = {}
    for pod in pods:
        if not pod.finished:
            for name, count in gpus_asked(pod.requests).items():
                used[name] = used.get(name, 0) + count
    return GpuNode(name=node.name, total=gpus_asked(node.allocatable), used=used)


def pack(asked: Mapping[str, int], node: GpuNode) -> int:
    """(requested + used) / total x 10 over the GPU resources asked for, rounded down, 0 to 10.

    0 where a resource asked for is missing. More than the node has counts as full: the scheduler offers only nodes
    with room, so a pod that we still count has left and the node is about to be filled. A pod that asks for no GPU
    gets 10 on nodes without GPUs and 0 on nodes with them: it should not stand in the way of those that do.
    """
    if not asked:
        return 0 if any(node.total.values()) else MAX_SCORE
    total = taken = 0
    for name, count in asked.items():
        there = node.total.get(name, 0)
        if there <= 0:
            return 0
        total += there
        taken += count + max(0, node.used.get(name, 0))
    return min(MAX_SCORE, taken * MAX_SCORE // total)
