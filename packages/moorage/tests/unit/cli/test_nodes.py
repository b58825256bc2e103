"""`moor nodes`, by a server over the cluster."""

from __future__ import annotations

import json

import pytest

from moorage_kube.resources import PODS
from moorage_kube.testing.clock import FakeClock
from moorage_testing.builders import a_run_pod


@pytest.fixture
def lab(moor):
    moor.clock = FakeClock()
    moor.server.serves = moor.api
    moor.node("cpu-1")
    moor.node("gpu-1", gpus=4)
    limits = {"nvidia.com/gpu": "2", "cpu": "3500m", "memory": "8Gi"}
    moor.api.put(PODS, a_run_pod("p", namespace="default", node="gpu-1", limits=limits))
    return moor


def test_the_nodes_are_listed_with_their_use(lab):
    done = lab("nodes")
    assert (done.code, done.err) == (0, "")
    assert [line.split() for line in done.out.splitlines()] == [
        ["NAME", "STATE", "GPUS", "TYPE", "CPU", "MEMORY", "RUNS", "AGE", "REASON"],
        ["cpu-1", "Ready", "-", "-", "0/16", "0/64Gi", "0", "0s", "-"],
        ["gpu-1", "Ready", "2/4", "a100", "3500m/16", "8Gi/64Gi", "1", "0s", "-"],
    ]
    assert "TAINTS" in lab("nodes", "-o", "wide").out
    assert lab("nodes", "-o", "name").out == "cpu-1\ngpu-1\n"
    assert json.loads(lab("nodes", "gpu-1", "-o", "json").out)[0]["gpusUsed"] == 2


def test_one_node_is_shown_with_its_runs(lab):
    lab("cordon", "gpu-1")
    assert lab("nodes", "gpu-1").out.splitlines() == [
        "node    gpu-1",
        "state   Cordoned (takes no new pods)",
        "age     0s",
        "GPUs    2 of 4 a100 in use",
        "CPU     3500m of 16 requested",
        "memory  8Gi of 64Gi requested",
        "pods    1",
        "",
        "Runs",
        "  default/train",
    ]


def test_an_unknown_node_is_refused_with_the_known_names(lab):
    done = lab("nodes", "gpu-9")
    assert (done.code, done.err) == (1, "error: node 'gpu-9' not found\nhint: there are: cpu-1, gpu-1\n")
