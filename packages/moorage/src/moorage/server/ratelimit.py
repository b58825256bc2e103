"""The rate limit of each user: a token bucket that is filled at a steady rate.

https://www.rfc-editor.org/rfc/rfc6585#section-4 (429), https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from moorage.decide.rates import Bucket, Rate, take
from moorage.server.identity.auth import OPEN_PATHS, OPEN_PREFIX, OPERATOR_PREFIX, Refuses, has_own_auth
from moorage.server.problems import Problem
from moorage.settings import RATE_BURST, RATE_LIMIT
from moorage_kube.addresses import client_network
from moorage_kube.cache import BoundedCache
from moorage_kube.clock import SYSTEM, Clock

KEPT = 10_000  # buckets that are remembered; of the longest silent, which are full by then, the first go


class Limiter:
    """The buckets of all callers. `refused` counts requests that were not let through."""

    def __init__(self, rate: Rate | None = None, *, clock: Clock = SYSTEM) -> None:
        self.rate = rate or Rate()
        self.refused = 0
        self._clock = clock
        self._buckets: BoundedCache[str, Bucket] = BoundedCache(KEPT)

    def ask(self, who: str) -> float:
        """Take one token of a user; return 0, or the seconds to wait before the next request."""
        if not self.rate.per_second:
            return 0.0
        bucket, wait = take(self._buckets.get(who), self.rate, self._clock.monotonic())
        self._buckets.put(who, bucket)
        self.refused += wait > 0
        return wait


class RateLimit:
    """The ASGI layer behind the Gate, which gives the user: people count by name, others by address (IPv6:
    by its /64).

    Not counted: requests of workers, runners and steps with their own tokens, the operator's requests
    for records of workflows, probes and static files.
    """

    def __init__(self, app: ASGIApp, *, limiter: Limiter, refuse: Refuses) -> None:
        self._app = app
        self._refuse = refuse
        self._limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or is_exempt(scope["path"]):
            await self._app(scope, receive, send)
            return
        state = scope.get("state") or {}
        user = state.get("user")
        who = f"from {client_network(state.get('address', ''))}" if user is None else f"person {user.name}"
        wait = self._limiter.ask(who)
        if not wait:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1013, "reason": "too many requests"})
        else:
            rate = self._limiter.rate
            problem = Problem(
                429,
                "too_many_requests",
                f"you ask more often than {rate.per_second:g} times per second",
                f"ask again in {math.ceil(wait)} s; the header Retry-After says so too",
            )
            await self._refuse(scope, problem, {"retry-after": str(math.ceil(wait))})(scope, receive, send)


def is_exempt(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith((OPEN_PREFIX, OPERATOR_PREFIX)) or has_own_auth(path)


def rate_settings(env: Mapping[str, str]) -> Rate:
    """The rate in the environment. Raises UsageError."""
    return Rate(per_second=RATE_LIMIT.read(env), burst=RATE_BURST.read(env))
