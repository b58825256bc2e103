"""The use of a namespace's quota, in words."""

from __future__ import annotations

from collections.abc import Iterable

from moorage_kube.errors import QuantityError
from moorage_kube.quantity import parse_quantity
from moorage_kube.resources import Obj
from moorage_kube.scheduling import is_gpu

REQUESTS = "requests."
NAMES = {"cpu": "CPU", "memory": "memory", "pods": "pods"}


def quota_words(quotas: Iterable[Obj]) -> str:
    """GPUs, CPU, memory and pods as used/hard. If several quotas limit a resource: the one closest to its limit.

    "" if there is no quota.
    """
    nearest: dict[str, tuple[bool, float, str]] = {}
    for quota in quotas:
        status = quota.get("status") or {}
        used = status.get("used") or {}
        for resource, hard in (status.get("hard") or (quota.get("spec") or {}).get("hard") or {}).items():
            bare = resource.removeprefix(REQUESTS)
            name = f"GPUs ({bare})" if is_gpu(bare) else NAMES.get(bare, "")
            if not name:
                continue
            try:
                left = float(parse_quantity(str(hard)) - parse_quantity(str(used.get(resource, 0))))
            except QuantityError:
                continue
            words = (not is_gpu(bare), left, f"{name} {used.get(resource, 0)}/{hard}")
            if name not in nearest or words < nearest[name]:
                nearest[name] = words
    ordered = sorted(nearest.items(), key=lambda entry: (entry[1][0], entry[0]))
    return ", ".join(words for _, (_, _, words) in ordered)
