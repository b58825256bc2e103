"""Datasets as users write them."""

from __future__ import annotations

from moorage.model.dataset import AUTO, DATASETS
from moorage.model.names import OWNER_ANNOTATION, OWNER_LABEL
from moorage_kube.resources import Obj


def make_dataset(
    name: str,
    namespace: str,
    *,
    url: str,
    size: str,
    user: str,
    owner_label: str,
    secret: str = "",
    anonymous: bool = False,
    unpack: bool = False,
    storage_class: str = "",
    access: str = AUTO,
    readers: tuple[str, ...] = (),
) -> Obj:
    """A Dataset ready to create."""
    source: Obj = {"url": url}
    source |= {"secret": secret} if secret else {}
    source |= {"anonymous": True} if anonymous else {}
    source |= {"unpack": True} if unpack else {}
    spec: Obj = {"source": source, "size": size}
    spec |= {"storageClass": storage_class} if storage_class else {}
    spec |= {"access": access} if access != AUTO else {}
    spec |= {"readers": list(readers)} if readers else {}
    return {
        "apiVersion": DATASETS.api_version,
        "kind": DATASETS.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {OWNER_LABEL: owner_label},
            "annotations": {OWNER_ANNOTATION: user},
        },
        "spec": spec,
    }
