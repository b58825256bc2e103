"""API types of budgets: `/api/v1/budgets`."""

from __future__ import annotations

from typing import Annotated

from moorage.api.fields import Answer, Time, about


class BudgetRow(Answer, frozen=True):
    """Use of a budget by one user or tenant. Amounts are decimal texts."""

    budget: Annotated[str, about("Name of the Budget.")]
    name: Annotated[str, about("User or tenant.")]
    used: Annotated[str, about("Used in the period that is on.")]
    limit: Annotated[str, about("Most that may be used in a period.")]
    unit: Annotated[str, about("GPU-hours, or a currency.")]
    percent: Annotated[int, about("Used of the limit.")]
    period: Annotated[str, about("day, week or month.")]
    until: Annotated[Time | None, about("When the period ends; null: nothing was computed yet.")] = None
    computed_at: Annotated[Time | None, about("Up to when use is counted.")] = None
    when_over: Annotated[str, about("Effect on new work when the budget is used up: warn, queue or refuse.")] = (
        "warn"
    )
    problem: Annotated[str, about("Why nothing is computed; empty: it is.")] = ""


class Budgets(Answer, frozen=True):
    """Every budget that applies to the caller."""

    budgets: Annotated[tuple[BudgetRow, ...], about("By budget, the largest use first.")] = ()
