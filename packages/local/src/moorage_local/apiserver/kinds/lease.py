"""Leases.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import created, spec_of
from moorage_local.apiserver.kinds.common import own_spec
from moorage_local.apiserver.kinds.kind import Rules
from moorage_local.apiserver.types.fields import FieldErrors


def _default(obj: Obj) -> None:
    own_spec(obj)


def _validate(obj: Obj, errors: FieldErrors) -> None:
    spec = own_spec(obj)
    if spec.get("leaseDurationSeconds", 1) <= 0:
        errors.invalid("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0")
    if (spec.get("leaseTransitions") or 0) < 0:
        errors.invalid("spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0")


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], spec_of(obj).get("holderIdentity", ""), created(obj, now)


RULES = {
    ("coordination.k8s.io", "leases"): Rules(
        default=_default,
        validate=_validate,
        create_on_update=True,
        unconditional_update=False,
        cells=_cells,
    ),
}
