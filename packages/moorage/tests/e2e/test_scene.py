"""Seed 003's scene as typed: two nodes of two GPUs; jobs of one, one, then two GPUs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import Cluster

NODES = ("--nodes", "2", "--gpus", "2", "--gpu-type", "a100")


def play(cluster: Cluster) -> None:
    """Submit the three jobs, each once the one before it runs; they work until they are told to stop."""
    for name, gpus in (("one", 1), ("two", 1), ("three", 2)):
        cluster.moor(
            "run", "--name", name, "--gpus", str(gpus), "--cpu", "1", "--memory", "128Mi",
            "--", "python3", "-c", "import signal; signal.pause()",
        )  # fmt: skip
        if name != "three":
            wait_until(f"{name} to run", lambda name=name: show(cluster, name)["state"] == "Running")


def show(cluster: Cluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.moor("show", name, "-o", "json").stdout)
    return found


@pytest.mark.xdist_group("scene")
@pytest.mark.parametrize("own_cluster", [NODES], indirect=True, ids=["with the extender"])
def test_with_the_extender_all_three_run(own_cluster):
    play(own_cluster)
    wait_until("three to run", lambda: show(own_cluster, "three")["state"] == "Running")
    nodes = {name: show(own_cluster, name)["node"] for name in ("one", "two", "three")}
    assert nodes["one"] == nodes["two"] != nodes["three"]


@pytest.mark.xdist_group("scene")
@pytest.mark.parametrize("own_cluster", [(*NODES, "--no-extender")], indirect=True, ids=["without"])
def test_without_the_extender_the_third_waits_and_is_told_why(own_cluster):
    play(own_cluster)

    def explained() -> str | None:
        text = own_cluster.moor("explain", "three", check=False).stdout
        return text if "Insufficient nvidia.com/gpu" in text else None

    text = wait_until("the scheduler's verdict", explained)
    assert show(own_cluster, "three")["state"] == "Waiting"
    assert "needs 2 GPUs" in text
    assert "in total 2" in text
    for holder in ("one", "two"):
        assert holder in text
