"""/api/v1/cost over a fake API."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
import yaml
from msgspec.structs import replace

from moorage.decide.idle.states import Record, State, write_record
from moorage.decide.usage.intervals import Open
from moorage.decide.usage.nodelives import Begin
from moorage.decide.usage.samples import Tally
from moorage.model.budget import BUDGETS
from moorage.model.names import IDLE_ANNOTATION, PRICES_CONFIGMAP, SYSTEM_NAMESPACE
from moorage.model.tenant import TENANTS
from moorage.server.costs import Measured, measured_of
from moorage_kube.resources import CONFIGMAPS
from moorage_kube.testing.clock import NOON
from moorage_testing.costs import HOUR, MONTH_SHEET, a_life, a_share

AS_ADA = {"headers": {"authorization": "Bearer kube-token"}, "token": False}
SINCE = NOON - 10 * HOUR
PODS = {"currency": "USD", "source": "list", "pods": [{"cpu": 0.1, "memory": 0.01, "gpus": {"a100": 2}}]}


def install(site, sheet=MONTH_SHEET):
    site.api.put(
        CONFIGMAPS,
        {
            "metadata": {"name": PRICES_CONFIGMAP, "namespace": SYSTEM_NAMESPACE},
            "data": {"prices.yaml": yaml.safe_dump(sheet)},
        },
    )


def record(site):
    """Ten hours of a machine of 4.00 an hour: ada and ben hold a GPU of it each, for five and two hours."""
    store = site.service.usage
    store.apply_nodes([Begin(a_life(since=SINCE, hours=10))], now=SINCE)
    pods = [
        a_share("a", since=SINCE, hours=5, gpus=1, run="train"),
        a_share("b", since=SINCE, hours=2, gpus=1, owner="ben", namespace="speech", run="tune"),
    ]
    store.apply([Open(pod) for pod in pods])


def rows(answer):
    return {row["name"]: row["total"] for row in answer.json["rows"]}


def post(body):
    return {"method": "POST", "headers": {"content-type": "application/json"}, "body": json.dumps(body).encode()}


@pytest.mark.anyio
async def test_a_report_has_the_money_of_the_window_and_where_its_prices_are_from(site):
    async with site.running():
        refused = await site.ask("/api/v1/cost")
        assert (refused.status, refused.json["code"]) == (404, "not_found")
        install(site)
        record(site)
        site.api.put(TENANTS, {"metadata": {"name": "eyes"}, "spec": {"namespace": "vision"}})
        answer = await site.ask("/api/v1/cost?since=24h&by=node")
        assert rows(answer) == {"gpu-1": "40.00"}
        assert answer.json["prices"] == {
            "source": MONTH_SHEET["source"], "date": "2026-04-01", "currency": "USD",
        }  # fmt: skip
        assert answer.json["notes"] == [
            f"nodes are recorded since {SINCE:%Y-%m-%dT%H:%M:%SZ}; nothing before is counted"
        ]
        site.api.readers.add(("ada", None))  # every namespace
        answer = await site.ask("/api/v1/cost?since=24h&by=tenant", **AS_ADA)
        assert rows(answer) == {"eyes": "3.00", "namespace speech": "1.20", "(idle)": "35.80"}
        assert answer.json["total"]["total"] == "40.00"
        daily = await site.ask("/api/v1/cost/daily?since=24h&by=tenant&timeZone=Asia/Tokyo", **AS_ADA)
        sums = {row["name"]: sum(float(money) for money in row["money"]) for row in daily.json["rows"]}
        assert sums == {"eyes": 3.0, "namespace speech": 1.2, "(idle)": 35.8}


@pytest.mark.anyio
async def test_prices_of_ones_own_change_nothing_and_a_wrong_file_names_the_field(site):
    async with site.running():
        record(site)
        own = {"by": "node", "since": "24h", "prices": yaml.safe_dump(MONTH_SHEET | {"currency": "JPY"})}
        answer = await site.ask("/api/v1/cost", **post(own))
        assert rows(answer) == {"gpu-1": "40"}
        wrong = await site.ask("/api/v1/cost", **post({"prices": "owned: [{name: a, years: 0}]"}))
        assert (wrong.status, wrong.json["field"]) == (422, "prices")
        assert "owned[0].years is 0" in wrong.json["message"]
        assert (await site.ask("/api/v1/cost/prices")).json == {
            "text": "", "prices": {"source": "", "date": "", "currency": "USD"},
        }  # fmt: skip
        install(site)
        odd = await site.ask("/api/v1/cost/daily?timeZone=Mars/Base")
        assert (odd.status, odd.json["field"]) == (400, "timeZone")


@pytest.mark.anyio
async def test_two_ways_of_billing_over_a_window_and_over_a_sample(site):
    async with site.running():
        record(site)
        site.api.readers.add(("ada", None))
        files = {"nodePrices": yaml.safe_dump(MONTH_SHEET), "podPrices": yaml.safe_dump(PODS), "since": "24h"}
        asked = post(files)
        asked["headers"] |= AS_ADA["headers"]
        answer = await site.ask("/api/v1/cost/compare", token=False, **asked)
        assert (answer.json["nodes"], answer.json["pods"], answer.json["savedPercent"]) == ("40.00", "14.00", 65.0)
        asked = post(files | {"sample": ["vision/train"], "times": 30})
        asked["headers"] |= AS_ADA["headers"]
        answer = await site.ask("/api/v1/cost/compare", token=False, **asked)
        assert (answer.json["nodes"], answer.json["pods"]) == ("2880.00", "300.00")  # 720 hours; 30 × 5 × 2.00
        assert answer.json["jobs"] == [{"name": "vision/train", "times": 30.0, "money": "300.00"}]


@pytest.mark.anyio
async def test_a_run_that_began_before_nodes_were_recorded_is_a_sample_too(site):
    """Its node's first record is later than its start, as a kubelet writes starts in whole seconds."""
    async with site.running():
        site.service.usage.apply_nodes([Begin(a_life(since=SINCE + HOUR, hours=9))], now=SINCE + HOUR)
        site.service.usage.apply([Open(a_share("a", since=SINCE, hours=5, gpus=1, run="train"))])
        site.api.readers.add(("ada", None))
        sample = {"sample": ["vision/train"], "times": 30, "since": "24h"}
        asked = post({"nodePrices": yaml.safe_dump(MONTH_SHEET), "podPrices": yaml.safe_dump(PODS)} | sample)
        asked["headers"] |= AS_ADA["headers"]
        answer = await site.ask("/api/v1/cost/compare", token=False, **asked)
        assert answer.json["jobs"] == [{"name": "vision/train", "times": 30.0, "money": "300.00"}]


def test_samples_say_how_much_of_a_pods_time_they_cover_and_how_busy_it_was():
    pod = replace(a_share("a", since=NOON, hours=1, gpus=2))
    tally = Tally(slots=60, gpu_count=120, gpu_sum=120 * 250)  # half an hour of 30-second slots, at 25 %
    measured = measured_of({"a": tally}, [pod], since=NOON, until=NOON + 2 * HOUR)
    assert measured == {"a": Measured(covered=500_000, busy=250_000)}
    assert measured_of({"a": Tally(slots=60)}, [pod], since=NOON, until=NOON + HOUR) == {}
    assert measured_of({}, [pod], since=NOON, until=NOON + timedelta(hours=1)) == {}


@pytest.mark.anyio
async def test_a_member_sees_others_as_one_row_of_the_same_sum_and_may_not_compare(site):
    async with site.running():
        install(site)
        record(site)
        answer = await site.ask("/api/v1/cost?since=24h", **AS_ADA)
        assert rows(answer) == {"ada": "3.00", "(idle)": "35.80", "(others)": "1.20"}
        site.api.readers.add(("ada", "speech"))
        asked = post({"podPrices": yaml.safe_dump(PODS)})
        asked["headers"] |= AS_ADA["headers"]
        assert (await site.ask("/api/v1/cost/compare", token=False, **asked)).status == 403


@pytest.mark.anyio
async def test_prometheus_sees_the_money_of_a_day_that_was_computed_minutes_ago(site):
    async def shown():
        text = (await site.ask("/metrics")).text
        return {line for line in text.splitlines() if line.startswith("moorage_cost_24h{")}

    async with site.running():
        record(site)
        site.api.put(TENANTS, {"metadata": {"name": "eyes"}, "spec": {"namespace": "vision"}})
        assert await shown() == set()  # no prices: no money, and not 0
        install(site)
        site.clock.advance(30)
        await site.until(lambda: site.service.cost_of_day.cost)
        lines = await shown()
        assert 'moorage_cost_24h{currency="USD",kind="not_measured",tenant="eyes"} 3.0' in lines
        assert 'moorage_cost_24h{currency="USD",kind="not_measured",tenant="-"} 1.2' in lines
        assert 'moorage_cost_24h{currency="USD",kind="idle",tenant="-"} 35.8' in lines
        computed = site.service.cost_of_day.cost
        install(site, MONTH_SHEET | {"currency": "EUR"})
        assert await shown() == lines  # a page computes nothing
        site.clock.advance(300)
        await site.until(lambda: site.service.cost_of_day.cost is not computed)
        assert {line.partition('currency="')[2][:3] for line in await shown()} == {"EUR"}
        site.api.remove(CONFIGMAPS, PRICES_CONFIGMAP, SYSTEM_NAMESPACE)
        site.clock.advance(300)
        await site.until(lambda: site.service.cost_of_day.cost is None)
        assert await shown() == set()


@pytest.mark.anyio
async def test_prometheus_sees_budgets_and_idle_work(site):
    async with site.running():
        status = {"end": "2999-01-01T00:00:00Z", "uses": [{"name": "ada", "used": "5", "percent": 50}]}
        spec = {"users": ["*"], "gpuHours": "10"}
        site.api.put(BUDGETS, {"metadata": {"name": "month"}, "spec": spec, "status": status})
        site.api.put(BUDGETS, {"metadata": {"name": "wrong"}, "spec": {"gpuHours": "many"}, "status": status})
        site.node("n1")
        record = Record(state=State.SNOOZED, snoozed_until=NOON + timedelta(days=1), gpus=2)
        site.run("train", node="n1", gpus=2, notes={IDLE_ANNOTATION: write_record(record)})
        await site.until(lambda: site.service.cluster.pods_of_run("lab", "train"))
        text = (await site.ask("/metrics")).text
        assert 'moorage_budget_used_ratio{budget="month",kind="user",name="ada"} 0.5' in text
        assert 'budget="wrong"' not in text
        assert 'moorage_idle_gpus{state="snoozed",tenant="-"} 2.0' in text
        assert 'moorage_idle_gpus{state="idle",tenant="-"} 0.0' in text
        assert 'moorage_idle_work{kind="run",state="snoozed",tenant="-"} 1.0' in text
