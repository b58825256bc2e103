"""`moor idle`: work that holds GPUs and does not use them; `moor snooze`; the effect of a policy on past work."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec

from moorage.api.idle import IdleList, IdleWork, Report
from moorage.cli import console
from moorage.cli.listing import Listing
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.model.idle import MAP, RUN, WORK, WORKFLOW, WORKSPACE
from moorage_kube.documents import parse_document
from moorage_kube.errors import UsageError
from moorage_kube.moments import format_duration

HEADERS = ("WORK", "OWNER", "GPUS", "STATE", "IDLE", "NEXT", "WHY")
REPORT_HEADERS = ("WORK", "OWNER", "GPUS", "IDLE", "RECLAIMED", "WARNED", "SUSPENDED")
_PLURALS = {WORKSPACE: "workspaces", RUN: "jobs", MAP: "maps", WORKFLOW: "workflows"}
_NEXT = {"warn": "warning", "remind": "reminder", "suspend": "suspension", "end": "end of snooze"}


@console.group(
    invoke_without_command=True,
    examples={
        "moor idle": "idle work, since when, why, and the next step",
        "moor idle report --since 14d": "the effect of the present policy on past work",
        "moor idle report --policy idle.yaml": "the same of a policy before it is applied",
    },
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Work of all namespaces.")
@console.output_option
@target_options
@click.pass_context
def idle(context: click.Context, target: Target, all_namespaces: bool, output: str) -> int:
    """List idle work that holds GPUs, with the measurements behind it."""
    if context.invoked_subcommand is not None:
        return 0

    async def work(session: Session) -> int:
        query = {} if all_namespaces else {"namespace": session.namespace}
        answer = await session.server.ask(IdleList, "GET", "/api/v1/idle", params=query)
        Listing(
            headers=HEADERS,
            rows=lambda: [row_of(item, answer.now, named=all_namespaces) for item in answer.work],
            items=[msgspec.to_builtins(item) for item in answer.work],
            names=[name_of(item, named=all_namespaces) for item in answer.work],
            nothing="there is no idle work that holds GPUs"
            + ("" if all_namespaces else f" in {session.namespace}"),
        ).show(output)
        return 0

    return in_session(target, work, asks_once=True)


@idle.command(
    examples={
        "moor idle report --since 14d": "of the last two weeks",
        "moor idle report --policy idle.yaml -o json": "of a policy that is not applied, for a program",
    }
)
@click.option("--since", default="14d", show_default=True, help="A span such as 14d before now, a day, or a time.")
@click.option(
    "--policy",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the IdlePolicy to try (default: those in force).",
)
@console.output_option
@target_options
def report(target: Target, since: str, file: Path | None, output: str) -> int:
    """Show the GPU-hours that an IdlePolicy would have reclaimed, from stored readings, before you turn it on.

    Only readings of GPU and CPU are stored. Kernels, browsers and checkpoints would have prevented some of it.
    """
    body: dict[str, Any] = {"since": since}
    if file is not None:
        body["spec"] = spec_of(file)

    async def work(session: Session) -> int:
        answer = await session.server.ask(Report, "POST", "/api/v1/idle/report", body=body)
        if output in ("json", "yaml"):
            console.print_document(msgspec.to_builtins(answer), output)
            return 0
        Listing(
            headers=REPORT_HEADERS,
            rows=lambda: [
                [
                    f"{row.kind}/{row.name} ({row.namespace})",
                    row.owner,
                    str(row.gpus),
                    f"{row.idle_hours:.1f} GPU-h",
                    f"{row.reclaimed_hours:.1f} GPU-h",
                    _short(row.warned_at),
                    _short(row.suspended_at),
                ]
                for row in answer.rows
            ],
            items=[msgspec.to_builtins(row) for row in answer.rows],
            names=[f"{row.kind}/{row.name}" for row in answer.rows],
            nothing="there was no idle work",
        ).show(output)
        if output == "table":
            console.say(summary_of(answer))
        return 0

    return in_session(target, work, asks_once=True)


@console.command(
    examples={
        "moor snooze run/train-7f3a --for 4h": "of a run; of a map: map/NAME, of a workflow: workflow/NAME",
        "moor snooze workspace/lab --for 4h": "as moor workspace snooze lab",
    }
)
@click.argument("works", nargs=-1, required=True, metavar="KIND/NAME...")
@click.option("--for", "time", required=True, metavar="TIME", help="A span such as 90m, 4h or 1d.")
@target_options
def snooze(target: Target, works: tuple[str, ...], time: str) -> int:
    """Put off the suspension of idle work, within the limits of its policy. A name without a kind is a run."""
    return snooze_all(target, works, time)


def snooze_all(target: Target, names: Sequence[str], time: str) -> int:
    """Snooze each name: KIND/NAME, or the NAME of a run."""
    chosen = [_parse_name(name) for name in dict.fromkeys(names)]

    async def work(session: Session) -> int:
        for kind, name in chosen:
            path = f"/api/v1/{_PLURALS[kind]}/{session.namespace}/{name}/snooze"
            item = await session.server.ask(IdleWork, "POST", path, body={"time": time})
            until = f"{item.snoozed_until:%Y-%m-%d %H:%M} UTC" if item.snoozed_until else ""
            console.show(f"{kind}/{name} is snoozed until {until}")
        return 0

    return in_session(target, work)


def _parse_name(text: str) -> tuple[str, str]:
    kind, slash, name = text.partition("/")
    if not slash:
        return RUN, kind
    if kind not in WORK or not name:
        raise UsageError(f"invalid name {text!r}: use NAME of a run, or KIND/NAME with {', '.join(WORK)}")
    return kind, name


def name_of(item: IdleWork, *, named: bool) -> str:
    return f"{item.namespace}/{item.kind}/{item.name}" if named else f"{item.kind}/{item.name}"


def row_of(item: IdleWork, now: datetime, *, named: bool) -> list[str]:
    upcoming = ""
    if item.next and item.next_at is not None:
        left = max(timedelta(), item.next_at - now)
        upcoming = f"{_NEXT.get(item.next, item.next)} in {format_duration(left)}"
    elif item.went_to:
        upcoming = f"GPUs now used by {item.went_to}"
    since = format_duration(now - item.since) if item.since is not None else ""
    return [name_of(item, named=named), item.owner, str(item.gpus), item.state, since, upcoming, item.why]


def spec_of(file: Path) -> Any:
    """The spec of the only IdlePolicy in a file. Raises UsageError."""
    document = parse_document(file.read_text())
    if not isinstance(document, dict) or document.get("kind") != "IdlePolicy" or "spec" not in document:
        raise UsageError(f"--policy: {file} is not an IdlePolicy", hint="begin the file with kind: IdlePolicy")
    return document["spec"]


def summary_of(answer: Report) -> str:
    """Return the totals of a report as a sentence."""
    share = answer.measured_hours / answer.held_hours if answer.held_hours else 0.0
    return (
        f"policy {answer.policy} would have reclaimed at most {answer.reclaimed_hours:.1f} of"
        f" {answer.held_hours:.1f} GPU-hours held since {_short(answer.since)};"
        f" {answer.idle_hours:.1f} were idle; readings cover {share:.0%}"
    )


def _short(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M}" if at is not None else ""
