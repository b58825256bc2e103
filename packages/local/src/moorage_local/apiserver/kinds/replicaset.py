"""ReplicaSets, and the cells of ReplicationControllers.

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


def _default(obj: Obj) -> None:
    own_spec(obj).setdefault("replicas", 1)
    default_selected(obj)


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = spec_of(obj), status_of(obj)
    names, images = template_containers(spec.get("template"))
    selector = spec.get("selector")
    if selector and "matchLabels" not in selector and "matchExpressions" not in selector:
        selector = {"matchLabels": selector}  # a ReplicationController's
    return (
        obj["metadata"]["name"],
        spec.get("replicas", 0),
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        created(obj, now),
        names,
        images,
        selector_text(selector),
    )


RULES = {
    ("apps", "replicasets"): Rules(
        default=_default,
        prepare_create=born_with(replicas=0),
        validate=validate_selected,
        validate_update=selector_immutable,
        generation=spec_changed,
        field_selectors=frozenset({"status.replicas"}),
        cells=_cells,
    ),
    ("", "replicationcontrollers"): Rules(cells=_cells),
}
