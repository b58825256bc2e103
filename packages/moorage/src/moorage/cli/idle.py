"""`moor idle`: work that holds GPUs and does not use them; `moor snooze`; the effect of a policy on past work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec

from moorage.actions import limits
from moorage.actions.specs import list_objects
from moorage.api.idle import IdleList, IdleWork, Report
from moorage.cli import console
from moorage.cli.listing import Listing
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.cli.specs import NONE, dry_run_option, given, run_delete, run_set
from moorage.model.idle import IDLE_POLICIES, MAP, RUN, WORK, WORKFLOW, WORKSPACE
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
        "moor idle set gpus --warn-after 4h --suspend-after 12h": "suspend idle work",
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


@idle.command(
    examples={
        "moor idle policies": "all policies",
        "moor idle policies -o yaml": "the same for a program",
    }
)
@console.output_option
@target_options
def policies(target: Target, output: str) -> int:
    """List the IdlePolicies. For administrators; members see theirs by `moor tenant show`."""

    async def work(session: Session) -> int:
        objs = await list_objects(session.api, IDLE_POLICIES)
        Listing(
            headers=("NAME", "TENANTS", "WORK", "WARN", "REMIND", "SUSPEND", "QUIET"),
            rows=lambda: [policy_row(obj["metadata"]["name"], obj["spec"]) for obj in objs],
            items=objs,
            names=[obj["metadata"]["name"] for obj in objs],
            nothing="no policies: owners are warned after a day; set one: moor idle set NAME --warn-after 4h",
        ).show(output)
        return 0

    return in_session(target, work)


def policy_row(name: str, spec: Mapping[str, Any]) -> list[str]:
    quiet = (spec.get("quietHours") or {}).get("spans") or ()
    return [
        name,
        ", ".join(spec.get("tenants") or ()) or "all",
        ", ".join(spec.get("work") or ()) or "all",
        *(str(spec.get(field) or "") for field in limits.SPANS),
        "; ".join(limits.quiet_text(span) for span in quiet),
    ]


@idle.command(
    "set",
    examples={
        "moor idle set gpus --warn-after 4h --remind-after 4h --suspend-after 12h": "create or change it",
        "moor idle set gpus --quiet 20:00-08:00 --quiet Sat,Sun --time-zone Asia/Tokyo": "no notices at night",
        "moor idle set gpus --warn-after 4h --dry-run > idle.yaml": "a file to try: moor idle report --policy",
        "moor idle set gpus --suspend-after none": "only warn",
    },
)
@click.argument("name", shell_complete=complete("idle_policies"))
@click.option("--warn-after", metavar="TIME", help="Idle time until the owner is warned, such as 4h.")
@click.option("--remind-after", metavar="TIME", help="Time from the warning to a reminder; none: no reminder.")
@click.option("--suspend-after", metavar="TIME", help="Time from the warning to the suspension; none: never.")
@click.option("--tenant", "tenants", multiple=True, help="Only work of this tenant. Repeatable.")
@click.option("--work", multiple=True, type=click.Choice((*WORK, NONE)), help="Only this kind. Repeatable.")
@click.option(
    "--quiet", multiple=True, metavar="SPAN", help="No notices then: 20:00-08:00 or Sat,Sun. Repeatable."
)
@click.option("--time-zone", metavar="ZONE", help="Time zone of the quiet hours, such as Asia/Tokyo.")
@click.option("--exempt-user", multiple=True, metavar="USER", help="Owner whose work is exempt. Repeatable.")
@click.option("--exempt-name", multiple=True, metavar="NAME", help="Exempt work, as NAMESPACE/NAME. Repeatable.")
@click.option("--notify", multiple=True, metavar="URL", help="https://… or mailto:ADDRESS. Repeatable.")
@click.option("--mail-domain", metavar="DOMAIN", help="Owner ada has the address ada@DOMAIN.")
@dry_run_option
@console.document_option
@target_options
def set_policy(
    target: Target,
    name: str,
    output: str,
    dry_run: bool,
    warn_after: str | None,
    remind_after: str | None,
    suspend_after: str | None,
    tenants: tuple[str, ...],
    work: tuple[str, ...],
    quiet: tuple[str, ...],
    time_zone: str | None,
    exempt_user: tuple[str, ...],
    exempt_name: tuple[str, ...],
    notify: tuple[str, ...],
    mail_domain: str | None,
) -> int:
    """Create an IdlePolicy, or change the given fields. For administrators.

    A repeated option replaces the whole list; `none` removes a field.
    """
    spans = None if quiet in ((), (NONE,)) else [limits.read_quiet(text) for text in quiet]
    fields = given(
        {
            "warnAfter": warn_after,
            "remindAfter": remind_after,
            "suspendAfter": suspend_after,
            "tenants": tenants,
            "work": work,
        }
    )
    quiet_hours = given({"spans": spans, "timeZone": time_zone})
    exempt = given({"users": exempt_user, "names": exempt_name})
    notified = given({"targets": notify, "mailDomain": mail_domain})
    # an empty object would remove nothing, and make the spec longer
    nested = {"quietHours": quiet_hours, "exempt": exempt, "notify": notified}
    fields |= {key: value for key, value in nested.items() if value}
    if quiet == (NONE,):
        fields["quietHours"] = None
    return run_set(
        target,
        lambda api: limits.set_idle_policy(api, name, fields, dry_run=dry_run),
        output=output,
        dry_run=dry_run,
    )


@idle.command(
    "delete",
    examples={
        "moor idle policies": "see the policies",
        "moor idle delete gpus": "other policies, or the built-in rule, apply again",
    },
)
@click.argument("name", shell_complete=complete("idle_policies"))
@target_options
def delete(target: Target, name: str) -> int:
    """Delete an IdlePolicy. For administrators."""
    return run_delete(target, IDLE_POLICIES, name)


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
