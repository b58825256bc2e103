"""`moor cost`, typed: prices are installed, runs run, and every coin of the nodes is somebody's or idle."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from moorage_kube.testing import waiting
from moorage_testing.cluster import Cluster, find_kubectl

PRICES = """
source: the invoice of the rack
date: 2026-11-01
currency: USD
owned:
- {name: rack, nodes: ["node-*"], purchase: 876000000, years: 1}
"""  # 100,000 an hour: seconds count
PODS = """
source: a price list
date: 2026-11-01
currency: USD
pods:
- {cpu: 1000, memory: 100, gpus: {a100: 50000}}
"""


@pytest.mark.parametrize("own_cluster", [("--nodes", "2", "--gpus", "2", "--gpu-type", "a100")], indirect=True)
def test_prices_a_report_and_a_comparison(own_cluster: Cluster, tmp_path: Path) -> None:
    moor = own_cluster.moor
    none = moor("cost", "report", check=False)
    assert (none.returncode, "prices are not installed" in none.stderr) == (1, True)
    sheet, pods = tmp_path / "prices.yaml", tmp_path / "pods.yaml"
    sheet.write_text(PRICES)
    pods.write_text(PODS)
    assert (
        "valid: USD by the invoice of the rack of 2026-11-01"
        in moor("cost", "prices", str(sheet), "--dry-run").stderr
    )
    assert moor("cost", "report", check=False).returncode == 1  # nothing was installed
    moor("cost", "prices", str(sheet))
    assert moor("cost", "prices").stdout.strip() == PRICES.strip()
    run = ("run", "--name", "train", "--gpus", "1", "--cpu", "100m", "--memory", "64Mi", "--follow")
    moor(*run, "--", sys.executable, "-c", "import time; time.sleep(3)")
    answer = waiting.read_until(
        lambda: json.loads(moor("cost", "report", "--by", "run", "-o", "json").stdout),
        lambda answer: "default/train" in {row["name"] for row in answer["rows"]},
    )
    rows = {row["name"]: Decimal(row["total"]) for row in answer["rows"]}
    assert rows["default/train"] > 0
    assert rows["(idle)"] > rows["default/train"]
    assert sum(rows.values()) == Decimal(answer["total"]["total"])
    assert answer["prices"] == {"source": "the invoice of the rack", "date": "2026-11-01", "currency": "USD"}
    until = answer["until"]
    text = moor("cost", "report", "--by", "node", "--until", until, "-o", "csv").stdout
    table = {row["name"]: Decimal(row["total"]) for row in csv.DictReader(io.StringIO(text))}
    assert set(table) == {"node-1", "node-2", "total"}
    assert table["node-1"] + table["node-2"] == table["total"]
    shown = moor("cost", "report")
    assert "USD by the invoice of the rack of 2026-11-01" in shown.stderr
    assert shown.stdout.split()[:5] == ["USER", "TOTAL", "ALLOCATED", "USED", "UNUSED"]
    compared = moor("cost", "compare", "--pod-billing", str(pods), "--sample", "default/train", "--times", "30")
    assert "a month of 30 days" in compared.stdout
    assert "default/train" in compared.stdout
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("owned: [{name: a, purchase: 1, years: 0}]")
    refused = moor("cost", "report", "--prices", str(wrong), check=False)
    assert (refused.returncode, "owned[0].years is 0" in refused.stderr) == (2, True)


BUDGET = """
apiVersion: moorage.dev/v1alpha1
kind: Budget
metadata: {name: tiny}
spec: {users: ["*"], period: month, gpuHours: "0.0001", whenOver: queue}
"""


A_POD = """
apiVersion: v1
kind: Pod
metadata: {name: one, labels: {app: one}}
spec:
  restartPolicy: Never
  containers:
    - {name: main, image: localhost/host, command: ["true"],
       resources: {limits: {nvidia.com/gpu: 1, memory: 64Mi, cpu: 100m}}}
"""
A_SERVICE = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: serve}
spec:
  selector: {matchLabels: {app: serve}}
  template:
    metadata: {labels: {app: serve}}
    spec:
      containers:
        - {name: main, image: localhost/host, command: [sleep, "600"],
           resources: {limits: {nvidia.com/gpu: 1, memory: 64Mi, cpu: 100m}}}
"""


@pytest.mark.parametrize("own_cluster", [("--nodes", "1", "--gpus", "2", "--gpu-type", "a100")], indirect=True)
def test_a_budget_that_is_used_up_puts_new_work_behind_then_refuses_it(own_cluster: Cluster) -> None:
    """Use is computed every minute, so this takes one."""
    moor, kubectl = own_cluster.moor, find_kubectl()
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    environment = os.environ | {"KUBECONFIG": str(own_cluster.kubeconfig)}

    def type_kubectl(*words: str, stdin: str = "") -> str:
        done = subprocess.run(
            [kubectl, *words], input=stdin, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    run = ("run", "--gpus", "1", "--cpu", "100m", "--memory", "64Mi")
    work = ("--", sys.executable, "-c", "import time; time.sleep(1)")
    type_kubectl("apply", "-f", "-", stdin=BUDGET)
    moor(*run, "--name", "first", "--follow", *work)

    def is_used_up() -> bool:
        rows = json.loads(moor("budget", "list", "-o", "json").stdout)
        return any(row["percent"] >= 100 for row in rows)

    waiting.read_until(is_used_up, bool)
    assert "budget tiny of " in moor("whoami").stderr
    assert "budget tiny" in moor(*run, "--name", "second", *work).stderr
    path = "{.spec.template.spec.priorityClassName}"
    assert type_kubectl("get", "job", "second", "-o", f"jsonpath={path}") == "moorage-over-budget"
    type_kubectl("apply", "-f", "-", stdin=A_SERVICE)
    type_kubectl("apply", "-f", "-", stdin=A_POD)
    pods = "jsonpath={range .items[*]}{.spec.priorityClassName} {.spec.priority} {.spec.preemptionPolicy},{end}"
    for selector in ("app=one", "app=serve"):
        waiting.read_until(
            lambda which=selector: type_kubectl("get", "pods", "-l", which, "-o", pods),
            "moorage-over-budget -5 Never,".__eq__,
        )
    type_kubectl("delete", "deployment/serve", "pod/one", "--wait=false")
    type_kubectl("patch", "budget", "tiny", "--type", "merge", "-p", '{"spec":{"whenOver":"refuse"}}')

    def is_refused() -> bool:
        done = moor(*run, *work, "--dry-run", check=False)
        return done.returncode == 1 and "new work is refused" in done.stderr

    waiting.read_until(is_refused, bool)
    moor("run", "--name", "without", "--cpu", "100m", "--memory", "64Mi", "--follow", *work)  # it asks for no GPU
    assert "tiny: 0.0001 GPU-hours in a month; when it is used up: refuse" in moor("budget", "show", "tiny").stdout
