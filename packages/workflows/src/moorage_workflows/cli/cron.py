"""`moor cron`: schedules of workflows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import msgspec

from moorage.api.crons import BackfillAnswer, Cron, CronHistory, CronRun
from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.decide.timetext import moment_before
from moorage.evaluator.pool import InPlace
from moorage.model.schedule import zone_named
from moorage_kube.errors import AlreadyExists, DocumentError, NotReady, UsageError
from moorage_kube.moments import format_duration, rfc3339
from moorage_workflows.actions import crons
from moorage_workflows.actions.argocontroller import controller_of
from moorage_workflows.actions.workflowlints import checks_of
from moorage_workflows.actions.workflows import no_check
from moorage_workflows.decide.workflows.controllers import Controller

SHOWN = 10  # slots of a backfill that are printed
HEADERS = ("NAME", "SCHEDULE", "TIME-ZONE", "NEXT", "LAST", "RESULT")


@console.group(
    examples={
        "moor cron create nightly.yaml": "create a schedule from a CronWorkflow",
        "moor cron list": "see when each is due next, and how the last run ended",
        "moor cron backfill nightly --from 7d --to 1d": "run the slots that were missed",
    }
)
def cron() -> None:
    """Run workflows on a schedule."""


@cron.command(
    examples={
        "moor cron create nightly.yaml": "create a schedule",
        "moor cron create nightly.yaml --dry-run": "check it, and print when it is due",
        "moor cron create nightly.yaml --replace": "change a schedule that exists",
    }
)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Check it and print its next slots; create nothing.")
@click.option("--replace", is_flag=True, help="Change existing schedules. Active runs continue with the old spec.")
@target_options
def create(target: Target, file: Path, dry_run: bool, replace: bool) -> int:
    """Create schedules from CronWorkflows in a file.

    FILE is YAML or JSON with any number of CronWorkflows, or - for stdin. `moor workflow convert` makes them of
    CronJobs.
    """
    documents = _documents(file)

    async def work(session: Session) -> int:
        now = session.clock.now()
        controller = await controller_of(session.api, now)
        # plan all before the first write: an error in one document creates nothing
        planned = [crons.plan_cron(document, session.namespace, controller) for document in documents]
        check = (
            no_check
            if controller is Controller.ARGO
            else checks_of(session.api, session.namespace, evaluation=InPlace())
        )
        # --replace turns a conflict of names into an update
        for made in planned:
            try:
                created, notes = await crons.create_cron(session.api, made, check=check, dry_run=dry_run)
            except AlreadyExists:
                if not replace:
                    raise
                if dry_run:
                    created, notes = made, ()
                else:
                    created, notes = await crons.replace_cron(session.api, made, check=check)
            for text in notes:
                console.note(text)
            # print the name, or with --dry-run the next slots
            view = crons.cron_of(created, (), now)
            if dry_run:
                console.show_text(_next_slots(made, now))
            else:
                console.show(view.name)
                console.say(f"next slot: {_when(view.next, view)}" if view.next else "no slot comes")
        if controller is Controller.ARGO:
            console.say("Argo's controller runs workflows on this cluster: it keeps these schedules")
        return 0

    return in_session(target, work)


@cron.command(
    name="list",
    examples={
        "moor cron list": "the schedules of your namespace",
        "moor cron list -A -o json": "all, for programs",
    },
)
@click.option("-A", "--all-namespaces", is_flag=True, help="List all namespaces.")
@console.output_option
@target_options
def list_(target: Target, all_namespaces: bool, output: str) -> int:
    """List schedules: when each is due, and how its last run ended."""

    async def work(session: Session) -> int:
        now = session.clock.now()
        rows, _ = await crons.list_crons(session.api, None if all_namespaces else session.namespace, now)
        console.print_listing(
            output,
            headers=("NAMESPACE", *HEADERS) if all_namespaces else HEADERS,
            rows=lambda: [([row.namespace] if all_namespaces else []) + _row(row, now) for row in rows],
            items=[msgspec.to_builtins(row) for row in rows],
            names=[row.name for row in rows],
            nothing=f"no schedules in namespace {session.namespace}; create one: moor cron create FILE",
        )
        return 0

    return in_session(target, work)


@cron.command(
    examples={
        "moor cron get nightly": "its next slot, its runs, its problem",
        "moor cron get nightly -o yaml": "the same, for programs",
    }
)
@click.argument("name", shell_complete=complete("crons"))
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="Output format.",
)
@target_options
def get(target: Target, name: str, output: str) -> int:
    """Show a schedule: its slots, its runs and its problems."""

    async def work(session: Session) -> int:
        now = session.clock.now()
        view = await crons.get_cron(session.api, session.namespace, name, now)
        if output != "table":
            console.print_document(msgspec.to_builtins(view), output)
            return 0
        for label, text in _facts(view, now):
            console.show(f"{label + ':':<13}{text}")
        return 0

    return in_session(target, work)


@cron.command(
    examples={"moor cron suspend nightly": "stop running slots", "moor cron resume nightly": "run slots again"}
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete("crons"))
@target_options
def suspend(target: Target, names: tuple[str, ...]) -> int:
    """Stop running slots. Active runs continue."""
    return _switch(target, names, is_suspended=True)


@cron.command(
    examples={
        "moor cron resume nightly": "run slots again",
        "moor cron backfill nightly --from 2d": "and missed slots",
    }
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete("crons"))
@target_options
def resume(target: Target, names: tuple[str, ...]) -> int:
    """Run slots again, from now on. A schedule that its stop strategy ended begins again."""
    return _switch(target, names, is_suspended=False)


def _switch(target: Target, names: tuple[str, ...], *, is_suspended: bool) -> int:
    async def work(session: Session) -> int:
        for name in names:
            view = await crons.suspend_cron(
                session.api, session.namespace, name, session.clock.now(), is_suspended=is_suspended
            )
            console.show(f"{name} is suspended" if is_suspended else f"{name}: next slot {_when(view.next, view)}")
        return 0

    return in_session(target, work)


@cron.command(
    examples={
        "moor cron run nightly": "start its workflow now",
        "moor cron run nightly -p epochs=3": "with another argument",
    }
)
@click.argument("name", shell_complete=complete("crons"))
@click.option(
    "-p",
    "--parameter",
    "parameters",
    multiple=True,
    metavar="NAME=VALUE",
    help="Argument of the workflow. May be repeated.",
)
@target_options
def run(target: Target, name: str, parameters: tuple[str, ...]) -> int:
    """Start the workflow of a schedule now, outside of the schedule."""
    values = _parameters(parameters)

    async def work(session: Session) -> int:
        controller = await controller_of(session.api, session.clock.now())
        check = checks_of(session.api, session.namespace, evaluation=InPlace())
        submitted = await crons.run_cron(
            session.api, session.namespace, name, values, controller=controller, check=check
        )
        for text in submitted.notes:
            console.note(text)
        console.show(submitted.workflow["metadata"]["name"])
        return 0

    return in_session(target, work)


@cron.command(
    examples={
        "moor cron backfill nightly --from 7d --to 1d --dry-run": "see which slots would run",
        "moor cron backfill nightly --from 2026-01-01 --to 2026-01-31 --parallel 3": "three at a time",
    }
)
@click.argument("name", shell_complete=complete("crons"))
@click.option(
    "--from",
    "begin",
    required=True,
    metavar="TIME",
    help="Start: 24h or 7d ago, a day such as 2026-01-31, or an RFC 3339 time.",
)
@click.option("--to", "end", default=None, metavar="TIME", help="End, in the same forms (default: now).")
@click.option(
    "--parallel",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Number of slots that run at a time.",
)
@click.option("--dry-run", is_flag=True, help="Print the slots; start nothing.")
@target_options
def backfill(target: Target, name: str, begin: str, end: str | None, parallel: int, dry_run: bool) -> int:
    """Run slots of the past that did not run, oldest first.

    A slot with a workflow is skipped, also if only the record of the workflow exists. The operator starts the
    workflows: the command may end before they do. Days are in UTC.
    """

    async def work(session: Session) -> int:
        now = session.clock.now()
        first = moment_before(begin, now, "--from")
        last = moment_before(end, now, "--to") if end else now
        answer = await _backfill(session, name, first, last, parallel, dry_run)
        for slot in answer.slots[:SHOWN]:
            console.show(rfc3339(slot))
        if len(answer.slots) > SHOWN:
            console.show(f"… and {len(answer.slots) - SHOWN} more")
        passed = f"; {len(answer.skipped)} have run" if answer.skipped else ""
        if not answer.slots:
            console.say(f"there are no slots to run{passed}")
        elif dry_run:
            console.say(f"{len(answer.slots)} slots would run{passed}")
        else:
            follow = f"follow them: moor cron history {name}"
            console.say(f"{len(answer.slots)} slots run, {parallel} at a time{passed}; {follow}")
        return 0

    return in_session(target, work)


async def _backfill(
    session: Session, name: str, begin: datetime, end: datetime, parallel: int, dry_run: bool
) -> BackfillAnswer:
    """Backfill by the server, which knows deleted runs; without a server, by the objects only."""
    body = {"begin": rfc3339(begin), "end": rfc3339(end), "parallel": parallel, "dryRun": dry_run}
    with contextlib.suppress(NotReady):
        return await session.server.ask(BackfillAnswer, "POST", f"{_path(session, name)}/backfill", body=body)
    return await crons.backfill_cron(
        session.api,
        session.namespace,
        name,
        begin,
        end,
        now=session.clock.now(),
        parallel=parallel,
        dry_run=dry_run,
    )


@cron.command(
    examples={
        "moor cron history nightly": "its runs, newest first",
        "moor cron history nightly -o json": "for programs",
    }
)
@click.argument("name", shell_complete=complete("crons"))
@console.output_option
@target_options
def history(target: Target, name: str, output: str) -> int:
    """List the runs of a schedule, newest first, also deleted ones that have a record."""

    async def work(session: Session) -> int:
        runs: tuple[CronRun, ...]
        try:
            runs = (await session.server.ask(CronHistory, "GET", f"{_path(session, name)}/history")).runs
        except NotReady:
            runs = tuple(await crons.cron_history(session.api, session.namespace, name))
        console.print_listing(
            output,
            headers=("WORKFLOW", "SLOT", "PHASE", "DURATION", "MESSAGE"),
            rows=lambda: [
                [
                    each.name,
                    rfc3339(each.scheduled) if each.scheduled else "",
                    each.phase,
                    _duration(each, session.clock.now()),
                    each.message,
                ]
                for each in runs
            ],
            items=[msgspec.to_builtins(each) for each in runs],
            names=[each.name for each in runs],
            nothing=f"{name} has no runs yet",
        )
        return 0

    return in_session(target, work)


@cron.command(
    examples={
        "moor cron suspend nightly": "stop its slots instead",
        "moor cron delete nightly": "delete it with its workflows",
    }
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete("crons"))
@click.option("--yes", is_flag=True, help="Do not ask. Their workflows are deleted too, also active ones.")
@target_options
def delete(target: Target, names: tuple[str, ...], yes: bool) -> int:
    """Delete schedules and their workflows."""

    async def work(session: Session) -> int:
        for name in names:
            view = await crons.get_cron(session.api, session.namespace, name, session.clock.now())
            going_on = f", and {len(view.active)} that go on" if view.active else ""
            if not yes:
                console.confirm(f"Delete schedule {name} with its workflows{going_on}?")
            await crons.delete_cron(session.api, session.namespace, name)
            console.show(f"{name} is deleted")
        return 0

    return in_session(target, work)


def _documents(file: Path) -> list[Mapping[str, Any]]:
    from moorage.cli.lint import read_text
    from moorage_kube.yamldocuments import parse_yaml_documents

    name, text = read_text(file)
    try:
        documents = parse_yaml_documents(text)
    except DocumentError as error:
        raise UsageError(f"{name} is not valid YAML: {error.located}") from error
    if not documents:
        raise UsageError(f"{name} has no documents")
    for document in documents:
        if not isinstance(document, Mapping):
            raise UsageError(f"{name} has a document that is not an object: use a CronWorkflow")
    return [document for document in documents if isinstance(document, Mapping)]


def _parameters(texts: tuple[str, ...]) -> dict[str, str]:
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"invalid --parameter {text!r}: use NAME=VALUE")
        values[name] = value
    return values


def _path(session: Session, name: str) -> str:
    return f"/api/v1/crons/{quote(session.namespace, safe='')}/{quote(name, safe='')}"


def _zone(view: Cron) -> tzinfo | None:
    try:
        return zone_named(view.time_zone)
    except ValueError:
        return None


def _when(moment: datetime | None, view: Cron) -> str:
    """Return a slot as text in the time zone of its schedule."""
    if moment is None:
        return "none"
    return moment.astimezone(_zone(view)).strftime("%Y-%m-%d %H:%M %Z")


def _row(view: Cron, now: datetime) -> list[str]:
    result = view.last_run.phase if view.last_run else "invalid" if view.problem else ""
    state = "suspended" if view.suspended else "stopped" if view.stopped else ""
    coming = f"in {format_duration(view.next - now)}" if view.next else state
    return [
        view.name,
        "; ".join(view.in_words),
        view.time_zone,
        coming,
        f"{format_duration(now - view.last)} ago" if view.last else "",
        result,
    ]


def _facts(view: Cron, now: datetime) -> list[tuple[str, str]]:
    facts = [("Schedule", f"{text} ({words})") for text, words in zip(view.schedules, view.in_words, strict=False)]
    facts.append(("Time zone", view.time_zone))
    state = "suspended" if view.suspended else "stopped by its stop strategy" if view.stopped else "active"
    facts.append(("State", state))
    if view.next is not None:
        facts.append(("Next slot", f"{_when(view.next, view)} (in {format_duration(view.next - now)})"))
    facts.append(("While busy", view.concurrency_policy))
    if view.last is not None:
        facts.append(("Last slot", _when(view.last, view)))
    if view.last_run is not None:
        why = f": {view.last_run.message}" if view.last_run.message else ""
        facts.append(("Last run", f"{view.last_run.name} {view.last_run.phase}{why}"))
    facts.append(("Goes on", ", ".join(view.active) or "nothing"))
    facts.append(("So far", f"{view.succeeded} succeeded, {view.failed} failed"))
    if view.backfill:
        facts.append(("Backfill", f"{view.backfill} is running"))
    if view.problem:
        facts.append(("Problem", view.problem))
    return facts


def _duration(run_: CronRun, now: datetime) -> str:
    if run_.started is None:
        return ""
    return format_duration((run_.finished or now) - run_.started)


def _next_slots(made: Mapping[str, Any], now: datetime) -> str:
    from itertools import islice

    from moorage_workflows.decide.workflows.schedules import parse_timetable, slots
    from moorage_workflows.model.cronworkflow import parse_cron

    view = parse_cron(made)
    timetable = parse_timetable(view.schedules, view.timezone, anchor=now)
    zone = zone_named(view.timezone)
    coming = [slot.astimezone(zone).strftime("%Y-%m-%d %H:%M %Z") for slot in islice(slots(timetable, now), 3)]
    return f"{view.name}: {', '.join(coming)}"
