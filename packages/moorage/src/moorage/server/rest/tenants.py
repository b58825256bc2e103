"""/api/v1/tenants: teams, their members, their limits and the use of these."""

from __future__ import annotations

from typing import Any

from moorage.api.fields import Query
from moorage.api.tenants import Holders, MembersChange, Tenant, TenantList
from moorage.present.tenantsanswer import holders
from moorage.server import tenantviews
from moorage.server.endpoint import Call, Endpoint

ALL = "/api/v1/tenants"
ONE = f"{ALL}/{{name}}"


async def list_tenants(call: Call[None, Query]) -> TenantList:
    """List your tenants. Users who may list Tenants see all."""
    return TenantList(tenants=tuple(await tenantviews.list_tenants(call.context, call.user)))


async def show_tenant(call: Call[None, Query]) -> Tenant:
    """Show a tenant: members, quota, budgets, rules for idle work, and use. For its members, and for users who may
    list Tenants.
    """
    return await tenantviews.show_tenant(call.context, call.user, call.name)


async def add_members(call: Call[MembersChange, None]) -> Holders:
    """Give users and groups a role. For admins of the tenant, and for users who may change Tenants."""
    return await _change(call, is_added=True)


async def remove_members(call: Call[MembersChange, None]) -> Holders:
    """Remove a role from users and groups. An admin of the tenant cannot remove its last admin."""
    return await _change(call, is_added=False)


async def _change(call: Call[MembersChange, None], *, is_added: bool) -> Holders:
    body = call.body
    everybody = ", ".join([*body.people, *body.groups])
    call.audit("change", f"tenant {call.name}: {'add' if is_added else 'remove'} {body.role} {everybody}")
    names = {"people": body.people, "groups": body.groups}
    names = {field: listed for field, listed in names.items() if listed}
    change = tenantviews.change_members
    obj = await change(call.context, call.user, call.name, body.role, names, is_added=is_added)
    return holders(obj["spec"], body.role)


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=ALL, handler=list_tenants, query=Query, answer=TenantList),
    Endpoint(method="GET", path=ONE, handler=show_tenant, query=Query, answer=Tenant),
    Endpoint(method="POST", path=f"{ONE}/members", handler=add_members, body=MembersChange, answer=Holders),
    Endpoint(
        method="POST", path=f"{ONE}/members/remove", handler=remove_members, body=MembersChange, answer=Holders
    ),
)
