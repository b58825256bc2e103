"""GPU types of a cluster: their labels, the number of free GPUs, the match of a user's word, and taints."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from moorage.model.names import GPU_TYPE_LABELS
from moorage_kube.scheduling import Amounts, NodeInfo, PodInfo, is_gpu, used_on

DEFAULT_GPU_RESOURCE = "nvidia.com/gpu"
_WORDS = re.compile(r"[a-z0-9]+")


class GpuType(Struct, frozen=True):
    """One GPU type of the cluster: its label, and its devices on Ready nodes."""

    label: str
    value: str
    resource: str
    free: int
    total: int

    def __str__(self) -> str:
        return f"{self.value} ({self.free} of {self.total} free)"


def gpu_label_of(node: NodeInfo) -> tuple[str, str] | None:
    """The label that names the node's GPU type, and its value. None if it has no such label."""
    return next(((key, node.labels[key]) for key in GPU_TYPE_LABELS if node.labels.get(key)), None)


def matches_type(asked: str, value: str) -> bool:
    """Whether the word that a user typed means this GPU type.

    The words of `asked` must be, in order and side by side, among the words of `value`, ignoring case: "a100" and
    "a100-sxm4" mean "NVIDIA-A100-SXM4-80GB", "a10" does not. "rtx4090" means "RTX-4090".
    """
    wanted = "".join(_WORDS.findall(asked.lower()))
    words = _WORDS.findall(value.lower())
    return bool(wanted) and any(
        "".join(words[first:last]) == wanted
        for first in range(len(words))
        for last in range(first + 1, len(words) + 1)
    )


def gpu_types(nodes: Iterable[NodeInfo], pods: Iterable[PodInfo]) -> tuple[GpuType, ...]:
    """The GPU types of the cluster, sorted by name. GPUs of cordoned or unready nodes do not count as free."""
    used = _used_by_node(pods)
    counts_of: dict[tuple[str, str, str], list[int]] = {}
    for node in nodes:
        label = gpu_label_of(node)
        if label is None:
            continue
        for resource, total in node.allocatable.items():
            if is_gpu(resource) and total > 0:
                counts = counts_of.setdefault((*label, resource), [0, 0])
                counts[1] += total
                if node.ready and not node.unschedulable:
                    counts[0] += max(0, total - used.get(node.name, {}).get(resource, 0))
    return tuple(
        GpuType(*key, free, total) for key, (free, total) in sorted(counts_of.items(), key=lambda item: item[0][1])
    )


def gpu_taints(resource: str) -> tuple[str, ...]:
    """The keys of the usual taints on nodes that offer a GPU resource.

    A slice or a shared GPU also has the taint of the whole GPU.
    """
    vendor = resource.partition("/")[0]
    part = "/mig-" in resource or resource.endswith(".shared")
    return (resource, f"{vendor}/gpu") if part else (resource,)


def _used_by_node(pods: Iterable[PodInfo]) -> dict[str, Amounts]:
    on_node: dict[str, list[PodInfo]] = {}
    for pod in pods:
        if pod.node:
            on_node.setdefault(pod.node, []).append(pod)
    return {name: used_on(there) for name, there in on_node.items()}
