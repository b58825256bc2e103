"""RuntimeClasses."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage.apimachinery.resources import Obj
from moorage.localcluster.apiserver.kinds.cells import created
from moorage.localcluster.apiserver.kinds.kind import Rules


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], obj.get("handler", ""), created(obj, now)


RULES = {("node.k8s.io", "runtimeclasses"): Rules(cells=_cells)}
