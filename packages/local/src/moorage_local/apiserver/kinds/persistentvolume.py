"""PersistentVolumes.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import UNSET, created, spec_of, status_of
from moorage_local.apiserver.kinds.common import own_spec
from moorage_local.apiserver.kinds.kind import Rules
from moorage_local.apiserver.kinds.persistentvolumeclaim import access_modes, class_of
from moorage_local.apiserver.types.fields import FieldErrors


def _default(obj: Obj) -> None:
    spec = own_spec(obj)
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    spec.setdefault("volumeMode", "Filesystem")
    if "hostPath" in spec:
        spec["hostPath"].setdefault("type", "")


def _prepare(obj: Obj) -> None:
    obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": obj["metadata"]["creationTimestamp"]}


def _validate(obj: Obj, errors: FieldErrors) -> None:
    spec = own_spec(obj)
    if not spec.get("accessModes"):
        errors.required("spec.accessModes")
    if not spec.get("capacity"):
        errors.required("spec.capacity")
        errors.unsupported("spec.capacity", None, ["storage"])
    known = {
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    }
    sources = [key for key in spec if key not in known]
    if not sources:
        errors.required("spec", "must specify a volume type")
    for extra in sources[1:]:
        errors.forbidden(f"spec.{extra}", "may not specify more than 1 volume type")


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = spec_of(obj), status_of(obj)
    claim = spec.get("claimRef")
    return (
        obj["metadata"]["name"],
        (spec.get("capacity") or {}).get("storage", "0"),
        access_modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("phase", ""),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        class_of(obj),
        spec.get("volumeAttributesClassName", UNSET),
        status.get("reason", ""),
        created(obj, now),
        spec.get("volumeMode", UNSET),
    )


RULES = {
    ("", "persistentvolumes"): Rules(default=_default, prepare_create=_prepare, validate=_validate, cells=_cells),
}
