"""`moor rightsize`, and the advice of `moor run` and `moor show`, as typed: of runs that are killed for memory."""

from __future__ import annotations

import json
import sys
from functools import partial

import pytest

from moorage_kube.quantity import parse_quantity
from moorage_kube.testing import waiting
from moorage_testing.cluster import Cluster

pytestmark = pytest.mark.cluster("scheduler", "controllers", "kubelet")

until = partial(waiting.read_until, patience=180.0)  # seconds; only bounds a hang
GROW = "data = b'x' * (400 << 20); import time; time.sleep(600)"


def advice_of(cluster: Cluster, name: str) -> list[tuple[str, str]]:
    listed = json.loads(cluster.moor("rightsize", name, "-o", "json").stdout)
    return [(advice["kind"], advice["option"]) for work in listed for advice in work["advice"]]


def test_a_run_that_was_killed_for_memory_advises_more_before_the_next_one_is_submitted(cluster, unique):
    first, second, third = (f"{unique}-{word}" for word in ("one", "two", "three"))
    command = ("--cpu", "100m", *cluster.image_options, "--", sys.executable, "-c", GROW)

    assert cluster.moor("rightsize", first).stderr.startswith("no advice")
    submitted = cluster.moor("run", "--name", first, "--memory", "128Mi", *command)
    assert "past runs" not in submitted.stderr
    assert cluster.moor("wait", first, check=False).returncode == 1
    ((kind, option),) = until(lambda: advice_of(cluster, first), bool)
    assert kind == "raise-memory-killed"
    advised = option.removeprefix("--memory ")
    assert parse_quantity(advised) >= parse_quantity("192Mi")  # more if it had grown further when it was killed

    why = f"memory 128Mi → {advised}: 1 run killed for memory at 128Mi"
    assert "Advice, by past runs of the same command\n  " + why in cluster.moor("show", first).stdout
    table = cluster.moor("rightsize").stdout
    assert first in table
    assert "1 run killed for memory at 128Mi" in table

    # the next of the same command: a remark, and it is submitted all the same
    again = cluster.moor("run", "--name", second, "--memory", "128Mi", *command)
    assert again.stdout == f"{second}\n"
    assert f"note: past runs of this command advise {why}; to follow it: {option}" in again.stderr
    quiet = cluster.moor("run", "--name", third, "--memory", "128Mi", *command, env={"MOORAGE_ADVICE": "off"})
    assert "past runs" not in quiet.stderr
    # with more memory than it was killed at there is nothing to say, and another command is other work
    enough = cluster.moor("run", "--dry-run", "--name", f"{unique}-a", "--memory", "1Gi", *command)
    other = cluster.moor("run", "--dry-run", "--name", f"{unique}-b", "--memory", "128Mi", "--", "true")
    assert "past runs" not in enough.stderr + other.stderr
    cluster.moor("cancel", second, third)
