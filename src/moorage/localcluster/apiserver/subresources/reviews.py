"""Reviews of tokens and of access: they are answered, never stored."""

from __future__ import annotations

from dataclasses import replace

from moorage.apimachinery.resources import Obj
from moorage.clock import rfc3339
from moorage.errors import BadRequest
from moorage.localcluster.apiserver.auth import ISSUER, UNAUTHENTICATED, Attributes, User
from moorage.localcluster.apiserver.core import Core
from moorage.localcluster.apiserver.fields import FieldErrors
from moorage.localcluster.apiserver.kinds.kind import Kind
from moorage.localcluster.apiserver.pipeline.calls import Call
from moorage.localcluster.apiserver.subresources.tokens import authenticate


def review(core: Core, call: Call, kind: Kind, obj: Obj, namespace: str | None) -> Obj:
    """Answer TokenReview, SelfSubjectReview and the access reviews; nothing is stored."""
    obj = {**obj, "metadata": {**(obj.get("metadata") or {})}}
    spec = obj.get("spec") or {}
    match kind.resource.plural:
        case "tokenreviews":
            audiences = tuple(spec.get("audiences") or ())
            user = authenticate(core, str(spec.get("token") or ""), audiences)
            if user is None:
                obj["status"] = {"user": {}, "error": "invalid bearer token"}
            else:
                obj["status"] = {
                    "authenticated": True,
                    "user": user.to_obj(),
                    "audiences": list(audiences or (ISSUER,)),
                }
            return obj
        case "selfsubjectreviews":
            obj["metadata"]["creationTimestamp"] = rfc3339(core.clock.now())
            obj["status"] = {"userInfo": call.user.to_obj()}
            return obj
        case "selfsubjectrulesreviews":
            rules = core.authorizer.rules_for(call.user, str(spec.get("namespace") or ""))
            obj["status"] = {
                "resourceRules": [rule.to_obj() for rule in rules if not rule.paths],
                "nonResourceRules": [rule.to_obj() for rule in rules if rule.paths],
                "incomplete": False,
            }
            return obj
        case "selfsubjectaccessreviews":
            user = call.user
        case _:
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
            user = User(
                name=spec.get("user") or "", groups=groups or (UNAUTHENTICATED,), uid=spec.get("uid") or ""
            )
    wanted, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if (not path) == (not wanted):
        raise BadRequest("exactly one of spec.resourceAttributes and spec.nonResourceAttributes must be set")
    if path:
        asked = Attributes(verb=path.get("verb", ""), path=path.get("path", ""))
    else:
        wanted = wanted or {}
        asked = Attributes(
            verb=wanted.get("verb", ""),
            group=wanted.get("group", ""),
            version=wanted.get("version", ""),
            resource=wanted.get("resource", ""),
            subresource=wanted.get("subresource", ""),
            namespace=namespace or wanted.get("namespace", ""),
            name=wanted.get("name", ""),
        )
    decision = core.pipeline.authorizer.authorize(user, asked)
    obj["status"] = {"allowed": decision.allowed} | ({"reason": decision.reason} if decision.reason else {})
    return obj
