"""DaemonSets.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.integers import integer_or
from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import (
    created,
    labels_text,
    selector_text,
    spec_of,
    status_of,
    template_containers,
)
from moorage_local.apiserver.kinds.common import own_spec
from moorage_local.apiserver.kinds.kind import Rules, spec_changed
from moorage_local.apiserver.kinds.workloads import default_selected, selector_immutable, validate_selected

TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"


def _default(obj: Obj) -> None:
    spec = own_spec(obj)
    update = spec.setdefault("updateStrategy", {})
    update.setdefault("type", "RollingUpdate")
    if update["type"] == "RollingUpdate":
        rolling = update.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    spec.setdefault("revisionHistoryLimit", 10)
    default_selected(obj)


def _prepare(obj: Obj) -> None:
    born = ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady")
    obj["status"] = dict.fromkeys(born, 0)
    obj["metadata"].setdefault("annotations", {})[TEMPLATE_GENERATION] = "1"


def _prepare_update(new: Obj, old: Obj) -> None:
    was = integer_or((old["metadata"].get("annotations") or {}).get(TEMPLATE_GENERATION), 0)
    changed = own_spec(new).get("template") != own_spec(old).get("template")
    new["metadata"].setdefault("annotations", {})[TEMPLATE_GENERATION] = str(was + changed)


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = spec_of(obj), status_of(obj)
    template = spec.get("template") or {}
    return (
        obj["metadata"]["name"],
        status.get("desiredNumberScheduled", 0),
        status.get("currentNumberScheduled", 0),
        status.get("numberReady", 0),
        status.get("updatedNumberScheduled", 0),
        status.get("numberAvailable", 0),
        labels_text((template.get("spec") or {}).get("nodeSelector")),
        created(obj, now),
        *template_containers(template),
        selector_text(spec.get("selector")),
    )


RULES = {
    ("apps", "daemonsets"): Rules(
        default=_default,
        prepare_create=_prepare,
        prepare_update=_prepare_update,
        validate=validate_selected,
        validate_update=selector_immutable,
        generation=spec_changed,
        cells=_cells,
    ),
}
