"""ResourceClaimTemplates of a namespace."""

from __future__ import annotations

import contextlib

from moorage.decide.runs.deviceclaims import UNKNOWN_TEMPLATES, ClaimTemplates
from moorage_kube.api import Api
from moorage_kube.errors import Forbidden, NotFound
from moorage_kube.resources import Resource

TEMPLATES = tuple(
    Resource("resource.k8s.io", version, "resourceclaimtemplates", "ResourceClaimTemplate")
    for version in ("v1", "v1beta2", "v1beta1")  # v1 from Kubernetes 1.34 on
)


async def read_claim_templates(api: Api, namespace: str) -> ClaimTemplates:
    """The templates of a namespace that the caller may read. Raises ApiError if the server fails."""
    for resource in TEMPLATES:
        with contextlib.suppress(NotFound):
            try:
                listed = await api.list(resource, namespace)
            except Forbidden:
                return UNKNOWN_TEMPLATES
            return ClaimTemplates(frozenset(obj["metadata"]["name"] for obj in listed.items))
    return ClaimTemplates(None)
