"""What pods use, as sums: nothing is lost or counted twice when it is thinned out, and gaps stay gaps."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.usage.samples import (
    NOTHING,
    STEPS,
    GpuReading,
    Level,
    Marks,
    Reading,
    Segment,
    Tally,
    added,
    corrected,
    floor,
    moment_of,
    newest_of,
    next_step,
    row_of,
    seconds_of,
    segments,
    step_for,
    tally_of,
)
from moorage_testing.readings import MIB, TEN, a_reading

gpus = st.builds(
    GpuReading,
    device=st.sampled_from(["a", "b"]),
    utilisation=st.floats(0, 100),
    memory_bytes=st.integers(0, 2**37),
    power_watts=st.none() | st.floats(0, 1000),
)
readings = st.builds(
    Reading,
    pod_uid=st.sampled_from(["u1", "u2"]),
    at=st.integers(0, 7200).map(lambda seconds: TEN + timedelta(seconds=seconds)),
    cpu_milli=st.none() | st.integers(0, 64_000),
    memory_bytes=st.none() | st.integers(0, 2**40),
    gpus=st.lists(gpus, max_size=3).map(tuple),
)


def test_a_reading_is_a_tally_of_one_slot():
    assert tally_of(a_reading(use=(50.0, 3.04), power=200.25)) == Tally(
        slots=1,
        cpu_count=1, cpu_sum=1500, cpu_peak=1500,
        memory_count=1, memory_sum=512 * 1024, memory_peak=512 * 1024,
        gpu_count=2, gpu_sum=530, gpu_peak=500,
        gpu_memory_sum=2 * 1024 * 1024, gpu_memory_peak=1024 * 1024,
        power_count=2, power_sum=400_500, power_peak=400_500,
        gpus=2, busy_gpus=1,
    )  # fmt: skip


def test_what_is_not_measured_has_no_value():
    tally = tally_of(a_reading(cpu=None, memory=None, use=()))
    assert (tally.seconds, tally.cpu_milli, tally.memory_bytes, tally.gpu_utilisation, tally.power_watts) == (
        30, None, None, None, None,
    )  # fmt: skip


def test_means_and_peaks_are_in_the_units_of_a_reading():
    tally = added(
        tally_of(a_reading(use=(use, 0.0), power=power)) for use, power in ((80.0, 300.0), (20.0, 100.0))
    )
    assert tally.gpu_utilisation == 25.0
    assert tally.gpu_utilisation_peak == 80.0
    assert tally.gpu_busy_seconds == 30.0  # of 120 GPU-seconds
    assert tally.gpu_seconds == 120
    assert tally.power_watts == 200.0
    assert tally.memory_bytes == tally.memory_bytes_peak == 512 * MIB
    assert (tally.gpus, tally.busy_gpus) == (2, 1)


@pytest.mark.parametrize("bad", [float("nan"), -5.0, float("-inf")])
def test_a_value_that_is_none_counts_nothing(bad):
    tally = tally_of(a_reading(use=(bad,), power=bad))
    assert (tally.gpu_sum, tally.power_sum) == (0, 0)


def test_values_that_no_machine_has_are_cut():
    tally = tally_of(a_reading(cpu=2**60, memory=2**70, use=(1e9,), power=1e12))
    assert (tally.cpu_sum, tally.memory_sum, tally.gpu_sum, tally.power_sum) == (10**7, 2**40, 1000, 10**7)


@given(st.lists(readings, max_size=30), st.randoms())
def test_sums_do_not_depend_on_order_or_grouping(some, chance):
    tallies = [tally_of(reading) for reading in some]
    whole = added(tallies)
    chance.shuffle(tallies)
    groups: list[list[Tally]] = [[] for _ in range(4)]
    for tally in tallies:
        groups[chance.randrange(4)].append(tally)
    assert added(added(group) for group in groups) == whole


def test_nothing_adds_up_to_nothing():
    assert added([]) == NOTHING


@given(st.lists(readings, max_size=20), st.randoms())
def test_of_a_slot_the_newest_counts_however_often_and_late_it_comes(some, chance):
    again = [*some, *chance.choices(some, k=len(some))] if some else []
    chance.shuffle(again)
    assert {key: tally_of(reading) for key, reading in newest_of(again).items()} == {
        key: tally_of(reading) for key, reading in newest_of(some).items()
    }


marks = st.builds(
    lambda hour, more, kept_slots, kept_windows: Marks(
        windows_summed=hour * 3600,
        slots_summed=hour * 3600 + more * 300,
        slots_from=max(0, hour * 3600 + more * 300 - kept_slots * 300),
        windows_from=max(0, hour * 3600 - kept_windows * 3600),
    ),
    hour=st.integers(1, 20),
    more=st.integers(0, 23),
    kept_slots=st.integers(0, 100),
    kept_windows=st.integers(0, 20),
)


@given(marks, st.integers(0, 100_000), st.integers(0, 100_000), st.sampled_from(STEPS))
def test_each_slot_is_read_from_one_level_that_has_it(made, since, length, step):
    until = since + length
    slots: list[int] = []
    for segment in segments(made, since=since, until=until, step=step):
        assert segment.since % segment.level == 0 or segment.since == since // segment.level * segment.level
        match segment.level:
            case Level.SLOT:
                assert segment.since >= made.slots_from
            case Level.WINDOW:
                assert made.windows_from <= segment.since
                assert segment.until <= made.slots_summed
            case Level.HOUR:
                assert segment.until <= made.windows_summed
        rows = range(segment.since, segment.until, segment.level)
        slots += [slot for row in rows for slot in range(row, row + segment.level, 30)]
    assert len(slots) == len(set(slots))
    assert set(slots) >= set(range(-(-since // 30) * 30, until, 30))


def test_the_finest_level_that_is_kept_is_read():
    made = Marks(slots_summed=36_000, windows_summed=36_000, slots_from=28_800, windows_from=7200)
    assert segments(made, since=0, until=40_000, step=30) == (
        Segment(Level.HOUR, 0, 7200), Segment(Level.WINDOW, 7200, 28_800), Segment(Level.SLOT, 28_800, 40_000),
    )  # fmt: skip
    assert segments(made, since=0, until=40_000, step=300)[1:] == (
        Segment(Level.WINDOW, 7200, 36_000), Segment(Level.SLOT, 36_000, 40_000),
    )  # fmt: skip
    assert segments(made, since=0, until=40_000, step=3600) == (
        Segment(Level.HOUR, 0, 36_000), Segment(Level.SLOT, 36_000, 40_000),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first_slot", "first_hour", "now", "want"),
    [
        pytest.param(None, None, 10**6, None, id="no pods: nothing to sum up"),
        pytest.param(650, 650, 1199, None, id="a late reading may still come"),
        pytest.param(650, 650, 1200, (Level.WINDOW, Marks(slots_summed=900)), id="complete and waited for"),
        pytest.param(3000, 0, 10**6, (Level.WINDOW, Marks(slots_summed=3300)), id="empty windows are skipped"),
        pytest.param(None, 4000, 7499, None, id="an hour waits too"),
        pytest.param(None, 4000, 7500, (Level.HOUR, Marks(slots_summed=7200, windows_summed=7200)), id="an hour"),
        pytest.param(7000, 4000, 7500, (Level.WINDOW, Marks(slots_summed=7200)), id="windows before their hour"),
        pytest.param(
            10**7, 4000, 10**6, (Level.HOUR, Marks(slots_summed=7200, windows_summed=7200)), id="slots to come"
        ),
    ],
)
def test_what_is_complete_is_summed_up(first_slot, first_hour, now, want):
    assert next_step(Marks(), first_slot=first_slot, first_hour=first_hour, now=now) == want


def test_hours_are_summed_up_one_by_one():
    made = Marks(slots_summed=9000, windows_summed=7200)
    assert next_step(made, first_slot=None, first_hour=None, now=10**6) == (
        Level.HOUR, Marks(slots_summed=10_800, windows_summed=10_800)
    )  # fmt: skip


def test_marks_of_a_clock_that_ran_ahead_are_moved_back():
    ahead = Marks(slots_summed=90_000, windows_summed=86_400, slots_from=50_000, windows_from=3600)
    assert corrected(ahead, 90_000) == ahead
    assert corrected(ahead, 40_100) == Marks(
        slots_summed=39_900, windows_summed=39_600, slots_from=39_900, windows_from=3600
    )


@pytest.mark.parametrize(
    ("span", "want"),
    [
        (timedelta(minutes=5), 30),
        (timedelta(hours=2), 30),
        (timedelta(hours=10), 300),
        (timedelta(days=900), 86400),
    ],
)
def test_a_chart_has_as_many_windows_as_can_be_read(span, want):
    assert step_for(span) == want


@given(st.datetimes(min_value=TEN.replace(tzinfo=None)), st.sampled_from(STEPS))
def test_a_moment_is_in_the_window_that_begins_at_its_floor(naive, step):
    moment = naive.replace(tzinfo=TEN.tzinfo)
    start = floor(moment, step)
    assert start <= moment < start + timedelta(seconds=step)
    assert moment_of(seconds_of(start)) == start
    assert row_of(NOTHING) == (0,) * 17


def test_steps_are_multiples_of_the_level_they_are_made_from():
    for step in STEPS:
        level = max(level for level in Level if level <= step)
        assert step % level == 0
