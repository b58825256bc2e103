"""ResourceClaimTemplates of a namespace."""

from __future__ import annotations

import contextlib

from moorage.apimachinery.api import Api
from moorage.apimachinery.resources import Resource
from moorage.decide.runs.deviceclaims import UNKNOWN_TEMPLATES, ClaimTemplates
from moorage.errors import Forbidden, NotFound

TEMPLATES = tuple(
    Resource("resource.k8s.io", version, "resourceclaimtemplates", "ResourceClaimTemplate")
    for version in ("v1", "v1beta2", "v1beta1")  # v1 from Kubernetes 1.34 on
)


async def read_claim_templates(api: Api, namespace: str) -> ClaimTemplates:
    """The templates of a namespace, as far as they may be read. Raises ApiError where the server fails."""
    for resource in TEMPLATES:
        with contextlib.suppress(NotFound):
            try:
                listed = await api.list(resource, namespace)
            except Forbidden:
                return UNKNOWN_TEMPLATES
            return ClaimTemplates(frozenset(obj["metadata"]["name"] for obj in listed.items))
    return ClaimTemplates(None)
