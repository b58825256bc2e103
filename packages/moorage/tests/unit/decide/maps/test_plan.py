from __future__ import annotations

import heapq
import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.decide.maps.durations import constant, lognormal, parse_durations
from moorage.decide.maps.plan import (
    Choice,
    Limit,
    MapPlan,
    Terms,
    Trial,
    Work,
    durations_of_run,
    most_nodes,
    pack,
    plan_map,
)
from moorage.model.prices import Machine, Offer, PriceSheet, Quota
from moorage_kube.errors import UsageError
from moorage_kube.testing.examples import examples

GI = 2**30

# Seed 002's machine and prices, October 2019
N1_96 = Machine(name="n1-standard-96", cpu_milli=96_000, memory_bytes=360 * GI, disk_bytes=10 * GI)
OREGON = Offer(machine=N1_96, region="us-west1", market="spot", price_per_hour=0.96)
TOKYO = Offer(machine=N1_96, region="asia-northeast1", market="spot", price_per_hour=1.272)
SHEET = PriceSheet(offers=(OREGON,))
SEED = Work(items=150_000, durations=constant(4), memory_bytes=2 * GI, parallelism=3600)


def best(plan: MapPlan) -> Choice:
    assert plan.best is not None, plan.impossible
    return plan.best


def binds(choice: Choice) -> list[str]:
    return [bind.what for bind in choice.binds]


# ---- what the seed reckoned, and what it then measured


def test_the_seeds_estimate_is_38_nodes_for_20_minutes_at_12_16():
    found = best(plan_map(SEED, SHEET, Terms(hold_seconds=20 * 60)))
    assert (found.nodes, found.pods, found.pods_per_node) == (38, 3600, 96)
    assert found.billed_seconds == 1200
    assert found.money == pytest.approx(12.16)
    assert binds(found) == ["parallelism", "billing"]  # the work itself takes three minutes
    assert found.seconds == pytest.approx(168)


def test_from_the_seeds_measured_run_38_nodes_take_14_minutes_and_its_6_cost_8_64():
    learned = durations_of_run(nodes=6, machine=N1_96, seconds=5400, items=150_000, work=SEED, terms=Terms())
    assert learned.mean == pytest.approx(20.7, abs=0.05)  # core-seconds: each pod has one core
    plan = plan_map(replace(SEED, durations=learned), SHEET, Terms(nodes=(6, 38)))
    six, many = sorted(plan.choices, key=lambda choice: choice.nodes)
    assert (six.seconds, six.money) == (pytest.approx(5400), pytest.approx(8.64))
    assert many.seconds / 60 == pytest.approx(14.4, abs=0.2)
    assert many.money == pytest.approx(8.81, abs=0.01)


def test_six_nodes_is_what_a_quota_of_576_cpus_leaves_of_38():
    terms = Terms(quotas=(Quota(resource="cpus", limit=576, region="us-west1"),))
    found = best(plan_map(SEED, SHEET, terms))
    assert found.nodes == 6
    assert found.binds[0].what == "quota"
    assert found.binds[0].why == "the cpus quota in us-west1 of 576 allows 6 nodes"


def test_oregon_is_a_quarter_cheaper_than_tokyo_until_the_data_must_cross():
    sheet = replace(SHEET, offers=(TOKYO, OREGON))
    near = plan_map(SEED, sheet, Terms(hold_seconds=1200))
    assert best(near).offer == OREGON
    data = replace(SEED, pod_data_bytes=GI // 10, data_region="asia-northeast1")
    crossing = replace(sheet, transfer={("asia-northeast1", "us-west1"): 0.11})
    far = plan_map(data, crossing, Terms(hold_seconds=1200))
    assert best(far).offer == TOKYO
    costly = next(choice for choice in far.choices if choice.offer == OREGON and choice.nodes == 38)
    assert costly.transfer_money == pytest.approx(3600 * GI / 10 / 1e9 * 0.11)
    assert "transfer" in binds(costly)


def test_pods_that_each_fetch_the_data_fill_a_nodes_disk():
    plan = plan_map(replace(SEED, disk_bytes=GI), SHEET, Terms())
    found = best(plan)
    assert found.pods_per_node == 10
    assert "disk per node" in binds(found)
    refused = plan_map(replace(SEED, node_data_bytes=20 * GI), SHEET, Terms())
    assert refused.best is None
    assert refused.refused == (
        ("us-west1/n1-standard-96/spot", "no pod fits: 20Gi of data do not fit on 10Gi of disk"),
    )


# ---- packing and quotas


@pytest.mark.parametrize(
    ("work", "terms", "pods", "by"),
    [
        pytest.param({}, {}, 96, "cpu", id="by CPU"),
        pytest.param({"memory_bytes": 8 * GI}, {}, 45, "memory", id="by memory"),
        pytest.param({"cpu_milli": 100}, {}, 110, "pods", id="by the kubelet's number of pods"),
        pytest.param({}, {"daemon_cpu_milli": 310}, 95, "cpu", id="daemons take their part"),
        pytest.param({"cpu_milli": 100}, {"daemon_pods": 10}, 100, "pods", id="daemons are pods"),
        pytest.param({"disk_bytes": GI}, {}, 10, "disk", id="by disk"),
        pytest.param({"disk_bytes": GI, "node_data_bytes": 4 * GI}, {}, 6, "disk", id="data once, scratch each"),
        pytest.param({"gpus": 1}, {}, 0, "gpus", id="no GPU there"),
        pytest.param({"cpu_milli": 97_000}, {}, 0, "cpu", id="too large"),
    ],
)
def test_pods_are_packed_by_what_runs_out_first(work, terms, pods, by):
    asked = Work(**{"items": 1, "durations": constant(1)} | work)
    found = pack(N1_96, asked, Terms(**terms))
    assert (found.pods, found.by) == (pods, by)


@pytest.mark.parametrize(
    ("quotas", "nodes"),
    [
        pytest.param([], 100_000, id="none"),
        pytest.param([Quota(resource="nodes", limit=7)], 7, id="nodes"),
        pytest.param([Quota(resource="cpus", limit=200, region="us-west1")], 2, id="of the region"),
        pytest.param([Quota(resource="cpus", limit=200, region="elsewhere")], 100_000, id="of another region"),
        pytest.param([Quota(resource="cpus", limit=2000), Quota(resource="nodes", limit=3)], 3, id="the least"),
        pytest.param(
            [Quota(resource="cpus", limit=96), Quota(resource="cpus", limit=960, spot=True)], 10, id="spot's own"
        ),
        pytest.param([Quota(resource="disk", limit=50 * GI)], 5, id="disk"),
        pytest.param([Quota(resource="gpus", limit=0)], 100_000, id="no GPU wanted"),
        pytest.param([Quota(resource="cpus", limit=95)], 0, id="not one"),
    ],
)
def test_quotas_allow_so_many_nodes(quotas, nodes):
    assert most_nodes(OREGON, quotas, pods_per_node=96)[0] == nodes


def test_a_quota_that_allows_no_node_refuses_the_offer_with_its_name():
    plan = plan_map(SEED, SHEET, Terms(quotas=(Quota(resource="cpus", limit=24),)))
    assert plan.best is None
    assert "the cpus quota of 24 allows no such node" in plan.impossible


# ---- what binds, and what is impossible


def test_a_named_limit_keeps_pods_beyond_its_tokens_idle():
    work = replace(SEED, parallelism=None, limits=(Limit(name="mysql", tokens=100, share=0.25),))
    choice = min(plan_map(work, SHEET, Terms()).choices, key=lambda one: one.seconds)
    assert (choice.nodes, choice.pods) == (5, 400)
    assert "limit mysql" in binds(choice)
    assert choice.seconds == pytest.approx(150_000 * 4 / 400, rel=0.01)


def test_a_rate_holds_however_many_nodes_there_are():
    work = replace(SEED, parallelism=None, rate_per_second=10)
    plan = plan_map(work, SHEET, Terms(nodes=(1, 100)))
    assert {round(choice.seconds, -2) for choice in plan.choices} == {15_000}
    assert all("rate" in binds(choice) for choice in plan.choices)


def test_start_up_binds_when_it_takes_longer_than_the_work():
    found = best(plan_map(SEED, SHEET, Terms(node_start_seconds=300)))
    assert "node start-up" in binds(found)


def test_the_slowest_item_binds_when_the_rest_is_done_long_before():
    work = Work(items=10_000, durations=parse_durations("lognormal:mean=4,sigma=1.2,max=600"), parallelism=9_600)
    assert "slowest item" in binds(best(plan_map(work, SHEET, Terms())))


def test_a_deadline_shorter_than_the_slowest_item_is_said_with_figures():
    work = Work(items=1000, durations=parse_durations("uniform:1..60"))
    plan = plan_map(work, SHEET, Terms(deadline_seconds=45, node_start_seconds=20))
    assert plan.best is None
    assert (
        plan.impossible.startswith(
            "a deadline of 45s cannot be met: the slowest of 1,000 items takes about 60s after 20s of start-up; "
        )
        or "takes about 1m after 20s of start-up" in plan.impossible
    )
    assert "the fastest choice (" in plan.impossible


def test_a_deadline_that_a_quota_forbids_names_the_quota():
    terms = Terms(deadline_seconds=600, quotas=(Quota(resource="nodes", limit=2),))
    plan = plan_map(SEED, SHEET, terms)
    assert plan.best is None
    assert "the nodes quota of 2 allows 2 nodes" in plan.impossible


def test_a_budget_below_the_cheapest_choice_is_said_with_figures():
    plan = plan_map(SEED, SHEET, Terms(budget=1))
    assert plan.impossible == (
        "a budget of 1.00 is not enough: the cheapest choice (3 × us-west1/n1-standard-96/spot) costs 1.67"
    )


def test_deadline_and_budget_that_exclude_each_other_are_both_priced():
    terms = Terms(deadline_seconds=700, budget=2, node_start_seconds=300)
    plan = plan_map(SEED, SHEET, terms)
    assert plan.best is None
    assert plan.impossible.startswith("no choice keeps both: 11m40s takes ")


def test_on_demand_wins_when_spot_nodes_go_too_often_to_finish_long_items():
    offers = (
        Offer(machine=N1_96, market="spot", price_per_hour=1, interruptions_per_hour=1),
        Offer(machine=N1_96, market="on-demand", price_per_hour=4, interruptions_per_hour=0.0),
    )
    work = Work(items=500, durations=constant(3 * 3600))
    assert best(plan_map(work, PriceSheet(offers=offers), Terms())).offer.market == "on-demand"


@pytest.mark.parametrize(
    ("work", "terms", "says"),
    [
        ({"items": 0}, {}, "from 1 to"),
        ({"parallelism": 0}, {}, "parallelism is 0"),
        ({"rate_per_second": -1}, {}, "the rate is -1"),
        ({"cpu_milli": 0, "memory_bytes": 0}, {}, "asks for no CPU, memory or GPU"),
        ({"limits": (Limit(name="x", tokens=0),)}, {}, "limit x has 0 tokens"),
        ({"limits": (Limit(name="x", tokens=1, share=2),)}, {}, "held 2 of"),
        ({}, {"deadline_seconds": 0}, "the deadline is 0"),
        ({}, {"budget": -1}, "the budget is -1"),
        ({}, {"nodes": (0,)}, "the number of nodes is 0"),
        ({}, {"nodes": (10**6,)}, "at most 100,000 nodes"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(work, terms, says):
    with pytest.raises(UsageError, match=says):
        plan_map(replace(SEED, **work), SHEET, Terms(**terms))


def test_what_was_assumed_is_said():
    assumed = plan_map(SEED, SHEET, Terms()).assumed
    assert assumed == (
        "items: 150,000, 4s each; 4s on average",
        "spot nodes are not taken away: no rate is given",
        "nodes start at once: a start time was not given",
        "all nodes come at once, and are paid until the last item is done",
        "system and daemons take nothing of the nodes for which no `reserved` is given",
        "quotas do not apply: none is given",
        "prices: the file names no source and no date",
    )


# ---- properties

times = st.one_of(
    st.floats(0.1, 600).map(constant), st.builds(lognormal, st.floats(0.1, 60), st.floats(0.01, 1.5))
)
machines = st.builds(
    Machine,
    name=st.just("m"),
    cpu_milli=st.integers(1000, 128_000),
    memory_bytes=st.integers(1, 512).map(lambda n: n * GI),
    disk_bytes=st.none() | st.integers(10, 1000).map(lambda n: n * GI),
    pods=st.integers(8, 250),
    reserved_cpu_milli=st.integers(0, 900),
    speed=st.floats(0.5, 2),
)
offers = st.builds(
    Offer,
    machine=machines,
    region=st.sampled_from(["a", "b"]),
    market=st.sampled_from(["spot", "on-demand"]),
    price_per_hour=st.floats(0.01, 30),
    interruptions_per_hour=st.none() | st.floats(0, 0.2),
)
sheets = st.builds(
    PriceSheet,
    offers=st.lists(offers, min_size=1, max_size=3, unique_by=lambda one: one.name).map(tuple),
    transfer=st.just({("a", "b"): 0.1, ("b", "a"): 0.02}),
    minimum_seconds=st.sampled_from([0.0, 60.0, 3600.0]),
    step_seconds=st.sampled_from([1.0, 60.0, 3600.0]),
)
works = st.builds(
    Work,
    items=st.integers(1, 200_000),
    durations=times,
    cpu_milli=st.integers(100, 4000),
    memory_bytes=st.integers(0, 8).map(lambda n: n * GI),
    disk_bytes=st.integers(0, 2).map(lambda n: n * GI),
    node_data_bytes=st.integers(0, 5).map(lambda n: n * GI),
    data_region=st.sampled_from(["", "a"]),
    parallelism=st.none() | st.integers(1, 5000),
    limits=st.sampled_from([(), (Limit(name="db", tokens=20, share=0.5),)]),
)
quota_lists = st.lists(
    st.builds(
        Quota,
        resource=st.sampled_from(["nodes", "cpus"]),
        limit=st.integers(1, 3000),
        region=st.sampled_from(["", "a"]),
        spot=st.booleans(),
    ),
    max_size=3,
).map(tuple)
terms_ = st.builds(
    Terms,
    node_start_seconds=st.floats(0, 300),
    hold_seconds=st.sampled_from([0.0, 1200.0]),
    release_seconds=st.sampled_from([0.0, 600.0]),
    interruptions_per_hour=st.sampled_from([0.0, 0.05]),
    deadline_seconds=st.none() | st.floats(1, 20_000),
    budget=st.none() | st.floats(0, 500),
    quotas=quota_lists,
)


@settings(max_examples=examples(20, full=60), deadline=None)
@given(works, sheets, terms_)
def test_every_plan_keeps_its_promises_or_says_why_not(work, sheet, terms):
    plan = plan_map(work, sheet, terms)
    assert (plan.best is None) == bool(plan.impossible)
    for choice in plan.choices:
        allowed, _ = most_nodes(choice.offer, terms.quotas, pods_per_node=choice.pods_per_node)
        assert 1 <= choice.nodes <= allowed
        assert choice.pods <= choice.nodes * choice.pods_per_node
        assert choice.pods <= (work.parallelism or math.inf)
        assert choice.start_seconds <= choice.seconds <= choice.late_seconds
        assert choice.billed_seconds >= max(choice.seconds, sheet.minimum_seconds, terms.hold_seconds) - 1e-6
        assert choice.billed_seconds % sheet.step_seconds == pytest.approx(0, abs=1e-6)
        assert choice.node_money == pytest.approx(
            choice.nodes * choice.billed_seconds / 3600 * choice.offer.price_per_hour
        )
        kept = (terms.deadline_seconds is None or choice.late_seconds <= terms.deadline_seconds) and (
            terms.budget is None or choice.money <= terms.budget
        )
        assert kept == (choice.misses == "")
        assert choice.binds
    if plan.best is not None:
        assert plan.best == plan.choices[0]
        assert not plan.best.misses
        if terms.deadline_seconds is not None:
            assert all(choice.money >= plan.best.money - 1e-6 for choice in plan.choices if not choice.misses)
        elif terms.budget is not None:
            assert all(choice.seconds >= plan.best.seconds - 1e-6 for choice in plan.choices if not choice.misses)


@settings(max_examples=examples(20, full=60), deadline=None)
@given(works, sheets, terms_, st.integers(1, 500), st.integers(1, 500))
def test_more_nodes_are_never_later(work, sheet, terms, nodes, more):
    try:
        trial = Trial(work, sheet, terms, sheet.offers[0], ())
    except UsageError:
        return
    few, many = trial.choice(nodes), trial.choice(nodes + more)
    assert many.seconds <= few.seconds * (1 + 1e-6)
    assert many.late_seconds <= few.late_seconds * (1 + 1e-6)


@settings(max_examples=examples(20, full=40), deadline=None)
@given(works, sheets, terms_)
def test_a_deadline_called_impossible_is_kept_by_no_number_of_nodes(work, sheet, terms):
    terms = replace(terms, budget=None, deadline_seconds=terms.deadline_seconds or 100.0)
    if plan_map(work, sheet, terms).best is None:
        for offer in sheet.offers:
            try:
                trial = Trial(work, sheet, terms, offer, terms.quotas)
            except UsageError:
                continue
            assert trial.choice(trial.most).late_seconds > terms.deadline_seconds


# ---- against a simulation with nodes that go


def simulate(
    *, nodes: int, per_node: int, items: int, times, rate: float, start: float, rng: random.Random
) -> float:
    """Nodes come after `start` seconds and go at `rate` a second; what ran there is begun anew, on any slot."""
    slots = [(start, node) for node in range(nodes) for _ in range(per_node)]
    goes = [start + rng.expovariate(rate) if rate else math.inf for _ in range(nodes)]
    heapq.heapify(slots)
    queue = [times.quantile(rng.random()) for _ in range(items)]
    end = 0.0
    while queue:
        now, node = heapq.heappop(slots)
        while goes[node] + start <= now:  # went and came back while this slot stood aside
            goes[node] += start + rng.expovariate(rate)
        if goes[node] <= now:
            heapq.heappush(slots, (goes[node] + start, node))
            continue
        took = queue.pop()
        if now + took > goes[node]:
            queue.append(took)
            heapq.heappush(slots, (goes[node] + start, node))
        else:
            end = max(end, now + took)
            heapq.heappush(slots, (now + took, node))
    return end


@pytest.mark.parametrize("interruptions", [0.0, 0.5, 5.0])  # a node and hour; 5 is far worse than any cloud's
@pytest.mark.parametrize("text", ["30", "lognormal:mean=30,sigma=0.7,max=300"])
def test_a_plan_with_nodes_that_go_agrees_with_its_simulation(text, interruptions):
    times, rng = parse_durations(text), random.Random(11)
    machine = Machine(name="m", cpu_milli=8000, memory_bytes=32 * GI)
    offer = Offer(machine=machine, market="spot", price_per_hour=1, interruptions_per_hour=interruptions)
    work = Work(items=4000, durations=times)
    (found,) = plan_map(work, PriceSheet(offers=(offer,)), Terms(nodes=(20,), node_start_seconds=60)).choices
    seen = statistics.fmean(
        simulate(nodes=20, per_node=8, items=4000, times=times, rate=interruptions / 3600, start=60.0, rng=rng)
        for _ in range(5)
    )
    assert found.seconds == pytest.approx(seen, rel=0.10)
