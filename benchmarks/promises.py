"""Time the targets of make whose duration README and CONTRIBUTING promise, and write `figures.json`.

    python benchmarks/promises.py [quick demo test]

It takes as long as all of them: an hour on two cores. Nothing else should run on the machine. `figures.json` holds
the promise of each target in seconds, what it took last, and when and where. A test compares the texts with it.
Exit code 1 when a target fails or takes longer than its promise.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FIGURES = HERE / "figures.json"
DEMO = "DEMO={folder}/demo"
# with warm caches of ruff and mypy; `quick` with the most tests that it ever runs
WORDS = {"quick": ("quick", "ARGS=--most"), "demo": ("demo", DEMO), "test": ("test",)}


def make(words: list[str]) -> tuple[int, float, float]:
    """The exit code, seconds, and seconds of CPU of all its processes."""
    clean = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    code = subprocess.run(["make", *words], cwd=HERE.parent, env=clean, check=False).returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return code, time.monotonic() - began, cpu


def machine() -> str:
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, {platform.machine()}, Python {platform.python_version()}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*", metavar="TARGET", choices=[*WORDS, []])
    targets = parser.parse_args().targets or list(WORDS)
    figures: dict[str, dict[str, Any]] = json.loads(FIGURES.read_text(encoding="utf-8"))
    missed = []
    for target in targets:
        with tempfile.TemporaryDirectory(prefix="moor-", ignore_cleanup_errors=True) as folder:
            words = [word.format(folder=folder) for word in WORDS[target]]
            make(["lint", "types"])  # fills their caches
            try:
                code, seconds, cpu = make(words)
            finally:
                if target == "demo":
                    moor = Path(sys.executable).with_name("moor")
                    subprocess.run([moor, "demo", "--down", "--folder", f"{folder}/demo"], check=False)
        promised = figures[target]["promised_seconds"]
        print(f"make {target}: {seconds:.0f} s, {cpu:.0f} s of CPU; promised: {promised} s", flush=True)
        if code or seconds > promised:
            missed.append(target)
        if not code:
            measured = {"seconds": round(seconds), "cpu_seconds": round(cpu)}
            where = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": machine()}
            figures[target] |= {"measured": measured | where}
            FIGURES.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(f"missed: {', '.join(missed)}" if missed else "all within their promises")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
