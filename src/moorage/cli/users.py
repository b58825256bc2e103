"""`moor user`: local accounts of people; and `moor audit`: who did what."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import click

from moorage.actions import people
from moorage.apimachinery.meta import annotations_of
from moorage.apimachinery.resources import SERVICEACCOUNTS
from moorage.cli import console
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.errors import AlreadyExists, NotFound, UsageError
from moorage.model.people import (
    LOCAL,
    PEOPLE_NAMESPACE,
    SOURCE_ANNOTATION,
    groups_in,
    is_disabled,
    person_in,
)


@click.group()
def user() -> None:
    """People's accounts on this cluster. For who has rights in the namespace moorage-users."""


@user.command("create")
@click.argument("name")
@click.option("--group", "groups", multiple=True, help="A group the person is in; repeatable.")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@target_options
def create(target: Target, name: str, groups: tuple[str, ...], password_stdin: bool) -> int:
    """Make a local account."""
    password = _password(password_stdin)

    async def work(session: Session) -> int:
        try:
            await people.create_account(session.api, name, groups, LOCAL)
        except AlreadyExists as error:
            raise UsageError(f"there is an account of {name} already", hint=f"moor user passwd {name}") from error
        await people.set_password(session.api, name, password)
        console.say(f"{name} can log in")
        return 0

    return in_session(target, work)


@user.command("list")
@console.output_option
@target_options
def list_users(target: Target, output: str) -> int:
    """List accounts: where their people log in, their groups, whether they are shut."""

    async def work(session: Session) -> int:
        found = (await session.api.list(SERVICEACCOUNTS, PEOPLE_NAMESPACE)).items
        accounts = sorted((one for one in found if person_in(one)), key=person_in)
        items: list[dict[str, Any]] = [
            {
                "name": person_in(one),
                "source": annotations_of(one).get(SOURCE_ANNOTATION, ""),
                "groups": list(groups_in(one)),
                "disabled": is_disabled(one),
                "account": one["metadata"]["name"],
            }
            for one in accounts
        ]
        console.print_listing(
            output,
            headers=("NAME", "LOGIN", "GROUPS", "STATE", "ACCOUNT"),
            rows=lambda: [
                [
                    one["name"],
                    one["source"],
                    ",".join(one["groups"]),
                    "shut" if one["disabled"] else "open",
                    one["account"],
                ]
                for one in items
            ],
            items=items,
            names=[one["name"] for one in items],
            nothing="nobody has an account yet",
        )
        return 0

    return in_session(target, work)


@user.command("passwd")
@click.argument("name")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@target_options
def passwd(target: Target, name: str, password_stdin: bool) -> int:
    """Set another password of a local account."""
    password = _password(password_stdin)

    async def work(session: Session) -> None:
        account = await people.find_account(session.api, name)
        if account is None:
            raise _unknown(name)
        if annotations_of(account).get(SOURCE_ANNOTATION) != LOCAL:
            raise UsageError(f"{name} logs in at the provider and has no password here")
        await people.set_password(session.api, name, password)

    return _done(target, work, f"{name} has another password")


@user.command("disable")
@click.argument("name")
@click.option("--reason", default="disabled by an administrator", show_default=True)
@target_options
def disable(target: Target, name: str, reason: str) -> int:
    """Put a person out, at once: logins, sessions and tokens are good for nothing. What they run goes on."""
    return _done(target, lambda session: people.disable(session.api, name, reason), f"{name} is out", name)


@user.command("enable")
@click.argument("name")
@target_options
def enable(target: Target, name: str) -> int:
    """Let a person in again."""
    return _done(target, lambda session: people.enable(session.api, name), f"{name} can log in", name)


@user.command("groups")
@click.argument("name")
@click.argument("groups", nargs=-1)
@target_options
def set_groups(target: Target, name: str, groups: tuple[str, ...]) -> int:
    """Set the groups of a local account. Those of others come from the provider at every login."""
    said = f"{name} is in {', '.join(groups) or 'no group'}"
    return _done(target, lambda session: people.set_groups(session.api, name, groups), said, name)


@user.command("delete")
@click.argument("name")
@target_options
def delete(target: Target, name: str) -> int:
    """Forget a person: the account, its password, its tokens. What they made stays."""
    return _done(target, lambda session: people.delete_account(session.api, name), f"{name} is forgotten", name)


@user.command("rotate-keys")
@target_options
def rotate_keys(target: Target) -> int:
    """Add a key for what is kept of the provider's tokens. Nobody has to log in again; the oldest key goes."""
    from moorage.server.identity.sessions import rotate_keys as rotate

    async def work(session: Session) -> None:
        await rotate(session.api)

    return _done(target, work, "there is a new key; the one before still opens what it has sealed")


@click.command()
@click.option("--user", "person", default=None, help="Only what this person did.")
@click.option("--since", default=None, help="RFC 3339, such as 2026-01-31T08:00:00Z.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@console.output_option
@target_options
def audit(target: Target, person: str | None, since: str | None, limit: int, output: str) -> int:
    """Show who changed what through Moorage's server, newest first. For administrators."""
    asked = {"person": person, "since": since, "limit": str(limit)}

    async def work(session: Session) -> int:
        params = {key: value for key, value in asked.items() if value}
        entries = (await session.server.get("/api/v1/audit", params))["entries"]
        console.print_listing(
            output,
            headers=("AT", "WHO", "FROM", "WHAT", "RESULT"),
            rows=lambda: [
                [
                    one["at"],
                    one["person"] or "-",
                    one["address"],
                    one["what"] or f"{one['method']} {one['path']}",
                    str(one["status"]),
                ]
                for one in entries
            ],
            items=entries,
            names=[str(one["number"]) for one in entries],
            nothing="nothing was changed",
        )
        return 0

    return in_session(target, work)


def _done(target: Target, work: Callable[[Session], Awaitable[Any]], said: str, name: str = "") -> int:
    async def whole(session: Session) -> int:
        try:
            await work(session)
        except NotFound as error:
            raise (_unknown(name) if name else error) from error
        console.say(said)
        return 0

    return in_session(target, whole)


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no account of {name}", hint="`moor user list` shows them")


def _password(from_stdin: bool) -> str:
    import getpass

    if from_stdin:
        return sys.stdin.readline().rstrip("\n")
    first = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != first:
        raise UsageError("the two are not the same")
    return first
