"""What a policy would have done: GPU-hours from the suspension to the next use, at most."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from moorage.decide.idle.whatif import group_of, outcomes
from moorage.decide.usage.intervals import Interval
from moorage.decide.usage.samples import GpuReading, Point, Reading, added, tally_of
from moorage.model.idle import Policy

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
HOUR, WINDOW = timedelta(hours=1), timedelta(minutes=5)
POLICY = Policy(name="p", warn_after=2 * HOUR, suspend_after=2 * HOUR)
LAB = Interval(
    pod_uid="a",
    namespace="vision",
    pod="ws-lab",
    run="",
    attempt=1,
    owner="ada",
    node="n1",
    gpu_type="a100",
    gpus=2,
    cpu_milli=1000,
    memory_bytes=0,
    started_at=NOW - 10 * HOUR,
    ended_at=None,
    last_seen_at=NOW,
    part_of="workspace/lab",
)


def points_of(*, busy=(), missing=()):
    points = []
    for at in range(10 * 12):
        start = LAB.started_at + at * WINDOW
        hour = at / 12
        if any(first <= hour < last for first, last in missing):
            continue
        use = 90.0 if any(first <= hour < last for first, last in busy) else 0.0
        gpus = tuple(GpuReading(device=str(number), utilisation=use) for number in range(2))
        tally = added([tally_of(Reading(pod_uid="a", at=start, cpu_milli=10, gpus=gpus))] * 10)
        points.append(Point(pod_uid="a", start=start, length=WINDOW, tally=tally))
    return points


def outcome(policy=POLICY, **use):
    (row,) = outcomes([LAB], {"a": points_of(**use)}, policy, since=NOW - 10 * HOUR, now=NOW)
    return row


def test_hours_from_the_suspension_on_are_reclaimed():
    row = outcome()
    assert (row.warned_at, row.suspended_at) == (NOW - 8 * HOUR, NOW - 6 * HOUR)
    assert row.held_hours == 20.0
    assert row.idle_hours == pytest.approx(20.0, abs=0.4)
    assert row.reclaimed_hours == pytest.approx(12.0, abs=0.4)


def test_use_ends_what_would_have_been_reclaimed():
    row = outcome(busy=[(7, 8)])
    assert row.reclaimed_hours == pytest.approx(2 * 3.0, abs=0.4)


def test_time_without_readings_is_never_idle():
    row = outcome(missing=[(3, 7)])
    assert row.suspended_at is None
    assert row.measured_hours == pytest.approx(2 * 6.0, abs=0.4)


def test_a_policy_that_only_warns_reclaims_nothing():
    row = outcome(replace(POLICY, suspend_after=None))
    assert (row.warned_at, row.suspended_at, row.reclaimed_hours) == (NOW - 8 * HOUR, None, 0.0)


def test_pods_are_grouped_by_the_work_that_they_are_of():
    assert group_of(LAB) == ("workspace", "vision", "lab")
    assert group_of(replace(LAB, part_of="map/m")) == ("map", "vision", "m")
    assert group_of(replace(LAB, part_of="", workflow="w")) == ("workflow", "vision", "w")
    assert group_of(replace(LAB, part_of="", run="r")) == ("run", "vision", "r")
    assert group_of(replace(LAB, part_of="")) is None
