"""/api/v1/users: accounts, for users who may write ServiceAccounts and Secrets in the accounts' namespace.

All requests to the cluster are made as the caller, so the rights of the cluster decide.
"""

from __future__ import annotations

from typing import Any

from moorage.actions import people
from moorage.api.people import Account, AccountChange, AccountList, NewAccount
from moorage.server.context import Context
from moorage.server.endpoint import Call, Endpoint
from moorage_kube.api import Api

ALL = "/api/v1/users"
ONE = f"{ALL}/{{name}}"


async def list_accounts(call: Call[None, None]) -> AccountList:
    """List user accounts by name."""
    return AccountList(users=tuple(await people.list_accounts(call.api)))


async def create_account(call: Call[NewAccount, None]) -> Account:
    """Create a local account."""
    call.audit("create", f"user {call.body.name}")
    return await people.create_local_account(call.api, call.body)


async def change_account(call: Call[AccountChange, None]) -> Account:
    """Change, disable or enable an account. A new password, or disabling, ends its sessions."""
    change = call.body
    fields = [name for name in ("password", "groups", "disabled") if getattr(change, name) is not None]
    call.audit("change", f"{', '.join(fields) or 'nothing'} of user {call.name}")
    return await apply_change(call.context, call.api, call.name, change)


async def apply_change(context: Context, api: Api, person: str, change: AccountChange) -> Account:
    """Change an account as the caller; for REST and pages. Ends its sessions where the change forbids a login."""
    account = await people.change_account(api, person, change)
    if people.ends_sessions(change):
        await context.logins.end_all(person, "an administrator changed the account")
    return account


async def delete_account(call: Call[None, None]) -> None:
    """Delete an account. The objects that its user created stay."""
    call.audit("delete", f"user {call.name}")
    await people.forget_account(call.api, call.name)
    await call.context.logins.end_all(call.name, "the account was deleted")


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=ALL, handler=list_accounts, answer=AccountList),
    Endpoint(method="POST", path=ALL, handler=create_account, body=NewAccount, answer=Account, status=201),
    Endpoint(method="PATCH", path=ONE, handler=change_account, body=AccountChange, answer=Account),
    Endpoint(method="DELETE", path=ONE, handler=delete_account),
)
