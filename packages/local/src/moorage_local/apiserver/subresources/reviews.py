"""Reviews of tokens and of access: the server answers them and never stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moorage_kube.clock import rfc3339
from moorage_kube.errors import BadRequest
from moorage_kube.resources import Obj
from moorage_local.apiserver.auth.users import ISSUER, UNAUTHENTICATED, Attributes, User
from moorage_local.apiserver.core import Core
from moorage_local.apiserver.kinds.kind import Kind
from moorage_local.apiserver.pipeline.calls import Call
from moorage_local.apiserver.subresources.tokens import authenticate
from moorage_local.apiserver.types.fields import FieldErrors


def review(core: Core, call: Call, kind: Kind, obj: Obj, namespace: str | None) -> Obj:
    """Return the review with its status.

    Raises BadRequest and Invalid for a review with no question or too many.
    """
    obj = {**obj, "metadata": {**(obj.get("metadata") or {})}}
    spec = obj.get("spec") or {}
    match kind.resource.plural:
        case "tokenreviews":
            obj["status"] = _token_status(core, spec)
        case "selfsubjectreviews":
            obj["metadata"]["creationTimestamp"] = rfc3339(core.clock.now())
            obj["status"] = {"userInfo": call.user.to_obj()}
        case "selfsubjectrulesreviews":
            rules = core.authorizer.rules_for(call.user, str(spec.get("namespace") or ""))
            obj["status"] = {
                "resourceRules": [rule.to_obj() for rule in rules if not rule.paths],
                "nonResourceRules": [rule.to_obj() for rule in rules if rule.paths],
                "incomplete": False,
            }
        case "selfsubjectaccessreviews":
            obj["status"] = _access_status(core, call.user, spec, namespace)
        case _:
            obj["status"] = _access_status(core, _reviewed_user(kind, spec), spec, namespace)
    return obj


def _token_status(core: Core, spec: Mapping[str, Any]) -> Obj:
    audiences = tuple(spec.get("audiences") or ())
    user = authenticate(core, str(spec.get("token") or ""), audiences)
    if user is None:
        return {"user": {}, "error": "invalid bearer token"}
    return {"authenticated": True, "user": user.to_obj(), "audiences": list(audiences or (ISSUER,))}


def _reviewed_user(kind: Kind, spec: Mapping[str, Any]) -> User:
    """Return the user of a SubjectAccessReview. Raises Invalid."""
    groups = tuple(spec.get("groups") or ())
    errors = FieldErrors()
    if not spec.get("resourceAttributes") and not spec.get("nonResourceAttributes"):
        errors.invalid(
            "spec.resourceAttributes",
            None,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )
    if not spec.get("user") and not groups:
        errors.invalid("spec.user", "", "at least one of user or group must be specified")
    errors.raise_if_any(replace(kind.resource, kind=""), "")
    return User(name=spec.get("user") or "", groups=groups or (UNAUTHENTICATED,), uid=spec.get("uid") or "")


def _access_status(core: Core, user: User, spec: Mapping[str, Any], namespace: str | None) -> Obj:
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if (not path) == (not resource):
        raise BadRequest("exactly one of spec.resourceAttributes and spec.nonResourceAttributes must be set")
    if path:
        attributes = Attributes(verb=path.get("verb", ""), path=path.get("path", ""))
    else:
        resource = resource or {}
        attributes = Attributes(
            verb=resource.get("verb", ""),
            group=resource.get("group", ""),
            version=resource.get("version", ""),
            resource=resource.get("resource", ""),
            subresource=resource.get("subresource", ""),
            namespace=namespace or resource.get("namespace", ""),
            name=resource.get("name", ""),
        )
    decision = core.pipeline.authorizer.authorize(user, attributes)
    return {"allowed": decision.allowed} | ({"reason": decision.reason} if decision.reason else {})
