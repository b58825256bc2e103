"""What a policy would have done, read by the hour: the same as from every window, in SQLite and PostgreSQL."""

from __future__ import annotations

import os
from contextlib import closing
from datetime import timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from moorage.decide.idle.readings import windows_of
from moorage.decide.idle.spans import spans_of
from moorage.decide.idle.whatif import outcome_of, pasts_of
from moorage.decide.usage.intervals import Interval
from moorage.decide.usage.samples import Limits
from moorage.model.idle import Policy
from moorage.server.idle.replay import replay
from moorage.sql.opening import is_postgres
from moorage.usage.samples import Retention, SampleStore
from moorage_kube.testing.examples import examples
from moorage_testing.postgres import new_database
from moorage_testing.readings import TEN, a_reading, at_slot

HOUR = timedelta(hours=1)
HOURS = 9
# Of an hour: percent of GPUs and thousandths of CPU in each slot; None: no reading.
KINDS = {
    "used": lambda slot: (60.0 + slot % 30, 4000),
    "idle": lambda slot: (float(slot % 3), 20 + slot % 100),
    "lazy": lambda slot: (4.9, 199),
    "CPU": lambda slot: (0.0, 900),
    "now and then": lambda slot: (30.0 if slot % 47 == 0 else 0.0, 50),
    "half": lambda slot: (80.0 if slot < 60 else 1.0, 50),
    "none": lambda slot: None,
    "gap": lambda slot: None if 30 <= slot < 55 else (70.0 if slot % 2 else 0.0, 30),
    "missing one": lambda slot: None if slot == 77 else (0.0, 10),
    "missing three": lambda slot: None if slot in (30, 31, 32) else (0.0, 10),
}
kinds = st.lists(st.sampled_from(sorted(KINDS)), min_size=HOURS, max_size=HOURS)


def a_pod(uid, run, first, last):
    return Interval(
        pod_uid=uid, namespace="lab", pod=uid, run=run, attempt=1, owner="ada", node="n1", gpu_type="a100",
        gpus=1, cpu_milli=1000, memory_bytes=0, started_at=at_slot(first),
        ended_at=None if last is None else at_slot(last), last_seen_at=TEN + HOURS * HOUR,
    )  # fmt: skip


def readings_of(pod, hours):
    end = HOURS * 120 if pod.ended_at is None else (pod.ended_at - TEN) // timedelta(seconds=30)
    for slot in range((pod.started_at - TEN) // timedelta(seconds=30), end):
        if (use := KINDS[hours[slot // 120]](slot % 120)) is not None:
            yield a_reading(pod.pod_uid, at=at_slot(slot), use=(use[0],), cpu=use[1])


def rounded(outcomes):
    return [
        {key: round(value, 6) if isinstance(value, float) else value for key, value in asdict(each).items()}
        for each in outcomes
    ]


@settings(
    max_examples=examples(12, full=100),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    st.tuples(kinds, kinds, kinds),
    st.integers(0, 300),
    st.integers(400, 1000),
    st.sampled_from(["1m", "5m", "15m", "1h"]),
    st.sampled_from([2.0, 5.0, 20.0]),
    st.integers(0, HOURS - 1),
    st.booleans(),
)
def test_hours_that_are_alike_say_what_their_windows_say(
    request, tmp_path, database, hours, first, last, window, gpu_below, since, is_forgotten
):
    pods = [a_pod("alone", "one", first, last), a_pod("left", "two", 0, None), a_pod("right", "two", first, last)]
    place = (
        new_database(request.getfixturevalue("postgres_server").url)
        if is_postgres(database)
        else tmp_path / f"{os.urandom(4).hex()}.db"
    )
    spans = {"1m": 60, "5m": 300, "15m": 900, "1h": 3600}
    policy = Policy(
        name="p", warn_after=HOUR, remind_after=HOUR, suspend_after=2 * HOUR, gpu_below=gpu_below,
        window=timedelta(seconds=spans[window]),
    )  # fmt: skip
    retention = Retention(slots=2 * HOUR, windows=5 * HOUR) if is_forgotten else Retention()
    begin, now = TEN + since * HOUR + timedelta(minutes=7), TEN + HOURS * HOUR - timedelta(minutes=20)
    pasts = pasts_of(pods, {("run", "lab"): policy}, now=now)
    with closing(SampleStore(place, retention=retention)) as store:
        for pod, kind in zip(pods, hours, strict=True):
            store.add(readings_of(pod, kind))
        store.downsample(now)
        points = store.points([pod.pod_uid for pod in pods], begin, now, spans[window])
        every = []
        for past in pasts:
            mine = [each for each in points if each.pod_uid in {pod.uid for pod in past.pods}]
            spans = spans_of(windows_of(mine, past.pods, now=now), policy)
            every.append(outcome_of(past, spans, since=begin, now=now))
        found = replay(store, pasts, since=begin, now=now)
    assert rounded(sorted(found, key=lambda each: each.work.name)) == rounded(every)


def test_whole_hours_are_told_without_their_windows(database):
    pod = a_pod("u1", "one", 0, None)
    kinds_of = ["idle", "idle", "used", "used", "used", "half", "lazy", "missing three", "used"]
    with closing(SampleStore(database)) as store:
        store.add(readings_of(pod, kinds_of))
        store.downsample(TEN + (HOURS + 1) * HOUR)
        found = store.stretches(["u1"], TEN, TEN + HOURS * HOUR, 300, Limits(gpu_percent=5.0, cpu_milli=200.0))
        left = store.points("u1", TEN, TEN + HOURS * HOUR, 300, hours={"u1": [TEN + 5 * HOUR]})
    assert sorted(((each.start - TEN) // HOUR, (each.end - TEN) // HOUR, each.is_used) for each in found) == [
        (0, 2, False), (2, 5, True), (6, 7, False), (8, 9, True),
    ]  # fmt: skip
    assert [point.start for point in left] == [at_slot(600 + 10 * number) for number in range(12)]
