"""What a run uses, typed: measured on its processes, shown by `moor show`, `moor top` and over REST."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import Cluster
from tests.terminals import Terminal

BURN = "import time\nwhile True: sum(range(10**6)); time.sleep(0.1)"  # a fifth of a processor: other tests run too


@pytest.mark.parametrize("own_cluster", [("--nodes", "1", "--gpus", "2", "--gpu-type", "a100")], indirect=True)
def test_what_a_run_uses_is_measured_and_shown(own_cluster: Cluster) -> None:
    own_cluster.moor("run", "--name", "burn", "--gpus", "1", "--memory", "256Mi", "--", "python3", "-c", BURN)

    def measured() -> Any:
        use = json.loads(own_cluster.moor("show", "burn", "-o", "json").stdout).get("use") or {}
        pods = [pod for pod in use.get("pods", ()) if pod["total"].get("gpuPercent")]
        return pods[0] if pods else None

    pod = wait_until("the run was measured", measured)
    total = pod["total"]
    assert 0 < total["gpuPercent"] <= total["gpuPeakPercent"] <= 100  # one core for its GPU is 100 %
    assert total["cpu"] > 0
    assert total["memoryBytes"] > 2**20
    shown = own_cluster.moor("show", "burn").stdout
    assert "\nUse\n  attempt 1: " in shown
    assert {"GPU", "CPU", "memory"} <= {line.split()[0] for line in shown.splitlines() if line.startswith("    ")}
    # in a pipe the sums of the last day, as ever; on a terminal what runs now, until q
    assert own_cluster.moor("top").stdout.startswith("USER")
    environment = own_cluster.environment() | {"TERM": "xterm-256color"}
    with Terminal([sys.executable, "-m", "moorage.cli.main", "top"], env=environment, columns=160) as terminal:
        terminal.read_until("1 GPU held, used")
        terminal.read_until("default/burn")
        terminal.type("m")
        terminal.read_until("sorted by memory")
        terminal.type("q")
        assert terminal.wait() == 0
