"""The group `rbac.authorization.k8s.io`: roles and their bindings.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import created, name_date
from moorage_local.apiserver.kinds.kind import Rules
from moorage_local.apiserver.types.fields import FieldErrors


def _default_binding(obj: Obj) -> None:
    if obj.get("roleRef"):
        obj["roleRef"].setdefault("apiGroup", "rbac.authorization.k8s.io")
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in ("User", "Group"):
            subject.setdefault("apiGroup", "rbac.authorization.k8s.io")


def _validate_binding(obj: Obj, errors: FieldErrors) -> None:
    ref = obj.get("roleRef") or {}
    if not ref.get("name"):
        errors.required("roleRef.name")
    if ref.get("kind") not in ("Role", "ClusterRole"):
        errors.unsupported("roleRef.kind", ref.get("kind", ""), ["Role", "ClusterRole"])


def _validate_binding_update(new: Obj, old: Obj, errors: FieldErrors) -> None:
    if new.get("roleRef") != old.get("roleRef"):
        errors.invalid("roleRef", new.get("roleRef"), "cannot change roleRef")


def _binding_cells(obj: Obj, now: datetime) -> Sequence[Any]:
    ref = obj.get("roleRef") or {}
    by_kind: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for subject in obj.get("subjects") or ():
        name = (
            f"{subject.get('namespace')}/{subject['name']}"
            if subject.get("kind") == "ServiceAccount"
            else subject.get("name", "")
        )
        by_kind.setdefault(subject.get("kind", ""), []).append(name)
    return (
        obj["metadata"]["name"],
        f"{ref.get('kind', '')}/{ref.get('name', '')}",
        created(obj, now),
        *(", ".join(by_kind[kind]) for kind in ("User", "Group", "ServiceAccount")),
    )


_ROLE = Rules(name_form="path", create_on_update=True, cells=name_date)
_BINDING = Rules(
    name_form="path",
    create_on_update=True,
    default=_default_binding,
    validate=_validate_binding,
    validate_update=_validate_binding_update,
    cells=_binding_cells,
)

RULES = {
    ("rbac.authorization.k8s.io", "roles"): _ROLE,
    ("rbac.authorization.k8s.io", "clusterroles"): _ROLE,
    ("rbac.authorization.k8s.io", "rolebindings"): _BINDING,
    ("rbac.authorization.k8s.io", "clusterrolebindings"): _BINDING,
}
