from __future__ import annotations

import heapq
import json
import math
import random
import statistics

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moorage.decide.maps.durations import (
    Durations,
    WorkTime,
    constant,
    from_quantiles,
    from_samples,
    lognormal,
    parse_durations,
    parse_seconds,
    read_sample,
    say,
)
from moorage_kube.errors import UsageError


def simulate(times: Durations, *, items: int, slots: int, rng: random.Random) -> float:
    """List scheduling: a slot takes the next item as soon as it is free. Returns the last one's end."""
    free = [0.0] * slots
    for _ in range(items):
        heapq.heapreplace(free, free[0] + times.quantile(rng.random()))
    return max(free)


TOLERANCE = 0.10  # of the median of simulated maps; stated in docs/design/0007-plan.md


@pytest.mark.parametrize("rounds", [0.5, 1, 1.5, 3, 10, 40])
@pytest.mark.parametrize(
    "text",
    [
        "4",
        "uniform:3.9..4.1",
        "uniform:1..7",
        "lognormal:mean=4,sigma=0.5",
        "lognormal:mean=4,sigma=1,min=1,max=60",
        "quantiles:p0=1,p50=2,p90=8,p100=60",
    ],
)
def test_the_end_of_a_map_agrees_with_its_simulation(text, rounds):
    times, slots = parse_durations(text), 100
    items = round(rounds * slots)
    rng = random.Random(f"{text} {rounds}")
    runs = 1 if times.is_constant else max(9, 20_000 // items)
    seen = statistics.median(simulate(times, items=items, slots=slots, rng=rng) for _ in range(runs))
    assert WorkTime(times).until_done(items, slots) == pytest.approx(seen, rel=TOLERANCE)


def test_nine_maps_in_ten_end_before_the_late_end():
    times, rng = parse_durations("lognormal:mean=4,sigma=0.8"), random.Random(7)
    late = WorkTime(times).until_done(400, 20, 0.9)
    within = sum(simulate(times, items=400, slots=20, rng=rng) <= late for _ in range(300)) / 300
    assert 0.84 <= within <= 0.99


def test_items_cut_off_and_begun_anew_take_what_a_simulation_says():
    rng, per_second, away = random.Random(3), 1 / 50, 7.0

    def run(seconds: float) -> float:
        spent = 0.0
        while (cut := rng.expovariate(per_second)) < seconds:
            spent += cut + away
        return spent + seconds

    seen = statistics.fmean(run(40.0) for _ in range(20_000))
    assert constant(40).interrupted(per_second, away).mean == pytest.approx(seen, rel=0.04)


def test_items_that_can_never_end_are_refused_with_figures():
    with pytest.raises(UsageError, match="items of 10h do not get done on nodes taken away every 10m"):
        constant(36_000).interrupted(1 / 600, 0)


shapes = st.one_of(
    st.floats(0.01, 1000).map(constant),
    st.builds(lognormal, st.floats(0.01, 100), st.floats(0, 2)),
    st.lists(st.floats(0.01, 1000), min_size=1, max_size=60).map(from_samples),
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(1, 50)), min_size=1, max_size=5).map(
        lambda steps: from_quantiles(
            [(at / 5, sum(a * b for a, b in steps[: at + 1])) for at in range(len(steps))]
        )
    ),
)


@given(shapes, st.integers(1, 100_000), st.floats(0.3, 5000), st.floats(1, 10), st.sampled_from([0.5, 0.9]))
def test_more_slots_are_never_later_and_never_beat_what_must_be_done(times, items, slots, more, chance):
    work = WorkTime(times)
    few, many = work.until_done(items, slots, chance), work.until_done(items, slots * more, chance)
    assert many <= few * (1 + 1e-6)
    assert many >= times.shortest * (1 - 1e-6)
    assert few >= times.longest_of(items, 0.5) * (1 - 1e-6) or few >= items * times.mean / slots * 0.5


@given(shapes, st.integers(1, 10_000), st.integers(1, 300))
def test_one_more_item_is_never_done_earlier(times, items, slots):
    work = WorkTime(times)
    assert work.until_done(items + 1, slots) >= work.until_done(items, slots) * (1 - 1e-6)
    assert work.until_done(items, slots, 0.9) >= work.until_done(items, slots, 0.5) * (1 - 1e-6)


@given(shapes, st.floats(0, 1))
def test_a_quantile_and_its_share_belong_together(times, share):
    value = times.quantile(share)
    assert times.shortest <= value <= times.longest
    assert times.share_within(value * (1 + 1e-9)) >= share - 1e-9


@given(shapes, st.floats(1e-6, 1e-4), st.floats(0, 60))
def test_cuts_only_ever_cost_time(times, per_second, away):
    assume(per_second * times.longest <= 20)
    cut = times.interrupted(per_second, away)
    assert all(after >= before for (_, before), (_, after) in zip(times.knots, cut.knots, strict=True))


@pytest.mark.parametrize(
    ("text", "mean"),
    [
        ("4", 4),
        ("250ms", 0.25),
        ("1m30s", 90),
        ("uniform:1..7", 4),
        ("lognormal:mean=4,sigma=1", 4),
        ("lognormal:mean=4,p99=30", 4),
        ("lognormal:mean=4,sd=3", 4),
        ("lognormal:mean=4,p50=3", 4),
        ("lognormal:p50=4,sigma=0", 4),
        ("lognormal:p50=2,p90=2", 2),
        ("quantiles:p0=1,p50=2,p100=3", 2),
    ],
)
def test_a_distribution_is_read_as_written(text, mean):
    assert parse_durations(text).mean == pytest.approx(mean, rel=0.005)


def test_a_lognormal_keeps_the_quantiles_it_was_given():
    times = parse_durations("lognormal:p50=3,p99=30,max=50")
    assert (times.quantile(0.5), times.quantile(0.99), times.longest) == pytest.approx((3, 30, 50), rel=0.01)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("soon", "invalid duration 'soon'"),
        ("0", "not above 0"),
        ("-4", "invalid duration"),
        ("nan", "invalid duration"),
        ("gauss:mean=4", "'gauss' is not known"),
        ("uniform:4", "invalid distribution"),
        ("uniform:7..1", "do not rise"),
        ("lognormal:mean=4", "takes two of"),
        ("lognormal:sd=4,sigma=1", "above 0|do not say"),
        ("lognormal:mean=4,p50=40", "a lognormal distribution with this mean"),
        ("lognormal:p50=9,p90=3", "fall while the shares rise"),
        ("lognormal:p50=3,p100=9", "no p0 and no p100"),
        ("lognormal:p50=3,p90=9,min=80,max=60", "above the longest"),
        ("quantiles:mean=4", "quantiles are p0 to p100"),
        ("quantiles:p50=4,p900=5", "invalid quantile"),
        ("quantiles:p50", "is not NAME=TIME"),
    ],
)
def test_a_text_that_is_no_distribution_is_refused_with_the_reason(text, says):
    with pytest.raises(UsageError, match=says):
        parse_durations(text)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.25, "0.25s"), (58.2, "58.2s"), (59.97, "1m"), (867.2, "14m27s"), (5400, "1h30m"), (600_000, "6d23h")],
)
def test_seconds_are_said_for_people(seconds, words):
    assert say(seconds) == words
    assert parse_seconds(words) == pytest.approx(seconds, rel=0.01)


def test_a_sample_gets_a_tail_beyond_its_longest_and_items_alike_get_none():
    rng = random.Random(5)
    drawn = [rng.lognormvariate(1.0, 0.8) for _ in range(400)]
    times = from_samples(drawn)
    true = math.exp(1.0 + 0.8 * statistics.NormalDist().inv_cdf(0.5 ** (1 / 150_000)))
    assert times.mean == pytest.approx(statistics.fmean(drawn), rel=0.02)
    assert max(drawn) < times.longest_of(150_000)
    assert times.longest_of(150_000) == pytest.approx(true, rel=0.5)
    assert from_samples(drawn, longest=60).longest == 60
    assert from_samples([4.0] * 50).longest == 4.0
    with pytest.raises(UsageError, match=r"the longest item is given as 1s"):
        from_samples(drawn, longest=1)


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2.5, 4]",
        '{"items": [{"seconds": 1}, {"seconds": 2.5}, {"seconds": 4}, {"seconds": 900, "ok": false}]}',
        '{"seconds": 1}\n{"seconds": 2.5}\n{"seconds": 4}\n',
        "seconds,ok\n1,true\n2.5,true\n900,false\n4,\n",
        "1\n2.5\n\n4\n",
    ],
)
def test_a_sample_is_read_in_every_form(text):
    assert read_sample(text).seconds == (1.0, 2.5, 4.0)


def test_a_sample_tells_memory_and_cpu_when_they_were_measured():
    rows = [
        {"seconds": 2, "cpuSeconds": 1, "memoryBytes": 100},
        {"seconds": 4, "cpuSeconds": 4, "memoryBytes": 300},
    ]
    sample = read_sample(json.dumps(rows))
    assert (sample.peak_memory, sample.cpu) == (300, 0.75)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the sample is empty"),
        ("a,b\n1,2", "no column `seconds`"),
        ("1\nsoon", "item 2 of the sample: seconds is 'soon'"),
        ("[1, -2]", "item 2 of the sample: seconds is -2"),
        ("[1, true]", "item 2 of the sample: seconds is True"),
        ("[1, 0]", "item 2 of the sample took 0"),
        ('[{"seconds": 1, "ok": false}]', "no successful item"),
        ('{"items": 4}', "not a list of items"),
        ("[1,", "not JSON"),
        ("[]", "no successful item"),
    ],
)
def test_a_sample_that_is_none_is_refused_with_the_place(text, says):
    with pytest.raises(UsageError, match=says):
        read_sample(text)


@settings(max_examples=30)
@given(st.lists(st.floats(0.001, 1e4), min_size=1, max_size=300))
def test_what_was_measured_stays_as_it_was(samples):
    times = from_samples(samples)
    assert times.shortest == pytest.approx(min(samples))
    assert times.quantile((len(samples) - 0.5) / len(samples)) == pytest.approx(max(samples))
