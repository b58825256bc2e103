"""GPUs by dynamic resource allocation (DRA): Kubernetes creates a claim for each pod from a template.

https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from __future__ import annotations

from msgspec import Struct

from moorage.model.names import is_dns_label
from moorage_kube.resources import Obj

CLAIM = "gpu"  # its name in the pod


class ClaimTemplates(Struct, frozen=True):
    """The ResourceClaimTemplates of a namespace.

    `names` is None if the cluster has no DRA; `known` is False if they cannot be read.
    """

    names: frozenset[str] | None
    known: bool = True


UNKNOWN_TEMPLATES = ClaimTemplates(None, known=False)


def claim_problem(template: str, templates: ClaimTemplates, namespace: str) -> tuple[str, str] | None:
    """The fault of a requested template, and a hint. None if it is fine, or not known."""
    if not all(is_dns_label(part) for part in template.split(".")):
        return f"invalid GPU claim {template!r}", "use the name of a ResourceClaimTemplate"
    if not templates.known:
        return None  # Kubernetes judges it
    if templates.names is None:
        message = f"GPU claim {template!r} not possible: this cluster has no dynamic resource allocation"
        return message, "ask for a number of GPUs instead, such as --gpus 1"
    if template not in templates.names:
        there = ", ".join(sorted(templates.names))
        hint = f"available: {there}" if there else "create a ResourceClaimTemplate there first"
        return f"ResourceClaimTemplate {template!r} not found in namespace {namespace}", hint
    return None


def add_claim(pod: Obj, container: Obj, template: str) -> None:
    """Add a claim from a template to a pod, for one of its containers."""
    pod["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": template}]
    container.setdefault("resources", {})["claims"] = [{"name": CLAIM}]
