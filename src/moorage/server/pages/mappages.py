"""The web pages of maps: /maps and /maps/NAMESPACE/NAME, each with a live part that the browser asks for again.

Everybody who may look at the page sees whose map it is and how far; its command, its failed items and what they
printed see those whom RBAC lets `get` it now.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from moorage.apimachinery.moments import rfc3339
from moorage.apimachinery.resources import Obj
from moorage.decide.maps.leasing import State
from moorage.errors import ApiError
from moorage.model.mapjob import MAPJOBS
from moorage.queue.manager import Queue
from moorage.queue.store import ItemView, Store, Stored
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage.server.pages.clusterpages import framed, templates
from moorage.server.pages.mapboard import FAILURES_SHOWN, MapModel, map_model, map_rows
from moorage.server.problems import Problem
from moorage.server.queue.routes import map_json


def routes(context: Context) -> list[Route]:
    queue = context.queue

    async def listed() -> str:
        stored = await queue.read(lambda store: store.list_maps(None))
        told = [map_json(one, rate=await queue.rate_of(one)) for one in stored]
        rows, more = map_rows(told, context.now())
        return str(templates().get_template("maps_live.html").render(rows=rows, more=more)).strip()

    async def one(request: Request) -> tuple[MapModel, str]:
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        found = await queue.read(lambda store: store.find_map(namespace, name))
        if found is None:
            raise Problem(404, "not_found", f"there is no map {namespace}/{name}", "`moor map list` shows them")
        user: User = request.state.user
        seen = await context.auth.may_use_maps(user, "get", namespace)
        told = map_json(found, rate=await queue.rate_of(found))
        failed = await _failed(queue, found) if seen else None
        model = map_model(told, await _mapjob(context, namespace, name), failed, context.now())
        return model, str(templates().get_template("map_live.html").render(map=model)).strip()

    async def maps(request: Request) -> Response:
        """The web page of all maps."""
        page = templates().get_template("maps.html")
        frame = framed("/maps", request.state.user, rfc3339(context.now()))
        return HTMLResponse(page.render(live=await listed(), **frame))

    async def maps_live(_: Request) -> Response:
        """The part of the page of maps that changes."""
        return HTMLResponse(await listed())

    async def map_page(request: Request) -> Response:
        """The web page of one map."""
        model, live = await one(request)
        page = templates().get_template("map.html")
        frame = framed("/maps", request.state.user, rfc3339(context.now()))
        return HTMLResponse(page.render(map=model, live=live, **frame))

    async def map_live(request: Request) -> Response:
        """The part of a map's page that changes."""
        return HTMLResponse((await one(request))[1])

    return [
        Route("/maps", maps, methods=["GET"]),
        Route("/maps/live", maps_live, methods=["GET"]),
        Route("/maps/{namespace}/{name}", map_page, methods=["GET"]),
        Route("/maps/{namespace}/{name}/live", map_live, methods=["GET"]),
    ]


async def _mapjob(context: Context, namespace: str, name: str) -> Obj | None:
    """The MapJob of a map; None where it has none, or the API server does not answer."""
    try:
        return await context.api.get(MAPJOBS, name, namespace)
    except ApiError:
        return None


async def _failed(queue: Queue, found: Stored) -> list[tuple[ItemView, bytes]]:
    """The first items that failed for good, each with the end of what it printed."""
    of = found.map.id
    if not found.map.counts.dead:
        return []

    def read(store: Store) -> list[tuple[ItemView, bytes]]:
        dead = store.list_items(of, states=[State.DEAD], limit=FAILURES_SHOWN)
        return [one for item in dead if (one := store.get_item(of, item.item)) is not None]

    return await queue.read(read)
