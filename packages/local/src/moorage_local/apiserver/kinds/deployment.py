"""Deployments.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import created, selector_text, spec_of, status_of, template_containers
from moorage_local.apiserver.kinds.common import born_with, own_spec
from moorage_local.apiserver.kinds.kind import Rules, spec_changed
from moorage_local.apiserver.kinds.workloads import default_selected, selector_immutable, validate_selected
from moorage_local.apiserver.types.fields import FieldErrors


def _default(obj: Obj) -> None:
    spec = own_spec(obj)
    spec.setdefault("replicas", 1)
    strategy = spec.setdefault("strategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    default_selected(obj)


def _validate(obj: Obj, errors: FieldErrors) -> None:
    validate_selected(obj, errors)
    strategy = own_spec(obj).get("strategy") or {}
    if strategy.get("type") == "Recreate" and strategy.get("rollingUpdate") is not None:
        errors.forbidden("spec.strategy.rollingUpdate", "may not be specified when strategy `type` is 'Recreate'")
    rolling = strategy.get("rollingUpdate") or {}
    if strategy.get("type") == "RollingUpdate" and all(
        str(rolling.get(key)) in ("0", "0%") for key in ("maxUnavailable", "maxSurge")
    ):
        errors.invalid(
            "spec.strategy.rollingUpdate.maxUnavailable",
            rolling.get("maxUnavailable"),
            "may not be 0 when `maxSurge` is 0",
        )


def _spec_or_annotations_changed(new: Obj, old: Obj) -> bool:
    return spec_changed(new, old) or new["metadata"].get("annotations") != old["metadata"].get("annotations")


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = spec_of(obj), status_of(obj)
    names, images = template_containers(spec.get("template"))
    return (
        obj["metadata"]["name"],
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        created(obj, now),
        names,
        images,
        selector_text(spec.get("selector")),
    )


RULES = {
    ("apps", "deployments"): Rules(
        default=_default,
        prepare_create=born_with(),
        validate=_validate,
        validate_update=selector_immutable,
        generation=_spec_or_annotations_changed,
        cells=_cells,
    ),
}
