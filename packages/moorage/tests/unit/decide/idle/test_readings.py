"""Windows by which idleness is judged, from what is kept of pods' use."""

from datetime import UTC, datetime, timedelta

import pytest

from moorage.decide.idle.evidence import Window
from moorage.decide.idle.readings import HeldPod, windows_of
from moorage.decide.usage.samples import GpuReading, Point, Reading, added, tally_of

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
A = HeldPod(uid="a", gpus=2, started=NOW - timedelta(hours=2))
B = HeldPod(uid="b", gpus=2, started=NOW - timedelta(hours=2))


def a_point(start, *, uid="a", slots=10, gpus=(0.0, 0.0), cpu=10, length=5 * MINUTE):
    readings = [
        Reading(
            pod_uid=uid,
            at=start,
            cpu_milli=cpu,
            gpus=tuple(GpuReading(device=str(at), utilisation=use) for at, use in enumerate(gpus)),
        )
        for _ in range(slots)
    ]
    return Point(pod_uid=uid, start=start, length=length, tally=added(tally_of(reading) for reading in readings))


START = NOW - 10 * MINUTE


@pytest.mark.parametrize(
    ("points", "pods", "gpu", "cpu"),
    [
        pytest.param([a_point(START)], [A], 0.0, 10.0, id="measured"),
        pytest.param([a_point(START, slots=8)], [A], 0.0, 10.0, id="a short gap"),
        pytest.param([a_point(START, slots=7)], [A], None, None, id="a gap of more than a quarter"),
        pytest.param([a_point(START, gpus=(0.0,))], [A], None, 10.0, id="one of two GPUs has no reading"),
        pytest.param([a_point(START, cpu=None)], [A], 0.0, None, id="no reading of the CPU"),
        pytest.param([a_point(START, gpus=(0.0, 40.0))], [A], 40.0, 10.0, id="the mean hides no GPU"),
        pytest.param([a_point(START, slots=1, gpus=(0.0, 90.0))], [A], 90.0, None, id="busy, and then a gap"),
        pytest.param([a_point(START)], [A, B], None, None, id="the other pod was not measured"),
        pytest.param(
            [a_point(START, gpus=(3.0, 0.0)), a_point(START, uid="b", gpus=(0.0,))],
            [A, B],
            None,
            20.0,
            id="the other pod was not measured, this one hardly used",
        ),
        pytest.param([a_point(START), a_point(START, uid="b", cpu=30)], [A, B], 0.0, 40.0, id="both pods"),
        pytest.param(
            [a_point(START)],
            [A, HeldPod(uid="b", gpus=2, started=NOW - 2 * MINUTE)],
            0.0,
            10.0,
            id="the other pod was not there yet",
        ),
    ],
)
def test_a_window_is_measured_where_all_pods_are(points, pods, gpu, cpu):
    assert windows_of(points, pods, now=NOW) == (
        Window(start=START, end=START + 5 * MINUTE, gpu_peak=gpu, cpu_milli=cpu),
    )


def test_a_window_that_is_not_settled_counts_only_where_it_was_busy():
    late = NOW - 5 * MINUTE
    assert windows_of([a_point(late)], [A], now=NOW) == ()
    assert windows_of([a_point(late, gpus=(80.0, 80.0))], [A], now=NOW)[-1].gpu_peak == 80.0
