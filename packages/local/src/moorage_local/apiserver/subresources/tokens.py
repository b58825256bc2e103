"""The subresource `serviceaccounts/token`: create and check tokens of service accounts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from moorage_kube.clock import rfc3339
from moorage_kube.errors import BadRequest, Conflict
from moorage_kube.resources import PODS, SECRETS, SERVICEACCOUNTS, Obj, Resource
from moorage_local.apiserver.auth.users import ISSUER, User, service_account_user
from moorage_local.apiserver.core import Core
from moorage_local.apiserver.kinds.builtin import BuiltinCodec
from moorage_local.apiserver.kinds.kind import Kind
from moorage_local.apiserver.pipeline.calls import Call
from moorage_local.apiserver.subresources.bodies import read_as
from moorage_local.apiserver.types.fields import FieldErrors

TOKEN_SECONDS = 3600
TOKEN_SECONDS_MIN = 600
TOKEN_SECONDS_MAX = 2**32
TOKEN_REQUEST = BuiltinCodec(
    "io.k8s.api.authentication.v1.TokenRequest",
    Resource("authentication.k8s.io", "v1", "tokenrequests", "TokenRequest"),
)


async def create_token(core: Core, call: Call, kind: Kind, name: str, namespace: str | None, body: Any) -> Obj:
    """Answer a TokenRequest with a bearer token that this server accepts."""
    # check the request
    body = read_as(body, TOKEN_REQUEST)
    account = core.pipeline.view(kind, core.pipeline.read(kind, name, namespace))
    spec = body.get("spec") or {}
    seconds = spec.get("expirationSeconds", TOKEN_SECONDS)
    errors = FieldErrors()
    if seconds < TOKEN_SECONDS_MIN:
        errors.invalid("spec.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
    elif seconds > TOKEN_SECONDS_MAX:
        errors.invalid("spec.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")
    errors.raise_if_any(TOKEN_REQUEST.resource, "")
    # sign the token; a dry run gets none
    audiences = list(spec.get("audiences") or (ISSUER,))
    now = core.clock.now()
    expires = now + timedelta(seconds=seconds)
    bound: Obj = {"namespace": namespace, "serviceaccount": {"name": name, "uid": account["metadata"]["uid"]}}
    reference = spec.get("boundObjectRef")
    if reference:
        bound |= _bound(core, reference, namespace)
    if call.dry_run:
        token = ""
    else:
        token = core.tokens.sign(
            {
                "iss": ISSUER,
                "sub": f"system:serviceaccount:{namespace}:{name}",
                "aud": audiences,
                "iat": int(now.timestamp()),
                "nbf": int(now.timestamp()),
                "exp": int(expires.timestamp()),
                "kubernetes.io": bound,
            }
        )
    # the answer
    out_spec: Obj = {"audiences": audiences, "expirationSeconds": seconds}
    if reference:
        out_spec["boundObjectRef"] = reference
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": rfc3339(now)},
        "spec": out_spec,
        "status": {"token": token, "expirationTimestamp": rfc3339(expires)},
    }


def _bound(core: Core, reference: Mapping[str, Any], namespace: str | None) -> Obj:
    kind_name = reference.get("kind", "")
    kind = core.kinds.by_kind("v1", kind_name) if kind_name in ("Pod", "Secret", "Node") else None
    if kind is None:
        raise BadRequest(f"cannot bind token to object of type {reference.get('apiVersion')}, Kind={kind_name}")
    name = reference.get("name", "")
    obj = core.pipeline.view(kind, core.pipeline.read(kind, name, namespace if kind.resource.namespaced else None))
    uid = reference.get("uid")
    if uid and uid != obj["metadata"]["uid"]:
        raise Conflict(
            f'Operation cannot be fulfilled on {kind.resource.plural} "{name}": the UID in the'
            " bound object reference"
            f" ({uid}) does not match the UID in record. The object might have been deleted and then recreated",
        )
    return {kind_name.lower(): {"name": name, "uid": obj["metadata"]["uid"]}}


def authenticate(core: Core, token: str, audiences: tuple[str, ...] = ()) -> User | None:
    """Return the user of a bearer token; None if the token is invalid or has expired."""
    user = core.tokens.fixed(token)
    if user is not None:
        return user
    claims = core.tokens.claims(token)
    if claims is None or claims.get("iss") != ISSUER:
        return None
    if not set(audiences or (ISSUER,)) & set(claims.get("aud") or ()):
        return None
    now = core.clock.now()
    try:
        expires = datetime.fromtimestamp(claims["exp"], UTC)
        starts = datetime.fromtimestamp(claims.get("nbf", 0), UTC)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    if not starts - timedelta(minutes=1) <= now < expires:
        return None
    bound = claims.get("kubernetes.io") or {}
    namespace = bound.get("namespace") or ""
    account = bound.get("serviceaccount") or {}
    stored = core.pipeline.peek(core.kind_of(SERVICEACCOUNTS), account.get("name", ""), namespace)
    if stored is None or stored["metadata"]["uid"] != account.get("uid"):
        return None
    extra: dict[str, tuple[str, ...]] = {}
    if secret := bound.get("secret"):
        kept = core.pipeline.peek(core.kind_of(SECRETS), secret.get("name", ""), namespace)
        if kept is None or kept["metadata"]["uid"] != secret.get("uid"):
            return None
    pod = bound.get("pod")
    if pod:
        held = core.pipeline.peek(core.kind_of(PODS), pod.get("name", ""), namespace)
        if held is None or held["metadata"]["uid"] != pod.get("uid"):
            return None
        extra["authentication.kubernetes.io/pod-name"] = (pod["name"],)
        extra["authentication.kubernetes.io/pod-uid"] = (pod["uid"],)
    return service_account_user(namespace, account["name"], account["uid"], extra)
