"""The capabilities of StorageClasses, as far as known: a StorageClass itself does not name its access modes.

An administrator names them by the annotation `moorage.dev/access-modes` (a list with commas); else the provisioner
is looked up here. Sources: https://kubernetes.io/docs/concepts/storage/persistent-volumes/#access-modes,
https://kubernetes-csi.github.io/docs/drivers.html and the drivers' own pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from moorage_kube.meta import annotations_of
from moorage_kube.resources import Obj

ACCESS_MODES_ANNOTATION = "moorage.dev/access-modes"  # on a StorageClass: "ReadWriteOnce,ReadWriteMany,…"
DEFAULT_CLASS_ANNOTATION = "storageclass.kubernetes.io/is-default-class"
RWO, RWX, ROX = "ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"
SHORT = {RWO: "RWO", RWX: "RWX", ROX: "ROX", "ReadWriteOncePod": "RWOP"}

_FILES = frozenset({RWO, RWX, ROX})  # network file systems
_DISKS_READ_BY_MANY = frozenset({RWO, ROX})  # disks that many nodes may attach, but only for reading
_DISKS = frozenset({RWO})
_PROVISIONERS = {
    "localcluster.moorage.dev/folder": _FILES,
    "nfs.csi.k8s.io": _FILES,
    "smb.csi.k8s.io": _FILES,
    "efs.csi.aws.com": _FILES,
    "fsx.csi.aws.com": _FILES,
    "file.csi.azure.com": _FILES,
    "blob.csi.azure.com": _FILES,
    "filestore.csi.storage.gke.io": _FILES,
    "driver.longhorn.io": _FILES,
    "nfs.csi.ceph.com": _FILES,
    "cephfs.csi.ceph.com": _FILES,
    "rbd.csi.ceph.com": _DISKS_READ_BY_MANY,
    "pd.csi.storage.gke.io": _DISKS_READ_BY_MANY,
    "ebs.csi.aws.com": _DISKS,
    "disk.csi.azure.com": _DISKS,
    "cinder.csi.openstack.org": _DISKS,
    "rancher.io/local-path": _DISKS,
    "topolvm.io": _DISKS,
    "kubernetes.io/no-provisioner": _DISKS,
}


class ClassView(Struct, frozen=True, kw_only=True):
    """One StorageClass. `modes` is None if they are unknown."""

    name: str
    provisioner: str
    modes: frozenset[str] | None
    default: bool
    expands: bool
    reclaim: str
    waits: bool  # a volume is made when a pod first needs it

    def offers(self, mode: str) -> bool | None:
        """Whether the class creates volumes with this access mode; None if unknown."""
        return None if self.modes is None else mode in self.modes


def parse_class(obj: Mapping[str, Any]) -> ClassView:
    provisioner = str(obj.get("provisioner") or "")
    return ClassView(
        name=str(obj["metadata"]["name"]),
        provisioner=provisioner,
        modes=modes_of(annotations_of(obj).get(ACCESS_MODES_ANNOTATION), provisioner),
        default=annotations_of(obj).get(DEFAULT_CLASS_ANNOTATION) == "true",
        expands=bool(obj.get("allowVolumeExpansion")),
        reclaim=str(obj.get("reclaimPolicy") or "Delete"),
        waits=obj.get("volumeBindingMode") == "WaitForFirstConsumer",
    )


def modes_of(annotated: str | None, provisioner: str) -> frozenset[str] | None:
    """The access modes of the annotation, else those of the provisioner. Rook writes a prefix before its name."""
    if annotated is not None:
        return frozenset(part.strip() for part in annotated.split(",") if part.strip())
    known = _PROVISIONERS.get(provisioner)
    if known is None:
        known = next((modes for name, modes in _PROVISIONERS.items() if provisioner.endswith(f".{name}")), None)
    return known


def class_named(name: str, classes: Iterable[Obj]) -> ClassView | None:
    """The class with this name; for "" the default class. None if it does not exist."""
    views = sorted((parse_class(obj) for obj in classes), key=lambda view: view.name)
    return next((view for view in views if (view.name == name if name else view.default)), None)
