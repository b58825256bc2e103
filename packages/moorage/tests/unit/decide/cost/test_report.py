"""Money of nodes and pods: a month by hand, a bill that was paid, and properties."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.decide.cost.compare import Biller, Job, compare
from moorage.decide.cost.money import GRAINS, decimals_of, exact, microseconds, rate_of, rounded
from moorage.decide.cost.nodes import Pricer, price_of
from moorage.decide.cost.report import (
    Booking,
    By,
    Facts,
    Measured,
    daily,
    days_between,
    ledger,
    report,
    report_of,
    shares,
)
from moorage.decide.cost.split import split
from moorage.model.podprices import Weights
from moorage.model.prices import parse_sheet
from moorage_kube.errors import UsageError
from moorage_kube.testing.examples import examples
from moorage_testing.costs import APRIL, GIB, HOUR, MAY, MONTH_LIVES, MONTH_PODS, MONTH_SHEET, a_life, a_share

SHEET = parse_sheet(MONTH_SHEET)
BUSY = {"train": Measured(covered=1_000_000, busy=750_000)}
COURSE = Booking(
    name="course", namespace="teaching", owner="cyd", machine="gpus/one", count=1,
    since=APRIL + 380 * HOUR, until=APRIL + 420 * HOUR,
)  # fmt: skip
MONTH = Facts(
    lives=MONTH_LIVES,
    intervals=MONTH_PODS,
    sheet=SHEET,
    now=MAY,
    tenants={"vision": "vision", "speech": "speech"},
    measured=BUSY,
)


def money(text):
    return Decimal(text)


def table(answer):
    return {
        row.name: (str(row.used), str(row.unused), str(row.not_measured), str(row.reserved), str(row.idle))
        for row in (*answer.rows, answer.total)
    }


# -- a month by hand: docs/howto/read-a-cost-report.md ------------------------------------------------------


def test_a_month_worked_out_by_hand_agrees_to_the_cent():
    answer = report(MONTH, by=By.USER, since=APRIL, until=MAY)
    assert table(answer) == {
        "ada": ("360.00", "120.00", "30.00", "0.00", "0.00"),
        "ben": ("0.00", "0.00", "78.39", "0.00", "0.00"),
        "(idle)": ("0.00", "0.00", "0.00", "0.00", "2323.61"),
        "(reserved)": ("0.00", "0.00", "0.00", "46.00", "0.00"),
        "(system)": ("0.00", "0.00", "18.00", "0.00", "0.00"),
        "total": ("360.00", "120.00", "126.39", "46.00", "2323.61"),
    }
    assert answer.total.whole == money("2976.00")
    assert answer.unpriced == {}
    assert [(row.name, row.gpu_hours, row.pods) for row in answer.rows][:2] == [
        ("ada", 600.0, 2),
        ("ben", 100.5, 1),
    ]


@pytest.mark.parametrize(
    ("by", "want"),
    [
        (By.TENANT, {"vision": "510.00", "speech": "78.39"}),
        (By.NAMESPACE, {"vision": "510.00", "speech": "78.39"}),
        (By.RUN, {"vision/train": "480.00", "vision/map/squares": "30.00", "speech/tune": "78.39"}),
        (By.NODE, {"gpu-1": "2880.00", "spot-1": "96.00"}),
        (By.TYPE, {"a100": "2880.00", "c-32 in west, spot": "96.00"}),
    ],
)
def test_the_same_month_by_other_things(by, want):
    answer = report(MONTH, by=by, since=APRIL, until=MAY)
    assert {row.name: str(row.whole) for row in answer.rows if not row.name.startswith("(")} == want
    assert answer.total.whole == money("2976.00")


def test_days_add_up_to_the_month():
    days = days_between(APRIL, MAY, lambda moment: moment.replace(hour=0))
    answer = report(MONTH, by=By.DAY, since=APRIL, until=MAY, days=days)
    assert [row.name for row in answer.rows] == [f"2026-04-{day:02}" for day in range(1, 31)]
    assert answer.total.whole == money("2976.00")
    assert answer.rows[0].whole == money("96.00")  # gpu-1 alone: 24 × 4.00
    by_day = daily(MONTH, by=By.TENANT, since=APRIL, until=MAY, days=days)
    assert exact(by_day["vision"][APRIL]) == Fraction("38.40")  # 24 × 1.60


def test_a_place_that_is_kept_is_paid_for_by_whom_it_is_reserved_for_while_it_is():
    facts = replace(MONTH, bookings=[COURSE])
    answer = report(facts, by=By.USER, since=APRIL, until=MAY)
    assert {row.name: str(row.reserved) for row in answer.rows if row.reserved} == {
        "cyd": "18.40",  # 20 of its 50 hours, at 0.92
        "(reserved)": "27.60",
    }
    assert answer.total.whole == money("2976.00")


def test_members_see_others_as_one_row_and_the_sum_is_the_same():
    answer = report(MONTH, by=By.USER, since=APRIL, until=MAY, sees=lambda owner, _: owner == "ben")
    assert {row.name: str(row.whole) for row in answer.rows} == {
        "ben": "78.39",
        "(idle)": "2323.61",
        "(others)": "510.00",
        "(reserved)": "46.00",
        "(system)": "18.00",
    }


def test_one_ledger_serves_every_reader():
    book = ledger(MONTH, by=By.USER, since=APRIL, until=MAY)
    for sees in (
        None,
        lambda owner, _: owner == "ben",
        lambda _, namespace: namespace == "vision",
        lambda *_: False,
    ):
        assert report_of(book, sees) == report(MONTH, by=By.USER, since=APRIL, until=MAY, sees=sees)
        assert report_of(book, sees).total == report_of(book).total


# -- seed 002: six preemptible nodes of 96 CPUs for an hour and a half, 961 yen ------------------------------


def fleet(nodes, minutes, price, currency):
    sheet = parse_sheet(
        {
            "currency": currency,
            "machines": [
                {
                    "name": "n1-standard-96",
                    "cpu": 96,
                    "memory": "360Gi",
                    "prices": [{"region": "us-west1", **price}],
                }
            ],
        }
    )
    lives = [
        a_life(f"n{at}", hours=minutes / 60, gpus=0, cpu=96, gib=360, kind="n1-standard-96", region="us-west1",
               market="spot")
        for at in range(nodes)
    ]  # fmt: skip
    pods = [
        a_share(f"{life.node}-{at}", node=life.node, hours=minutes / 60, cpu=1, gib=2)
        for life in lives
        for at in range(96)
    ]
    return Facts(lives=lives, intervals=pods, sheet=sheet, now=MAY)


def test_the_bill_of_a_report_from_the_field_agrees_with_its_own_figures():
    estimate = report(fleet(38, 20, {"spot": 0.96}, "USD"), by=By.USER, since=APRIL, until=MAY).total.whole
    assert estimate == money("12.16")  # "1/3 h × $0.96 × 38 = 12.16 US$", about 1,300 to 1,400 yen
    paid = report(fleet(6, 90, {"spot": 0.96}, "USD"), by=By.USER, since=APRIL, until=MAY).total.whole
    assert paid == money("8.64")
    low, high = 1300 / estimate, 1400 / estimate  # yen for a dollar
    assert paid * low < 961 < paid * high
    in_yen = report(fleet(6, 90, {"spot": 106.78}, "JPY"), by=By.USER, since=APRIL, until=MAY)  # at 111.23 yen
    assert in_yen.total.whole == money("961")
    assert 111.2 < 106.78 / 0.96 < 111.3


def test_tokyo_costs_what_the_report_says_more_than_oregon():
    sheet = parse_sheet(
        {
            "machines": [
                {
                    "name": "m", "cpu": 96, "memory": "360Gi",
                    "prices": [{"region": "tokyo", "spot": 1.272}, {"region": "oregon", "spot": 0.96}],
                }
            ]
        }
    )  # fmt: skip
    tokyo, oregon = (
        price_of(sheet, a_life(kind="m", region=region, market="spot")) for region in ("tokyo", "oregon")
    )
    assert 1 - oregon / tokyo == Fraction(13, 53)  # "about 25 %"


# -- prices ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("life", "want"),
    [
        pytest.param(a_life("gpu-7"), Fraction(4), id="bought: 2.50 + 1.00 + 0.50"),
        pytest.param(a_life("n", kind="c-32", region="west", market="spot"), Fraction("0.48"), id="spot"),
        pytest.param(a_life("n", kind="c-32", region="west"), None, id="on demand has no price"),
        pytest.param(a_life("n", kind="c-32", region="east", market="spot"), None, id="another region"),
    ],
)
def test_a_nodes_price_is_found_by_name_type_region_and_market(life, want):
    assert price_of(SHEET, life) == want


def test_nodes_without_a_price_are_named_with_their_hours_and_cost_nothing():
    facts = replace(MONTH, lives=(*MONTH_LIVES, a_life("n9", hours=5, kind="odd")))
    answer = report(facts, by=By.USER, since=APRIL, until=MAY)
    assert answer.unpriced == {"odd": 5}
    assert answer.total.whole == money("2976.00")


def test_a_node_is_billed_for_at_least_the_minimum_and_in_whole_steps_and_the_rest_is_idle():
    sheet = parse_sheet(
        {
            "billing": {"minimumSeconds": 600, "stepSeconds": 60},
            "machines": [{"name": "c", "cpu": 1, "memory": "1Gi", "prices": [{"onDemand": 60}]}],
        }
    )
    short = a_life("a", hours=1 / 60, gpus=0, cpu=1, gib=1, kind="c")
    long = a_life("b", hours=0.5 + 1 / 3600, gpus=0, cpu=1, gib=1, kind="c")
    pod = a_share("p", node="a", hours=1 / 60, cpu=1, gib=1)
    facts = Facts(lives=[short, long], intervals=[pod], sheet=sheet, now=MAY)
    answer = report(facts, by=By.NODE, since=APRIL, until=MAY)
    assert {row.name: (str(row.allocated), str(row.whole)) for row in answer.rows} == {
        "a": ("1.00", "10.00"),
        "b": ("0.00", "31.00"),
    }


# -- fractions of GPUs -------------------------------------------------------------------------------------


def test_slices_and_shares_of_gpus_cost_their_part():
    mig = replace(
        a_life("gpu-1", hours=1),
        devices=(("nvidia.com/gpu", 3), ("nvidia.com/mig-1g.10gb", 7)),
        shares={"nvidia.com/mig-1g.10gb": Fraction(1, 7)},
    )
    pods = [
        replace(
            a_share("slice", gpus=1), gpu_counts=(("nvidia.com/mig-1g.10gb", 1),), cpu_milli=0, memory_bytes=0
        ),
        replace(a_share("whole", gpus=1), cpu_milli=0, memory_bytes=0),
    ]
    facts = Facts(lives=[mig], intervals=pods, sheet=SHEET, now=MAY)
    by_pod = {share.interval.pod_uid: share for _, share in _shares(facts) if share.interval}
    assert round(exact(by_pod["whole"].money), 12) == Fraction("0.60")
    assert round(exact(by_pod["slice"].money) * 7, 11) == Fraction("0.60")
    assert by_pod["slice"].gpu_us == Fraction(microseconds(HOUR), 7)
    shared = replace(
        a_life("gpu-1", hours=1),
        devices=(("nvidia.com/gpu.shared", 16),),
        shares={"nvidia.com/gpu.shared": Fraction(1, 4)},
    )
    four = replace(a_share("four", gpus=4), gpu_counts=(("nvidia.com/gpu.shared", 4),))
    by_pod = {
        share.interval.pod_uid: share
        for _, share in _shares(Facts(lives=[shared], intervals=[four], sheet=SHEET, now=MAY))
        if share.interval
    }
    assert round(exact(by_pod["four"].money), 12) == Fraction("0.60")


def _shares(facts):
    return shares(facts, since=APRIL, until=MAY, days=(), unpriced={})


# -- properties --------------------------------------------------------------------------------------------

minutes = st.integers(0, 600)
pods = st.lists(
    st.builds(
        lambda start, run, gpus, cpu, gib, node: (start, run, gpus, cpu, gib, node),
        minutes, st.integers(1, 300), st.integers(0, 5), st.integers(0, 50), st.integers(0, 400),
        st.integers(0, 1),
    ),
    max_size=8,
)  # fmt: skip
MINUTE = timedelta(minutes=1)


@settings(max_examples=examples(100, full=500))
@given(pods, st.lists(st.tuples(minutes, st.integers(1, 400)), min_size=1, max_size=2), st.data())
def test_every_hour_of_every_node_is_allocated_or_idle_and_sums_are_the_nodes_own(pods, nodes, data):
    """Also where pods ask for more than there is, and where pods outlive their node."""
    lives = [
        a_life(f"gpu-{at}", since=APRIL + start * MINUTE, hours=run / 60) for at, (start, run) in enumerate(nodes)
    ]
    intervals = [
        a_share(
            f"p{at}", since=APRIL + start * MINUTE, hours=run / 60, node=f"gpu-{node}", gpus=gpus, cpu=cpu, gib=gib
        )
        for at, (start, run, gpus, cpu, gib, node) in enumerate(pods)
    ]
    price = data.draw(st.decimals(Decimal("0.001"), Decimal("99"), places=3))
    sheet = parse_sheet({"owned": [{"name": "g", "nodes": ["gpu-*"], "purchase": float(price), "years": 1}]})
    facts = Facts(lives=lives, intervals=intervals, sheet=sheet, now=MAY)
    hours = [APRIL + at * HOUR for at in range(18)]
    whole = 0
    for begin in hours:
        for node in Pricer(sheet).price(lives, since=begin, until=begin + HOUR, now=MAY):
            on_node = [interval for interval in intervals if interval.node == node.life.node]
            parts = split(node, on_node, sheet.weights)
            assert sum(part.money for part in parts) == node.rate * microseconds(node.until - node.since)
            assert all(part.money >= 0 for part in parts)
            assert sum(part.gpu_us for part in parts[:-1]) == 0 or parts[-1].gpu_us >= 0
            whole += sum(part.money for part in parts)
    rate = rate_of(price_of(sheet, lives[0]))
    assert whole == sum(rate * microseconds(life.ended_at - life.started_at) for life in lives)
    for by in (By.USER, By.NODE, By.DAY):
        answer = report(facts, by=by, since=APRIL, until=MAY, days=hours[::6])
        assert answer.total.whole == rounded([whole], 2)[0]


@given(pods)
def test_a_pods_money_depends_on_no_neighbour_where_there_is_room(pods):
    """Each asks for a part that fits beside the others."""
    life = a_life(hours=24)
    intervals = [
        a_share(
            f"p{at}", since=APRIL + start * MINUTE, hours=run / 60, gpus=min(gpus, 0), cpu=cpu // 10, gib=gib // 10
        )
        for at, (start, run, gpus, cpu, gib, _) in enumerate(pods)
    ]
    (node,) = Pricer(SHEET).price([life], since=APRIL, until=MAY, now=MAY)
    together = {part.interval.pod_uid: part.money for part in split(node, intervals, Weights()) if part.interval}
    alone = {interval.pod_uid: split(node, [interval], Weights())[0].money for interval in intervals}
    assert together == alone


@given(st.lists(st.integers(0, 10**30), min_size=1, max_size=30), st.sampled_from([0, 2, 3]))
def test_rounded_shares_add_up_to_the_rounded_sum_and_each_is_within_a_coin(amounts, decimals):
    coin = Fraction(1, 10**decimals)
    money = rounded(amounts, decimals)
    assert sum(money) == rounded([sum(amounts)], decimals)[0]
    for amount, of in zip(amounts, money, strict=True):
        assert abs(Fraction(of) - Fraction(amount, GRAINS)) < coin


def test_coins_follow_the_currency():
    assert [decimals_of(name) for name in ("USD", "eur", "JPY", "KWD")] == [2, 2, 0, 3]


# -- two ways of billing -----------------------------------------------------------------------------------

PODS = parse_sheet(
    {
        "currency": "USD",
        "billing": {"minimumSeconds": 60, "stepSeconds": 1},
        "pods": [
            {
                "cpu": 0.05, "memory": 0.005, "gpus": {"a100": 3},
                "spot": {"cpu": 0.02, "memory": 0.002},
                "minimum": {"cpu": "250m", "memory": "512Mi"},
                "step": {"cpu": "250m", "memory": "1Gi"},
                "default": {"cpu": "500m", "memory": "2Gi"},
            }
        ],
    }
)  # fmt: skip


@pytest.mark.parametrize(
    ("job", "want"),
    [
        pytest.param(Job(name="a", cpu_milli=1000, memory_bytes=4 * GIB, seconds=Fraction(3600)), "0.07", id="1"),
        pytest.param(Job(name="a", seconds=Fraction(3600)), "0.035", id="none asked for: half a CPU and 2 GiB"),
        pytest.param(
            Job(name="a", cpu_milli=100, memory_bytes=1, seconds=Fraction(3600)), "0.0175", id="minimum and steps"
        ),
        pytest.param(
            Job(name="a", cpu_milli=300, memory_bytes=GIB + 1, seconds=Fraction(1800), times=Fraction(30)),
            "0.525",  # 30 × 0.5 × (0.5 × 0.05 + 2 × 0.005)
            id="scaled up",
        ),
        pytest.param(
            Job(name="a", cpu_milli=1000, memory_bytes=GIB, seconds=Fraction(3600), spot=True), "0.022", id="spot"
        ),
        pytest.param(
            Job(name="a", cpu_milli=1000, memory_bytes=GIB, gpus=Fraction(1, 7), gpu_type="a100",
                seconds=Fraction(7 * 3600)), "3.385", id="a slice of a GPU",
        ),
    ],
)  # fmt: skip
def test_a_job_is_billed_by_what_it_asks_for(job, want):
    assert Biller(PODS).bill(job).money == Fraction(want)


def test_both_ways_over_the_same_month():
    answer = compare(MONTH, PODS, since=APRIL, until=MAY)
    assert answer.nodes == 2976
    assert round(answer.idle, 10) == Fraction("2323.61")
    # train 300 × (6 + 0.5 + 0.4), tune 100.5 × (3 + 0.2 + 0.2), map on spot 150 × (0.32 + 0.064)
    assert answer.pods == Fraction("2070") + Fraction("341.7") + Fraction("57.6")
    assert [billed.job.name for billed in answer.jobs] == ["vision/train", "speech/tune", "vision/map/squares"]


def test_a_sample_is_scaled_up_against_the_nodes_of_a_month():
    jobs = [Job(name="batch", cpu_milli=1000, memory_bytes=4 * GIB, seconds=Fraction(3600), times=Fraction(1000))]
    answer = compare(MONTH, PODS, since=APRIL, until=MAY, jobs=jobs, scale=Fraction(2))
    assert (answer.nodes, answer.pods) == (5952, 70)
    assert answer.saved == 1 - Fraction(70, 5952)


def test_a_gpu_without_a_price_and_two_currencies_are_refused():
    with pytest.raises(UsageError, match="no price of a pod's GPU of type 'h100'"):
        Biller(PODS).bill(Job(name="a", gpus=Fraction(1), gpu_type="h100", seconds=Fraction(1)))
    with pytest.raises(UsageError, match="two currencies: USD and JPY"):
        compare(MONTH, replace(PODS, currency="JPY"), since=APRIL, until=MAY)
