"""`moor tenant`: teams, their people and what they may use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from moorage.apimachinery.meta import condition
from moorage.apimachinery.resources import Obj
from moorage.cli import console
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.errors import AlreadyExists, NotFound, UsageError
from moorage.model.tenant import TENANTS

ROLES = ("admin", "member", "viewer")
FIELDS = {"people": "--user", "groups": "--group"}

role_option = click.option(
    "--role", type=click.Choice(ROLES), default="member", show_default=True, help="What they may do."
)


@click.group()
def tenant() -> None:
    """Teams: a namespace each, with roles, quota, NetworkPolicy, nodes and hosts. For administrators."""


@tenant.command("create")
@click.argument("name")
@click.option("--in", "place", default=None, metavar="NAMESPACE", help="Its namespace (default: its name).")
@click.option("--admin", "admins", multiple=True, help="A person who rules in it; repeatable.")
@click.option("--member", "members", multiple=True, help="A person who works in it; repeatable.")
@click.option("--group", "groups", multiple=True, help="A group whose people work in it; repeatable.")
@click.option("--quota", multiple=True, metavar="RESOURCE=AMOUNT", help="Such as requests.nvidia.com/gpu=8.")
@click.option("--cpu-nodes", multiple=True, metavar="LABEL=VALUE", help="Nodes that are to be its alone.")
@click.option("--priority-class", "classes", multiple=True, help="PriorityClass its pods may name. May repeat.")
@click.option("--domain", default=None, help="Its hosts are this one and those below it.")
@click.option("--ingress-class", default=None, help="IngressClass of its Ingresses.")
@click.option("--dry-run", is_flag=True, help="Print what would be made.")
@target_options
def create(
    target: Target,
    name: str,
    place: str | None,
    admins: tuple[str, ...],
    members: tuple[str, ...],
    groups: tuple[str, ...],
    quota: tuple[str, ...],
    cpu_nodes: tuple[str, ...],
    classes: tuple[str, ...],
    domain: str | None,
    ingress_class: str | None,
    dry_run: bool,
) -> int:
    """Make a tenant; the operator makes its namespace and keeps it as the Tenant says."""
    spec: Obj = {"namespace": place or name}
    if admins:
        spec["admins"] = {"people": list(admins)}
    if members or groups:
        wanted = {"people": list(members), "groups": list(groups)}
        spec["members"] = {key: value for key, value in wanted.items() if value}
    if quota:
        spec["quota"] = _pairs(quota, "--quota")
    if cpu_nodes:
        spec["cpuNodes"] = {"selector": _pairs(cpu_nodes, "--cpu-nodes")}
    if classes:
        spec["priorityClasses"] = list(classes)
    ingress = {"domain": domain, "className": ingress_class}
    if any(ingress.values()):
        spec["ingress"] = {key: value for key, value in ingress.items() if value}
    obj: Obj = {
        "apiVersion": TENANTS.api_version,
        "kind": TENANTS.kind,
        "metadata": {"name": name},
        "spec": spec,
    }
    if dry_run:
        console.show(console.as_yaml(obj), nl=False)
        return 0

    async def work(session: Session) -> int:
        try:
            await session.api.create(TENANTS, obj)
        except AlreadyExists as error:
            raise UsageError(f"there is a tenant {name} already", hint=f"moor tenant show {name}") from error
        console.say(f"tenant {name} is made")
        return 0

    return in_session(target, work)


@tenant.command("list")
@console.output_option
@target_options
def list_tenants(target: Target, output: str) -> int:
    """List tenants."""

    async def work(session: Session) -> int:
        found = sorted((await session.api.list(TENANTS)).items, key=lambda one: str(one["metadata"]["name"]))
        console.print_listing(
            output,
            headers=("NAME", "NAMESPACE", "PEOPLE", "NODES", "READY", "REASON"),
            rows=lambda: [_row(one) for one in found],
            items=found,
            names=[one["metadata"]["name"] for one in found],
            nothing="there are no tenants",
        )
        return 0

    return in_session(target, work)


@tenant.command("show")
@click.argument("name")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
@target_options
def show(target: Target, name: str, output: str) -> int:
    """Show a tenant: who has which role, its quota, nodes and hosts."""

    async def work(session: Session) -> int:
        found = await _get(session, name)
        if output != "text":
            console.print_document(found, output)
            return 0
        for line in _lines(found):
            console.show(line)
        return 0

    return in_session(target, work)


@tenant.command("add")
@click.argument("name")
@click.option("--user", "people", multiple=True, help="A person; repeatable.")
@click.option("--group", "groups", multiple=True, help="A group; repeatable.")
@role_option
@target_options
def add(target: Target, name: str, people: tuple[str, ...], groups: tuple[str, ...], role: str) -> int:
    """Give people, or all of a group, a role in a tenant."""
    return _change(target, name, role, {"people": people, "groups": groups}, is_added=True)


@tenant.command("remove")
@click.argument("name")
@click.option("--user", "people", multiple=True, help="A person; repeatable.")
@click.option("--group", "groups", multiple=True, help="A group; repeatable.")
@role_option
@target_options
def remove(target: Target, name: str, people: tuple[str, ...], groups: tuple[str, ...], role: str) -> int:
    """Take a role in a tenant from people, or from a group."""
    return _change(target, name, role, {"people": people, "groups": groups}, is_added=False)


@tenant.command("delete")
@click.argument("name")
@target_options
def delete(target: Target, name: str) -> int:
    """Delete a tenant: its people lose their roles. Its namespace stays unless spec.onDelete says Delete."""

    async def work(session: Session) -> int:
        found = await _get(session, name)
        await session.api.delete(TENANTS, name)
        spec = found["spec"]
        goes = spec.get("onDelete") == "Delete"
        console.say(f"tenant {name} is deleted; namespace {spec['namespace']} {'goes too' if goes else 'stays'}")
        return 0

    return in_session(target, work)


def _change(target: Target, name: str, role: str, given: Mapping[str, tuple[str, ...]], *, is_added: bool) -> int:
    if not any(given.values()):
        raise UsageError("nobody is named", hint="give --user NAME or --group NAME")

    async def work(session: Session) -> int:
        found = await _get(session, name)
        held = found["spec"].get(f"{role}s") or {}
        changed: dict[str, list[str]] = {}
        for field, names in given.items():
            before = list(held.get(field) or ())
            if is_added:
                changed[field] = before + [one for one in names if one not in before]
                continue
            if missing := [one for one in names if one not in before]:
                raise UsageError(f"{missing[0]} is no {role} of {name} by {FIELDS[field]}")
            changed[field] = [one for one in before if one not in names]
        meta = {"resourceVersion": found["metadata"]["resourceVersion"]}  # nobody's change is lost
        await session.api.patch(TENANTS, name, {"metadata": meta, "spec": {f"{role}s": changed}})
        everybody = ", ".join(one for names in given.values() for one in names)
        console.say(f"{everybody}: {role} of {name}" if is_added else f"{everybody}: no {role} of {name} any more")
        return 0

    return in_session(target, work)


async def _get(session: Session, name: str) -> Obj:
    try:
        return await session.api.get(TENANTS, name)
    except NotFound as error:
        raise NotFound(f"there is no tenant {name}", hint="`moor tenant list` shows them") from error


def _row(found: Obj) -> list[str]:
    status, ready = found.get("status") or {}, condition(found, "Ready") or {}
    return [
        found["metadata"]["name"],
        found["spec"]["namespace"],
        str(status.get("people", "")),
        str(status.get("nodes", "")),
        str(ready.get("status", "")),
        str(ready.get("reason", "")),
    ]


def _lines(found: Obj) -> list[str]:
    spec, ready = found["spec"], condition(found, "Ready") or {}
    lines = [f"tenant     {found['metadata']['name']}", f"namespace  {spec['namespace']}"]
    lines.append(f"state      {ready.get('message') or 'not looked at yet'}")
    for role in ROLES:
        held = spec.get(f"{role}s") or {}
        names = [*held.get("people", ()), *(f"group {one}" for one in held.get("groups", ()))]
        lines.append(f"{role + 's':<11}{', '.join(names) or '-'}")
    quota = ", ".join(f"{key} {value}" for key, value in (spec.get("quota") or {}).items())
    lines.append(f"quota      {quota or '-'}")
    selector = (spec.get("cpuNodes") or {}).get("selector") or {}
    lines.append(f"nodes      {', '.join(f'{key}={value}' for key, value in selector.items()) or 'shared'}")
    ingress = spec.get("ingress") or {}
    lines.append(f"hosts      {ingress.get('domain') or 'any that nobody else has'}")
    return lines


def _pairs(texts: tuple[str, ...], option: str) -> dict[str, Any]:
    found = {}
    for one in texts:
        key, sign, value = one.partition("=")
        if not (key and sign and value):
            raise UsageError(f"{option} {one!r} is no KEY=VALUE")
        found[key] = value
    return found
