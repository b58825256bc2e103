"""The CPU time and memory of pods, by their processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from moorage_kube.testing.clock import FakeClock
from moorage_local.nodeagent.podstats import PodStat, PodStats, use_of_processes
from moorage_local.nodeagent.shim.processes import UID_MARK

pytestmark = pytest.mark.anyio
SECOND = 1_000_000_000


def looked(stats: PodStats, clock: FakeClock, seconds: float, **cpu: float) -> dict[str, PodStat]:
    clock.advance(seconds)
    stats._take({uid: (round(used * SECOND), 5) for uid, used in cpu.items()}, clock.monotonic())
    return stats._stats


def test_a_rate_is_made_of_two_looks():
    clock = FakeClock()
    stats = PodStats(clock)
    assert looked(stats, clock, 0, u1=3.0)["u1"].nano_cores is None
    assert looked(stats, clock, 30, u1=18.0)["u1"].nano_cores == SECOND // 2
    assert looked(stats, clock, 5, u1=23.0)["u1"].nano_cores == SECOND // 2  # too soon for another
    assert looked(stats, clock, 5, u1=28.0)["u1"].nano_cores == SECOND


def test_the_counter_never_goes_back():
    clock = FakeClock()
    stats = PodStats(clock)
    looked(stats, clock, 0, u1=10.0)
    looked(stats, clock, 10, u1=14.0)
    stat = looked(stats, clock, 10, u1=1.0)["u1"]  # a process ended that nobody waited for
    assert (stat.cpu_nanoseconds, stat.nano_cores) == (14 * SECOND, 0)
    assert looked(stats, clock, 10, u1=2.0)["u1"].cpu_nanoseconds == 15 * SECOND
    assert looked(stats, clock, 10) == {}


@pytest.mark.processes
def test_a_pods_processes_are_those_with_its_mark():
    code = "import sys\nsum(range(10**7)); x = bytearray(30_000_000)\nprint(1, flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {UID_MARK: "uid-of-test"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        use = use_of_processes(frozenset({"uid-of-test", "other"}))
        process.communicate()
    assert use["other"] == (0, 0)
    nanoseconds, memory = use["uid-of-test"]
    assert nanoseconds > 0
    assert 30_000_000 < memory < 300_000_000
