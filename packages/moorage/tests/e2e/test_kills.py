"""Nothing is lost, doubled or stuck while the local cluster is killed under work: the benchmark, small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from moorage_kube.testing.examples import examples

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "kills.py"


@pytest.mark.timeout(900)  # bounds a hang; the scene gives up before
@pytest.mark.parametrize(
    ("scene", "size"),
    [
        ("apiserver", ("--kills", examples("2", full="3"), "--objects", "100")),
        ("runs", ("--kills", examples("2", full="3"), "--objects", "4")),
        ("map", ("--kills", examples("2", full="6"), "--objects", examples("20", full="60"))),
        ("guests", ("--kills", examples("2", full="3"), "--objects", "8")),
        ("workspaces", ("--kills", examples("2", full="3"), "--objects", "2")),
        *examples((), full=(("mixed", ("--kills", "3", "--objects", "1")),)),
    ],
)
def test_nothing_is_lost_doubled_or_stuck(scene, size):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), scene, *size, "--minutes", "12"],
        capture_output=True,
        text=True,
        timeout=870,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost 0, doubled 0, stuck 0" in done.stdout
