"""This machine as a node: its processors, its memory and the GPUs that its driver reports."""

from __future__ import annotations

import logging
import os
import re
import socket
from dataclasses import dataclass

from moorage_local.nodeagent.node import NodeSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RealGpu:
    uuid: str  # "GPU-…", as the driver and CUDA_VISIBLE_DEVICES know it
    product: str  # as GPU feature discovery labels it: "NVIDIA-H100-80GB-HBM3"
    memory_bytes: int


def product_label(name: str) -> str:
    """Return a product's name in the format of GPU feature discovery: dashes for spaces, at most 63 characters."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name.strip())[:63].strip("-_.")


def find_real() -> tuple[RealGpu, ...]:
    """Return the GPUs that NVML reports, in its order; none without a driver or library."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        gpus = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpus.append(
                RealGpu(
                    uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
                    product=product_label(_text(pynvml.nvmlDeviceGetName(handle))),
                    memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                )
            )
        return tuple(gpus)
    except pynvml.NVMLError as error:
        log.warning("the GPU driver answered with an error; the node offers 0 GPUs", extra={"error": str(error)})
        return ()
    finally:
        pynvml.nvmlShutdown()


def this_machine() -> NodeSpec:
    """Return this machine as one node: its processors and memory, and the GPUs of its most common product."""
    gpus = find_real()
    counts: dict[str, int] = {}
    for gpu in gpus:
        counts[gpu.product] = counts.get(gpu.product, 0) + 1
    product = max(counts, key=lambda product: (counts[product], product), default="")
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


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
