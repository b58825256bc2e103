"""PersistentVolumeClaims, and table cells that PersistentVolumes also use.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.quantity import parse_quantity
from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import UNSET, created, spec_of, status_of
from moorage_local.apiserver.kinds.common import own_spec
from moorage_local.apiserver.kinds.kind import Rules
from moorage_local.apiserver.types.fields import FieldErrors
from moorage_local.apiserver.types.metadata import name_problems

_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _default(obj: Obj) -> None:
    own_spec(obj).setdefault("volumeMode", "Filesystem")
    if not obj.get("status"):
        obj["status"] = {"phase": "Pending"}


def _prepare(obj: Obj) -> None:
    obj["status"] = {"phase": "Pending"}


def _validate(obj: Obj, errors: FieldErrors) -> None:
    spec = own_spec(obj)
    modes = spec.get("accessModes") or ()
    if not modes:
        errors.required("spec.accessModes", "at least 1 access mode is required")
    if "ReadWriteOncePod" in modes and len(modes) > 1:
        errors.forbidden("spec.accessModes", "may not use ReadWriteOncePod with other access modes")
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if size is None:
        errors.required("spec.resources[storage]")
    elif parse_quantity(size) <= 0:
        errors.invalid("spec.resources[storage]", size, "must be greater than zero")
    name = spec.get("storageClassName")
    if name:
        for problem in name_problems(name, "subdomain"):
            errors.invalid("spec.storageClassName", name, problem)


def _validate_update(new: Obj, old: Obj, errors: FieldErrors) -> None:
    spec, had = {**own_spec(new)}, {**own_spec(old)}
    if not had.get("volumeName"):
        spec.pop("volumeName", None)  # a controller or a user binds it once
        had.pop("volumeName", None)
    if had.get("storageClassName") is None:
        spec.pop("storageClassName", None)  # the default class may be filled in later
    size = ((spec.pop("resources", None) or {}).get("requests") or {}).get("storage")
    size_was = ((had.pop("resources", None) or {}).get("requests") or {}).get("storage")
    for key in ("volumeAttributesClassName",):
        spec.pop(key, None)
        had.pop(key, None)
    if spec != had:
        errors.forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and"
            " volumeAttributesClassName for bound claims",
        )
        return
    if size == size_was:
        return
    bound = (old.get("status") or {}).get("phase") == "Bound"
    if not bound:
        errors.forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and"
            " volumeAttributesClassName for bound claims",
        )
    elif size is None or (size_was is not None and parse_quantity(size) < parse_quantity(size_was)):
        capacity = ((old.get("status") or {}).get("capacity") or {}).get("storage")
        if size is None or capacity is None or parse_quantity(size) <= parse_quantity(capacity):
            errors.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity")


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = spec_of(obj), status_of(obj)
    bound = bool(spec.get("volumeName"))
    return (
        obj["metadata"]["name"],
        "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("phase", ""),
        spec.get("volumeName", ""),
        (status.get("capacity") or {}).get("storage", "0") if bound else "",
        access_modes(status.get("accessModes")) if bound else "",
        class_of(obj),
        spec.get("volumeAttributesClassName", UNSET),
        created(obj, now),
        spec.get("volumeMode", UNSET),
    )


def access_modes(modes: Sequence[str] | None) -> str:
    had = set(modes or ())
    return ",".join(short for mode, short in _MODES.items() if mode in had)


def class_of(obj: Obj) -> str:
    noted = (obj["metadata"].get("annotations") or {}).get("volume.beta.kubernetes.io/storage-class")
    return str(noted if noted is not None else spec_of(obj).get("storageClassName") or "")


RULES = {
    ("", "persistentvolumeclaims"): Rules(
        default=_default,
        prepare_create=_prepare,
        validate=_validate,
        validate_update=_validate_update,
        cells=_cells,
    ),
}
