"""Short slices are asked for without any right, and never an error."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from moorage_kube.slices import ask_for_short_slices

ASK = "import os, moorage_kube.slices as s; {}; print(s.ask_for_short_slices(), os.nice(0))"


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own interface")
@pytest.mark.parametrize("before", ["pass", "os.nice(7)"])
def test_a_process_keeps_its_niceness_when_it_asks_for_short_slices(before: str) -> None:
    nice = os.nice(0)
    done = subprocess.run([sys.executable, "-c", ASK.format(before)], capture_output=True, text=True, check=True)
    granted, after = done.stdout.split()
    assert granted in ("True", "False")  # a sandbox may refuse the call
    assert int(after) == min(19, nice + (7 if before != "pass" else 0))


def test_on_a_machine_whose_calls_are_not_known_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "sparc64")
    assert ask_for_short_slices() is False
