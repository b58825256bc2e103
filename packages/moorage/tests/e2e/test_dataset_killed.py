"""A dataset whose filler is killed again and again, then read by pods on every node: the benchmark, small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "dataset_fill.py"


def test_a_dataset_survives_the_kills_of_its_filler_and_every_checksum_is_right_on_every_node(tmp_path):
    size = ["--files", "200", "--bytes", "4e7", "--kills", "2", "--pods", "6", "--nodes", "3"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *size, "--work", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "filler killed 2 times" in done.stdout
    assert "0 wrong; of the whole: True" in done.stdout
    assert "writing was refused in 6 of 6 pods" in done.stdout
