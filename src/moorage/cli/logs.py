"""`moor logs`: all pods of a run in one view, and its next attempts as they come."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from collections.abc import Callable

import click

from moorage.actions.runs import get_run, jobs_of_run, no_such_run
from moorage.apimachinery.informer import Informer
from moorage.apimachinery.moments import format_duration
from moorage.apimachinery.resources import JOBS, PODS
from moorage.cli import console
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.decide.runs.state import AttemptView, PodView, RunView, State, exit_code_of, view_run
from moorage.decide.runs.timelimit import parse_time
from moorage.errors import ApiError, NotFound, UsageError
from moorage.kube.logs import STARTED, pod_lines
from moorage.model.names import RUN_LABEL

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_red", "bright_cyan", "bright_yellow")


@click.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended, over all its attempts.")
@click.option("--tail", type=click.IntRange(0), default=None, help="Only the last lines of each pod.")
@click.option("--since", default=None, help="Only what is newer than this: 10m, 2h.")
@click.option("--attempt", type=click.IntRange(1), default=None, help="Only this attempt (default: all).")
@click.option("--prefix/--no-prefix", default=None, help="Begin lines with the pod's name (default: if several).")
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
        raise UsageError(f"--since: {since!r} is no time", hint="write it as 10m, 2h or 1d") from error

    async def work(session: Session) -> int:
        view = LogView(session, name, tail=tail, since_seconds=since_seconds, attempt=attempt, prefix=prefix)
        if follow:
            await view.follow()
        else:
            await view.print_all()
        return 0

    return in_session(target, work)


async def follow_to_the_end(session: Session, name: str) -> int:
    """Follow a run's logs; return its exit code. Ctrl-C detaches: it says how to come back, and returns 130."""
    view = LogView(session, name)
    try:
        run = await view.follow()
    except asyncio.CancelledError:
        console.say(f"\ndetached; the run goes on. Come back: moor logs -f {name}   Stop it: moor cancel {name}")
        raise
    said = f"{run.name}: {run.state}"
    if run.reason and run.reason != str(run.state):
        said += f" ({run.reason})"
    if run.started and run.ended:
        said += f" after {format_duration(run.ended - run.started)}"
    if run.state is not State.SUCCEEDED:
        said += f"; see moor show {run.name}"
    console.say(said)
    return exit_code_of(run)


class LogView:
    """The logs of one run on stdout. Used once."""

    def __init__(
        self,
        session: Session,
        name: str,
        *,
        tail: int | None = None,
        since_seconds: int | None = None,
        attempt: int | None = None,
        prefix: bool | None = None,
    ) -> None:
        self._session = session
        self._name = name
        self._tail = tail
        self._since_seconds = since_seconds
        self._attempt = attempt
        self._prefix = prefix
        self._colour = console.has_colour(sys.stdout)
        self._seen: dict[str, int] = {}  # pod → its place, which gives its colour
        self._said = ""

    async def print_all(self) -> None:
        """What there is now, pod after pod. Raises NotFound for a run, or an attempt, that does not exist."""
        run = await get_run(self._session.api, self._session.namespace, self._name, self._session.clock.now)
        self._check_attempt(run)
        pods = [pod for pod in run.pods if self._wanted(pod) and pod.phase in STARTED]
        for pod in pods:
            self._seen[pod.name] = len(self._seen)
        for pod in pods:
            await self._stream(pod.name, follow=False, ended=lambda: True)
        if not pods:
            console.say(f"{run.name} has no logs yet: {run.state}" + (f", {run.reason}" if run.reason else ""))

    async def follow(self) -> RunView:
        """Print as it comes, attempt after attempt, until the run has ended; return how it then stands."""
        api, namespace = self._session.api, self._session.namespace
        self._check_attempt(await self._known_run())
        selector = f"{RUN_LABEL}={self._name}"
        jobs = Informer(api, JOBS, namespace=namespace, label_selector=selector)
        pods = Informer(api, PODS, namespace=namespace, label_selector=selector)
        changed = asyncio.Event()
        for informer in (jobs, pods):
            informer.on_change(lambda _old, _new: changed.set())
        watching = [asyncio.create_task(jobs.run()), asyncio.create_task(pods.run())]
        streams: dict[str, asyncio.Task[None]] = {}
        last: RunView | None = None

        def view() -> RunView | None:
            found = jobs.all()
            return view_run(found, pods.all(), now=self._session.clock.now()) if found else None

        def is_over(pod: str) -> bool:
            run = view()
            one = next((one for one in run.pods if one.name == pod), None) if run else None
            return one is None or one.phase in ("Succeeded", "Failed")

        try:
            await jobs.synced.wait()
            await pods.synced.wait()
            while True:
                changed.clear()
                run = view()
                if run is None:
                    if last is None:
                        raise await self._gone()
                    if not any(not one.done() for one in streams.values()):
                        raise NotFound(f"the run {self._name} was deleted while it was followed")
                else:
                    last = run
                    for pod in run.pods:
                        if pod.name not in streams and self._wanted(pod) and pod.phase in STARTED:
                            self._announce(run, pod)
                            self._seen[pod.name] = len(self._seen)
                            stream = self._stream(
                                pod.name, follow=True, ended=functools.partial(is_over, pod.name)
                            )
                            task = asyncio.create_task(stream)
                            task.add_done_callback(lambda _: changed.set())
                            streams[pod.name] = task
                    for task in streams.values():
                        if task.done():
                            task.result()
                    open_streams = any(not task.done() for task in streams.values())
                    if not open_streams and (run.state.ended or self._attempt_over(run)):
                        await self._print_unseen()
                        return run
                    self._say_waiting(run)
                await changed.wait()
        finally:
            for task in [*watching, *streams.values()]:
                task.cancel()
            await asyncio.gather(*watching, *streams.values(), return_exceptions=True)

    async def _print_unseen(self) -> None:
        """Pods that came and went faster than the watch told us."""
        session = self._session
        run = await get_run(session.api, session.namespace, self._name, session.clock.now)
        for pod in run.pods:
            if pod.name not in self._seen and self._wanted(pod) and pod.phase in STARTED:
                self._seen[pod.name] = len(self._seen)
                await self._stream(pod.name, follow=False, ended=lambda: True)

    async def _known_run(self) -> RunView:
        jobs = await jobs_of_run(self._session.api, self._session.namespace, self._name)
        return view_run(jobs, (), now=self._session.clock.now())

    async def _gone(self) -> NotFound:
        return await no_such_run(self._session.api, self._session.namespace, self._name)

    def _check_attempt(self, run: RunView) -> None:
        numbers = [attempt.number for attempt in run.attempts]
        if self._attempt is not None and self._attempt not in numbers:
            raise NotFound(
                f"run {run.name} has no attempt {self._attempt}",
                hint=f"it has {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"it has only {numbers[0]}",
            )

    def _wanted(self, pod: PodView) -> bool:
        return self._attempt is None or pod.attempt == self._attempt

    def _attempt_over(self, run: RunView) -> bool:
        chosen: AttemptView | None = next((one for one in run.attempts if one.number == self._attempt), None)
        return chosen is not None and chosen.state in ("Succeeded", "Failed")

    def _announce(self, run: RunView, pod: PodView) -> None:
        if pod.attempt == 1 and not self._seen:
            return
        before = next((one for one in reversed(run.pods) if one.attempt < pod.attempt), None)
        why = f" after {before.reason}" if before is not None and before.reason else ""
        place = f" on {pod.node}" if pod.node else ""
        console.say(f"--- attempt {pod.attempt}{place}{why}: {pod.name}")

    def _say_waiting(self, run: RunView) -> None:
        """Tell once, while nothing is printed, what the run waits for."""
        newest = run.pods[-1] if run.pods else None
        if run.state not in (State.WAITING, State.RESTARTING) or (newest and newest.phase != "Pending"):
            return
        if run.reason == "Unschedulable":
            said = f"waiting for a place; moor explain {run.name} says why"
        elif run.reason in ("", "ContainerCreating", "PodInitializing"):
            return
        else:
            said = f"{run.state}: {run.reason}"
        if said != self._said:
            console.say(said)
            self._said = said

    async def _stream(self, pod: str, *, follow: bool, ended: Callable[[], bool]) -> None:
        """One pod's lines. A connection that breaks is taken up again where it was, until the pod has ended."""
        lines = pod_lines(
            self._session.api,
            pod,
            self._session.namespace,
            clock=self._session.clock,
            ended=ended,
            follow=follow,
            tail=self._tail,
            since_seconds=self._since_seconds,
            broke=lambda: console.note("the connection to the cluster broke; trying again"),
        )
        try:
            async with contextlib.aclosing(lines):
                async for line in lines:
                    self._print(pod, line)
        except NotFound:
            console.note(f"the logs of {pod} are gone with the pod")
        except ApiError as error:
            console.note(f"the logs of {pod} cannot be read: {error.message}")

    def _print(self, pod: str, line: bytes) -> None:
        prefix = len(self._seen) > 1 if self._prefix is None else self._prefix
        if not prefix:
            console.raw(line)
            return
        head = f"{pod} |"
        if self._colour:
            head = click.style(head, fg=COLOURS[self._seen[pod] % len(COLOURS)])
        console.raw(f"{head} ".encode() + line)
