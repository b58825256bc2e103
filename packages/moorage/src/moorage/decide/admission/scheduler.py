"""Which scheduler places a new pod, where a second one is installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.decide.admission.tenancy import asks_for_gpus
from moorage.model.secondscheduler import takes_over
from moorage_kube.resources import Obj


def choose_scheduler(pod: Mapping[str, Any], name: str) -> tuple[Obj, ...]:
    """JSON patches that send a GPU pod to the scheduler `name`; none for an empty name.

    Pods without GPUs, and pods whose author named another scheduler, stay with theirs. One scheduler then places
    all GPUs, so that two never give the same device away.
    """
    spec = pod.get("spec") or {}
    if not name or not takes_over(spec) or not asks_for_gpus(pod):
        return ()
    return ({"op": "add", "path": "/spec/schedulerName", "value": name},)
