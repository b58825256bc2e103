"""`moor user`: local accounts of people; and `moor audit`: the audit log."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence

import click
import msgspec

from moorage.actions import people, tenants
from moorage.api.people import AccountChange, AuditPage, NewAccount
from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.nextsteps import after_account
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.cluster.serverurl import public_url
from moorage.model.tenant import Membership, memberships
from moorage.present.audit import sentence
from moorage_kube.errors import MoorageError, UsageError
from moorage_kube.moments import parse_rfc3339

TRIES = 3  # passwords that a person may type until the command gives up


@console.group(
    examples={
        "moor user create ada": "create an account",
        "moor user list": "list accounts",
        "moor user disable ada --reason 'left the team'": "revoke all access at once",
    }
)
def user() -> None:
    """Create, list, disable and delete user accounts. Needs rights in the namespace moorage-users."""


@user.command(
    "create",
    examples={
        "moor user create ada": "asks for the password",
        "moor user create ada --group vision": "with a group",
        "moor user create ada --password-stdin < password.txt": "reads the password from a file",
    },
)
@click.argument("name")
@click.option("--group", "groups", multiple=True, help="Group of the user; repeatable.")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@target_options
def create(target: Target, name: str, groups: tuple[str, ...], password_stdin: bool) -> int:
    """Create a local account."""
    password = _password(password_stdin)

    async def work(session: Session) -> int:
        request = NewAccount(name=name, password=password, groups=list(groups))
        await people.create_local_account(session.api, request)
        console.say(f"account {name} created")
        teams: Sequence[Membership] = ()
        with contextlib.suppress(MoorageError):
            teams = memberships(name, groups, await tenants.list_tenants(session.api))
        for line in after_account(name, [team.tenant for team in teams], address=await public_url(session.api)):
            console.say(line)
        return 0

    return in_session(target, work)


@user.command(
    "list",
    examples={
        "moor user list": "accounts with their groups",
        "moor user list -o json": "the same for a program",
    },
)
@console.output_option
@target_options
def list_users(target: Target, output: str) -> int:
    """List accounts: where they log in, their groups, and whether they are disabled."""

    async def work(session: Session) -> int:
        accounts = await people.list_accounts(session.api)
        console.print_listing(
            output,
            headers=("NAME", "LOGIN", "GROUPS", "STATE", "ACCOUNT"),
            rows=lambda: [
                [
                    account.name,
                    account.source,
                    ",".join(account.groups),
                    "disabled" if account.disabled else "enabled",
                    account.account,
                ]
                for account in accounts
            ],
            items=[msgspec.to_builtins(account) for account in accounts],
            names=[account.name for account in accounts],
            nothing="no accounts; create one: moor user create NAME",
        )
        return 0

    return in_session(target, work)


@user.command(
    "passwd",
    examples={
        "moor user passwd ada": "asks for the new password",
        "moor user passwd ada --password-stdin < password.txt": "reads it from a file",
    },
)
@click.argument("name", shell_complete=complete("users"))
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@target_options
def passwd(target: Target, name: str, password_stdin: bool) -> int:
    """Set the password of a local account."""
    return _change(target, name, AccountChange(password=_password(password_stdin)), f"{name} has a new password")


@user.command(
    "disable",
    examples={
        "moor user disable ada": "revoke all access at once",
        "moor user disable ada --reason 'left the team'": "with a reason that the user reads",
    },
)
@click.argument("name", shell_complete=complete("users"))
@click.option("--reason", default="disabled by an administrator", show_default=True, help="Reason, for the user.")
@target_options
def disable(target: Target, name: str, reason: str) -> int:
    """Disable an account: its sessions and tokens are revoked at once. The user's runs continue."""
    return _change(target, name, AccountChange(disabled=True, reason=reason), f"{name} is disabled")


@user.command(
    "enable",
    examples={
        "moor user enable ada": "let the user log in again",
        "moor user list": "see the disabled accounts",
    },
)
@click.argument("name", shell_complete=complete("users"))
@target_options
def enable(target: Target, name: str) -> int:
    """Enable an account again."""
    return _change(target, name, AccountChange(disabled=False), f"account {name} enabled")


@user.command(
    "groups",
    examples={
        "moor user groups ada vision speech": "set the groups of an account",
        "moor user groups ada": "take all groups away",
    },
)
@click.argument("name", shell_complete=complete("users"))
@click.argument("groups", nargs=-1)
@target_options
def set_groups(target: Target, name: str, groups: tuple[str, ...]) -> int:
    """Set the groups of a local account. Other accounts get theirs from the provider at each login."""
    message = f"{name} is in {', '.join(groups) or 'no group'}"
    return _change(target, name, AccountChange(groups=list(groups)), message)


@user.command(
    "delete",
    examples={
        "moor user delete ada": "delete an account; ada's objects remain",
        "moor user disable ada": "or only refuse logins",
    },
)
@click.argument("name", shell_complete=complete("users"))
@target_options
def delete(target: Target, name: str) -> int:
    """Delete an account, its password and its tokens. Objects that the user created remain."""

    async def work(session: Session) -> int:
        await people.forget_account(session.api, name)
        console.say(f"account {name} deleted")
        return 0

    return in_session(target, work)


@user.command(
    "rotate-keys",
    examples={
        "moor user rotate-keys": "add a key, and drop the oldest",
        "moor user rotate-keys --context production": "on another cluster",
    },
)
@target_options
def rotate_keys(target: Target) -> int:
    """Add a key for stored tokens of the identity provider, and drop the oldest. Users stay logged in."""
    from moorage.server.identity.sessions import rotate_keys as rotate

    async def work(session: Session) -> int:
        await rotate(session.api)
        console.say("new key added; data encrypted with the previous key stays readable")
        return 0

    return in_session(target, work)


@console.command(
    examples={
        "moor audit": "the newest changes",
        "moor audit --since 24h --action 'delete run'": "those of a kind, of the last day",
        "moor audit -n vision --user ada": "those of one user in a namespace",
        "moor audit -o wide": "a table with the answer to each request",
    }
)
@click.option("--user", "person", default=None, help="Only changes by this user.")
@click.option("--since", default=None, help="Start: 24h or 7d ago, a day such as 2026-01-31, or an RFC 3339 time.")
@click.option("--action", default=None, help="Only actions with this text, such as 'delete run' or drain.")
@click.option(
    "--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Maximum number of entries."
)
@console.output_option
@target_options
def audit(
    target: Target, person: str | None, since: str | None, action: str | None, limit: int, output: str
) -> int:
    """Show changes on the web, by REST, kubectl or `moor`, and their users, newest first. For administrators.

    Times are UTC. With -n, only changes in that namespace. A deletion does not show which program sent it.
    """
    # the server filters: the log may be large
    asked = {
        "user": person,
        "since": since,
        "action": action,
        "namespace": target.namespace,
        "limit": str(limit),
    }

    async def work(session: Session) -> int:
        params = {key: value for key, value in asked.items() if value}
        page = await session.server.ask(AuditPage, "GET", "/api/v1/audit", params=params)
        # for people, one sentence per entry
        if output == "table" and page.entries:
            for entry in page.entries:
                at = parse_rfc3339(entry.at)
                console.show(f"{at:%Y-%m-%d %H:%M:%S}  {sentence(entry)}")
            return 0
        # for programs and empty answers
        console.print_listing(
            output,
            headers=("TIME", "USER", "FROM", "ACTION", "STATUS"),
            rows=lambda: [
                [
                    entry.at,
                    entry.person or "-",
                    entry.address or entry.client,
                    entry.what or f"{entry.method} {entry.path}",
                    str(entry.status),
                ]
                for entry in page.entries
            ],
            items=[msgspec.to_builtins(entry) for entry in page.entries],
            names=[str(entry.number) for entry in page.entries],
            nothing="no entry matches"
            if person or since or action or target.namespace
            else "no entries in the audit log",
        )
        return 0

    return in_session(target, work)


def _change(target: Target, name: str, change: AccountChange, message: str) -> int:
    async def work(session: Session) -> int:
        await people.change_account(session.api, name, change)
        console.say(message)
        return 0

    return in_session(target, work)


def _password(from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\n")
    return ask_password(console.ask_hidden, tries=TRIES if sys.stdin.isatty() else 1)


def ask_password(ask: Callable[[str], str], *, tries: int) -> str:
    """Ask for a new password twice; after an invalid one, ask again. After `tries` attempts raise UsageError."""
    while True:
        tries -= 1
        try:
            password = ask("Password: ")
            people.check_password(password)
            if ask("Again: ") != password:
                raise UsageError("the two passwords differ")
            return password
        except UsageError as error:
            if not tries:
                raise
            console.say(f"{error.message}; try again")
