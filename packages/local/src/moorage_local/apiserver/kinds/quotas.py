"""ResourceQuotas and LimitRanges.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import created, name_date, status_of
from moorage_local.apiserver.kinds.common import born_with, own_spec
from moorage_local.apiserver.kinds.kind import Rules


def _default_limitrange(obj: Obj) -> None:
    for limit in own_spec(obj).get("limits") or ():
        if limit.get("type") != "Container":
            continue
        default = {**(limit.get("max") or {}), **(limit.get("default") or {})}
        request = {**(limit.get("min") or {}), **default, **(limit.get("defaultRequest") or {})}
        if default:
            limit["default"] = default
        if request:
            limit["defaultRequest"] = request


def _resourcequota_cells(obj: Obj, now: datetime) -> Sequence[Any]:
    status = status_of(obj)
    requests: list[str] = []
    limits: list[str] = []
    for name, hard in sorted((status.get("hard") or {}).items()):
        part = f"{name}: {(status.get('used') or {}).get(name, '0')}/{hard}"
        (limits if name.startswith("limits.") else requests).append(part)
    return obj["metadata"]["name"], ", ".join(requests), ", ".join(limits), created(obj, now)


RULES = {
    ("", "resourcequotas"): Rules(prepare_create=born_with(), cells=_resourcequota_cells),
    ("", "limitranges"): Rules(default=_default_limitrange, create_on_update=True, cells=name_date),
}
