"""Tenants as a user may see and change them: administrators of the cluster all, members their own."""

from __future__ import annotations

from typing import Any

from moorage.actions import tenants
from moorage.api.errors import ErrorCode
from moorage.api.tenants import Tenant, TenantRow
from moorage.model.idle import BUILT_IN
from moorage.model.tenant import TENANTS
from moorage.present.tenantsanswer import make_row, make_tenant
from moorage.server.budgets.use import budgets_of_tenant
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage.server.problems import Problem
from moorage_kube.errors import ApiError, Forbidden
from moorage_kube.resources import Obj, Resource

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")


async def list_tenants(context: Context, user: User) -> list[TenantRow]:
    """All tenants for users who may list them; for all other users their own. Raises ApiError."""
    sees_all = await _may(context, user, "list")
    objs = await tenants.list_tenants(context.api)
    return [make_row(obj, role=role) for obj in objs if (role := user.role_in(obj)) or sees_all]


async def show_tenant(context: Context, user: User, name: str) -> Tenant:
    """A tenant with its limits and their use. Raises NotFound if the user may not see it, and ApiError."""
    obj = await _visible(context, user, name)
    namespace, role = str(obj["spec"]["namespace"]), user.role_in(obj)
    await context.ready()
    held = (gpu.holder for node in context.cluster.gpus().nodes for gpu in node.gpus)
    return make_tenant(
        obj,
        role=role,
        may_change_members=role == "admin" or await _may(context, user, "patch"),
        used=await _used(context, user, namespace),
        gpus=sum(holder is not None and holder.namespace == namespace for holder in held),
        budgets=await budgets_of_tenant(context, name),
        policies=context.idle.policies() if context.idle is not None else (BUILT_IN,),
    )


async def change_members(
    context: Context, user: User, name: str, role: str, names: tenants.Names, *, is_added: bool
) -> Obj:
    """Give users and groups a role in a tenant, or remove the role from them; return the changed tenant.

    Users who may change Tenants act with their own rights. For an admin of the tenant the server writes, after a
    check of each version of the Tenant that it changes. Raises NotFound, Forbidden, UsageError and ApiError.
    """
    change = tenants.add_to_tenant if is_added else tenants.remove_from_tenant
    if await _may(context, user, "patch"):
        return await change(context.acting(user), name, role, names)
    await _visible(context, user, name)

    def check(before: Obj, after: Obj) -> None:
        if user.role_in(before) != "admin":
            raise Forbidden(
                f"you may not change the members of tenant {name!r}",
                hint="ask an admin of the tenant, or an administrator of the cluster",
            )
        admins = after["spec"].get("admins") or {}
        if not any(admins.values()):
            raise Forbidden(
                f"tenant {name!r} would have no admin",
                hint=f"add another admin first: moor tenant add {name} --role admin --user NAME",
                code=ErrorCode.CONFLICT,
            )

    return await change(context.api, name, role, names, check=check)


async def _visible(context: Context, user: User, name: str) -> Obj:
    obj = await tenants.get_tenant(context.api, name)
    if not user.role_in(obj) and not await _may(context, user, "list"):
        raise tenants.missing_tenant(name)
    return obj


async def _may(context: Context, user: User, verb: str) -> bool:
    return await context.auth.may(user, verb, TENANTS.plural, group=TENANTS.group)


async def _used(context: Context, user: User, namespace: str) -> dict[str, Any]:
    """The used amounts of the quotas that the user may read; empty if there are none."""
    try:
        quotas = (await context.acting(user).list(QUOTAS, namespace)).items
    except (ApiError, Problem):
        return {}
    used: dict[str, Any] = {}
    for quota in quotas:
        used |= (quota.get("status") or {}).get("used") or {}
    return used
