"""Ask the API server for the rights of other users.

https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moorage_kube.access import service_account_groups
from moorage_kube.api import Api
from moorage_kube.resources import SUBJECTACCESSREVIEWS, TOKENREVIEWS


async def reviewed_user(api: Api, token: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the user name and groups of a token, or None if the token is not valid. Raises ApiError."""
    body = {
        "apiVersion": TOKENREVIEWS.api_version,
        "kind": TOKENREVIEWS.kind,
        "metadata": {},
        "spec": {"token": token},
    }
    status = (await api.create(TOKENREVIEWS, body)).get("status") or {}
    user = status.get("user") or {}
    name = user.get("username") or ""
    return (name, tuple(user.get("groups") or ())) if status.get("authenticated") is True and name else None


async def user_may(api: Api, user: str, groups: Sequence[str], wanted: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether a user has a right. `wanted` has `resourceAttributes` or `nonResourceAttributes`.

    Raises ApiError.
    """
    review = {
        "apiVersion": SUBJECTACCESSREVIEWS.api_version,
        "kind": SUBJECTACCESSREVIEWS.kind,
        "metadata": {},
        "spec": {"user": user, "groups": list(groups), **wanted},
    }
    answer = await api.create(SUBJECTACCESSREVIEWS, review)
    return (answer.get("status") or {}).get("allowed") is True


async def account_may(api: Api, account: str, right: Mapping[str, str]) -> bool:
    """Whether a ServiceAccount has a right on a resource; `account` is its user name. Raises ApiError."""
    return await user_may(api, account, service_account_groups(account), {"resourceAttributes": right})
