"""RuntimeClasses."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import created
from moorage_local.apiserver.kinds.kind import Rules


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], obj.get("handler", ""), created(obj, now)


RULES = {("node.k8s.io", "runtimeclasses"): Rules(cells=_cells)}
