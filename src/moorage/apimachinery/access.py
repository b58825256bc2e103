"""What the caller may do, as the API server says it.

https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access
"""

from __future__ import annotations

from dataclasses import dataclass

from moorage.apimachinery.api import Api
from moorage.apimachinery.resources import SELFSUBJECTACCESSREVIEWS


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource. An empty namespace: in all of them, or on what lives in none."""

    verb: str
    group: str
    resource: str
    namespace: str = ""

    def __str__(self) -> str:
        what = f"{self.resource}.{self.group}" if self.group else self.resource
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {what}{where}"


EVERYTHING = Right("*", "*", "*")


async def may(api: Api, right: Right) -> bool:
    """Whether the caller has a right. Raises ApiError."""
    attributes = {"verb": right.verb, "group": right.group, "resource": right.resource}
    if right.namespace:
        attributes["namespace"] = right.namespace
    review = {"apiVersion": SELFSUBJECTACCESSREVIEWS.api_version, "kind": SELFSUBJECTACCESSREVIEWS.kind}
    answer = await api.create(SELFSUBJECTACCESSREVIEWS, review | {"spec": {"resourceAttributes": attributes}})
    return bool((answer.get("status") or {}).get("allowed"))
