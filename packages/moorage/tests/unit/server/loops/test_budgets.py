"""The status of Budgets over a fake API, and who sees what of it."""

from __future__ import annotations

import json

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from moorage.actions import people
from moorage.decide.usage.intervals import Open
from moorage.decide.usage.nodelives import Begin
from moorage.model.budget import BUDGETS
from moorage.model.names import PRICES_CONFIGMAP, SYSTEM_NAMESPACE
from moorage.model.people import LOCAL
from moorage.model.tenant import TENANTS
from moorage.server.loops.budgets import BudgetKeeper
from moorage_kube.resources import CONFIGMAPS, EVENTS
from moorage_kube.testing.clock import NOON
from moorage_testing.costs import HOUR, MONTH_SHEET, a_life, a_share

AS_ADA = {"headers": {"authorization": "Bearer kube-token"}, "token": False}


def a_budget(name, **spec):
    return {"metadata": {"name": name, "generation": 1}, "spec": {"period": "month"} | spec}


def record(site):
    store, since = site.service.usage, NOON - 2 * HOUR
    store.apply_nodes([Begin(a_life(since=since, hours=2))], now=since)
    pods = [
        a_share("a", since=since, hours=2, gpus=2, cpu=10, gib=80),
        a_share("b", since=since, hours=1, gpus=1, owner="ben", namespace="speech"),
    ]
    store.apply([Open(pod) for pod in pods])


async def status_of(site, name):
    return (await site.api.get(BUDGETS, name))["status"]


@pytest.mark.anyio
async def test_a_notice_reaches_a_network_that_the_administrator_allows(site, monkeypatch):
    received = []

    async def receive(request: web.Request) -> web.Response:
        received.append((await request.json())["text"])
        return web.Response()

    app = web.Application()
    app.router.add_post("/hook", receive)
    async with TestServer(app) as receiver:
        monkeypatch.setenv("MOORAGE_NOTIFY_NETWORKS", "127.0.0.0/8")
        targets = [f"http://127.0.0.1:{receiver.port}/hook"]
        site.api.put(BUDGETS, a_budget("hours", users=["ada"], gpuHours="5", notify=targets))
        record(site)
        await BudgetKeeper(site.service.context).compute()
    assert [text.partition("\n")[0] for text in received] == ["budget hours: ada has used 80 %"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("127.0.0.0/8", "to webhook at 127.0.0.1: 127.0.0.1 answered 410"),
        ("ten", "to any target: invalid MOORAGE_NOTIFY_NETWORKS: 'ten'"),
    ],
)
async def test_a_notice_that_is_lost_is_an_event_of_its_budget(site, monkeypatch, setting, why):
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=410)

    app = web.Application()
    app.router.add_post("/hook", refuse)
    async with TestServer(app) as receiver:
        monkeypatch.setenv("MOORAGE_NOTIFY_NETWORKS", setting)
        targets = [f"http://127.0.0.1:{receiver.port}/hook"]
        site.api.put(BUDGETS, a_budget("hours", users=["ada"], gpuHours="5", notify=targets))
        record(site)
        keeper = BudgetKeeper(site.service.context)
        await keeper.compute()
        await keeper.compute()
    (event,) = (await site.api.list(EVENTS)).items
    about = event["involvedObject"]
    assert (about["kind"], about["name"], event["type"], event["reason"]) == (
        "Budget", "hours", "Warning", "NoticeLost",
    )  # fmt: skip
    assert event["message"].startswith(f"the notice 'budget hours: ada has used 80 %' was not delivered {why}")


@pytest.mark.anyio
async def test_use_is_written_into_the_status_and_each_share_is_told_once(site):
    sent = []

    async def send(notice, targets):
        sent.append((notice.title, tuple(targets)))
        return ()

    site.api.put(
        TENANTS, {"metadata": {"name": "ears"}, "spec": {"namespace": "speech", "members": {"people": ["ada"]}}}
    )
    site.api.put(BUDGETS, a_budget("hours", users=["*"], gpuHours="5", notify=["mailto:a@example.org"]))
    site.api.put(BUDGETS, a_budget("team", tenants=["ears"], gpuHours="1", whenOver="refuse"))
    site.api.put(BUDGETS, a_budget("coins", users=["ada"], money="100"))
    record(site)
    keeper = BudgetKeeper(site.service.context, send=send)
    await keeper.compute()
    assert (await status_of(site, "hours"))["uses"] == [
        {"name": "ada", "used": "4.00", "percent": 80, "warned": 80},
        {"name": "ben", "used": "1.00", "percent": 20},
    ]
    assert (await status_of(site, "team"))["uses"] == [
        {"name": "ears", "used": "1.00", "percent": 100, "warned": 100}
    ]
    (condition,) = (await status_of(site, "coins"))["conditions"]
    assert (condition["status"], condition["message"]) == ("False", "prices are not installed")
    await keeper.compute()
    assert sorted(sent) == [
        ("budget hours: ada has used 80 %", ("mailto:a@example.org",)),
        ("budget team: ears has used 100 %", ()),
    ]
    site.api.put(
        CONFIGMAPS,
        {
            "metadata": {"name": PRICES_CONFIGMAP, "namespace": SYSTEM_NAMESPACE},
            "data": {"prices.yaml": yaml.safe_dump(MONTH_SHEET)},
        },
    )
    await keeper.compute()
    status = await status_of(site, "coins")
    assert (status["currency"], status["uses"]) == ("USD", [{"name": "ada", "used": "3.20", "percent": 3}])
    assert status["conditions"][0]["status"] == "True"
    rows = (await site.ask("/api/v1/budgets", **AS_ADA)).json["budgets"]
    assert [(row["budget"], row["name"], row["used"], row["unit"]) for row in rows] == [
        ("coins", "ada", "3.20", "USD"),
        ("hours", "ada", "4.00", "GPU-hours"),
        ("team", "ears", "1.00", "GPU-hours"),
    ]
    who = (await site.ask("/api/v1/login", **AS_ADA)).json
    assert (who["name"], who["budgets"]) == ("ada", rows)


@pytest.mark.anyio
async def test_a_person_sees_the_budgets_of_teams_that_name_a_group_of_theirs(site):
    site.api.put(
        TENANTS, {"metadata": {"name": "ears"}, "spec": {"namespace": "speech", "viewers": {"groups": ["ml"]}}}
    )
    site.api.put(BUDGETS, a_budget("team", tenants=["ears"], gpuHours="1"))
    site.api.put(BUDGETS, a_budget("others", tenants=["eyes"], gpuHours="1"))
    async with site.running():
        await people.create_account(site.api, "eve", ("ml",), LOCAL)
        await people.set_password(site.api, "eve", "long and quiet")
        body = json.dumps({"username": "eve", "password": "long and quiet"}).encode()
        json_type = {"content-type": "application/json"}
        login = await site.ask("/api/v1/login", method="POST", body=body, headers=json_type, token=False)
        mine = {"headers": {"authorization": f"Bearer {login.json['token']}"}, "token": False}
        who, listed = [(await site.ask(path, **mine)).json for path in ("/api/v1/login", "/api/v1/budgets")]
    assert [(row["budget"], row["name"], row["used"]) for row in who["budgets"]] == [("team", "ears", "0.00")]
    assert listed["budgets"] == who["budgets"]
