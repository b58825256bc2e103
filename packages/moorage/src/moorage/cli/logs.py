"""`moor logs`: print the logs of all pods of a run, and of its next attempts."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import assert_never

import click

from moorage.actions.runlogs import Began, Broke, Cut, Ended, Event, Gone, Line, RunLog, Unreadable, Waits
from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.cli.storedrecords import RecordsOfServer
from moorage.cli.terminal import ending_with_reader
from moorage.decide.runs.state import PodView, RunView, State, exit_code_of
from moorage.decide.runs.timelimit import parse_time
from moorage.model.names import RUN_LABEL
from moorage_kube.errors import NotFound, UsageError
from moorage_kube.informer import Informer
from moorage_kube.moments import format_duration
from moorage_kube.resources import JOBS, PODS, Obj

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_red", "bright_cyan", "bright_yellow")


@console.command(
    examples={
        "moor logs train-7f3a": "the output of a run",
        "moor logs -f train-7f3a": "follow it until it ends",
        "moor logs --tail 100 --since 10m train-7f3a": "the newest lines only",
        "moor logs --attempt 1 train-7f3a": "the first attempt, before a restart",
    }
)
@click.argument("name", shell_complete=complete("runs"))
@click.option("-f", "--follow", is_flag=True, help="Print new lines until the run ends, for all its attempts.")
@click.option(
    "--tail", type=click.IntRange(0), default=None, help="Print only this number of last lines of each pod."
)
@click.option("--since", default=None, help="Print only lines newer than this: 10m, 2h.")
@click.option("--attempt", type=click.IntRange(1), default=None, help="Only this attempt (default: all).")
@click.option(
    "--prefix/--no-prefix",
    default=None,
    help="Start lines with the pod's name (default: if there are several pods).",
)
@target_options
def logs(
    target: Target,
    name: str,
    follow: bool,
    tail: int | None,
    since: str | None,
    attempt: int | None,
    prefix: bool | None,
) -> int:
    """Print the logs of a run. Ctrl-C stops the printing, not the run."""
    try:
        since_seconds = parse_time(since) if since is not None else None
    except ValueError as error:
        raise UsageError(f"invalid --since {since!r}", hint="use a time such as 10m, 2h or 1d") from error

    async def work(session: Session) -> int:
        log = RunLog(
            session.api,
            session.namespace,
            name,
            clock=session.clock,
            tail=tail,
            since_seconds=since_seconds,
            attempt=attempt,
            records=RecordsOfServer(session),
        )
        if not follow:
            await _print(log, prefix=prefix, whole=tail is None and since_seconds is None)
            return 0
        run = await _follow(session, log, name, prefix=prefix)
        if run.started is None:
            console.say(f"{_ending(run)}; it has no logs")
        return 0

    return in_session(target, work)


async def follow_to_the_end(session: Session, name: str) -> int:
    """Follow a run's logs; return its exit code.

    Ctrl-C detaches: it prints how to follow again, and returns 130.
    """
    log = RunLog(session.api, session.namespace, name, clock=session.clock, records=RecordsOfServer(session))
    try:
        run = await _follow(session, log, name)
    except asyncio.CancelledError:
        console.say(
            "", f"detached; the run continues. Follow it again: moor logs -f {name}   Stop it: moor cancel {name}"
        )
        raise
    console.say(_ending(run) + (f"; see moor show {run.name}" if run.state is not State.SUCCEEDED else ""))
    return exit_code_of(run)


def _ending(run: RunView) -> str:
    """Describe how a run ended; for a run that has never started, also the cause."""
    text = f"{run.name}: {run.state}"
    if run.reason and run.reason != str(run.state):
        text += f" ({run.reason})"
    if run.started and run.ended:
        text += f" after {format_duration(run.ended - run.started)}"
    cause = next((pod.message for pod in reversed(run.pods) if pod.message), "") if run.started is None else ""
    return f"{text}: {cause}" if cause else text


async def _print(log: RunLog, *, prefix: bool | None = None, whole: bool = True) -> None:
    """Print the present logs.

    `whole`: all lines were requested, so an empty log means that the run printed nothing.
    """
    run = await log.open(follow=False)
    printer = Printer(prefix=len(log.due(run)) > 1 if prefix is None else prefix, announces=False)
    async with contextlib.aclosing(log.read()) as events:
        async for event in events:
            printer.print(event)
    _say_about_ports(run, printer)
    if not printer.has_begun:
        console.say(f"{run.name} has no logs yet: {run.state}" + (f", {run.reason}" if run.reason else ""))
    elif whole and printer.is_silent:
        silence = "printed nothing" if run.state.ended else "has printed nothing yet"
        console.say(f"{run.name} {silence}: {run.state}")


def _say_about_ports(run: RunView, printer: Printer) -> None:
    """Print how to fix a run that failed because its port was in use."""
    if run.state is State.FAILED and printer.has_taken_port:
        console.note(
            "a port that the run listens on is taken; runs of a local cluster share the ports of this machine:"
            " give each run another port, or port 0 for any free one"
        )


async def _follow(session: Session, log: RunLog, name: str, *, prefix: bool | None = None) -> RunView:
    """Print new lines, attempt after attempt, until the run has ended; return its final state."""
    await log.open(follow=True)
    printer = Printer(prefix=prefix)
    async with (
        ending_with_reader(),
        watching(session, name) as watch,
        contextlib.aclosing(log.follow(watch)) as events,
    ):
        async for event in events:
            if isinstance(event, Ended) and event.run is not None:
                _say_about_ports(event.run, printer)
                return event.run
            printer.print(event)
    raise NotFound(f"the run {name} was deleted while it was followed")


_TAKEN = (b"ddress already in use", b"EADDRINUSE")  # as libc, Go and Node say it


class OneRun:
    """The Jobs and pods of one run, by a separate watch."""

    def __init__(self, jobs: Informer, pods: Informer) -> None:
        self._jobs = jobs
        self._pods = pods
        self._changed = asyncio.Event()
        self.version = 0
        self.closed = False
        for informer in (jobs, pods):
            informer.on_change(self._count)

    def jobs_of_run(self, _namespace: str, _run: str) -> list[Obj]:
        return self._jobs.all()

    def pods_of_run(self, _namespace: str, _run: str) -> list[Obj]:
        return self._pods.all()

    async def beyond(self, version: int) -> int:
        while self.version <= version:
            self._changed.clear()
            await self._changed.wait()
        return self.version

    def _count(self, _old: Obj | None, _new: Obj | None) -> None:
        self.version += 1
        self._changed.set()


@contextlib.asynccontextmanager
async def watching(session: Session, name: str) -> AsyncIterator[OneRun]:
    """A watch of a run, after its first list."""
    selector = f"{RUN_LABEL}={name}"
    jobs = Informer(session.api, JOBS, namespace=session.namespace, label_selector=selector)
    pods = Informer(session.api, PODS, namespace=session.namespace, label_selector=selector)
    watch = OneRun(jobs, pods)
    tasks = [asyncio.create_task(jobs.run()), asyncio.create_task(pods.run())]
    try:
        await jobs.synced.wait()
        await pods.synced.wait()
        yield watch
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Printer:
    """Prints log lines on stdout, and events between them on stderr.

    `prefix` None: from the second pod on; `announces`: whether it says which attempt comes next.
    """

    def __init__(self, *, prefix: bool | None, announces: bool = True) -> None:
        self._prefix = prefix
        self._announces = announces
        self._colour = console.has_colour(sys.stdout)
        self._places: dict[str, int] = {}  # pod → its place, which gives its colour
        self._last_text = ""
        self.has_taken_port = False  # whether a line reports a port in use
        self.is_silent = True  # neither a line nor a word on why there is none

    @property
    def has_begun(self) -> bool:
        return bool(self._places)

    def print(self, event: Event) -> None:
        if isinstance(event, Line | Cut | Gone | Unreadable | Broke):
            self.is_silent = False
        match event:
            case Line(pod, text):
                self._print_line(pod, text)
            case Began(run, pod):
                self._announce(run, pod)
                self._places[pod.name] = len(self._places)
            case Cut():
                console.note(event.text)
            case Gone(pod):
                console.note(f"the pod {pod} is deleted, and its log is not stored; it may have printed nothing")
            case Unreadable(pod, message):
                console.note(f"the logs of {pod} cannot be read: {message}")
            case Broke():
                console.note("the connection to the cluster was lost; trying again")
            case Waits(run):
                self._say_waiting(run)
            case Ended():
                pass
            case _:
                assert_never(event)

    def _announce(self, run: RunView, pod: PodView) -> None:
        if not self._announces or (pod.attempt == 1 and not self._places):
            return
        before = next((earlier for earlier in reversed(run.pods) if earlier.attempt < pod.attempt), None)
        why = f" after {before.reason}" if before is not None and before.reason else ""
        place = f" on {pod.node}" if pod.node else ""
        console.say(f"--- attempt {pod.attempt}{place}{why}: {pod.name}")

    def _say_waiting(self, run: RunView) -> None:
        """Print once why the run waits."""
        if run.reason == "Unschedulable":
            text = f"waiting for a node; see why: moor explain {run.name}"
        elif run.reason in ("", "ContainerCreating", "PodInitializing"):
            return
        else:
            text = f"{run.state}: {run.reason}"
        if text != self._last_text:
            console.say(text)
            self._last_text = text

    def _print_line(self, pod: str, line: bytes) -> None:
        self.has_taken_port |= any(word in line for word in _TAKEN)
        if not (len(self._places) > 1 if self._prefix is None else self._prefix):
            console.raw(line)
            return
        head = f"{pod} |"
        if self._colour:
            head = click.style(head, fg=COLOURS[self._places[pod] % len(COLOURS)])
        console.raw(f"{head} ".encode() + line)
