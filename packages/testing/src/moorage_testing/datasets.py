"""Datasets in the form in which users write them, valid or not."""

from __future__ import annotations

from typing import Any

from moorage.model.dataset import DATASETS
from moorage.model.names import owned_by
from moorage_kube.resources import Obj


def make_dataset(name: str, namespace: str, *, url: str, size: str = "1Gi", **spec: Any) -> Obj:
    """Return a Dataset of the user ada. Empty fields of `spec` are left out."""
    return {
        "apiVersion": DATASETS.api_version,
        "kind": DATASETS.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            **owned_by("ada"),
        },
        "spec": {"source": {"url": url}, "size": size} | {key: value for key, value in spec.items() if value},
    }
