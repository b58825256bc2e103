"""`moor budget`: limits of use in a period, and the use so far."""

from __future__ import annotations

import click
import msgspec

from moorage.api.budgets import BudgetRow, Budgets
from moorage.cli import console
from moorage.cli.listing import Listing
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, ask_server, in_session, target_options
from moorage_kube.errors import NotFound
from moorage_kube.moments import rfc3339

HEADERS = ("BUDGET", "FOR", "USED", "LIMIT", "UNIT", "PERCENT", "PERIOD", "UNTIL", "WHEN-OVER")


@console.group(
    examples={
        "moor budget list": "your budgets, and their use",
        "moor budget show vision-month": "one budget",
    }
)
def budget() -> None:
    """Show budgets of GPU-hours and money. An administrator sets them: kubectl apply -f budget.yaml."""


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
        nothing="you have no budgets",
    )
