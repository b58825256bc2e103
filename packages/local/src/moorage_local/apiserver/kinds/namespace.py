"""Namespaces.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import created, status_of
from moorage_local.apiserver.kinds.common import own_spec
from moorage_local.apiserver.kinds.kind import Rules

NAMESPACE_LABEL = "kubernetes.io/metadata.name"


def _default(obj: Obj) -> None:
    if name := obj["metadata"].get("name"):
        labels = obj["metadata"].setdefault("labels", {})
        labels[NAMESPACE_LABEL] = name


def _prepare(obj: Obj) -> None:
    _default(obj)
    finalizers = own_spec(obj).setdefault("finalizers", [])
    if "kubernetes" not in finalizers:
        finalizers.append("kubernetes")
    obj["status"] = {"phase": "Active"}


def _prepare_update(new: Obj, old: Obj) -> None:
    if "finalizers" in own_spec(old):
        own_spec(new)["finalizers"] = own_spec(old)["finalizers"]
    else:
        own_spec(new).pop("finalizers", None)


def _is_pending(obj: Obj) -> bool:
    return bool((obj.get("spec") or {}).get("finalizers"))


def _mark_deleted(obj: Obj) -> None:
    obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
    obj["metadata"].pop("deletionGracePeriodSeconds", None)


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], status_of(obj).get("phase", ""), created(obj, now)


RULES = {
    ("", "namespaces"): Rules(
        default=_default,
        prepare_create=_prepare,
        prepare_update=_prepare_update,
        name_form="label",
        pending=_is_pending,
        on_deletion=_mark_deleted,
        field_selectors=frozenset({"status.phase"}),
        cells=_cells,
    ),
}
