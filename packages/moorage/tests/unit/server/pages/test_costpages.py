"""The page of cost by day: charts by team and person, budgets of money, and the names that a user sees."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from moorage.decide.usage.intervals import Open
from moorage.decide.usage.nodelives import Begin
from moorage.model.budget import BUDGETS
from moorage.model.tenant import TENANTS
from moorage_kube.testing.clock import NOON
from moorage_testing.costs import HOUR, a_life, a_share
from tests.unit.server.test_costs import AS_ADA, install

pytestmark = pytest.mark.anyio

DAY = timedelta(days=1)


def record(site, *, days):
    """A machine of 4.00 an hour until noon: ada holds a GPU, which is 0.60 of it, and ben holds two."""
    since = NOON - days * DAY
    site.service.usage.apply_nodes([Begin(a_life(since=since, hours=24 * days))], now=since)
    pods = [
        a_share("a", since=since, hours=24 * days, gpus=1, run="train"),
        a_share("b", since=since, hours=24 * days, gpus=2, owner="ben", namespace="speech", run="tune"),
    ]
    site.service.usage.apply([Open(pod) for pod in pods])


@pytest.fixture
async def team(site):
    async with site.running():
        for name in ("vision", "speech"):
            site.api.put(TENANTS, {"metadata": {"name": name}, "spec": {"namespace": name}})
        yield site


async def charts(site, path="/cost", **who):
    """Title → {"days": …, name of a line: its values}."""
    page = (await site.ask(path, **who)).page
    drawn = {}
    for figure in page.all("figure[data-chart]"):
        [data] = [json.loads(each.text) for each in figure.all("script")]
        [title] = figure.texts("figcaption")
        drawn[title] = {line["name"]: line["values"] for line in data["series"]}
    return drawn, page


async def test_without_prices_or_nodes_the_page_says_so(team):
    assert "Prices are not installed" in (await charts(team))[1].texts(".empty")[0]
    install(team)
    assert (await charts(team))[1].texts(".empty") == [
        "No cost yet: it begins with the first node that has a price."
    ]


async def test_an_administrator_sees_all_teams_and_people(team):
    install(team)
    record(team, days=2)
    team.api.readers.add(("ada", None))
    drawn, page = await charts(team, **AS_ADA)
    assert drawn == {
        "By team": {"speech": [14.4, 28.8, 14.4], "vision": [7.2, 14.4, 7.2]},
        "By person": {"ben": [14.4, 28.8, 14.4], "ada": [7.2, 14.4, 7.2]},
    }
    assert page.rows("By person: sum of 30 days")[0] == {"Name": "ben", "Sum of 30 days": "57.6 USD"}
    assert page.texts("#cost-user tbody th") == [f"{NOON - back * DAY:%Y-%m-%d}" for back in range(3)]
    assert [row["Name"] for row in page.rows("By team: sum of 30 days")] == ["speech", "vision", "(idle)"]
    week = (await charts(team, "/cost?days=7", **AS_ADA))[1]
    assert week.texts('[aria-current="page"]')[-1] == "7 days"


async def test_many_names_are_one_line(team):
    install(team)
    since = NOON - DAY
    team.service.usage.apply_nodes([Begin(a_life(since=since, hours=24))], now=since)
    pods = [
        a_share(f"{n}", since=since, hours=24, gpus=1, owner=f"user-{n:02}", namespace=f"n{n}") for n in range(10)
    ]
    team.service.usage.apply([Open(pod) for pod in pods])
    team.api.readers.add(("ada", None))
    drawn, page = await charts(team, **AS_ADA)
    assert list(drawn["By person"]) == [*(f"user-{n:02}" for n in range(5)), "5 others"]
    named = [row["Name"] for row in page.rows("By person: sum of 30 days")]
    assert (named[:8], "user-08" in named) == ([f"user-{n:02}" for n in range(8)], False)
    assert page.texts("#cost-user-rest tbody th") == ["user-08", "user-09"]


async def test_members_see_their_own_cost_and_the_sum_of_the_rest(team):
    install(team)
    record(team, days=2)
    drawn, page = await charts(team, **AS_ADA)
    assert drawn == {"By team": {"vision": [7.2, 14.4, 7.2]}, "By person": {"ada": [7.2, 14.4, 7.2]}}
    assert [row["Name"] for row in page.rows("By person: sum of 30 days")] == ["ada", "(idle)", "(others)"]


async def test_one_day_is_a_number_and_no_plot(team):
    install(team)
    team.service.usage.apply_nodes([Begin(a_life(since=NOON - 10 * HOUR, hours=10))], now=NOON - 10 * HOUR)
    team.service.usage.apply([Open(a_share("a", since=NOON - 10 * HOUR, hours=10, gpus=4, run="train"))])
    drawn, page = await charts(team, **AS_ADA)
    assert (drawn, page.texts(".reading")) == ({}, ["By team 24 USD", "By person 24 USD"])


async def test_a_budget_of_money_has_its_limit_as_a_line(team):
    install(team)
    record(team, days=2)
    spec = {"users": ["ada", "ben"], "money": "100", "period": "month", "timeZone": "Asia/Tokyo"}
    team.api.put(BUDGETS, {"metadata": {"name": "coins", "generation": 1}, "spec": spec})
    team.api.put(BUDGETS, {"metadata": {"name": "hours"}, "spec": {"users": ["ada"], "gpuHours": "5"}})
    drawn, page = await charts(team, **AS_ADA)
    # days of Tokyo begin at 15:00 of UTC: three hours of the first day, a whole one, and 21 hours of the last
    assert drawn["coins, for ada"] == {"used so far": [1.8, 16.2, 28.8], "limit": [100, 100, 100]}
    assert not [title for title in drawn if "ben" in title or "hours" in title]
    assert {row["Budget"] for row in page.rows("Budgets that hold for you, the fullest first")} == {
        "coins",
        "hours",
    }
