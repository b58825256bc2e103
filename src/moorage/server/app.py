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
from moorage.server import openapi
from moorage.server.auth import Auth, Gate
from moorage.server.cluster import Cluster
from moorage.server.context import Context
from moorage.server.desk import Desk
from moorage.server.gateway import GatewayLayer
from moorage.server.pages import Board, page_routes
from moorage.server.problems import Problem, on_error
from moorage.server.ratelimit import Limiter, RateLimit
from moorage.server.routes import (
    accounts,
    audit,
    checkpoint,
    containerexec,
    datasets,
    events,
    explain,
    gpus,
    health,
    jobpages,
    jobs,
    login,
    mappages,
    peoplepages,
    top,
    volumes,
    workspaces,
)
from moorage.server.routes import containers as containers_routes
from moorage.server.routes import outputs as outputs_routes
from moorage.server.routes import queue as queue_routes
from moorage.server.static_files import StaticFolder

if TYPE_CHECKING:
    from moorage.kube.kubelets import Kubelets
    from moorage.queue.manager import Queue
    from moorage.queue.outputs import Outputs
    from moorage.server.audit import AuditLog
    from moorage.server.gateway import Gateway
    from moorage.server.logins import Logins
    from moorage.server.sessions import SessionDesk
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
        *volumes.routes(context),
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
