"""HorizontalPodAutoscalers.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import NONE, UNSET, created, spec_of, status_of, with_more
from moorage_local.apiserver.kinds.common import born_with, own_spec
from moorage_local.apiserver.kinds.kind import Rules


def _default(obj: Obj) -> None:
    spec = own_spec(obj)
    spec.setdefault("minReplicas", 1)
    target = {"type": "Utilization", "averageUtilization": 80}
    spec.setdefault("metrics", [{"type": "Resource", "resource": {"name": "cpu", "target": target}}])


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    spec = spec_of(obj)
    target = spec.get("scaleTargetRef") or {}
    return (
        obj["metadata"]["name"],
        f"{target.get('kind', '')}/{target.get('name', '')}",
        with_more([f"<unknown> ({metric.get('type')})" for metric in spec.get("metrics") or ()], NONE, 2),
        str(spec.get("minReplicas", UNSET)),
        spec.get("maxReplicas", 0),
        status_of(obj).get("currentReplicas", 0),
        created(obj, now),
    )


RULES = {
    ("autoscaling", "horizontalpodautoscalers"): Rules(
        default=_default, prepare_create=born_with(desiredReplicas=0), cells=_cells
    ),
}
