"""The web page /cost: charts of the cost of each day by team and person, and of budgets of money."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, time, timedelta
from itertools import accumulate

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from moorage.decide.budgets.use import Standing, period_of
from moorage.decide.cost.report import By
from moorage.server.budgets.use import budgets_for, standings_for
from moorage.server.identity.auth import User
from moorage.server.pages.charts import Chart, Series, shown
from moorage.server.pages.daycosts import Days
from moorage.server.pages.sentences import in_words
from moorage.server.pages.site import Page, Site
from moorage.server.pages.texts import N_, language, say
from moorage.server.problems import Problem
from moorage_kube.errors import MoorageError, NotFound

log = logging.getLogger(__name__)

HERE = "/cost"
PERIODS = (7, 30, 90)  # days
LINES = 5  # of a chart; all other names are one line
SUMS = 8  # of a table; all other names are folded
BUDGETS_SHOWN = 4  # charts of budgets: those with the largest used part
GROUPS = ((By.TENANT, N_("By team")), (By.USER, N_("By person")))


class Group(Struct, frozen=True, kw_only=True):
    """The cost by team or person: a chart, and the sum of each name. `rest`: smaller sums, which are folded."""

    title: str
    chart: Chart
    sums: tuple[tuple[str, str], ...]
    rest: tuple[tuple[str, str], ...]


async def show(site: Site, request: Request) -> Response:
    """The web page of cost by day. Users see the names that they see in `moor cost report`."""
    context, user = site.context, request.state.user
    await context.ready()
    asked = request.query_params.get("days", "")
    days = next((days for days in PERIODS if str(days) == asked), PERIODS[1])
    groups: tuple[Group, ...] = ()
    charts: list[Chart] = []
    trouble = ""
    try:
        today = datetime.combine(context.now().date(), time(), context.now().tzinfo)
        since = today - timedelta(days=days - 1)
        costs = [(by, title, await site.day_costs.of(user, by, since)) for by, title in GROUPS]
        groups = tuple(group_of(by, say(title), cost) for by, title, cost in costs if cost.money)
        charts = await _budget_charts(site, user)
    except NotFound:
        trouble = "no prices"
    except (Problem, MoorageError) as error:
        log.warning("the page of cost shows no cost", extra={"error": str(error)})
        trouble = "unreadable"
    budgets = () if trouble == "unreadable" else (await budgets_for(context, user)).budgets
    return site.page(
        request, "cost.html", "/", live=False, days=days, periods=PERIODS, groups=groups, charts=charts,
        trouble=trouble, budgets=sorted(budgets, key=lambda row: -row.percent), most=len(budgets),
    )  # fmt: skip


PAGES = (Page(method="GET", path=HERE, handler=show),)


def group_of(by: By, title: str, cost: Days) -> Group:
    """The chart of the names that own work, and the sums of all rows."""
    owned = {name: amounts for name, amounts in cost.money.items() if not name.startswith("(")}
    names = list(owned)[: LINES + (len(owned) == LINES + 1)]
    lines = [Series(name=spoken(name), values=owned[name]) for name in names]
    if rest := [amounts for name, amounts in owned.items() if name not in names]:
        lines.append(Series(name=say("{count} others", count=len(rest)), values=_sum(rest)))
    unit = cost.currency
    folded = list(owned)[SUMS + (len(owned) == SUMS + 1) :]
    sums = {name: (spoken(name), shown(sum(amounts), unit)) for name, amounts in cost.money.items()}
    return Group(
        title=title,
        chart=Chart(id=f"cost-{by}", title=title, unit=unit, times=cost.days, series=tuple(lines), is_daily=True),
        sums=tuple(row for name, row in sums.items() if name not in folded),
        rest=tuple(sums[name] for name in folded),
    )


def budget_chart(standing: Standing, cost: Days) -> Chart | None:
    """The use of a budget of money in its period, and its limit; None if the user does not see the use."""
    budget, name = standing.budget, standing.use.name
    amounts = cost.money.get(name)
    if amounts is None:
        return None
    limit = float(budget.limit)
    return Chart(
        id=f"budget-{budget.name}-{name}",
        title=say("{budget}, for {name}", budget=budget.name, name=name),
        unit=cost.currency,
        times=cost.days,
        series=(
            Series(name=say("used so far"), values=tuple(accumulate(amounts)), area=True),
            Series(name=say("limit"), values=(limit,) * len(amounts)),
        ),
        is_daily=True,
    )


def spoken(name: str) -> str:
    """The name of a row in the language of the request."""
    return in_words(name, language())


def _sum(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(sum(amounts) for amounts in zip(*rows, strict=True))


async def _budget_charts(site: Site, user: User) -> list[Chart]:
    context = site.context
    seen = [standing for standing, _ in await standings_for(context, user) if standing.budget.is_money]
    charts: list[Chart] = []
    for standing in sorted(seen, key=lambda standing: -standing.use.percent):
        budget = standing.budget
        start, _ = period_of(context.now(), budget.period, budget.zone)
        cost = await site.day_costs.of(user, By.USER if budget.users else By.TENANT, start, budget.zone)
        if (chart := budget_chart(standing, cost)) is not None:
            charts.append(chart)
        if len(charts) == BUDGETS_SHOWN:
            break
    return charts
