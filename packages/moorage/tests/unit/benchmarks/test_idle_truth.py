"""Nothing is suspended wrongly, and nothing that must be found is missed, on traces with known truth."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[5] / "benchmarks"
NAMES = (
    "loop stalls, has checkpoints",
    "notebook left open",
    "slow, living data loader",
    "upload between epochs",
    "debugger's pause",
    "readings end, GPU works",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_ends_as_its_truth_says(monkeypatch, name):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    idle_truth = importlib.import_module("idle_truth")
    (trace,) = (trace for trace in idle_truth.TRACES if trace.name == name)
    verdict = idle_truth.play(trace, seed=0).verdict
    assert verdict == "hit" if trace.suspend == "must" else verdict in ("left alone", "false alarm")
