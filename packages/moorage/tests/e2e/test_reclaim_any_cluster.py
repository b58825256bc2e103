"""What a run uses is measured by its kubelet and priced; it is suspended, and goes on from its checkpoint."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import Cluster

pytestmark = [pytest.mark.timeout(900), pytest.mark.cluster("scheduler", "controllers", "kubelet")]

PATIENCE = 300.0  # seconds; kubelets measure every 10 to 20 s, and are asked every 30 s
PRICES = """
source: the invoice of the rack
date: 2026-11-01
currency: USD
owned:
- {name: rack, nodes: ["*"], purchase: 876000000, years: 1}
"""
TRAINS = textwrap.dedent(
    """
    import os, pathlib, signal, sys, time
    saved = pathlib.Path(os.environ["MOORAGE_CHECKPOINT_DIR"], "step")
    step = int(saved.read_text()) if saved.exists() else 0
    print("began at", step, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        sum(range(10**6))
        time.sleep(0.1)  # other tests run too
        step += 1
        saved.with_suffix(".new").write_text(str(step))
        saved.with_suffix(".new").replace(saved)
    """
)


@pytest.fixture
def name(cluster: Cluster, unique: str) -> Iterator[str]:
    """A run's name; what bears it is gone after the test."""
    yield unique
    cluster.moor("cancel", "--delete", unique, check=False)
    cluster.moor("volume", "delete", "--yes", unique, check=False)


def test_a_run_is_measured_and_priced_and_goes_on_after_it_was_suspended(
    cluster: Cluster, name: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    sheet = tmp_path / "prices.yaml"
    sheet.write_text(PRICES)
    size = ("--cpu", "200m", "--memory", "128Mi", "--checkpoint", f"{name}:64Mi")
    command = ("--", cluster.python, "train.py")
    cluster.moor("run", "--name", name, *size, *cluster.image_options, *command, cwd=tmp_path)

    def shown() -> dict[str, Any]:
        return dict(json.loads(cluster.moor("show", name, "-o", "json").stdout))

    def measured() -> Any:
        pods = (shown().get("use") or {}).get("pods", ())
        return next((pod["total"] for pod in pods if pod["total"].get("cpu")), None)

    total = wait_until("the run to be measured", measured, patience=PATIENCE)
    assert total["memoryBytes"] > 2**20
    assert "\nUse\n  attempt 1: " in cluster.moor("show", name).stdout

    answer = json.loads(
        cluster.moor("cost", "report", "--by", "run", "--since", "1h", "--prices", str(sheet), "-o", "json").stdout
    )
    rows = {row["name"].rpartition("/")[2]: Decimal(row["total"]) for row in answer["rows"]}
    assert rows[name] > 0
    assert sum(Decimal(row["total"]) for row in answer["rows"]) == Decimal(answer["total"]["total"])

    cluster.moor("suspend", name)
    wait_until("the run to be suspended", lambda: shown()["state"] == "Suspended", patience=PATIENCE)
    assert cluster.moor("resume", name).stdout.startswith(f"{name} resumes from its checkpoint")

    def begun() -> list[int]:
        lines = cluster.moor("logs", name, "--no-prefix", check=False).stdout.splitlines()
        return [int(line.rpartition(" ")[2]) for line in lines if line.startswith("began at")]

    wait_until("the run to go on", lambda: len(begun()) > 1, patience=PATIENCE)
    assert begun()[0] == 0
    assert begun()[1] > 0
