"""PriorityClasses.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import created
from moorage_local.apiserver.kinds.common import immutable
from moorage_local.apiserver.kinds.kind import Rules
from moorage_local.apiserver.types.fields import FieldErrors

SYSTEM_PRIORITY = 1_000_000_000  # user priority classes lie at or below it


def _default(obj: Obj) -> None:
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
    obj.setdefault("value", 0)


def _validate(obj: Obj, errors: FieldErrors) -> None:
    name, value = obj["metadata"].get("name") or "", obj.get("value", 0)
    if name.startswith("system-"):
        if name not in ("system-cluster-critical", "system-node-critical"):
            errors.forbidden(
                "metadata.name",
                "priority class names with 'system-' prefix are reserved for system use only. error:"
                f" {name} is not a known system priority class",
            )
    elif value > SYSTEM_PRIORITY:
        errors.forbidden("value", f"maximum allowed value of a user defined priority is {SYSTEM_PRIORITY}")


def _validate_update(new: Obj, old: Obj, errors: FieldErrors) -> None:
    if new.get("value") != old.get("value"):
        errors.forbidden("value", "may not be changed in an update.")
    immutable(new.get("preemptionPolicy"), old.get("preemptionPolicy"), "preemptionPolicy", errors)


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    return (
        obj["metadata"]["name"],
        obj.get("value", 0),
        bool(obj.get("globalDefault")),
        created(obj, now),
        obj.get("preemptionPolicy", ""),
    )


RULES = {
    ("scheduling.k8s.io", "priorityclasses"): Rules(
        default=_default,
        validate=_validate,
        validate_update=_validate_update,
        generation=lambda _new, _old: False,
        cells=_cells,
    ),
}
