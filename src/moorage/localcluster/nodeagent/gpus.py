"""GPUs: the real ones of this machine, and who holds which."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moorage.localcluster.nodeagent.node import NodeSpec

log = logging.getLogger(__name__)

RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class RealGpu:
    uuid: str  # "GPU-…", as the driver and CUDA_VISIBLE_DEVICES know it
    product: str  # as GPU feature discovery labels it: "NVIDIA-H100-80GB-HBM3"
    memory_bytes: int


def product_label(name: str) -> str:
    """A product's name as GPU feature discovery writes it: spaces become dashes, at most 63 characters."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name.strip())[:63].strip("-_.")


def find_real() -> tuple[RealGpu, ...]:
    """The GPUs NVML knows, in its order; none when there is no driver or no library."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            found.append(
                RealGpu(
                    uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
                    product=product_label(_text(pynvml.nvmlDeviceGetName(handle))),
                    memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                )
            )
        return tuple(found)
    except pynvml.NVMLError as error:
        log.warning("the GPU driver answered with an error; no GPUs are offered", extra={"error": str(error)})
        return ()
    finally:
        pynvml.nvmlShutdown()


def this_machine() -> NodeSpec:
    """This machine as one node: its processors and memory, and the GPUs of the commonest product."""
    from moorage.localcluster.nodeagent.node import NodeSpec

    gpus = find_real()
    counts: dict[str, int] = {}
    for gpu in gpus:
        counts[gpu.product] = counts.get(gpu.product, 0) + 1
    product = max(counts, key=lambda one: (counts[one], one), default="")
    chosen = [gpu for gpu in gpus if gpu.product == product]
    if len(chosen) < len(gpus):
        log.warning(
            "a node has GPUs of one type; the others are left out",
            extra={"type": product, "used": len(chosen), "found": len(gpus)},
        )
    name = re.sub(r"[^a-z0-9.-]+", "-", socket.gethostname().lower()).strip("-.") or "localhost"
    return NodeSpec(
        name=name[:63].strip("-."),
        cpu_milli=1000 * (len(os.sched_getaffinity(0)) or 1),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=len(chosen),
        gpu_type=product,
        gpu_memory_bytes=chosen[0].memory_bytes if chosen else 0,
        real_gpu_uuids=tuple(gpu.uuid for gpu in chosen) or None,
    )


def assign(total: int, taken: Sequence[int], count: int) -> tuple[int, ...] | None:
    """The lowest `count` free indices of 0..total-1, or None when there are not enough."""
    busy = set(taken)
    free = [index for index in range(total) if index not in busy]
    return tuple(free[:count]) if count <= len(free) else None


def share(
    indices: Sequence[int], wanted: Mapping[str, int], inits: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Divide a pod's GPUs among its containers, in order.

    Containers get GPUs of their own; init containers run before them, so they use the pod's from the first on.
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
    """What `allocatedResourcesStatus` names: the UUID of a real GPU, `GPU-<node>-<index>` of a simulated one."""
    return tuple(real[index] if real else f"GPU-{node}-{index}" for index in indices)


def environment(node: str, real: Sequence[str] | None, indices: Sequence[int]) -> dict[str, str]:
    """The variables by which a process sees its GPUs and no others; with none it sees none."""
    if not indices:
        return {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    visible = ",".join(real[index] if real else str(index) for index in indices)
    return {
        "CUDA_VISIBLE_DEVICES": visible,
        "NVIDIA_VISIBLE_DEVICES": ",".join(device_ids(node, real, indices)),
    }


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
