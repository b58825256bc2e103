"""The group `storage.k8s.io`: StorageClasses, CSI drivers and nodes, volume attachments.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import NONE, UNSET, created, name_date, spec_of, status_of
from moorage_local.apiserver.kinds.common import fixed
from moorage_local.apiserver.kinds.kind import Rules
from moorage_local.apiserver.types.fields import FieldErrors


def _default_storageclass(obj: Obj) -> None:
    obj.setdefault("reclaimPolicy", "Delete")
    obj.setdefault("volumeBindingMode", "Immediate")


def _validate_storageclass(obj: Obj, errors: FieldErrors) -> None:
    if not obj.get("provisioner"):
        errors.required("provisioner")


def _storageclass_cells(obj: Obj, now: datetime) -> Sequence[Any]:
    notes = obj["metadata"].get("annotations") or {}
    default = notes.get("storageclass.kubernetes.io/is-default-class") == "true"
    return (
        obj["metadata"]["name"] + (" (default)" if default else ""),
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy", "Delete"),
        obj.get("volumeBindingMode", "Immediate"),
        bool(obj.get("allowVolumeExpansion")),
        created(obj, now),
    )


def _csinode_cells(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], len(spec_of(obj).get("drivers") or ()), created(obj, now)


def _csidriver_cells(obj: Obj, now: datetime) -> Sequence[Any]:
    spec = spec_of(obj)
    return (
        obj["metadata"]["name"],
        spec.get("attachRequired", True),
        bool(spec.get("podInfoOnMount")),
        bool(spec.get("storageCapacity")),
        ",".join(request.get("audience", "") for request in spec.get("tokenRequests") or ()) or UNSET,
        bool(spec.get("requiresRepublish")),
        ",".join(spec.get("volumeLifecycleModes") or ()) or NONE,
        created(obj, now),
    )


def _volumeattachment_cells(obj: Obj, now: datetime) -> Sequence[Any]:
    spec = spec_of(obj)
    volume = (spec.get("source") or {}).get("persistentVolumeName", "")
    attached = bool(status_of(obj).get("attached"))
    return (
        obj["metadata"]["name"],
        spec.get("attacher", ""),
        volume,
        spec.get("nodeName", ""),
        attached,
        created(obj, now),
    )


def _volumeattributesclass_cells(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], obj.get("driverName", ""), created(obj, now)


RULES = {
    ("storage.k8s.io", "storageclasses"): Rules(
        default=_default_storageclass,
        validate=_validate_storageclass,
        validate_update=fixed("provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"),
        cells=_storageclass_cells,
    ),
    ("storage.k8s.io", "csidrivers"): Rules(cells=_csidriver_cells),
    ("storage.k8s.io", "csinodes"): Rules(cells=_csinode_cells),
    ("storage.k8s.io", "csistoragecapacities"): Rules(cells=name_date),
    ("storage.k8s.io", "volumeattachments"): Rules(cells=_volumeattachment_cells),
    ("storage.k8s.io", "volumeattributesclasses"): Rules(cells=_volumeattributesclass_cells),
}
