"""/api/v1/workspaces: create, list, start, stop, open and delete workspaces as the caller.

Cluster rights decide.
"""

from __future__ import annotations

from typing import Any

from moorage.actions import workspaces
from moorage.api.errors import ErrorCode
from moorage.api.fields import Page
from moorage.api.workspaces import Address, Deletion, NewWorkspace, Opening, Workspace, WorkspaceList
from moorage.server.endpoint import Call, Endpoint
from moorage.server.gateway.gateway import clean_path
from moorage.server.listings import visible_workspaces
from moorage_kube.errors import UsageError

ALL = "/api/v1/workspaces"
ONE = f"{ALL}/{{namespace}}/{{name}}"


async def list_workspaces(call: Call[None, Page]) -> WorkspaceList:
    """List workspaces of a namespace, or of all namespaces where the user may list them."""
    page = call.query
    rows, after = await visible_workspaces(
        call.context, call.user, page.namespace or None, limit=page.limit, after=page.after
    )
    return WorkspaceList(workspaces=tuple(rows), after=after)


async def create_workspace(call: Call[NewWorkspace, None]) -> Workspace | tuple[int, Workspace]:
    """Create a workspace. The `spec` is that of the kind Workspace. With `dryRun` nothing is created.

    `Idempotency-Key`: asking twice is as once.
    """
    cluster = await call.context.ready()
    obj = workspaces.plan_workspace(call.body, on_processes=cluster.on_processes())
    call.audit("create workspace", f"{call.body.namespace}/{call.body.name}")
    dry_run = call.body.dry_run
    workspace = await workspaces.create_workspace(
        call.api, obj, templates=call.context.api, mark=call.mark, dry_run=dry_run
    )
    return (200, workspace) if dry_run else workspace


async def show_workspace(call: Call[None, None]) -> Workspace:
    """Show the state of a workspace, its address, and the reason why it waits."""
    return await workspaces.get_workspace(call.api, call.namespace, call.name)


async def delete_workspace(call: Call[None, Deletion]) -> None:
    """Delete a workspace. Its home volume stays, unless `deleteHome=true` is given."""
    call.audit("delete workspace", f"{call.namespace}/{call.name}")
    await workspaces.delete_workspace(call.api, call.namespace, call.name, delete_home=call.query.delete_home)


async def start_workspace(call: Call[None, None]) -> Workspace:
    """Start a stopped workspace."""
    call.audit("start workspace", f"{call.namespace}/{call.name}")
    return await workspaces.switch_workspace(call.api, call.namespace, call.name, running=True)


async def stop_workspace(call: Call[None, None]) -> Workspace:
    """Stop a workspace. Its volumes stay; data that is only in memory is lost."""
    call.audit("stop workspace", f"{call.namespace}/{call.name}")
    return await workspaces.switch_workspace(call.api, call.namespace, call.name, running=False)


async def open_workspace(call: Call[Opening, None]) -> Address:
    """Create an address that opens the workspace in a browser, once, within a minute.

    With `access: token` the address or `password` has the token, for its owner and administrators of the team.

    With `tunnelPort` it is an address of the browser's own machine, for a cluster without a domain for workspaces.
    Your program listens there on 127.0.0.1. It carries each connection in a WebSocket of
    `/api/v1/workspaces/{namespace}/{name}/tunnel`, subprotocol `tunnel.moorage.dev`, as binary messages.
    """
    path = call.body.path
    if path and not clean_path(path):
        raise UsageError(
            f"invalid path {path!r}: begin with one /, without blanks", code=ErrorCode.INVALID, field="path"
        )
    call.audit("open workspace", f"{call.namespace}/{call.name}")
    gateway, port = call.context.gateway, call.body.tunnel_port
    token = None if port else await gateway.token_for(call.user, call.namespace, call.name)
    if token is not None:
        way = await workspaces.way_in(call.api, call.namespace, call.name, gateway.apps, token=token)
        return Address(url=way.url, password=way.password)
    return Address(url=await gateway.link(call.user, call.namespace, call.name, path=path, tunnel_port=port))


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=ALL, handler=list_workspaces, query=Page, answer=WorkspaceList),
    Endpoint(
        method="POST",
        path=ALL,
        handler=create_workspace,
        body=NewWorkspace,
        answer=Workspace,
        status=201,
        once=True,
    ),
    Endpoint(method="GET", path=ONE, handler=show_workspace, answer=Workspace),
    Endpoint(method="DELETE", path=ONE, handler=delete_workspace, query=Deletion),
    Endpoint(method="POST", path=f"{ONE}/start", handler=start_workspace, answer=Workspace),
    Endpoint(method="POST", path=f"{ONE}/stop", handler=stop_workspace, answer=Workspace),
    Endpoint(
        method="POST", path=f"{ONE}/open", handler=open_workspace, body=Opening, answer=Address, optional_body=True
    ),
)
