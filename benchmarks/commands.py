"""Processor time of commands that ask the server, against a floor and against kubectl, on one cluster in one run.

    python benchmarks/commands.py [--times 15]

kubectl is compared where it is on PATH.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

BAR = 2.5  # times `kubectl get pods`
PYTHON = sys.executable
MOOR = str(Path(PYTHON).with_name("moor"))
COMMANDS = {
    "moor jobs": ["jobs"],
    "moor gpus": ["gpus"],
    "moor show": ["show", "train"],
    "moor run": ["run", "--name", "{name}", "--gpus", "0", "--", "true"],
}


def spent(command: Sequence[str], env: dict[str, str]) -> float:
    """Seconds of processor time, of the command alone. Raises CalledProcessError."""
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_utime + usage.ru_stime


def least(command: Sequence[str], env: dict[str, str], times: int) -> float:
    """Of several times; `{name}` in the command is another name each time."""
    return min(spent([word.replace("{name}", f"n{number}") for word in command], env) for number in range(times))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=15)
    times = parser.parse_args().times
    home = Path(tempfile.mkdtemp(prefix="moor-"))
    env = os.environ | {"HOME": str(home), "MOORAGE_DATA": str(home / "d")}
    try:
        up = [MOOR, "up", "--data", str(home / "d"), "--nodes", "2", "--gpus", "2", "--gpu-type", "a100"]
        subprocess.run([*up, "--port", "0", "--api-port", "0"], env=env, check=True, capture_output=True)
        subprocess.run(
            [MOOR, "run", "--name", "train", "--", "sleep", "600"], env=env, check=True, capture_output=True
        )
        floor = least([PYTHON, "-c", "pass"], env, times)
        print(f"python -c pass     {1000 * floor:6.0f} ms")
        kubectl = shutil.which("kubectl")
        theirs = env | {"KUBECONFIG": str(home / "d" / "kubeconfig")}
        peer = least([kubectl, "get", "pods"], theirs, times) if kubectl else None
        print(f"kubectl get pods   {1000 * peer:6.0f} ms" if peer else "kubectl is not on PATH: no ratio to it")
        kept = True
        for name, words in COMMANDS.items():
            found = least([MOOR, *words], env, times)
            ratio = f", {found / peer:.1f} times kubectl (bar: {BAR:g})" if peer else ""
            print(f"{name:18} {1000 * found:6.0f} ms, {found / floor:.1f} times the floor{ratio}", flush=True)
            kept = kept and (peer is None or found <= BAR * peer)
    finally:
        subprocess.run([MOOR, "down", "--data", str(home / "d")], env=env, check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
