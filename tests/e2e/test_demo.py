"""`make demo`, as its target types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from moorage.testing.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.mark.xdist_group("demo")
@pytest.mark.timeout(900)
def test_the_demo_ends_well_and_leaves_the_platform_running(tmp_path):
    data = tmp_path / "d"

    def moor(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "moorage.cli.main", *args, "--data", str(data)],
            capture_output=True,
            text=True,
            check=False,
        )

    done = subprocess.run(
        [sys.executable, "examples/digits/demo.py", "--data", str(data), "--port", "0", "--api-port", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        assert "resumed from the checkpoint after epoch" in done.stdout
        assert "The platform is still running" in done.stdout
        status = json.loads(moor("status", "-o", "json").stdout)
        assert status["page"] in done.stdout
    finally:
        assert moor("down").returncode == 0
    wait_until("the platform to be gone", lambda: moor("status").returncode == 1)
