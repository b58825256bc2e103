"""Docker's API as a feature of the server."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.routing import BaseRoute

from moorage.server.context import Context
from moorage.server.docker import execroutes, hostroutes, useroutes
from moorage.server.docker import routes as containerroutes
from moorage.server.docker.execs import Execs
from moorage.server.docker.followers import Followers
from moorage.server.docker.hostroutes import PulledImages
from moorage.server.parts import Base, Parts

ENDPOINTS = (
    *containerroutes.ENDPOINTS,
    *execroutes.ENDPOINTS,
    *useroutes.ENDPOINTS,
    *hostroutes.ENDPOINTS,
)


def make_parts(base: Base) -> Parts:
    return Parts(
        values=tuple(kind(base.sessions, clock=base.clock) for kind in (Execs, Followers, PulledImages)),
    )


def routes(context: Context) -> Iterator[BaseRoute]:
    for endpoint in (*ENDPOINTS, *hostroutes.UNSUPPORTED_ENDPOINTS):
        yield from endpoint.routes(context)
    yield execroutes.websocket_route(context)
