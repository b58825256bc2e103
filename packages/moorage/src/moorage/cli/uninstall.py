"""`moor uninstall`: remove Moorage from a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from moorage.cli import console
from moorage.cli.installoptions import check_namespace, seconds_of
from moorage.cli.session import Session, Target, in_session, target_options
from moorage_kube.errors import UsageError

if TYPE_CHECKING:
    from moorage.actions.install.cluster import InstallApi


@console.command(
    examples={
        "moor uninstall --dry-run": "print the objects to remove, and those that remain",
        "moor uninstall": "remove the services, and keep all data for a later installation",
        "moor uninstall --delete-data": "remove everything of Moorage",
    }
)
@click.option("--keep-data", is_flag=True, help="Keep objects of our kinds, accounts and history. The default.")
@click.option("--delete-data", is_flag=True, help="Delete them too: datasets, accounts, history, map results.")
@click.option("--dry-run", is_flag=True, help="Print the objects to remove and those that remain; remove nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--timeout", default="2m", show_default=True, help="Longest wait for the removal: 90s, 10m.")
@target_options
def uninstall(target: Target, keep_data: bool, delete_data: bool, dry_run: bool, yes: bool, timeout: str) -> int:
    """Remove Moorage from a cluster, with its services up or down.

    The webhook is removed first, so that it does not block anything. Users' runs continue without restarts
    after disruptions. `moor install` restores everything if the data remain. Needs the rights of a cluster
    administrator.
    """
    # check the options before the cluster is read
    check_namespace(target)
    if keep_data and delete_data:
        raise UsageError("--keep-data and --delete-data cannot be used together")
    seconds = seconds_of(timeout)

    async def work(session: Session) -> int:
        from moorage.actions.install import uninstall as actions
        from moorage.cli.installobjects import whatever_is_shipped

        # read the present objects, and plan the removal
        api, shipped = cast("InstallApi", session.api), whatever_is_shipped()
        present, kept = await actions.look_at_present(api, shipped)
        removal = actions.plan_removal(present, delete_data=delete_data)
        # always print the plan, also before the question
        connection = getattr(api, "connection", None)
        print_line = console.show if dry_run else console.say
        print_line(f"uninstall from {connection.server}" if connection is not None else "uninstall")
        print_line("to remove:")
        for line in removal.goes:
            print_line(f"  {line}")
        print_line("to keep:")
        for line in removal.stays:
            print_line(f"  {line}")
        if dry_run:
            return 0
        # check the rights first: a removal that stops half-way leaves a broken installation
        await actions.check_removal_rights(api, shipped, delete_data=delete_data)
        if not yes:
            console.confirm("Delete Moorage and its data?" if delete_data else "Remove Moorage?")
        left = await actions.remove(
            api,
            removal,
            kept,
            delete_data=delete_data,
            progress=console.say,
            clock=session.clock,
            timeout=seconds,
        )
        # objects with finalizers may take longer: they are named, and the exit code is 1
        for ref in left:
            console.say(f"warning: {ref} is still being deleted: kubectl describe it to see why")
        console.say("Moorage is removed")
        if not delete_data:
            console.say("install it again: moor install. Delete the remaining data: moor uninstall --delete-data")
        return 1 if left else 0

    return in_session(target, work)
