"""`moor drain`, `moor cordon`, `moor uncordon`: take nodes out of service and back, like kubectl."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import click

from moorage.actions.nodes import drain_node, set_schedulable
from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.decide.runs.timelimit import parse_time
from moorage.decide.tools.drain import DrainOptions
from moorage_kube.errors import MoorageError, UsageError
from moorage_kube.moments import format_duration


@console.command(
    examples={
        "moor drain node-1": "evict all pods, and wait until they are deleted",
        "moor drain node-1 --timeout 10m": "wait 10 minutes at most",
        "moor uncordon node-1": "use it again afterwards",
    }
)
@click.argument("node", shell_complete=complete("nodes"))
@click.option("--timeout", default=None, help="Stop waiting after this time: 90s, 10m (default: never).")
@click.option(
    "--grace-period",
    type=click.IntRange(0),
    default=None,
    help="Grace period in seconds, instead of each pod's own.",
)
@click.option(
    "--delete-emptydir-data", is_flag=True, help="Also evict pods with emptyDir volumes; their data is lost."
)
@click.option("--ignore-daemonsets", is_flag=True, help="Leave pods of DaemonSets where they are.")
@click.option("--force", is_flag=True, help="Also evict pods that no controller would create again.")
@target_options
def drain(
    target: Target,
    node: str,
    timeout: str | None,
    grace_period: int | None,
    delete_emptydir_data: bool,
    ignore_daemonsets: bool,
    force: bool,
) -> int:
    """Cordon a node, evict its pods, and wait until they are deleted.

    Runs get their grace period to write a checkpoint, and start again on another node.
    """
    try:
        seconds = parse_time(timeout) if timeout not in (None, "0", "0s") and timeout is not None else None
    except ValueError as error:
        raise UsageError(f"invalid --timeout {timeout!r}", hint="use a time such as 90s, 10m or 1h") from error
    options = DrainOptions(
        ignore_daemonsets=ignore_daemonsets, delete_emptydir_data=delete_emptydir_data, force=force
    )

    async def work(session: Session) -> int:
        started = session.clock.monotonic()
        try:
            async with asyncio.timeout(seconds):
                count = await drain_node(
                    session.api, node, options, grace_period=grace_period, clock=session.clock, say=console.say
                )
        except TimeoutError as error:
            raise MoorageError(
                f"node {node} is cordoned but not empty after {timeout}",
                hint=f"`moor drain {node}` continues; `moor uncordon {node}` makes it schedulable again",
            ) from error
        spent = timedelta(seconds=session.clock.monotonic() - started)
        console.say(f"evicted {count} pod{'' if count == 1 else 's'} in {format_duration(spent)}")
        console.show(f"{node} drained")
        return 0

    return in_session(target, work)


@console.command(
    examples={
        "moor cordon node-1": "start no new pods there",
        "moor cordon node-1 node-2": "on several nodes",
    }
)
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...", shell_complete=complete("nodes"))
@target_options
def cordon(target: Target, nodes: tuple[str, ...]) -> int:
    """Mark nodes as unschedulable: no new pods start there; running pods continue."""
    return _set_all(target, nodes, unschedulable=True)


@console.command(
    examples={
        "moor uncordon node-1": "start new pods there again",
        "moor uncordon node-1 node-2": "on several nodes",
    }
)
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...", shell_complete=complete("nodes"))
@target_options
def uncordon(target: Target, nodes: tuple[str, ...]) -> int:
    """Mark nodes as schedulable: new pods may start there again."""
    return _set_all(target, nodes, unschedulable=False)


def _set_all(target: Target, nodes: tuple[str, ...], *, unschedulable: bool) -> int:
    async def work(session: Session) -> int:
        for node in dict.fromkeys(nodes):
            changed = await set_schedulable(session.api, node, unschedulable=unschedulable)
            word = "cordoned" if unschedulable else "uncordoned"
            console.show(f"{node} {'' if changed else 'already '}{word}")
        return 0

    return in_session(target, work)
