"""The scheduler of a new pod, if a second scheduler is installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.decide.admission.tenancy import asks_for_gpus
from moorage.model.secondscheduler import takes_over
from moorage_kube.resources import Obj


def choose_scheduler(pod: Mapping[str, Any], name: str) -> tuple[Obj, ...]:
    """JSON patches that send a GPU pod to the scheduler `name`. Empty if `name` is "".

    Pods without GPUs keep their scheduler, and so do pods that name another one. One scheduler then places
    all GPUs: two schedulers could assign the same device twice.
    """
    spec = pod.get("spec") or {}
    if not name or not takes_over(spec) or not asks_for_gpus(pod):
        return ()
    return ({"op": "add", "path": "/spec/schedulerName", "value": name},)
