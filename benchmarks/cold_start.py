"""Cold start against floors, in one run.

    python benchmarks/cold_start.py

- `moor --help` against `python -c pass`, whole processes, minimum of RUNS each, taken in turn: ratio at most 6.
- `moor up` to Ready on an empty data folder, minimum and median of UP_RUNS, in seconds: at most 3; and again on a
  folder that has been used.
Exit code 1 when a bar is missed.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 31
UP_RUNS = 5
HELP_BAR = 6.0
UP_BAR_SECONDS = 3.0


def seconds(argv: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(argv, check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> int:
    python = sys.executable
    moor = [str(Path(python).with_name("moor"))]
    floor, help_ = [], []
    for _ in range(RUNS):
        floor.append(seconds([python, "-c", "pass"]))
        help_.append(seconds([*moor, "--help"]))
    ratio = min(help_) / min(floor)
    print(f"python -c pass   min {min(floor) * 1000:6.1f} ms   median {statistics.median(floor) * 1000:6.1f} ms")
    print(f"moor --help      min {min(help_) * 1000:6.1f} ms   median {statistics.median(help_) * 1000:6.1f} ms")
    print(f"ratio of minima {ratio:.2f} (bar: at most {HELP_BAR:g})")
    fresh, again = [], []
    for _ in range(UP_RUNS):
        folder = Path(tempfile.mkdtemp(prefix="moor-"))
        try:
            up = [*moor, "up", "--data", str(folder / "d"), "--nodes", "2", "--gpus", "2", "--gpu-type", "a100"]
            fresh.append(seconds([*up, "--port", "0", "--api-port", "0"]))
            seconds([*moor, "down", "--data", str(folder / "d")])
            again.append(seconds([*moor, "up", "--data", str(folder / "d")]))
            seconds([*moor, "down", "--data", str(folder / "d")])
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    for name, found in (("moor up, new folder", fresh), ("moor up, used folder", again)):
        print(
            f"{name:21} min {min(found):.2f} s   median {statistics.median(found):.2f} s   max {max(found):.2f} s"
        )
    print(f"(bar: at most {UP_BAR_SECONDS:g} s; judged by the median on a new folder)")
    return 0 if ratio <= HELP_BAR and statistics.median(fresh) <= UP_BAR_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
