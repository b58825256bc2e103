"""`moor budget`: limits of use in a period, and the use so far."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from moorage.actions import limits
from moorage.api.budgets import BudgetRow, Budgets
from moorage.cli import console
from moorage.cli.listing import Listing
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, ask_server, in_session, target_options
from moorage.cli.specs import dry_run_option, given, run_delete, run_set
from moorage.model.budget import ACTIONS, BUDGETS, PERIODS
from moorage_kube.errors import NotFound
from moorage_kube.moments import rfc3339

HEADERS = ("BUDGET", "FOR", "USED", "LIMIT", "UNIT", "PERCENT", "PERIOD", "UNTIL", "WHEN-OVER")


@console.group(
    examples={
        "moor budget list": "your budgets, and their use",
        "moor budget show vision-month": "one budget",
        "moor budget set vision-month --tenant vision --gpu-hours 500": "give a team 500 GPU-hours a month",
    }
)
def budget() -> None:
    """Show budgets of GPU-hours and money. Administrators of the cluster set them."""


@budget.command(
    "list",
    examples={
        "moor budget list": "budgets of yourself and of your teams",
        "moor budget list -o json": "the same for programs",
    },
)
@console.output_option
@target_options
def list_budgets(target: Target, output: str) -> int:
    """List the use of every budget that applies to you. Administrators see all budgets."""

    async def work(session: Session) -> int:
        answer = await _ask(session)
        _listing(answer.budgets).show(output)
        return 0

    return in_session(target, work, asks_once=True)


@budget.command(
    examples={
        "moor budget show vision-month": "its use, and the end of its period",
        "moor budget show vision-month -o json": "the same for programs",
    }
)
@click.argument("name", shell_complete=complete("budgets"))
@console.document_option
@target_options
def show(target: Target, name: str, output: str) -> int:
    """Show one budget: the use by each user or tenant, and its effect when it is used up."""

    async def work(session: Session) -> int:
        answer = await _ask(session)
        rows = [row for row in answer.budgets if row.budget == name]
        if not rows:
            raise NotFound(f"budget {name} not found, or it does not apply to you", hint="see moor budget list")
        if output != "text":
            console.print_document([msgspec.to_builtins(row) for row in rows], output)
            return 0
        first = rows[0]
        limit = f"{first.limit} {first.unit} in a {first.period}"
        console.show(f"{name}: {limit}; when it is used up: {first.when_over}")
        if first.until is not None:
            console.show(f"until {rfc3339(first.until)}")
        if first.computed_at is not None:
            console.show(f"counted up to {rfc3339(first.computed_at)}")
        if first.problem:
            console.note(first.problem)
        for row in rows:
            console.show(f"  {row.name}: {row.used} ({row.percent} %)")
        return 0

    return in_session(target, work, asks_once=True)


@budget.command(
    "set",
    examples={
        "moor budget set vision-month --tenant vision --gpu-hours 500 --when-over queue": "create or change it",
        "moor budget set each --user '*' --money 100 --period week --dry-run": "only print it",
        "moor budget set vision-month --notify none": "remove its receivers of notices",
    },
)
@click.argument("name", shell_complete=complete("budgets"))
@click.option("--tenant", "tenants", multiple=True, help="Tenant that has the budget; '*': each. Repeatable.")
@click.option("--user", "users", multiple=True, help="User who has the budget; '*': each. Repeatable.")
@click.option("--gpu-hours", metavar="AMOUNT", help="GPU-hours in a period.")
@click.option("--money", metavar="AMOUNT", help="Money in a period, in the currency of the prices.")
@click.option("--period", type=click.Choice(PERIODS), help="Period (default of a new budget: month).")
@click.option("--time-zone", metavar="ZONE", help="Time zone in which periods begin, such as Asia/Tokyo.")
@click.option("--when-over", type=click.Choice(ACTIONS), help="Effect on new work when it is used up.")
@click.option("--warn-at", multiple=True, type=click.IntRange(1, 1000), help="Percent of a notice. Repeatable.")
@click.option("--notify", multiple=True, metavar="URL", help="https://… or mailto:ADDRESS. Repeatable.")
@dry_run_option
@console.document_option
@target_options
def set_budget(target: Target, name: str, output: str, dry_run: bool, **fields: Any) -> int:
    """Create a budget, or change the given fields. Each user or tenant has the amount alone. For administrators.

    A repeated option replaces the whole list.
    """
    names = {"gpu_hours": "gpuHours", "time_zone": "timeZone", "when_over": "whenOver", "warn_at": "warnAt"}
    wanted = given({names.get(key, key): value for key, value in fields.items()})
    return run_set(
        target,
        lambda api: limits.set_budget(api, name, wanted, dry_run=dry_run),
        output=output,
        dry_run=dry_run,
    )


@budget.command(
    "delete",
    examples={
        "moor budget show vision-month": "see its users or tenants",
        "moor budget delete vision-month": "new work is no longer checked against it",
    },
)
@click.argument("name", shell_complete=complete("budgets"))
@target_options
def delete(target: Target, name: str) -> int:
    """Delete a budget. For administrators."""
    return run_delete(target, BUDGETS, name)


async def _ask(session: Session) -> Budgets:
    return await ask_server(session, Budgets, "/api/v1/budgets", kubectl="kubectl describe budgets")


def _listing(rows: tuple[BudgetRow, ...]) -> Listing:
    return Listing(
        headers=HEADERS,
        rows=lambda: [
            [
                row.budget,
                row.name,
                row.used,
                row.limit,
                row.unit,
                f"{row.percent} %",
                row.period,
                rfc3339(row.until) if row.until else "",
                row.when_over,
            ]
            for row in rows
        ],
        items=[msgspec.to_builtins(row) for row in rows],
        names=[row.budget for row in rows],
        nothing="you have no budgets; an administrator of the cluster sets one: moor budget set NAME",
    )
