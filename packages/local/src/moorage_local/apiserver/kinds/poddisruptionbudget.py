"""PodDisruptionBudgets.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.integers import integer_or
from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import created, spec_of, status_of
from moorage_local.apiserver.kinds.common import born_with, own_spec, validate_selector
from moorage_local.apiserver.kinds.kind import Rules, spec_changed
from moorage_local.apiserver.types.fields import FieldErrors


def _validate(obj: Obj, errors: FieldErrors) -> None:
    spec = own_spec(obj)
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        errors.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")
    for key in ("minAvailable", "maxUnavailable"):
        value = spec.get(key)
        if isinstance(value, int) and value < 0:
            errors.invalid(f"spec.{key}", value, "must be greater than or equal to 0")
        elif isinstance(value, str) and not (
            value.endswith("%") and integer_or(value[:-1], -1, maximum=100, signed=False) >= 0
        ):
            errors.invalid(
                f"spec.{key}",
                value,
                "a valid percent string must be a numeric string followed by an ending '%'"
                " (e.g. '1%',  or '93%', regex"
                " used for validation is '[0-9]+%')",
            )
    if spec.get("selector"):
        validate_selector(spec["selector"], "spec.selector", errors)


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    spec = spec_of(obj)
    return (
        obj["metadata"]["name"],
        str(spec.get("minAvailable", "N/A")),
        str(spec.get("maxUnavailable", "N/A")),
        status_of(obj).get("disruptionsAllowed", 0),
        created(obj, now),
    )


RULES = {
    ("policy", "poddisruptionbudgets"): Rules(
        validate=_validate,
        prepare_create=born_with(disruptionsAllowed=0, currentHealthy=0, desiredHealthy=0, expectedPods=0),
        generation=spec_changed,
        unconditional_update=False,
        cells=_cells,
    ),
}
