"""`moor install` and `moor upgrade`: install Moorage on the cluster of the current context."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, cast

import click

from moorage.cli import console
from moorage.cli.installoptions import Chosen, check_namespace, install_options, seconds_of
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.decide.install.steps import InstallPlan
from moorage.decide.install.values import InstallValues, parse_values, parse_version
from moorage_kube.errors import NotFound, UsageError

if TYPE_CHECKING:
    from moorage.actions.install.cluster import InstallApi


@console.command(
    examples={
        "moor install --image registry.example.org/moorage:0.1.0": "install on the cluster of the current context",
        "moor install --public-url https://moorage.example.org --ingress-class nginx": "make it reachable; run it again any time",  # noqa: E501
        "moor install --values values.yaml --dry-run": "print the changes",
    }
)
@install_options
@click.option("--admin", default="admin", show_default=True, metavar="NAME", help="First user, if there is none.")
@click.option("--no-admin", is_flag=True, help="Create no first user.")
@console.document_option
@target_options
def install(target: Target, chosen: Chosen, admin: str, no_admin: bool, output: str) -> int:
    """Install Moorage on a cluster, or change the values of an installation.

    The cluster stores the values: run it again with one option, and the others remain. It is safe to interrupt
    and to run again. Needs the rights of a cluster administrator.
    """
    return _install(target, chosen, output, admin="" if no_admin else admin)


@console.command(
    examples={
        "moor upgrade --image registry.example.org/moorage:0.2.0": "upgrade to the version of this moor",
        "moor upgrade --dry-run": "print the changes",
    }
)
@install_options
@click.option("--force", is_flag=True, help="Allow an older version than the one installed.")
@console.document_option
@target_options
def upgrade(target: Target, chosen: Chosen, force: bool, output: str) -> int:
    """Upgrade an installation to the version of this `moor`, with the values that it was installed with.

    First the kinds, then one service after the other, so that the webhook always answers. Runs continue.
    """
    return _install(target, chosen, output, upgrading=True, downgrade=force)


def _install(
    target: Target,
    chosen: Chosen,
    output: str,
    *,
    admin: str = "",
    upgrading: bool = False,
    downgrade: bool = False,
) -> int:
    check_namespace(target)
    if output != "text" and not chosen.dry_run:
        raise UsageError(f"-o {output} prints the manifests of --dry-run", hint="add --dry-run, or leave -o out")

    def work(session: Session) -> Awaitable[int]:
        return _work(session, chosen, output, admin=admin, upgrading=upgrading, downgrade=downgrade)

    return in_session(target, work)


async def _work(
    session: Session, chosen: Chosen, output: str, *, admin: str, upgrading: bool, downgrade: bool
) -> int:
    from moorage.actions.install import install as actions
    from moorage.cli.installobjects import VERSION, wanted_objects
    from moorage.decide.install.record import InstallRecord

    # read the installed state, and compute the wanted one
    api = cast("InstallApi", session.api)
    timeout = seconds_of(chosen.timeout)
    standing = await actions.look(api)
    installed = standing.version if standing.is_installed else ""
    if upgrading and not installed:
        raise NotFound("Moorage is not installed on this cluster", hint="install it: moor install --image IMAGE")
    check_versions(installed, VERSION, downgrade=downgrade)
    document = chosen.document(standing.values, installed=standing.version, version=VERSION)
    if not (installed or chosen.dry_run or document.get("runImage")) and (image := ask_run_image()):
        document["runImage"] = image
    values = parse_values(document)
    wanted = wanted_objects(values, standing.kubernetes)

    # compute the changes
    if chosen.dry_run and output != "text":
        console.print_document({"apiVersion": "v1", "kind": "List", "items": wanted}, output)
        return 0
    plan = await actions.prepare(api, wanted, values, standing, force=chosen.force_conflicts)
    head = f"Moorage {VERSION} on Kubernetes {standing.kubernetes}"
    if chosen.dry_run:
        console.say(f"{head}: nothing is written")
        for line in plan_lines(plan):
            console.show(line)
        return 0

    # write it
    console.say(head + (f", from {installed}" if installed not in ("", VERSION) else ""))
    if installed:
        for line in change_lines(plan):
            console.say(line)
    await actions.carry_out(
        api,
        plan,
        InstallRecord(values=document, version=VERSION, objects=standing.written),
        progress=console.say,
        clock=session.clock,
        timeout=timeout,
        force=chosen.force_conflicts,
        wait=chosen.wait,
        rolling=bool(installed),
    )
    counts = f"objects: {len(plan.made)} created, {len(plan.changed)} changed, {len(plan.same)} unchanged"
    console.say(counts + (f", {len(plan.removed)} removed" if plan.removed else ""))
    await _first_user(api, admin)
    for line in next_lines(values, admin=admin, is_new=not installed):
        console.say(line)
    return 0


def ask_run_image() -> str:
    """Ask for the image of runs that name none. "" without an answer or a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return ""
    console.say("runs of a new team need an image: each names one, or the team has a default")
    question = "Default image, such as python:3.12-slim (empty: none)"
    return str(click.prompt(question, default="", show_default=False, err=True)).strip()


def check_versions(installed: str, version: str, *, downgrade: bool) -> None:
    """Raise UsageError for a downgrade without --force. `installed` is empty if Moorage is not installed."""
    if installed and not downgrade and parse_version(installed) > parse_version(version):
        raise UsageError(
            f"Moorage {installed} is installed, and this moor is older: {version}",
            hint=f"use moor {installed}: pip install moorage=={installed}. An older version may not read data"
            " of a newer one; `moor upgrade --force` tries it",
        )


def plan_lines(plan: InstallPlan) -> Iterator[str]:
    """One line per object that is created (+), changed (~, with its fields) or deleted (-)."""
    for ref in plan.made:
        yield f"+ {ref}"
    for ref, fields in plan.changed.items():
        yield f"~ {ref}"
        for change in fields:
            yield f"    {change}"
    for ref in plan.removed:
        yield f"- {ref}"
    counts = f"{len(plan.made)} to create, {len(plan.changed)} to change, {len(plan.removed)} to remove"
    yield f"{counts}, {len(plan.same)} unchanged"


def change_lines(plan: InstallPlan) -> Iterator[str]:
    """Yield the changes of an upgrade, in short."""
    if plan.is_empty:
        yield "nothing changes"
    for ref, fields in plan.changed.items():
        more = f"; {len(fields) - 3} more" if len(fields) > 3 else ""
        yield f"changes {ref}: {'; '.join(map(str, fields[:3]))}{more}"
    for ref in plan.removed:
        yield f"removes {ref}: this version does not ship it"


async def _first_user(api: InstallApi, name: str) -> None:
    """Create the first user if there are no accounts. The password is data: it is printed on stdout, once."""
    from moorage.actions.install.install import ensure_first_admin

    account = await ensure_first_admin(api, name) if name else None
    if account is None:
        return
    console.say(f"the first user, {account.name}, has all rights on the cluster; this password is shown once:")
    console.show(f"user: {account.name}", f"password: {account.password}")
    console.say(f"another password: moor user passwd {account.name}")


def next_lines(values: InstallValues, *, admin: str, is_new: bool) -> Iterator[str]:
    """Yield the next steps for the administrator."""
    url = values.public_url.partition(",")[0]
    if url:
        yield f"log in: moor login {url}" + (f" --username {admin}" if admin and is_new else "")
        if not values.ingress_class:
            yield "lead the address to Service moorage-system/moorage-server, or add --ingress-class NAME"
    else:
        yield "let people reach the server: moor install --public-url https://HOST --ingress-class NAME"
        yield "until then: kubectl -n moorage-system port-forward service/moorage-server 8080:80"
    if is_new:
        yield "create a team: moor tenant create TEAM --member NAME"
        if values.scheduler == "configure":
            yield "pack GPUs: moor install --scheduler second, or configure your own kube-scheduler"
