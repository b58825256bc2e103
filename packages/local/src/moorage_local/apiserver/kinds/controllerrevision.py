"""ControllerRevisions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.meta import controller_ref
from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import NONE, created
from moorage_local.apiserver.kinds.kind import Rules


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    owner = controller_ref(obj)
    owner_text = NONE
    if owner is not None:
        group = owner["apiVersion"].rpartition("/")[0]
        owner_text = f"{owner['kind'].lower()}{'.' + group if group else ''}/{owner['name']}"
    return obj["metadata"]["name"], owner_text, obj.get("revision", 0), created(obj, now)


RULES = {("apps", "controllerrevisions"): Rules(cells=_cells)}
