"""`moor workflow logs`."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import click

from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.cli.storedrecords import RecordsOfServer
from moorage.cli.terminal import ending_with_reader
from moorage.decide.runs.timelimit import parse_time
from moorage_kube.errors import UsageError
from moorage_kube.texts import visible
from moorage_workflows.actions.workflowlogs import StepLine, WorkflowLog
from moorage_workflows.cli.workflowsession import ServerRecords
from moorage_workflows.decide.workflows.views import WorkflowView

COLOURS = ("cyan", "magenta", "blue", "green", "yellow", "bright_cyan")  # of the steps' names, in turn


@console.command(
    examples={
        "moor workflow logs train-x7k2p": "the lines of all steps, each after the step's name",
        "moor workflow logs @latest --step evaluate --follow": "one step, as it prints",
    }
)
@click.argument("name", shell_complete=complete("workflows"))
@click.option("-f", "--follow", is_flag=True, help="Continue until the workflow has ended.")
@click.option("--step", default="", metavar="STEP", help="Only this step, as `moor workflow get` names it.")
@click.option("--tail", type=click.IntRange(0), default=None, help="Only the last lines of each pod.")
@click.option("--since", default=None, metavar="TIME", help="Only lines of the last time, such as 10m.")
@click.option("--container", default="", help="Container of the pods (default: main).")
@click.option("--prefix/--no-prefix", default=None, help="Step before each line (default: with several steps).")
@target_options
def logs(target: Target, name: str, follow: bool, since: str | None, prefix: bool | None, **chosen: Any) -> int:
    """Print the logs of a workflow's steps in one view. The server stores the logs of deleted pods."""
    try:
        chosen["since_seconds"] = parse_time(since) if since is not None else None
    except ValueError as error:
        raise UsageError(f"invalid --since {since!r}", hint="use a time such as 90s, 10m or 2h") from error

    async def work(session: Session) -> int:
        if follow:
            await follow_logs(session, name, prefix=prefix, **chosen)
            return 0
        log, view = await _open(session, name, **chosen)
        printer = StepPrinter(prefix=len(view.nodes) != 1 and not chosen["step"] if prefix is None else prefix)
        async with ending_with_reader(), contextlib.aclosing(log.read()) as events:
            async for event in events:
                printer.print(event)
        if printer.is_silent:
            is_over = view.has_ended or view.is_gone
            state = f"{view.phase}, deleted" if view.is_gone else view.phase
            who = f"step {chosen['step']} of {view.name}" if chosen["step"] else view.name
            console.say(f"{who} {'printed nothing' if is_over else 'has printed nothing yet'}: {state}")
        return 0

    return in_session(target, work)


async def follow_logs(session: Session, name: str, *, prefix: bool | None = None, **chosen: Any) -> None:
    """Print log lines as they arrive, until the workflow has ended."""
    log, _ = await _open(session, name, **chosen)
    printer = StepPrinter(prefix=not chosen.get("step") if prefix is None else prefix)
    async with ending_with_reader(), contextlib.aclosing(log.follow()) as events:
        async for event in events:
            printer.print(event)


async def _open(session: Session, name: str, **chosen: Any) -> tuple[WorkflowLog, WorkflowView]:
    log = WorkflowLog(
        session.api,
        session.namespace,
        name,
        clock=session.clock,
        records=ServerRecords(session),
        pod_records=RecordsOfServer(session),
        **chosen,
    )
    return log, await log.open()


class StepPrinter:
    """Print lines on stdout, each after its step's name, and unreadable logs on stderr."""

    def __init__(self, *, prefix: bool) -> None:
        self._prefix = prefix
        self._colour = console.has_colour(sys.stdout)
        self._places: dict[str, int] = {}
        self.is_silent = True

    def print(self, event: Any) -> None:
        self.is_silent = False
        if not isinstance(event, StepLine):
            console.note(f"{event.step}: {event.message}")
            return
        if not self._prefix:
            console.raw(event.text)
            return
        place = self._places.setdefault(event.step, len(self._places))
        head = f"{visible(event.step)} |"  # with the items of loops
        if self._colour:
            head = click.style(head, fg=COLOURS[place % len(COLOURS)])
        console.raw(f"{head} ".encode() + event.text)
