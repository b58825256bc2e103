"""The rights of the caller, as the API server reports them.

https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access
"""

from __future__ import annotations

from dataclasses import dataclass

from moorage_kube.api import Api
from moorage_kube.resources import SELFSUBJECTACCESSREVIEWS

SERVICE_ACCOUNT = "system:serviceaccount:"


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource. An empty namespace means all namespaces, or a cluster-scoped resource."""

    verb: str
    group: str
    resource: str
    namespace: str = ""

    def __str__(self) -> str:
        what = f"{self.resource}.{self.group}" if self.group else self.resource
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {what}{where}"


EVERYTHING = Right("*", "*", "*")


def service_account_groups(user: str) -> tuple[str, ...]:
    """Return the groups of a ServiceAccount user, `system:serviceaccount:NAMESPACE:NAME`.

    https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/
    """
    namespace = user.removeprefix(SERVICE_ACCOUNT).partition(":")[0]
    return ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")


async def may(api: Api, right: Right) -> bool:
    """Whether the caller has a right. Raises ApiError."""
    attributes = {"verb": right.verb, "group": right.group, "resource": right.resource}
    if right.namespace:
        attributes["namespace"] = right.namespace
    review = {"apiVersion": SELFSUBJECTACCESSREVIEWS.api_version, "kind": SELFSUBJECTACCESSREVIEWS.kind}
    answer = await api.create(SELFSUBJECTACCESSREVIEWS, review | {"spec": {"resourceAttributes": attributes}})
    return bool((answer.get("status") or {}).get("allowed"))
