"""What a policy would have done: GPU-hours from the suspension to the next use, at most."""

from datetime import UTC, datetime, time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.decide.idle.evidence import Facts, Idle, is_idle, judge
from moorage.decide.idle.plan import Act, Observed, after_notice, plan
from moorage.decide.idle.readings import windows_of
from moorage.decide.idle.spans import spans_of
from moorage.decide.idle.states import Record
from moorage.decide.idle.whatif import Outcome, group_of, outcome_of, pasts_of
from moorage.decide.usage.intervals import Interval
from moorage.decide.usage.samples import GpuReading, Point, Reading, added, tally_of
from moorage.model.idle import Policy, QuietTimes

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


def by_windows(past, points):
    spans = spans_of(windows_of(points, past.pods, now=NOW), past.policy)
    return outcome_of(past, spans, since=NOW - 10 * HOUR, now=NOW)


def outcome(policy=POLICY, **use):
    (past,) = pasts_of([LAB], {("workspace", "vision"): policy}, now=NOW)
    return by_windows(past, points_of(**use))


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


def test_readings_never_cover_more_than_the_time_in_which_gpus_were_held():
    short = replace(LAB, started_at=NOW - timedelta(minutes=64), ended_at=NOW - timedelta(minutes=56))
    (past,) = pasts_of([short], {("workspace", "vision"): POLICY}, now=NOW)
    row = by_windows(past, points_of())
    assert row.held_hours == pytest.approx(2 * 8 / 60)
    assert row.idle_hours == row.measured_hours == row.held_hours


def test_a_policy_that_only_warns_reclaims_nothing():
    row = outcome(replace(POLICY, suspend_after=None))
    assert (row.warned_at, row.suspended_at, row.reclaimed_hours) == (NOW - 8 * HOUR, None, 0.0)


def test_pods_are_grouped_by_the_work_that_they_are_of():
    assert group_of(LAB) == ("workspace", "vision", "lab")
    assert group_of(replace(LAB, part_of="map/m")) == ("map", "vision", "m")
    assert group_of(replace(LAB, part_of="", workflow="w")) == ("workflow", "vision", "w")
    assert group_of(replace(LAB, part_of="", run="r")) == ("run", "vision", "r")
    assert group_of(replace(LAB, part_of="")) is None


def step_by_step(past, points, *, since, now):
    """The same, by a look at each window."""
    windows, policy = windows_of(points, past.pods, now=now), past.policy
    record, why = Record(), ""
    warned = suspended = None
    measured = idle = reclaimed = 0.0
    for at, window in enumerate(windows):
        there = [pod for pod in past.pods if pod.started < window.end and (pod.ended or now) > window.start]
        hours = (window.end - window.start) / HOUR * sum(pod.gpus for pod in there)
        if window.gpu_peak is None:
            record = Record()
            continue
        is_used = not is_idle(window.gpu_peak, window.cpu_milli, policy)
        if is_used and suspended is not None:
            break
        measured += hours
        if is_used:
            record = Record()
            continue
        idle += hours
        if suspended is not None:
            reclaimed += hours
            continue
        facts = Facts(
            started=past.work.started, windows=windows[max(0, at - 1) : at + 1], proven_since=record.since
        )
        verdict = judge(facts, policy, window.end)
        assert isinstance(verdict, Idle)
        step = plan(Observed(work=past.work, verdict=verdict, policy=policy, record=record, now=window.end))
        record, why = step.record, verdict.why
        if step.act in (Act.WARN, Act.REMIND):
            record, warned = after_notice(record, delivered=True), warned or window.end
        if step.act is Act.SUSPEND:
            suspended = window.end
    held = sum(
        (min(pod.ended or now, now) - max(pod.started, since)).total_seconds() / 3600 * pod.gpus
        for pod in past.pods
    )
    return Outcome(
        work=past.work, held_hours=pytest.approx(held), measured_hours=pytest.approx(measured),
        idle_hours=pytest.approx(idle), warned_at=warned, suspended_at=suspended,
        reclaimed_hours=pytest.approx(reclaimed), why=why,
    )  # fmt: skip


hours_of_policies = st.sampled_from([0.5, 1, 2, 3.25]).map(lambda hours: hours * HOUR)
policies = st.builds(
    Policy,
    name=st.just("p"),
    warn_after=hours_of_policies,
    remind_after=st.none() | hours_of_policies,
    suspend_after=st.none() | hours_of_policies,
    quiet=st.none() | st.just(QuietTimes(UTC, ((frozenset(range(7)), time(5, 10), time(7, 35)),))),
)
stretches = st.lists(st.tuples(st.integers(0, 119), st.integers(1, 50)), max_size=4).map(
    lambda pairs: [(first / 12, (first + count) / 12) for first, count in pairs]
)


@given(policies, stretches, stretches)
def test_what_is_passed_over_would_have_changed_nothing(policy, busy, missing):
    (past,) = pasts_of([LAB], {("workspace", "vision"): policy}, now=NOW)
    points = points_of(busy=busy, missing=missing)
    assert step_by_step(past, points, since=NOW - 10 * HOUR, now=NOW) == by_windows(past, points)
