"""The owner of a CustomResourceDefinition.

Another product, such as Argo, may define a kind that a feature adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.model.names import GROUP
from moorage_kube.resources import CRDS


def is_shared(shipped: Mapping[str, Any]) -> bool:
    """Whether a shipped object defines a kind that other software may define too."""
    return bool(shipped["kind"] == CRDS.kind and shipped["spec"]["group"] != GROUP)


def is_anothers(live: Mapping[str, Any] | None, shipped: Mapping[str, Any] | None) -> bool:
    """Whether another product made the live definition, which is then not changed. `shipped`: ours of that name.

    A definition of another product, applied over ours, may keep our labels, but not the description of our schema.
    """
    if live is None or shipped is None or not is_shared(shipped):
        return False
    labels = (live.get("metadata") or {}).get("labels") or {}
    of_ours = _descriptions(shipped)
    return labels.get("app.kubernetes.io/part-of") != "moorage" or not of_ours & _descriptions(live)


def _descriptions(crd: Mapping[str, Any]) -> set[str]:
    versions = (crd.get("spec") or {}).get("versions") or ()
    schemas = [((version.get("schema") or {}).get("openAPIV3Schema") or {}) for version in versions]
    return {schema["description"] for schema in schemas if "description" in schema}
