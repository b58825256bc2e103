"""Docker's API as a feature of the server."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.routing import BaseRoute

from moorage.server.context import Context
from moorage.server.docker import execroutes
from moorage.server.docker import routes as containerroutes
from moorage.server.docker.execs import Execs
from moorage.server.docker.followers import Followers
from moorage.server.parts import Base, Parts


def make_parts(base: Base) -> Parts:
    return Parts(
        values=(Execs(base.sessions, clock=base.clock), Followers(base.sessions, clock=base.clock)),
    )


def routes(context: Context) -> Iterator[BaseRoute]:
    for endpoint in (*containerroutes.ENDPOINTS, *execroutes.ENDPOINTS):
        yield from endpoint.routes(context)
    yield execroutes.websocket_route(context)
