from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.decide.usage.intervals import (
    By,
    Close,
    Open,
    Reopen,
    UsageRow,
    clipped,
    end_of_deleted,
    next_step,
    stepped,
    top,
    use_of,
)
from moorage.model.argo import WORKFLOW_LABEL
from moorage_testing import builders
from moorage_testing.builders import a_run_pod

TEN = datetime(2026, 1, 5, 10, tzinfo=UTC)
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def a_pod(*, start="2026-01-05T10:00:00Z", run="train", finished=(), deleted=None, **more):
    statuses = [{"state": {"terminated": {"finishedAt": end}} if end else {"running": {}}} for end in finished]
    made = {"attempt": 2 if run else None, "uid": "u1", "user": "ada", "deleting": deleted, "gpus": "1"}
    made["limits"] = {"cpu": "2", "memory": "1Gi"}
    return a_run_pod(run=run, started=start, node="n1", statuses=statuses, **made | more)


def an_interval(uid="u1", *, start=TEN, seen=None, kind="a100", gpus=1, **more):
    made = {"attempt": 2, "cpu_milli": 2000, "last_seen_at": seen or NOON, "gpu_type": kind, "gpus": gpus}
    return builders.an_interval(uid, start, gpu_counts=(("nvidia.com/gpu", gpus),) if gpus else (), **made | more)


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        pytest.param(a_pod(), an_interval(), id="running"),
        pytest.param(a_pod(phase="Pending"), None, id="still starting: not opened yet"),
        pytest.param(a_pod(start=None), None, id="not accepted by its node"),
        pytest.param(
            a_pod(gpus="", run=""),
            replace(an_interval(gpus=0, kind="", run=""), attempt=1),
            id="it costs money only",
        ),
        pytest.param(a_pod(gpus=""), an_interval(gpus=0, kind=""), id="a run without GPUs counts for cpu"),
        pytest.param(
            a_pod(phase="Succeeded", finished=["2026-01-05T11:00:00Z", "2026-01-05T11:30:00Z"]),
            an_interval(end=TEN + 1.5 * HOUR),
            id="ends with its last container",
        ),
        pytest.param(
            a_pod(phase="Failed", finished=["2026-01-05T11:00:00Z", None]),
            an_interval(end=NOON),
            id="a container that does not say when: now",
        ),
        pytest.param(
            a_pod(phase="Failed", finished=["2026-01-05T09:00:00Z"]),
            an_interval(end=TEN),
            id="never ends before it began",
        ),
    ],
)
def test_a_pod_reads_as_an_interval(pod, want):
    assert use_of(pod, {"n1": "a100"}, now=NOON) == want


@pytest.mark.parametrize(
    ("known", "seen", "want"),
    [
        (None, None, None),
        (None, an_interval(), Open(an_interval())),
        (None, an_interval(end=NOON), Open(an_interval(end=NOON))),
        (an_interval(), an_interval(), None),
        (an_interval(), an_interval(end=NOON), Close("u1", NOON)),
        (an_interval(end=NOON), an_interval(end=NOON), None),
        (an_interval(end=NOON), an_interval(), Reopen("u1")),
        (an_interval(), None, None),
    ],
)
def test_one_pod_gives_at_most_one_step_and_the_step_settles_it(known, seen, want):
    step = next_step(known, seen)
    assert step == want
    if step is not None:
        after = stepped({} if known is None else {"u1": known}, step)
        assert next_step(after["u1"], seen) is None
        assert len(after) == 1


@pytest.mark.parametrize(
    ("known", "last", "want"),
    [
        pytest.param(an_interval(end=NOON), None, None, id="closed already"),
        pytest.param(an_interval(seen=TEN + HOUR), None, Close("u1", TEN + HOUR), id="unwatched: when last seen"),
        pytest.param(an_interval(), a_pod(), Close("u1", NOON), id="watched, nothing said: now"),
        pytest.param(
            an_interval(),
            a_pod(deleted="2026-01-05T11:00:30Z"),
            Close("u1", datetime(2026, 1, 5, 11, 0, 30, tzinfo=UTC)),
            id="its deletion time is past",
        ),
        pytest.param(
            an_interval(), a_pod(deleted="2026-01-05T12:00:30Z"), Close("u1", NOON), id="gone before its grace"
        ),
        pytest.param(
            an_interval(),
            a_pod(finished=["2026-01-05T11:59:00Z"], deleted="2026-01-05T12:00:30Z"),
            Close("u1", NOON - timedelta(minutes=1)),
            id="its container said when",
        ),
    ],
)
def test_a_deleted_pod_is_closed_at_the_best_known_time(known, last, want):
    assert end_of_deleted(known, last, now=NOON) == want


def test_top_sums_by_user_run_and_type_with_the_largest_first():
    rows = [
        an_interval("u1", end=TEN + HOUR, gpus=2),
        an_interval("u2", owner="bob", run="", kind="h100", gpus=4),
        an_interval("u3", gpus=0, kind=""),
    ]
    window = {"since": TEN, "until": NOON, "now": NOON}
    assert [(row.name, row.gpu_hours, row.running_gpus) for row in top(rows, by=By.USER, **window)] == [
        ("bob", 8.0, 4),
        ("ada", 2.0, 0),
    ]
    assert [row.name for row in top(rows, by=By.RUN, **window)] == ["lab/train-x", "lab/train"]
    assert [row.name for row in top(rows, by=By.TYPE, **window)] == ["h100", "a100", "cpu"]
    ada = top(rows, by=By.USER, **window)[1]
    assert (ada.cpu_hours, ada.memory_gib_hours, ada.pods) == (6.0, 3.0, 2)


def test_steps_count_for_their_owner_and_are_summed_up_by_workflow_and_namespace():
    step = a_pod(gpus="", run="")
    step["metadata"]["labels"] = {WORKFLOW_LABEL: "nightly"}
    cpu = use_of(step, {"n1": "a100"}, now=NOON)
    assert cpu == replace(an_interval(gpus=0, kind="", run=""), attempt=1, workflow="nightly")
    rows = [
        replace(an_interval("s1", run=""), workflow="nightly"),
        replace(an_interval("s2", run="", gpus=3), workflow="nightly"),
        an_interval("r1"),
    ]
    window = {"since": TEN, "until": NOON, "now": NOON}
    hours = {
        by: [(row.name, row.gpu_hours) for row in top(rows, by=by, **window)]
        for by in (By.WORKFLOW, By.NAMESPACE, By.USER)
    }
    assert hours == {
        By.WORKFLOW: [("lab/nightly", 8.0), ("-", 2.0)],
        By.NAMESPACE: [("lab", 10.0)],
        By.USER: [("ada", 10.0)],
    }


def test_top_by_gpu_names_each_device_with_its_user_and_leaves_out_what_holds_none():
    rows = [
        an_interval("u1", end=TEN + HOUR, gpus=2, devices=("GPU-n1-0", "GPU-n1-1")),
        an_interval("u2", start=TEN + HOUR, owner="bob", devices=("GPU-n1-1",)),
        an_interval("u3", owner="eve", devices=("GPU-9b1c",)),
        an_interval("u4", owner="eve", gpus=3),
        an_interval("u5", gpus=0, kind=""),
    ]
    found = top(rows, by=By.GPU, since=TEN, until=NOON, now=NOON)
    assert {(row.name, row.gpu_hours, row.cpu_hours) for row in found} == {
        ("n1/0 ada", 1.0, 2.0),
        ("n1/1 ada", 1.0, 0.0),
        ("n1/1 bob", 1.0, 2.0),
        ("n1/GPU-9b1c eve", 2.0, 4.0),
        ("n1/? eve", 6.0, 4.0),
    }


def test_an_open_interval_counts_to_now_and_not_beyond():
    rows = top([an_interval()], since=TEN, until=NOON + 10 * HOUR, by=By.USER, now=NOON)
    assert rows[0].gpu_hours == 2.0


def test_what_lies_outside_the_window_is_not_named():
    assert top([an_interval(end=TEN + HOUR)], since=TEN + HOUR, until=NOON, by=By.USER, now=NOON) == ()


minutes = st.integers(0, 600)
intervals = st.lists(
    st.builds(
        lambda at, start, length, is_open, gpus, owner: an_interval(
            f"u{at}",
            start=TEN + timedelta(minutes=start),
            end=None if is_open else TEN + timedelta(minutes=start + length),
            gpus=gpus,
            owner=owner,
        ),
        st.integers(0, 99),
        minutes,
        minutes,
        st.booleans(),
        st.integers(0, 8),
        st.sampled_from(["ada", "bob", "eve"]),
    ),
    max_size=12,
)


@given(intervals, minutes, minutes, minutes, minutes, st.sampled_from(list(By)))
def test_windows_that_meet_sum_to_the_window_over_both(rows, one, two, three, now_at, by):
    first, middle, last = (TEN + timedelta(minutes=at) for at in sorted((one, two, three)))
    now = TEN + timedelta(minutes=now_at)

    def sums(since, until) -> dict[str, tuple[timedelta, timedelta, int]]:
        return {
            row.name: (row.gpu_time, row.cpu_milli_time, row.memory_byte_us)
            for row in top(rows, since=since, until=until, by=by, now=now)
        }

    none = (timedelta(), timedelta(), 0)
    left, right, both = sums(first, middle), sums(middle, last), sums(first, last)
    assert both == {
        name: tuple(a + b for a, b in zip(left.get(name, none), right.get(name, none), strict=True))
        for name in left | right
    }


@given(intervals, minutes, minutes)
def test_every_way_of_dividing_gives_the_same_total(rows, one, two):
    since, until = (TEN + timedelta(minutes=at) for at in sorted((one, two)))
    totals = {
        sum((row.gpu_time for row in top(rows, since=since, until=until, by=by, now=NOON)), timedelta())
        for by in By
    }
    assert len(totals) == 1
    assert totals == {
        sum((clipped(row, since=since, until=min(until, NOON)) * row.gpus for row in rows), timedelta())
    }


def test_a_row_speaks_in_hours():
    row = UsageRow(name="ada", gpu_time=3 * HOUR, cpu_milli_time=1500 * HOUR, memory_byte_us=2**31 * 3_600_000_000)
    assert (row.gpu_hours, row.cpu_hours, row.memory_gib_hours) == (3.0, 1.5, 2.0)
