"""The assignment of a node's GPUs to pods, and the variables by which a process sees its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

RESOURCE = "nvidia.com/gpu"


def assign(total: int, taken: Sequence[int], count: int) -> tuple[int, ...] | None:
    """Return the lowest `count` free indices of 0..total-1; None if there are not enough."""
    busy = set(taken)
    free = [index for index in range(total) if index not in busy]
    return tuple(free[:count]) if count <= len(free) else None


def share(
    indices: Sequence[int], wanted: Mapping[str, int], inits: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Divide a pod's GPUs among its containers, in order.

    Each container gets its own GPUs; init containers run before them, so they use the pod's from the first on.
    """
    out: dict[str, tuple[int, ...]] = {}
    start = 0
    for name, count in wanted.items():
        out[name] = tuple(indices[start : start + count])
        start += count
    for name, count in inits.items():
        out[name] = tuple(indices[:count])
    return out


def device_ids(node: str, real: Sequence[str] | None, indices: Sequence[int]) -> tuple[str, ...]:
    """The names in `allocatedResourcesStatus`: the UUID of a real GPU, `GPU-<node>-<index>` of a simulated one."""
    return tuple(real[index] if real else f"GPU-{node}-{index}" for index in indices)


def environment(node: str, real: Sequence[str] | None, indices: Sequence[int]) -> dict[str, str]:
    """Return the variables with which a process sees only its own GPUs, or none if it has none."""
    if not indices:
        return {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    visible = ",".join(real[index] if real else str(index) for index in indices)
    return {
        "CUDA_VISIBLE_DEVICES": visible,
        "NVIDIA_VISIBLE_DEVICES": ",".join(device_ids(node, real, indices)),
    }
