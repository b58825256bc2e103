"""The used part of the budgets of a user."""

from __future__ import annotations

from decimal import Decimal

from moorage.api.budgets import BudgetRow, Budgets
from moorage.decide.budgets.use import Standing, standings
from moorage.model.budget import BUDGETS, EVERYBODY, Use, budgets_of
from moorage.model.people import GROUP_PREFIX
from moorage.model.tenant import memberships
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage_kube.errors import ApiError, NotFound
from moorage_kube.meta import condition


async def budgets_for(context: Context, user: User, *, own: bool = False) -> Budgets:
    """The budgets that a user sees, with their use; `own`: only those that apply to them. Raises ApiError."""
    seen = await standings_for(context, user, own=own)
    return Budgets(budgets=tuple(_row(standing, problem) for standing, problem in seen))


async def standings_for(context: Context, user: User, *, own: bool = False) -> list[tuple[Standing, str]]:
    """The same, each with the reason if its use cannot be computed."""
    now = context.now()
    try:
        objects = (await context.api.list(BUDGETS)).items
    except NotFound:
        return []
    problems = {
        str(obj["metadata"]["name"]): str(ready.get("message") or "")
        for obj in objects
        if (ready := condition(obj, "Ready")) and ready.get("status") == "False"
    }
    budgets = budgets_of(objects)
    sees_all = not own and await _sees_all(context, user)
    groups = tuple(group.removeprefix(GROUP_PREFIX) for group in user.groups)
    mine = [membership.tenant for membership in memberships(user.name, groups, await context.tenants.all())]
    seen: list[tuple[Standing, str]] = []
    for budget in budgets:
        held: dict[str, Use] = {}
        for tenant in mine or [""]:
            for standing in standings([budget], user=user.name, tenant=tenant, now=now):
                held[standing.use.name] = standing.use
        if sees_all:
            named = (budget.users | budget.tenants) - {EVERYBODY} | {use.name for use in budget.uses}
            for name in named or {EVERYBODY}:
                held[name] = budget.use_of(name, now) or Use(name=name, used=Decimal("0.00"), percent=0)
        uses = sorted(held.values(), key=lambda use: (-use.used, use.name))
        seen += [(Standing(budget=budget, use=use), problems.get(budget.name, "")) for use in uses]
    return seen


async def budgets_of_tenant(context: Context, tenant: str) -> tuple[BudgetRow, ...]:
    """The budgets of a tenant, with its use; empty if they cannot be read. The caller may see the tenant."""
    try:
        budgets = budgets_of((await context.api.list(BUDGETS)).items)
    except ApiError:
        return ()
    rows = standings(budgets, user="", tenant=tenant, now=context.now())
    return tuple(_row(standing, "") for standing in rows)


async def _sees_all(context: Context, user: User) -> bool:
    try:
        return await context.auth.may(user, "list", "pods")
    except ApiError:
        return False


def _row(standing: Standing, problem: str) -> BudgetRow:
    budget, use = standing.budget, standing.use
    return BudgetRow(
        budget=budget.name,
        name=use.name,
        used=str(use.used),
        limit=str(budget.limit),
        unit=budget.unit,
        percent=use.percent,
        period=budget.period,
        until=budget.end,
        computed_at=budget.computed_at,
        when_over=budget.when_over,
        problem=problem,
    )
