"""Restrict `/metrics` to users who may `get` it, like the components of Kubernetes.

https://kubernetes.io/docs/reference/access-authn-authz/rbac/#referring-to-resources (nonResourceURLs)
"""

from __future__ import annotations

import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from moorage.metrics.page import PATH
from moorage.model.names import METRICS_ROLE
from moorage_kube.api import Api
from moorage_kube.cache import BoundedCache
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import ApiError
from moorage_kube.remote.reviews import reviewed_user, user_may

KEPT = 1000  # answers
KEEP_SECONDS = 60.0  # an answer of the API server
_GET = {"nonResourceAttributes": {"verb": "get", "path": PATH}}


class MetricsGuard:
    """The ASGI layer in front of a service. It checks only requests for `/metrics`."""

    def __init__(self, app: ASGIApp, api: Api, *, token: str = "", clock: Clock = SYSTEM) -> None:
        """`token`: a further token that may read the page, in addition to those of the API server; "": none."""
        self._app, self._api, self._token = app, api, token
        self._allowed = BoundedCache[bytes, bool](KEPT, keep_seconds=KEEP_SECONDS, clock=clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = await self._refusal(scope) if scope["type"] == "http" and scope["path"] == PATH else None
        await (self._app if refusal is None else refusal)(scope, receive, send)

    async def _refusal(self, scope: Scope) -> Response | None:
        kind, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token:
            return PlainTextResponse(f"{PATH} needs a bearer token", 401, {"www-authenticate": "Bearer"})
        if self._token and hmac.compare_digest(token.encode(), self._token.encode()):
            return None
        digest = hashlib.sha256(token.encode()).digest()
        if (allowed := self._allowed.get(digest)) is None:
            try:
                user = await reviewed_user(self._api, token)
                allowed = user is not None and await user_may(self._api, *user, _GET)
            except ApiError as error:
                return PlainTextResponse(f"the API server cannot check the token: {error.message}", 503)
            self._allowed.put(digest, allowed)
        if allowed:
            return None
        return PlainTextResponse(
            f"the token may not get {PATH}: bind the ClusterRole {METRICS_ROLE} to its user", 403
        )
