"""Lists over all namespaces, for users who may list only some of them, or only read."""

from __future__ import annotations

from moorage.actions import volumes, workspaces
from moorage.api.volumes import StorageClass
from moorage.api.workspaces import Workspace
from moorage.model.names import GROUP
from moorage.model.workspace import WORKSPACES
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage.server.starting import listed_once
from moorage_kube.errors import ApiError, Forbidden
from moorage_kube.meta import key_of
from moorage_kube.resources import Obj


async def visible_workspaces(
    context: Context, user: User, namespace: str | None, *, limit: int | None = None, after: str | None = None
) -> tuple[list[Workspace], str | None]:
    """As `list_workspaces`; a user who may not list all namespaces at once gets the permitted ones."""
    try:
        return await workspaces.list_workspaces(context.acting(user), namespace, limit=limit, after=after)
    except Forbidden:
        if namespace is not None:
            raise
    return workspaces.in_order(await _where_allowed(context, user)), None


async def _where_allowed(context: Context, user: User) -> list[Obj]:
    """Workspaces of all namespaces in which the user may list workspaces."""
    allowed: dict[str, bool] = {}
    visible = []
    await listed_once(context.gateway.workspaces)
    for workspace in context.gateway.workspaces.all():
        namespace = key_of(workspace).namespace
        if namespace not in allowed:
            allowed[namespace] = await context.auth.may(
                user, "list", WORKSPACES.plural, group=GROUP, namespace=namespace
            )
        if allowed[namespace]:
            visible.append(workspace)
    return visible


async def visible_storage_classes(context: Context, user: User) -> list[StorageClass]:
    """Storage classes are not secret: users who may not list them get them too."""
    try:
        return await volumes.list_storage_classes(context.acting(user) if user.account else context.api)
    except ApiError:
        return await volumes.list_storage_classes(context.api)
