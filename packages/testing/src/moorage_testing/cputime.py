"""Texts that once blocked a process for long: each must be refused or read at once."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Mapping
from textwrap import dedent

PRELUDE = """
from moorage_kube.errors import MoorageError
def refused(call):
    try:
        call()
    except MoorageError:
        pass
"""
CPU_SECONDS = 40  # all of them together take some 3


def run_all(bodies: Mapping[str, str]) -> None:
    """Run these programs one after the other in one process with CPU_SECONDS of CPU time.

    They may call `refused`.
    """
    script = PRELUDE + "".join(f"print({name!r}, flush=True)\n{dedent(body)}\n" for name, body in bodies.items())
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS)),
    )
    assert (ended.returncode, ended.stdout.splitlines(), ended.stderr) == (0, list(bodies), "")
