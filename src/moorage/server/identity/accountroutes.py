"""/api/v1/users: people's accounts, for those who may write ServiceAccounts and Secrets where they are.

Everything is done as the asker: the rights of the cluster decide.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moorage.actions import people
from moorage.apimachinery.meta import annotations_of
from moorage.apimachinery.resources import SERVICEACCOUNTS, Obj
from moorage.errors import AlreadyExists, Forbidden, NotFound
from moorage.model.people import (
    DISABLED_ANNOTATION,
    LOCAL,
    PEOPLE_NAMESPACE,
    SOURCE_ANNOTATION,
    groups_in,
    is_disabled,
    person_in,
)
from moorage.server.context import Context
from moorage.server.identity.loginroutes import read_json
from moorage.server.problems import Json, Problem

USER = "/api/v1/users/{name}"
Groups = list[Annotated[str, msgspec.Meta(min_length=1, max_length=256)]]


class NewAccount(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    password: Annotated[str, msgspec.Meta(max_length=1024)]
    groups: Groups = []


class AccountChange(msgspec.Struct, forbid_unknown_fields=True):
    """What is left out stays as it is."""

    password: Annotated[str, msgspec.Meta(max_length=1024)] | None = None
    groups: Groups | None = None
    disabled: bool | None = None
    reason: Annotated[str, msgspec.Meta(max_length=500)] = ""


def routes(context: Context) -> list[Route]:
    async def listed(request: Request) -> Response:
        """People's accounts."""
        api = context.acting(request.state.user)
        try:
            found = (await api.list(SERVICEACCOUNTS, PEOPLE_NAMESPACE)).items
        except Forbidden as error:
            raise _forbidden(error) from error
        return Json({"users": [account_json(one) for one in found if person_in(one)]})

    async def create(request: Request) -> Response:
        """Make a local account."""
        asked = await read_json(request, NewAccount)
        context.audit(request, "create", f"user {asked.name}")
        api = context.acting(request.state.user)
        if not people.PASSWORD_MIN <= len(asked.password) <= people.PASSWORD_MAX:
            said = f"a password has {people.PASSWORD_MIN} to {people.PASSWORD_MAX} characters"
            raise Problem(422, "invalid", said, None, "password")
        try:
            made = await people.create_account(api, asked.name, asked.groups, LOCAL)
            await people.set_password(api, asked.name, asked.password)
        except AlreadyExists as error:
            raise Problem(409, "exists", f"there is an account of {asked.name} already", None, "name") from error
        except Forbidden as error:
            raise _forbidden(error) from error
        return Json(account_json(made), 201)

    async def change(request: Request) -> Response:
        """Set password or groups of an account, shut it or open it again."""
        name, asked = request.path_params["name"], await read_json(request, AccountChange)
        fields = [one for one in ("password", "groups", "disabled") if getattr(asked, one) is not None]
        context.audit(request, "change", f"{', '.join(fields) or 'nothing'} of user {name}")
        api = context.acting(request.state.user)
        try:
            account = await _existing(api, name)
            if asked.password is not None:
                if annotations_of(account).get(SOURCE_ANNOTATION) != LOCAL:
                    raise Problem(409, "no_password", f"{name} logs in at the provider", None, "password")
                await people.set_password(api, name, asked.password)
            if asked.groups is not None:
                await people.set_groups(api, name, asked.groups)
            if asked.disabled is not None:
                await (people.disable(api, name, asked.reason) if asked.disabled else people.enable(api, name))
            if asked.password is not None or asked.disabled:
                await context.logins.end_all(name, "an administrator changed the account")
            return Json(account_json(await _existing(api, name)))
        except Forbidden as error:
            raise _forbidden(error) from error

    async def delete(request: Request) -> Response:
        """Forget an account; what its person made stays."""
        name = request.path_params["name"]
        context.audit(request, "delete", f"user {name}")
        api = context.acting(request.state.user)
        try:
            await _existing(api, name)
            await people.delete_account(api, name)
        except Forbidden as error:
            raise _forbidden(error) from error
        await context.logins.end_all(name, "the account was deleted")
        return Response(status_code=204)

    return [
        Route("/api/v1/users", listed, methods=["GET"]),
        Route("/api/v1/users", create, methods=["POST"]),
        Route(USER, change, methods=["PATCH"]),
        Route(USER, delete, methods=["DELETE"]),
    ]


def account_json(account: Obj) -> dict[str, Any]:
    notes = annotations_of(account)
    return {
        "name": person_in(account),
        "account": account["metadata"]["name"],
        "source": notes.get(SOURCE_ANNOTATION, ""),
        "groups": list(groups_in(account)),
        "disabled": is_disabled(account),
        "reason": notes.get(DISABLED_ANNOTATION, ""),
        "created": account["metadata"].get("creationTimestamp"),
    }


async def _existing(api: Any, name: str) -> Obj:
    found = await people.find_account(api, name)
    if found is None:
        raise NotFound(f"there is no account of {name}", hint="`moor user list` shows them")
    return found


def _forbidden(error: Forbidden) -> Problem:
    return Problem(403, "forbidden", error.message, "accounts are for administrators of the cluster")
