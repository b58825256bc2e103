"""`moor show` and `moor top` of what pods use."""

from __future__ import annotations

from datetime import timedelta

import pytest

from moorage.api.use import PodNow, PodSeries, Use, UseNow, UsePoint
from moorage.cli.gpus import is_live
from moorage.cli.topscreen import SORTS, frame
from moorage.cli.use import use_lines
from moorage_kube.testing.clock import NOON

GIB = 2**30


def a_point(number: int, seconds: int = 30, **measured: float) -> UsePoint:
    start = NOON + number * timedelta(seconds=30)
    return UsePoint(start=start, seconds=seconds, measured_seconds=seconds, **measured)


def a_series(attempt: int, *points: UsePoint, pod: str = "train-x") -> PodSeries:
    measured = {"gpu_percent": 50.0, "gpu_peak_percent": 100.0, "cpu": 1.25}
    measured |= {"memory_bytes": GIB, "memory_peak_bytes": 2 * GIB}
    total = UsePoint(start=points[0].start, seconds=120, measured_seconds=90, **measured)
    return PodSeries(pod=pod, uid=f"u{attempt}", attempt=attempt, total=total, points=points)


def test_each_attempt_has_a_chart_with_its_gaps():
    points = (a_point(0, gpu_percent=0.0, cpu=0.5), a_point(1, gpu_percent=100.0, cpu=2.0), a_point(3, cpu=1.0))
    use = Use(step_seconds=30, pods=(a_series(1, *points), a_series(2, a_point(9, memory_bytes=GIB))))
    assert use_lines(use) == [
        "",
        "Use",
        "  attempt 1: 2m, 30s a column",
        "    GPU  50 %  ▁█··  peak 100 %",
        "    CPU  1.25  ▃█·▅  peak 2.00",
        "  attempt 2: 2m, 30s a column",
        "    memory  1.0 GiB  █  peak 2.0 GiB",
    ]


def test_of_many_pods_the_newest_are_shown():
    pods = tuple(a_series(number, a_point(number, cpu=1.0)) for number in range(1, 9))
    lines = use_lines(Use(step_seconds=30, pods=pods))
    assert lines[:3] == ["", "Use of the newest 6 of 8 pods", "  attempt 3: 2m, 30s a column"]


@pytest.mark.parametrize("use", [None, Use(step_seconds=30)])
def test_nothing_measured_gives_no_lines(use):
    assert use_lines(use) == []


def a_pod(name: str, **fields: object) -> PodNow:
    base = {"namespace": "lab", "pod": f"{name}-x", "uid": name, "owner": "ada", "node": "n1", "title": name}
    return PodNow(**base | {"kind": "run", "at": NOON - timedelta(seconds=12)} | fields)


GPU = {"gpu_percent": 87.4, "gpu_memory_bytes": 30 * GIB, "gpu_memory_total_bytes": 80 * GIB, "power_watts": 512.0}
TRAIN = a_pod("train", gpus=2, cpu=3.5, memory_bytes=GIB, **GPU)
IDLE = a_pod("idle", owner="bob", gpus=4, gpu_percent=0.0, cpu=0.01, memory_bytes=12 * GIB)
SMALL = a_pod("small", cpu=7.0)
NOW = UseNow(now=NOON, pods=(TRAIN, IDLE, SMALL))


def test_the_live_view_has_a_summary_and_a_row_for_each_pod():
    assert frame(NOW, sort="u", width=None, height=24).splitlines() == [
        "3 pods, 6 GPUs held, used 29 %, CPU 10.5, memory 13.0 GiB; measured 12s ago",
        "sorted by utilisation; keys: q quit, sort by g GPUs, u utilisation, c CPU, m memory, o owner",
        "OWNER   WHAT        KIND   NODE   GPUS   GPU    CPU    MEMORY     GPU-MEMORY             POWER",
        "ada     lab/train   run    n1     2      87 %   3.50   1.0 GiB    30.0 GiB of 80.0 GiB   512 W",
        "bob     lab/idle    run    n1     4      0 %    0.01   12.0 GiB   -                      -",
        "ada     lab/small   run    n1     -      -      7.00   -          -                      -",
    ]


@pytest.mark.parametrize(
    ("sort", "want"),
    [
        ("g", ["idle", "train", "small"]),
        ("c", ["small", "train", "idle"]),
        ("m", ["idle", "train", "small"]),
        ("o", ["train", "small", "idle"]),
    ],
)
def test_a_key_sorts_by_its_measure(sort, want):
    rows = frame(NOW, sort=sort, width=None, height=24).splitlines()[3:]
    assert [row.split()[1].removeprefix("lab/") for row in rows] == want
    assert set(SORTS) == set("gucmo")


def test_rows_without_room_are_counted():
    lines = frame(NOW, sort="u", width=40, height=6).splitlines()
    assert len(lines) == 5
    assert all(len(line) <= 40 for line in lines[:2])
    assert lines[-1] == "… 2 more"


def test_nothing_runs():
    assert frame(UseNow(now=NOON), sort="u", width=None, height=24).endswith("nothing that is measured runs now")


def test_scripts_get_the_sums_as_before():
    assert not is_live(once=False, chosen=False, output="table")  # no terminal
