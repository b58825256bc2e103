"""The ASGI application: the routes behind the gate. All errors have the same shape."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Mount

from moorage.features import load_all
from moorage.metrics.requests import TimedRequests
from moorage.server.context import Context
from moorage.server.gateway import routes as gatewayroutes
from moorage.server.gateway import tunnel
from moorage.server.gateway.gateway import GatewayLayer
from moorage.server.identity import accountroutes, auditroutes, loginpages, loginroutes
from moorage.server.identity.auth import Gate
from moorage.server.pages import (
    auditpages,
    budgetpages,
    costpages,
    datasetpages,
    events,
    frontparts,
    idlepages,
    jobpages,
    machinepages,
    mapchanges,
    mappages,
    newdataset,
    newjob,
    newmap,
    nodeadmin,
    nodepages,
    preferences,
    rightsizepages,
    secretpages,
    tenantpages,
    userpages,
    volumefiles,
    volumepage,
    volumepages,
    workspacepage,
    workspacepages,
)
from moorage.server.pages.clusterpages import Board, page_routes
from moorage.server.pages.preferences import Preferences
from moorage.server.pages.refusals import Refuse
from moorage.server.pages.rights import AdminLinks
from moorage.server.pages.site import Page, Site
from moorage.server.pages.static_files import StaticFolder
from moorage.server.problems import BrokenAnswers, Problem
from moorage.server.queue import work
from moorage.server.ratelimit import RateLimit
from moorage.server.rest import (
    backup,
    checkpoint,
    costs,
    datasets,
    explain,
    gpus,
    health,
    idle,
    jobs,
    maps,
    nodes,
    openapi,
    rightsizing,
    storedrecords,
    tenants,
    top,
    use,
    volumes,
    workspaces,
)
from moorage_kube.errors import MoorageError

ENDPOINTS = (
    *gpus.ENDPOINTS,
    *nodes.ENDPOINTS,
    *top.ENDPOINTS,
    *costs.ENDPOINTS,
    *idle.ENDPOINTS,
    *rightsizing.ENDPOINTS,
    *use.ENDPOINTS,
    *jobs.ENDPOINTS,
    *storedrecords.ENDPOINTS,
    *volumes.ENDPOINTS,
    *tenants.ENDPOINTS,
    *datasets.ENDPOINTS,
    *explain.ENDPOINTS,
    *checkpoint.ENDPOINTS,
    *health.ENDPOINTS,
    *workspaces.ENDPOINTS,
    *maps.ENDPOINTS,
    *loginroutes.ENDPOINTS,
    *accountroutes.ENDPOINTS,
    *auditroutes.ENDPOINTS,
    *backup.ENDPOINTS,
)

# the platform's own modules whose pages use the `Site`, one a line
SITE_PAGES = (
    frontparts,
    mappages,
    workspacepages,
    workspacepage,
    volumepages,
    volumepage,
    volumefiles,
    datasetpages,
    jobpages,
    rightsizepages,
    secretpages,
    newjob,
    newdataset,
    newmap,
    mapchanges,
    nodepages,
    userpages,
    tenantpages,
    costpages,
    budgetpages,
    idlepages,
    nodeadmin,
    machinepages,
    auditpages,
)


def site_pages() -> list[Page]:
    """The pages of the platform and of all features that use the `Site`."""
    return [page for pages in (*(pages.PAGES for pages in SITE_PAGES), *load_all("pages")) for page in pages]


def create_app(context: Context) -> Starlette:
    """Make the server. The caller runs the parts of `context`."""
    board, site, refuse = Board(context), Site(context), Refuse(context.auth)
    routes: list[BaseRoute] = [
        *work.routes(context),
        *(endpoint.route(context) for endpoint in ENDPOINTS),
        *(route for routes in load_all("routes") for route in routes(context)),
        tunnel.websocket_route(context.gateway, clock=context.clock),
        *loginpages.routes(context),
        *gatewayroutes.routes(context.gateway),
        *events.routes(context, board),
        *page_routes(board),
        *preferences.routes(),
        *site.routes(site_pages()),
        Mount("/static", StaticFolder()),
    ]
    every = [*openapi.routes(routes), *routes]
    return Starlette(
        routes=every,
        middleware=[
            Middleware(TimedRequests, times=context.times, routes=every),
            Middleware(Preferences),
            Middleware(GatewayLayer, gateway=context.gateway),
            Middleware(
                Gate,
                auth=context.auth,
                audit=context.audit_log,
                refuse=refuse,
            ),
            Middleware(RateLimit, limiter=context.limiter, refuse=refuse),
            Middleware(AdminLinks, auth=context.auth, tenants=context.tenants),
            Middleware(BrokenAnswers),
        ],
        exception_handlers=dict.fromkeys((HTTPException, Problem, MoorageError, Exception), refuse.on_error),
    )
