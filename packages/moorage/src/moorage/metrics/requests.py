"""Times of HTTP requests by route, as an ASGI layer: the outermost, to measure the time that clients see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moorage.metrics.counters import Histogram, Tally
from moorage.metrics.families import OTHER, Family
from moorage_kube.clock import SYSTEM, Clock

ROUTES_MAX = 1000  # label sets: some 250 routes and a few methods each
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

SECONDS = Family(
    name="moorage_http_request_duration_seconds",
    help="Time until an answer began, by the template of its route; streams go on after it",
    kind="histogram",
    labels=("route", "method"),
    series_max=ROUTES_MAX,
)
ANSWERS = Family(
    name="moorage_http_requests_total",
    help="Requests answered, by the template of the route and the status code",
    kind="counter",
    labels=("route", "method", "code"),
    series_max=3 * ROUTES_MAX,
)


class RequestTimes:
    """The measured times."""

    def __init__(self, *, clock: Clock = SYSTEM) -> None:
        self.clock = clock
        self.seconds = Histogram(SECONDS)
        self.answers = Tally(ANSWERS)


class TimedRequests:
    """The layer. Requests without a route, and those proxied to workspaces, have the route OTHER."""

    def __init__(self, app: ASGIApp, *, times: RequestTimes, routes: Iterable[BaseRoute]) -> None:
        self._app, self._times = app, times
        self._paths: dict[Any, str] = {}
        for route in routes:
            if isinstance(route, Route):
                self._paths.setdefault(route.endpoint, route.path)
            elif isinstance(route, Mount):
                self._paths.setdefault(route.app, route.path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        times = self._times
        began = times.clock.monotonic()

        async def timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                method = scope["method"] if scope["method"] in METHODS else OTHER
                route = self._route(scope)
                times.seconds.observe(times.clock.monotonic() - began, route, method)
                times.answers.add(route, method, str(message["status"]))
            await send(message)

        await self._app(scope, receive, timed)

    def _route(self, scope: Scope) -> str:
        try:
            return self._paths.get(scope.get("endpoint"), OTHER)
        except TypeError:  # an endpoint that cannot be a key
            return OTHER
