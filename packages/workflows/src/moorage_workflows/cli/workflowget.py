"""`moor workflow get`, `watch` and `wait`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.cli.storedrecords import RecordsOfServer
from moorage.cli.watching import ENTER, LEAVE, REDRAW
from moorage.decide.runs.timelimit import parse_time
from moorage_kube.errors import NotReady, UsageError
from moorage_kube.moments import format_duration
from moorage_workflows.actions.workflows import LATEST, get_workflow, resolve_name, wait_workflow
from moorage_workflows.actions.workflowwaits import with_starts
from moorage_workflows.cli.workflowsession import ServerRecords, next_steps, show_text
from moorage_workflows.decide.workflows.views import (
    ITEMS_SHOWN,
    WorkflowView,
    tree_of,
    view_workflow,
    with_step_names,
)

NODES_MEASURED = 2000  # in a larger workflow the use of memory is not asked for
LOOK_SECONDS = 1.0  # between two looks at a workflow that is watched


@console.command(
    examples={
        "moor workflow get train-x7k2p": "its steps as a tree: states, times, messages, pods",
        "moor workflow get @latest": "the newest workflow",
        "moor workflow get train-x7k2p -o json": "the Workflow with status.nodes, for a program",
    }
)
@click.argument("name", shell_complete=complete("workflows"))
@click.option("--whole", is_flag=True, help="Show every step; the default counts many similar steps.")
@console.document_option
@target_options
def get(target: Target, name: str, whole: bool, output: str) -> int:
    """Show a workflow: its steps with their status, and its outputs. @latest is the newest one."""

    async def work(session: Session) -> int:
        obj = await get_workflow(session.api, session.namespace, name, ServerRecords(session))
        if output != "text":
            console.print_document(obj, output)
            return 0
        view = await with_starts(session.api, view_workflow(obj))
        peaks = await _peaks(session, view)
        console.show_text(show_text(view, session.clock.now(), whole=whole, peaks=peaks))
        if (
            not whole
            and len(view.nodes) > ITEMS_SHOWN
            and any(row.more for row in tree_of(view.nodes, whole=False))
        ):
            console.say(f"see every step: moor workflow get {view.name} --whole")
        for step in next_steps(view):
            console.say(step)
        return 0

    return in_session(target, work)


async def _peaks(session: Session, view: WorkflowView) -> dict[str, int]:
    """Return the peak memory in bytes by pod name, for pods that the server has measured."""
    if not any(node.type.has_pod for node in view.nodes) or len(view.nodes) > NODES_MEASURED:
        return {}
    pods = await RecordsOfServer(session).steps(view.namespace, view.name, view.uid)
    return {pod.name: pod.peak_memory_bytes for pod in pods if pod.peak_memory_bytes is not None}


@console.command(
    examples={
        "moor workflow watch train-x7k2p": "its steps, updated until it has ended",
        "moor workflow watch @latest": "those of the newest workflow",
    }
)
@click.argument("name", default=LATEST, shell_complete=complete("workflows"))
@target_options
def watch(target: Target, name: str) -> int:
    """Show the steps of a workflow until it has ended. Ctrl-C stops the watching, not the workflow."""

    async def work(session: Session) -> int:
        await watch_one(session, await resolve_name(session.api, session.namespace, name))
        return 0

    return in_session(target, work)


@console.command(
    examples={
        "moor workflow wait train-x7k2p && echo done": "continue when it has succeeded",
        "moor workflow wait a b --timeout 2h": "for two hours at most",
    }
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete("workflows"))
@click.option("--timeout", default=None, help="Longest time to wait: 90s, 10m, 2h (default: for ever).")
@target_options
def wait(target: Target, names: tuple[str, ...], timeout: str | None) -> int:
    """Wait until workflows have ended. It exits with 0 when all have succeeded, else with 1."""
    try:
        limit = parse_time(timeout) if timeout is not None else None
    except ValueError as error:
        raise UsageError(f"invalid --timeout {timeout!r}", hint="use a time such as 90s, 10m or 2h") from error

    async def work(session: Session) -> int:
        known = [await resolve_name(session.api, session.namespace, name) for name in dict.fromkeys(names)]
        waiting = asyncio.ensure_future(wait_for(session, known))
        if limit is None:
            return 0 if await waiting else 1
        waking = asyncio.ensure_future(session.clock.sleep(limit))
        try:
            await asyncio.wait((waiting, waking), return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return 0 if waiting.result() else 1
            raise NotReady(
                f"{', '.join(known)}: not ended after {timeout}",
                hint="nothing was stopped; wait again, or look: moor workflow list --running",
            )
        finally:
            waiting.cancel()
            waking.cancel()
            await asyncio.gather(waiting, waking, return_exceptions=True)

    return in_session(target, work)


async def wait_for(session: Session, names: Sequence[str]) -> bool:
    """Wait until all workflows have ended, and print each result. Returns whether all succeeded."""
    views = await asyncio.gather(
        *(
            wait_workflow(session.api, session.namespace, name, session.clock, records=ServerRecords(session))
            for name in names
        )
    )
    for view in views:
        console.show(f"{view.name} {view.phase}")
        if view.phase != "Succeeded":
            took = (
                f" after {format_duration(view.finished - view.started)}" if view.started and view.finished else ""
            )
            why = f": {with_step_names(view.message, view)}" if view.message else ""
            console.say(f"{view.name}: {view.phase}{took}{why}; see moor workflow get {view.name}")
    return all(view.phase == "Succeeded" for view in views)


async def watch_one(session: Session, name: str) -> WorkflowView:
    """Show a workflow until it has ended, and return its last view.

    On a terminal the view is redrawn; otherwise each change is printed as lines.
    """
    import sys

    is_screen = sys.stdout.isatty()
    before = ""
    if is_screen:
        console.raw(ENTER, nl=False)
    try:
        while True:
            obj = await get_workflow(session.api, session.namespace, name, ServerRecords(session))
            view = view_workflow(obj)
            text = show_text(view, session.clock.now())
            if is_screen:
                lines = text.split("\n")
                console.raw(REDRAW, nl=False)
                console.show_text("\n".join(lines[: console.terminal_height() - 1]), nl=False)
            elif (line := f"{view.name} {view.phase} {view.progress} {view.message}".rstrip()) != before:
                before = line
                console.show(line)
            if view.has_ended:
                return view
            await session.clock.sleep(LOOK_SECONDS)
    finally:
        if is_screen:
            console.raw(LEAVE, nl=False)
            console.show_text(text)
