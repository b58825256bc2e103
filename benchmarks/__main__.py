"""Run benchmarks one after the other, and end with a table of what each said last.

    python benchmarks [NAME …] [--minutes 60]

Without names all are run, which takes hours. What one prints is shown as it comes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
# what others run, and what a target of its own runs
PARTS = {
    "__main__",
    "argo_conformance",
    "asking",
    "queue_peers",
    "quick_restarts",
}
NAMES = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in PARTS)


@dataclass(frozen=True, slots=True)
class Result:
    """`last`: the last line that it printed. `code`: its exit code; None: it was stopped for its time."""

    name: str
    code: int | None
    seconds: float
    last: str


def run(name: str, minutes: float) -> Result:
    """Raises nothing for a benchmark that fails."""
    began, last, code = time.monotonic(), "", None
    command = ["timeout", "--kill-after=60", f"{minutes}m", sys.executable, "-u", str(HERE / f"{name}.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    code = process.returncode
    return Result(name, None if code == 124 else code, time.monotonic() - began, last)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME")
    parser.add_argument("--minutes", type=float, default=60, help="of one benchmark, at most")
    options = parser.parse_args()
    results = []
    for name in options.names or NAMES:
        print(f"\n== {name}", flush=True)
        results.append(run(name, options.minutes))
    print(f"\n{'benchmark':22} {'minutes':>7}  {'exit code':9}  last line")
    for result in results:
        code = "stopped" if result.code is None else result.code
        print(f"{result.name:22} {result.seconds / 60:7.1f}  {code!s:9}  {result.last}")
    return int(any(result.code != 0 for result in results))


if __name__ == "__main__":
    sys.exit(main())
