"""PersistentVolumeClaims that we create for users."""

from __future__ import annotations

from moorage.model.names import owned_by
from moorage_kube.resources import Obj


def make_claim(
    name: str,
    namespace: str,
    size: str,
    user: str,
    *,
    mode: str = "ReadWriteOnce",
    storage_class: str | None = None,
) -> Obj:
    """A PersistentVolumeClaim. Without `storage_class`, the cluster's default class is used."""
    spec: Obj = {"accessModes": [mode], "resources": {"requests": {"storage": size}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name,
            "namespace": namespace,
            **owned_by(user),
        },
        "spec": spec,
    }
