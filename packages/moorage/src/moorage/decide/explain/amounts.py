"""Format resource amounts for explanations."""

from __future__ import annotations

from moorage_kube.quantity import format_amount
from moorage_kube.scheduling import is_gpu


def amount_text(resource: str, value: int) -> str:
    """An amount for people: "2 GPUs", "1 × nvidia.com/mig-1g.10gb", "4 cpu"."""
    if is_gpu(resource):
        return gpus_text(value) if resource.endswith("/gpu") else f"{value} × {resource}"
    return f"{format_amount(resource, value)} {resource}"


def gpus_text(many: int) -> str:
    return f"{many} GPU" if many == 1 else f"{many} GPUs"
