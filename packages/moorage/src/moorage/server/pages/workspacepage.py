"""The web page of one workspace: its state, its resources, and the end of its application's output."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from html import escape
from typing import cast

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.actions import workspaces
from moorage.api.workspaces import Workspace
from moorage.model.workspace import CONTAINER
from moorage.server.pages.board import ago, owner_hues
from moorage.server.pages.clusterpages import fragment
from moorage.server.pages.jobboard import Fact
from moorage.server.pages.jobpages import read_tail
from moorage.server.pages.rows import size_words, workspace_row
from moorage.server.pages.site import Page, Site, key_in
from moorage.server.pages.workspacepages import CONTROLS, HERE, ONE
from moorage.server.problems import Problem, as_problem
from moorage_kube.api import PodApi
from moorage_kube.errors import ApiError, BadRequest, NotFound


async def show(site: Site, request: Request) -> Response:
    """The web page of one workspace."""
    item = await _workspace(site, request)
    may_read = await site.context.auth.may_read_pods(request.state.user, item.namespace)
    text, problem = "", None
    if may_read:
        try:
            text = await _log(site, request, item)
        except Problem as error:
            problem = error
    return site.page(
        request,
        "workspace.html",
        HERE,
        problem=problem,
        live_part=await _live(site, request, item),
        item=item,
        may_read=may_read,
        log=text,
    )


async def live(site: Site, request: Request) -> Response:
    """The part of a workspace's page that changes."""
    return HTMLResponse(await _live(site, request, await _workspace(site, request)))


async def log(site: Site, request: Request) -> Response:
    """The end of its application's output."""
    return HTMLResponse(await _log(site, request, await _workspace(site, request)))


PAGES = (
    Page(method="GET", path=ONE, handler=show),
    Page(method="GET", path=f"{ONE}/live", handler=live, live=True),
    Page(method="GET", path=f"{ONE}/log", handler=log, live=True),
)


def facts_of(item: Workspace, now: datetime) -> Iterable[Fact]:
    """The facts of a workspace: its type, address, resources, node, image and volumes."""
    yield Fact(name="Type", text=item.type)
    if item.url:
        yield Fact(name="Address", text=item.url)
    yield Fact(name="Runs on", text=size_words(item))
    if item.node and item.running:
        yield Fact(name="Node", text=item.node, href=f"/nodes/{item.node}")
    if item.image:
        yield Fact(name="Image", text=item.image)
    if item.home:
        is_made = bool(item.pod or item.ready_at)  # at its first start
        yield Fact(name="Home", text=item.home, href=f"/volumes/{item.namespace}/{item.home}" if is_made else "")
    for volume in item.volumes:
        yield Fact(name="Volume", text=volume, href=f"/volumes/{item.namespace}/{volume}")
    yield Fact(name="Created", when=ago(item.created, now), note="ago")
    if item.ready and item.ready_at:
        yield Fact(name="Ready", when=ago(item.ready_at, now), note="ago")
    if schedule := item.schedule:
        hours = [f"{key} {schedule[key]}" for key in ("start", "stop") if schedule.get(key)]
        yield Fact(name="Schedule", text=", ".join(hours), note=schedule.get("timeZone") or "UTC")


async def _workspace(site: Site, request: Request) -> Workspace:
    """Read the workspace with the user's rights. Raises Problem."""
    namespace, name = key_in(request)
    return await workspaces.get_workspace(site.context.acting(request.state.user), namespace, name)


async def _live(site: Site, request: Request, item: Workspace) -> str:
    now = site.context.now()
    row = workspace_row(item, owner_hues([item.owner])[item.owner], now)
    rights = await site.allowed(request, CONTROLS, [item.namespace])
    return fragment("workspace_live.html", row=row, facts=tuple(facts_of(item, now)), rights=rights)


async def _log(site: Site, request: Request, item: Workspace) -> str:
    """The last log lines of the workspace's pod, as HTML; "" without a pod. Uses the user's rights.

    Raises Problem.
    """
    if not item.pod:
        return ""
    api = cast(PodApi, site.context.acting(request.state.user))
    try:
        tail = await read_tail(api, item.pod, item.namespace, CONTAINER)
    except (BadRequest, NotFound):
        return ""  # its container has not begun, or its pod is deleted
    except ApiError as error:
        raise as_problem(error) from error
    return escape(tail.text())
