"""The ASGI application: routes behind the gate, one error shape on all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Mount

from moorage.apimachinery.api import Api
from moorage.clock import SYSTEM, Clock
from moorage.errors import MoorageError
from moorage.server.cluster import Cluster
from moorage.server.context import Context
from moorage.server.docker import execroutes as containerexec
from moorage.server.docker import routes as containers_routes
from moorage.server.gateway.gateway import GatewayLayer
from moorage.server.identity import accountroutes as accounts
from moorage.server.identity import auditroutes as audit
from moorage.server.identity import loginroutes as login
from moorage.server.identity.auth import Auth, Gate
from moorage.server.pages import events, jobpages, mappages, peoplepages
from moorage.server.pages.clusterpages import Board, page_routes
from moorage.server.pages.desk import Desk
from moorage.server.pages.static_files import StaticFolder
from moorage.server.problems import Problem, on_error
from moorage.server.queue import outputroutes as outputs_routes
from moorage.server.queue import routes as queue_routes
from moorage.server.ratelimit import Limiter, RateLimit
from moorage.server.rest import (
    checkpoint,
    datasets,
    explain,
    gpus,
    health,
    jobs,
    openapi,
    top,
    volumes,
    workspaces,
)

if TYPE_CHECKING:
    from moorage.kube.kubelets import Kubelets
    from moorage.queue.manager import Queue
    from moorage.queue.outputs import Outputs
    from moorage.server.gateway.gateway import Gateway
    from moorage.server.identity.audit import AuditLog
    from moorage.server.identity.logins import Logins
    from moorage.server.identity.sessions import SessionDesk
    from moorage.usage.store import UsageStore


def create_app(
    *,
    api: Api,
    cluster: Cluster,
    usage: UsageStore,
    auth: Auth,
    clock: Clock = SYSTEM,
    hosts: Iterable[str] = (),
    queue: Queue | None = None,
    outputs: Outputs | None = None,
    logins: Logins | None = None,
    audit_log: AuditLog | None = None,
    desk: SessionDesk | None = None,
    gateway: Gateway | None = None,
    limiter: Limiter | None = None,
    kubelets: Kubelets | None = None,
) -> Starlette:
    """Make the server. Somebody else runs `cluster` and `queue`; `hosts` are its names beside loopback."""
    context = Context(
        api=api,
        cluster=cluster,
        usage=usage,
        auth=auth,
        clock=clock,
        queue=queue,
        outputs=outputs,
        logins=logins,
        audit_log=audit_log,
        gateway=gateway,
        limiter=limiter,
        kubelets=kubelets,
    )
    behind_proxy = logins is not None and logins.settings.behind_proxy
    board, desk_of_pages = Board(context), Desk(context)
    found: list[BaseRoute] = [
        *queue_routes.routes(context),
        *outputs_routes.routes(context),
        *gpus.routes(context),
        *top.routes(context),
        *jobs.routes(context),
        *(endpoint.route(context) for endpoint in volumes.ENDPOINTS),
        *datasets.routes(context),
        *explain.routes(context),
        *checkpoint.routes(context),
        *containers_routes.routes(context),
        *containerexec.routes(context),
        *health.routes(context),
        *login.routes(context),
        *accounts.routes(context),
        *(audit.routes(context, desk) if desk is not None else ()),
        *workspaces.routes(context),
        *(gateway.routes() if gateway is not None else ()),
        *events.routes(context, board),
        *page_routes(board),
        *mappages.routes(context),
        *peoplepages.routes(desk_of_pages),
        *jobpages.routes(desk_of_pages),
        Mount("/static", StaticFolder()),
    ]
    return Starlette(
        routes=[*openapi.routes(found), *found],
        middleware=[
            *([Middleware(GatewayLayer, gateway=gateway)] if gateway is not None else ()),
            Middleware(Gate, auth=auth, hosts=tuple(hosts), audit=audit_log, behind_proxy=behind_proxy),
            *([Middleware(RateLimit, limiter=limiter)] if limiter is not None else ()),
        ],
        exception_handlers=dict.fromkeys((HTTPException, Problem, MoorageError, Exception), on_error),
    )
