"""`moor wait`: wait until runs and maps reach a state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

import click

from moorage.actions.runs import jobs_of_run
from moorage.cli import console
from moorage.cli.logs import watching
from moorage.cli.names import complete
from moorage.cli.session import Problems, Session, Target, in_session, target_options
from moorage.cli.terminal import ending_with_reader
from moorage.decide.runs.state import RunView, State, view_run
from moorage.decide.runs.timelimit import parse_time
from moorage.decide.runs.waiting import Goal, is_map_reached, is_reached
from moorage_kube.errors import ApiError, NotFound, NotReady, UsageError
from moorage_kube.moments import format_duration

LOOK_SECONDS = 2.0  # between two looks at a map
MAP = "map/"


@console.command(
    examples={
        "moor wait train-7f3a && moor logs train-7f3a": "go on when it has succeeded",
        "moor wait train-7f3a --for running && moor exec train-7f3a": "a shell as soon as it runs",
        "moor wait sweep-1 sweep-2 --timeout 2h": "several runs, for two hours at most",
        "moor wait map/resize": "until all items of a map are done",
    }
)
@click.argument("names", nargs=-1, required=True, metavar="NAME|map/NAME...", shell_complete=complete("runs"))
@click.option(
    "--for",
    "goal",
    type=click.Choice([goal.value for goal in Goal]),
    default=Goal.ENDED.value,
    show_default=True,
    help="State to wait for.",
)
@click.option("--timeout", default=None, help="Longest time to wait: 90s, 10m, 2h (default: for ever).")
@target_options
def wait(target: Target, names: tuple[str, ...], goal: str, timeout: str | None) -> int:
    """Wait until runs or maps have ended, or run. Ctrl-C stops the waiting, not the run.

    It exits with 0 when all of them have succeeded (or run, with --for running). It exits with 1 when one of them
    failed, was cancelled or deleted, and when the time is over.
    """
    try:
        limit = parse_time(timeout) if timeout is not None else None
    except ValueError as error:
        raise UsageError(f"invalid --timeout {timeout!r}", hint="use a time such as 90s, 10m or 2h") from error

    async def work(session: Session) -> int:
        async with ending_with_reader():
            return await _wait(session, list(dict.fromkeys(names)), Goal(goal), limit, timeout)

    return in_session(target, work)


async def _wait(session: Session, names: Sequence[str], goal: Goal, limit: int | None, timeout: str | None) -> int:
    """Wait for all names. Raises Problems that name all missing ones, and NotReady after the timeout."""
    outcomes = await asyncio.gather(*(_waiter(session, name, goal) for name in names), return_exceptions=True)
    waiters: list[Callable[[], Coroutine[Any, Any, bool]]] = []
    missing: list[tuple[str, str | None]] = []
    for outcome in outcomes:
        if isinstance(outcome, ApiError):
            missing.append((outcome.message, outcome.hint))
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            waiters.append(outcome)
    if missing:
        problems = Problems(missing)
        problems.exit_code = 1  # type: ignore[misc]
        raise problems
    tasks = {name: asyncio.ensure_future(waiter()) for name, waiter in zip(names, waiters, strict=True)}
    waking = asyncio.ensure_future(session.clock.sleep(limit)) if limit is not None else None
    pending: set[asyncio.Future[Any]] = set(tasks.values())
    try:
        while pending:
            ready = [*pending, *([waking] if waking else [])]
            done, _ = await asyncio.wait(ready, return_when=asyncio.FIRST_COMPLETED)
            pending -= done
            if waking in done and pending:
                left = [name for name, task in tasks.items() if task in pending]
                raise NotReady(
                    f"{', '.join(left)}: not {goal} after {timeout}",
                    hint="nothing was stopped; wait again, or see moor jobs",
                )
        return 0 if all([task.result() for task in tasks.values()]) else 1
    finally:
        for task in [*tasks.values(), *([waking] if waking else [])]:
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


async def _waiter(session: Session, name: str, goal: Goal) -> Callable[[], Coroutine[Any, Any, bool]]:
    """Return the coroutine function that waits for an existing run or map. Raises ApiError."""
    if name.startswith(MAP):
        await _look_at_map(session, name.removeprefix(MAP))
        return lambda: _wait_for_map(session, name.removeprefix(MAP), goal)
    try:
        await jobs_of_run(session.api, session.namespace, name)
    except NotFound:
        with contextlib.suppress(ApiError, NotReady):
            await _look_at_map(session, name)
            return lambda: _wait_for_map(session, name, goal)
        raise
    return lambda: _wait_for_run(session, name, goal)


async def _wait_for_run(session: Session, name: str, goal: Goal) -> bool:
    """Wait for a run; return whether it reached the goal. Raises NotFound if the run is deleted meanwhile."""
    async with contextlib.aclosing(views_of(session, name)) as views:
        async for run in views:
            if run is None:
                break
            if (reached := is_reached(goal, run.state)) is not None:
                _show(run.name, run.state, run, goal, reached=reached)
                return reached
    raise NotFound(f"the run {name} was deleted while it was waited for")


async def views_of(session: Session, name: str) -> AsyncGenerator[RunView | None]:
    """Yield the run after each change; yield None once it is deleted."""
    async with watching(session, name) as watch:
        while True:
            version = watch.version
            jobs = watch.jobs_of_run(session.namespace, name)
            if not jobs:
                yield None
                return
            yield view_run(jobs, watch.pods_of_run(session.namespace, name))
            await watch.beyond(version)


def _show(name: str, state: State, run: RunView, goal: Goal, *, reached: bool) -> None:
    """Print one line for people and programs; for a failure, a line for people with the next command."""
    console.show(f"{name} {state}")
    if reached:
        return
    text = f"{name}: {state}"
    if run.reason and run.reason != str(run.state):
        text += f" ({run.reason})"
    if run.started and run.ended:
        text += f" after {format_duration(run.ended - run.started)}"
    if goal is Goal.RUNNING:
        text += "; it does not run any more"
    console.say(f"{text}; see moor show {name}")


async def _look_at_map(session: Session, name: str) -> None:
    async with await session.maps() as client:
        await client.show(session.namespace, name)


async def _wait_for_map(session: Session, name: str, goal: Goal) -> bool:
    """Wait for a map; return whether it reached the goal."""
    async with await session.maps() as client:
        while True:
            map_ = await client.show(session.namespace, name, patient=True)
            if (reached := is_map_reached(goal, map_.state, dead=map_.counts.dead)) is not None:
                console.show(f"{MAP}{name} {map_.state}")
                if not reached:
                    counts = map_.counts
                    console.say(
                        f"{MAP}{name}: {map_.state}, {counts.done:,} of {counts.total:,} items done, "
                        f"{counts.dead:,} failed; see moor map status {name}"
                    )
                return reached
            await session.clock.sleep(LOOK_SECONDS)
