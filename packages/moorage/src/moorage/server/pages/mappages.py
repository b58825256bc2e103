"""The web pages of maps: /maps and /maps/NAMESPACE/NAME, each with a live part that the browser asks
for again.

All users who may read the page see the owner and the progress of a map. Users whom RBAC lets `get`
it now also see its command, its failed items and their output.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.actions import maps
from moorage.api.maps import MapItem
from moorage.decide.maps.facts import end_of, fact_of, plan_of, read_plan
from moorage.decide.maps.leasing import State
from moorage.model.mapjob import MAPJOBS, BadMapJob, MapView, parse_mapjob
from moorage.queue.manager import Queue
from moorage.queue.store import Store, Stored
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage.server.pages.clusterpages import fragment
from moorage.server.pages.formpages import may_make
from moorage.server.pages.mapboard import (
    FAILURES_SHOWN,
    MAP_STATES,
    MapModel,
    MapRow,
    Planned,
    map_model,
    map_rows,
)
from moorage.server.pages.paging import Shown, page_of, wanted_of
from moorage.server.pages.rights import Allowed
from moorage.server.pages.site import Page, Site, key_in
from moorage.server.problems import Problem
from moorage.server.queue.access import oldest_maps
from moorage_kube.errors import ApiError
from moorage_kube.resources import Obj

HERE = "/maps"
ONE = f"{HERE}/{{namespace}}/{{name}}"


async def show_list(site: Site, request: Request) -> Response:
    """The web page of all maps."""
    shown = await listed(site.context, request)
    can_make = await may_make(site, request.state.user, MAPJOBS)
    part = fragment("maps_live.html", list=shown, can_make=can_make)
    return site.page(request, "maps.html", HERE, live_part=part, list=shown, can_make=can_make)


async def live_list(site: Site, request: Request) -> Response:
    """The part of the page of maps that changes."""
    can_make = await may_make(site, request.state.user, MAPJOBS)
    return HTMLResponse(fragment("maps_live.html", list=await listed(site.context, request), can_make=can_make))


async def show(site: Site, request: Request) -> Response:
    """The web page of one map."""
    model, rights = await _model(site.context, request), await _rights(site, request)
    part = fragment("map_live.html", map=model, rights=rights)
    return site.page(request, "map.html", HERE, map=model, live_part=part, rights=rights)


async def live(site: Site, request: Request) -> Response:
    """The part of a map's page that changes."""
    model, rights = await _model(site.context, request), await _rights(site, request)
    return HTMLResponse(fragment("map_live.html", map=model, rights=rights))


PAGES = (
    Page(method="GET", path=HERE, handler=show_list),
    Page(method="GET", path=f"{HERE}/live", handler=live_list, live=True),
    Page(method="GET", path=ONE, handler=show),
    Page(method="GET", path=f"{ONE}/live", handler=live, live=True),
)


async def _rights(site: Site, request: Request) -> Allowed:
    return await site.allowed(request, ("change map", "delete map"), [key_in(request)[0]])


async def listed(context: Context, request: Request) -> Shown[MapRow]:
    queue = context.queue

    async def since(namespaces: Collection[str]) -> Mapping[str, float]:
        return await _oldest(context, request.state.user, "list", namespaces)

    shown = await maps.list_maps(queue, None, since)
    return page_of(
        map_rows(shown, context.now()),
        wanted_of(request.query_params),
        HERE,
        words=lambda row: (f"{row.namespace}/{row.name}", row.owner),
        state=lambda row: row.state,
        states=MAP_STATES,
    )


async def _oldest(context: Context, user: User, verb: str, namespaces: Collection[str]) -> Mapping[str, float]:
    """The time from which a user sees maps of each namespace. Rights are not checked, so of a deleted
    namespace: never.
    """
    return await oldest_maps(context, user, verb, namespaces, gone=math.inf)


async def _model(context: Context, request: Request) -> MapModel:
    """The content of a map's page for this user. Raises Problem 404."""
    queue, user = context.queue, request.state.user
    namespace, name = request.path_params["namespace"], request.path_params["name"]
    stored = await queue.read(lambda store: store.find_map(namespace, name))
    if stored is None or stored.created_at < (await _oldest(context, user, "get", {namespace}))[namespace]:
        raise Problem(404, "not_found", f"there is no map {namespace}/{name}", "list the maps: moor map list")
    may_get = await context.auth.may_use_maps(user, "get", namespace)
    failed = await _failed(queue, stored) if may_get else None
    shown, mapjob, now = await maps.show_map(queue, stored), await _mapjob(context, namespace, name), context.now()
    if mapjob is None:
        return map_model(shown, None, None, failed, now)
    plan = read_plan(plan_of(mapjob))
    planned = Planned(plan, fact_of(shown, plan, end_of(mapjob), now)) if plan is not None else None
    return map_model(shown, _parsed(mapjob), planned, failed, now)


async def _mapjob(context: Context, namespace: str, name: str) -> Obj | None:
    """The MapJob of a map; None if it has none, or if the API server does not answer."""
    try:
        return await context.api.get(MAPJOBS, name, namespace)
    except ApiError:
        return None


def _parsed(mapjob: Obj) -> MapView | None:
    """Parse a MapJob; None if it is invalid (the controller reports that in its status)."""
    try:
        return parse_mapjob(mapjob)
    except BadMapJob:
        return None


async def _failed(queue: Queue, stored: Stored) -> list[tuple[MapItem, bytes]]:
    """The first items that failed for good, each with the end of its output."""
    map_id = stored.map.id
    if not stored.map.counts.dead:
        return []

    def read(store: Store) -> list[tuple[MapItem, bytes]]:
        dead = store.list_items(map_id, states=[State.DEAD], limit=FAILURES_SHOWN)
        outputs = (store.get_item(map_id, item.item) for item in dead)
        return [output for output in outputs if output is not None]

    return await queue.read(read)
