from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.usage.held import held_over
from moorage.decide.usage.intervals import By, top
from moorage_kube.testing.clock import NOON
from moorage_testing import builders

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def an_interval(start, end, gpus=1):
    """`start` and `end` in minutes after noon; without an end it is open."""
    began, ended = NOON + start * MINUTE, None if end is None else NOON + end * MINUTE
    seen = {"cpu_milli": 0, "memory_bytes": 0, "last_seen_at": NOON}
    return builders.an_interval(f"{start}-{end}", began, ended, gpus=gpus, **seen)


def test_the_mean_of_each_window_is_what_was_held_in_it():
    intervals = [an_interval(-30, 30, gpus=4), an_interval(60, None), an_interval(500, 600)]
    means = held_over(intervals, since=NOON, until=NOON + 4 * HOUR, step=HOUR, now=NOON + 2.5 * HOUR)
    assert means == ((NOON, 2.0), (NOON + HOUR, 1.0), (NOON + 2 * HOUR, 1.0))


@pytest.mark.parametrize("now", [NOON, NOON - HOUR])
def test_nothing_is_said_of_what_is_to_come(now):
    assert held_over([an_interval(-90, None)], since=NOON, until=NOON + HOUR, step=HOUR, now=now) == ()


spans = st.tuples(st.integers(-200, 200), st.integers(0, 300), st.integers(0, 8))


@given(st.lists(spans), st.integers(1, 90), st.integers(1, 400), st.integers(-100, 400))
def test_windows_times_means_are_the_gpu_hours_of_the_report(rows, step, length, now):
    intervals = [an_interval(start, start + took, gpus) for start, took, gpus in rows]
    until, moment = NOON + length * MINUTE, NOON + now * MINUTE
    means = held_over(intervals, since=NOON, until=until, step=step * MINUTE, now=moment)
    total = sum(mean * ((min(until, moment, begin + step * MINUTE) - begin) / HOUR) for begin, mean in means)
    report = top(intervals, since=NOON, until=until, by=By.TYPE, now=moment)
    assert total == pytest.approx(sum(row.gpu_hours for row in report))
