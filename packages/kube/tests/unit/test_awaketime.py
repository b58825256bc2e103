"""Time awake and time slept, told apart by the gaps between looks at two clocks."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.awaketime import HELD_SECONDS, LOOK_SECONDS, AwakeTime
from moorage_kube.testing.clock import FakeClock


def watched(clock: FakeClock, awake: AwakeTime, seconds: int) -> None:
    for _ in range(seconds):
        clock.advance(1.0)
        awake.look()


def test_time_that_is_looked_at_counts():
    clock = FakeClock()
    awake = AwakeTime(clock)
    watched(clock, awake, 30)
    assert (awake.seconds(), awake.slept_since(clock.now() - timedelta(hours=1))) == (30.0, timedelta(0))


def test_a_process_that_was_held_did_not_listen():
    clock = FakeClock()
    awake = AwakeTime(clock)
    watched(clock, awake, 30)
    clock.advance(timedelta(hours=8))
    assert awake.seconds() == 30.0 + LOOK_SECONDS


def test_a_suspended_machine_did_not_listen_though_its_monotonic_clock_stood_still():
    clock = FakeClock()
    awake = AwakeTime(clock)
    before = clock.now()
    clock.suspend(timedelta(hours=8))
    assert awake.seconds() == LOOK_SECONDS
    assert awake.slept_since(before) == timedelta(hours=8, seconds=-LOOK_SECONDS)


def test_only_the_part_of_a_sleep_after_the_moment_counts():
    clock = FakeClock()
    awake = AwakeTime(clock)
    clock.advance(timedelta(hours=2))
    awake.look()
    woken = clock.now()
    watched(clock, awake, 60)
    assert awake.slept_since(woken - timedelta(hours=1)) == timedelta(hours=1)
    assert awake.slept_since(woken) == timedelta(0)


def test_whoever_waits_is_told_of_the_end_of_a_sleep_once():
    clock = FakeClock()
    awake = AwakeTime(clock)
    woken: list[float] = []
    awake.on_wake(lambda: woken.append(clock.monotonic()))
    watched(clock, awake, 10)
    clock.advance(600.0)
    watched(clock, awake, 10)
    assert woken == [611.0]


def test_a_wall_clock_that_is_set_back_changes_nothing():
    clock = FakeClock()
    awake = AwakeTime(clock)
    watched(clock, awake, 10)
    clock.suspend(timedelta(hours=-3))
    watched(clock, awake, 10)
    assert awake.seconds() == 20.0


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 1e6)), max_size=30))
def test_sleeps_of_any_length_make_nobody_older_than_a_look_each(steps):
    clock = FakeClock()
    awake = AwakeTime(clock)
    start, before = clock.now(), 0.0
    for suspended, seconds in steps:
        if suspended:
            clock.suspend(timedelta(seconds=seconds))
        else:
            clock.advance(seconds)
        after = awake.seconds()
        assert before <= after <= before + HELD_SECONDS
        before = after
    assert awake.slept_since(start) <= clock.now() - start
