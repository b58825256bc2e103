"""`moor tenant`: teams, their members and their limits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote as in_path

import click
import msgspec

from moorage.actions import tenants
from moorage.actions.people import find_account
from moorage.api.tenants import Holders, Tenant, TenantList, TenantRow
from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.nextsteps import after_team
from moorage.cli.session import Session, Target, ask_server, in_session, target_options
from moorage.cli.specs import NONE, dry_run_option, given, run_set
from moorage.cluster.serverurl import public_url
from moorage.present.tenantsanswer import holders_of, idle_text
from moorage_kube.errors import Forbidden, MoorageError, UsageError
from moorage_kube.resources import Obj

role_option = click.option(
    "--role", type=click.Choice(tenants.ROLES), default="member", show_default=True, help="Role in the tenant."
)


def spec_options(command: Callable[..., int]) -> Callable[..., int]:
    """The options of `create` and `set` for the fields of a tenant, which the command gets as `fields`."""

    @click.option(
        "--quota",
        multiple=True,
        metavar="RESOURCE=AMOUNT",
        help="Quota, such as gpu=8 or memory=64Gi. Repeatable.",
    )
    @click.option("--cpu-nodes", multiple=True, metavar="LABEL=VALUE", help="Nodes for this tenant only.")
    @click.option(
        "--priority-class", "classes", multiple=True, help="PriorityClass that its pods may use. Repeatable."
    )
    @click.option("--image", default=None, help="Image of its runs that name none, such as python:3.12-slim.")
    @click.option("--domain", default=None, help="Domain of its hosts: this host and all hosts below it.")
    @click.option("--ingress-class", default=None, help="IngressClass of its Ingresses.")
    @functools.wraps(command)
    def with_spec(
        *args: Any,
        quota: tuple[str, ...],
        cpu_nodes: tuple[str, ...],
        classes: tuple[str, ...],
        image: str | None,
        domain: str | None,
        ingress_class: str | None,
        **kwargs: Any,
    ) -> int:
        # options that are not typed are left out; `none` is None
        fields = given({"priorityClasses": classes})
        if quota:
            fields["quota"] = given(_pairs(quota, "--quota"))
        if cpu_nodes:
            selector = None if cpu_nodes == (NONE,) else {"selector": _pairs(cpu_nodes, "--cpu-nodes")}
            fields["cpuNodes"] = selector
        if defaults := given({"image": image}):
            fields["defaults"] = defaults
        if ingress := given({"domain": domain, "className": ingress_class}):
            fields["ingress"] = ingress
        return command(*args, fields=fields, **kwargs)

    return with_spec


@console.group(
    examples={
        "moor tenant create vision --admin ada --quota gpu=8": "create a team with 8 GPUs",
        "moor tenant add vision --user alan": "add a member",
        "moor tenant show vision": "see its roles and quota",
    }
)
def tenant() -> None:
    """Manage tenants: teams with a namespace, roles, quota, nodes and hosts.

    Members see their team. Admins of a team manage its members. Administrators of the cluster do the rest.
    """


@tenant.command(
    "create",
    examples={
        "moor tenant create vision --admin ada --member grace": "create a team",
        "moor tenant create vision --group staff --quota gpu=8": "with a quota",
        "moor tenant create vision --admin ada --dry-run": "only print it",
    },
)
@click.argument("name")
@click.option("--in", "place", default=None, metavar="NAMESPACE", help="Its namespace (default: its name).")
@click.option("--admin", "admins", multiple=True, help="Administrator of the tenant; repeatable.")
@click.option("--member", "members", multiple=True, help="Member of the tenant; repeatable.")
@click.option("--group", "groups", multiple=True, help="Group whose users are members; repeatable.")
@spec_options
@dry_run_option
@target_options
def create(
    target: Target,
    name: str,
    place: str | None,
    admins: tuple[str, ...],
    members: tuple[str, ...],
    groups: tuple[str, ...],
    fields: dict[str, Any],
    dry_run: bool,
) -> int:
    """Create a tenant; the operator creates its namespace, and keeps it as the Tenant describes."""
    spec: Obj = {"namespace": place or name}
    if admins:
        spec["admins"] = {"people": list(admins)}
    if members or groups:
        wanted = {"people": list(members), "groups": list(groups)}
        spec["members"] = {key: value for key, value in wanted.items() if value}
    spec |= fields
    # validated here, so that a dry run reports the same errors
    obj = tenants.plan_tenant(name, spec)
    if dry_run:
        console.show_text(console.as_yaml(obj), nl=False)
        return 0

    async def work(session: Session) -> int:
        await tenants.create_tenant(session.api, obj)
        console.say(f"tenant {name} created; its namespace is {spec['namespace']}")
        # print the next steps: accounts to create, and how members log in
        named = list(dict.fromkeys([*admins, *members]))
        missing = [person for person in named if not await _has_account(session, person)]
        steps = after_team(name, named, groups, without_account=missing, address=await public_url(session.api))
        for line in steps:
            console.say(line)
        return 0

    return in_session(target, work)


@tenant.command(
    "set",
    examples={
        "moor tenant set vision --quota gpu=16 --quota memory=1Ti": "change its quota",
        "moor tenant set vision --quota memory=none": "remove one limit",
        "moor tenant set vision --image python:3.12-slim": "let its runs leave out --image",
        "moor tenant set vision --domain vision.example.org --dry-run": "only print it",
    },
)
@click.argument("name", shell_complete=complete("tenants"))
@spec_options
@dry_run_option
@console.document_option
@target_options
def set_tenant(
    target: Target,
    name: str,
    fields: dict[str, Any],
    dry_run: bool,
    output: str,
) -> int:
    """Change the given fields of a tenant. For administrators of the cluster.

    A quota of one resource leaves the others. --priority-class replaces the whole list. `none` removes a field.
    """
    return run_set(
        target,
        lambda api: tenants.set_tenant(api, name, fields, dry_run=dry_run),
        output=output,
        dry_run=dry_run,
    )


@tenant.command(
    "list",
    examples={
        "moor tenant list": "all tenants",
        "moor tenant list -o name": "names alone, for a script",
    },
)
@console.output_option
@target_options
def list_tenants(target: Target, output: str) -> int:
    """List your tenants. Administrators of the cluster see all."""

    async def work(session: Session) -> int:
        rows = (await ask_server(session, TenantList, "/api/v1/tenants", kubectl="kubectl get tenants")).tenants
        console.print_listing(
            output,
            headers=("NAME", "NAMESPACE", "ROLE", "PEOPLE", "NODES", "READY", "REASON"),
            rows=lambda: [_row(row) for row in rows],
            items=[msgspec.to_builtins(row) for row in rows],
            names=[row.name for row in rows],
            nothing="no tenants; an administrator of the cluster creates one: moor tenant create NAME",
        )
        return 0

    return in_session(target, work, asks_once=True)


@tenant.command(
    "show",
    examples={
        "moor tenant show vision": "roles, quota, nodes and hosts",
        "moor tenant show vision -o yaml": "the same for a program",
    },
)
@click.argument("name", shell_complete=complete("tenants"))
@console.document_option
@target_options
def show(target: Target, name: str, output: str) -> int:
    """Show a tenant: members, quota, budgets and their use, rules for idle work, nodes and hosts."""

    async def work(session: Session) -> int:
        path = f"/api/v1/tenants/{in_path(name)}"
        shown = await ask_server(session, Tenant, path, kubectl=f"kubectl describe tenant {name}")
        if output != "text":
            console.print_document(msgspec.to_builtins(shown), output)
            return 0
        for line in lines_of(shown):
            console.show(line)
        return 0

    return in_session(target, work, asks_once=True)


@tenant.command(
    "add",
    examples={
        "moor tenant add vision --user alan": "add a member",
        "moor tenant add vision --group interns --role viewer": "let a group look",
    },
)
@click.argument("name", shell_complete=complete("tenants"))
@click.option("--user", "people", multiple=True, help="User; repeatable.")
@click.option("--group", "groups", multiple=True, help="Group; repeatable.")
@role_option
@target_options
def add(target: Target, name: str, people: tuple[str, ...], groups: tuple[str, ...], role: str) -> int:
    """Give users, or a group, a role in a tenant. For its admins, and for administrators of the cluster."""
    return _change(target, name, role, {"people": people, "groups": groups}, is_added=True)


@tenant.command(
    "remove",
    examples={
        "moor tenant remove vision --user alan": "remove a member",
        "moor tenant remove vision --user ada --role admin": "remove an administrator's role",
    },
)
@click.argument("name", shell_complete=complete("tenants"))
@click.option("--user", "people", multiple=True, help="User; repeatable.")
@click.option("--group", "groups", multiple=True, help="Group; repeatable.")
@role_option
@target_options
def remove(target: Target, name: str, people: tuple[str, ...], groups: tuple[str, ...], role: str) -> int:
    """Remove a role in a tenant from users, or from a group. For its admins, except the role of the last admin."""
    return _change(target, name, role, {"people": people, "groups": groups}, is_added=False)


@tenant.command(
    "delete",
    examples={
        "moor tenant show vision": "see the users who lose a role",
        "moor tenant delete vision": "delete it; its namespace stays",
    },
)
@click.argument("name", shell_complete=complete("tenants"))
@target_options
def delete(target: Target, name: str) -> int:
    """Delete a tenant: its users lose their roles. Its namespace remains unless spec.onDelete is Delete."""

    async def work(session: Session) -> int:
        spec = (await tenants.delete_tenant(session.api, name))["spec"]
        goes = spec.get("onDelete") == "Delete"
        console.say(
            f"tenant {name} deleted; namespace {spec['namespace']} {'is deleted too' if goes else 'remains'}"
        )
        return 0

    return in_session(target, work)


async def _has_account(session: Session, person: str) -> bool:
    """Whether a user has an account; True if the caller may not read accounts."""
    try:
        return await find_account(session.api, person) is not None
    except MoorageError:
        return True


def _change(target: Target, name: str, role: str, names: tenants.Names, *, is_added: bool) -> int:
    async def work(session: Session) -> int:
        change = tenants.add_to_tenant if is_added else tenants.remove_from_tenant
        try:
            await change(session.api, name, role, names)
        except Forbidden:  # the server acts for admins of the tenant
            path = f"/api/v1/tenants/{in_path(name)}/members" + ("" if is_added else "/remove")
            await session.server.ask(Holders, "POST", path, body={"role": role, **names})
        everybody = ", ".join(person for listed in names.values() for person in listed)
        console.say(f"{everybody}: {role} of {name}" if is_added else f"{everybody}: no longer {role} of {name}")
        return 0

    return in_session(target, work)


def _row(row: TenantRow) -> list[str]:
    people, nodes = ("" if count is None else str(count) for count in (row.people, row.nodes))
    return [row.name, row.namespace, row.role, people, nodes, str(row.ready), row.reason]


def lines_of(shown: Tenant) -> list[str]:
    """Return a tenant as lines of text."""
    lines = [f"tenant     {shown.name}", f"namespace  {shown.namespace}"]
    lines.append(f"state      {shown.message or 'not observed yet'}")
    lines += [f"your role  {shown.role}"] if shown.role else []
    for role, held in holders_of(shown).items():
        names = [*held.people, *(f"group {group}" for group in held.groups)]
        lines.append(f"{role + 's':<11}{', '.join(names) or '-'}")
    lines.append(f"GPUs       {shown.gpus} in use")
    lines += _titled("quota", [f"{row.resource} {row.used or '?'} of {row.hard} used" for row in shown.quota])
    lines += _titled(
        "budgets",
        [
            f"{row.budget}: {row.used} of {row.limit} {row.unit} ({row.percent} %) in this {row.period};"
            f" when it is used up: {row.when_over}"
            for row in shown.budgets
        ],
    )
    lines += _titled("idle", [idle_text(rule) for rule in shown.idle])
    lines.append(f"classes    {', '.join(shown.priority_classes) or '-'}")
    nodes = ", ".join(f"{key}={value}" for key, value in shown.node_selector.items())
    lines.append(f"nodes      {nodes or 'shared'}")
    lines.append(f"hosts      {shown.domain or 'any that other tenants do not have'}")
    return lines


def _titled(title: str, rows: Sequence[str]) -> list[str]:
    """Lines with a title before the first."""
    return [f"{title if number == 0 else '':<11}{row}" for number, row in enumerate(rows or ["-"])]


def _pairs(texts: tuple[str, ...], option: str) -> dict[str, Any]:
    pairs = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not (key and sign and value):
            raise UsageError(f"invalid {option} {text!r}: use KEY=VALUE")
        pairs[key] = value
    return pairs
