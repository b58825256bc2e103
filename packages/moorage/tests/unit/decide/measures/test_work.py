"""What waits, why and for how long, as Prometheus is shown it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from moorage.decide.measures.work import (
    ITEMS,
    MAPS,
    OLDEST_WAIT,
    RUNS,
    WAITING,
    WAITING_GPUS,
    WORKERS,
    WORKSPACES,
    measure_maps,
    measure_runs,
    measure_workspaces,
    wait_reason,
)
from moorage.decide.runs.state import PodView, RunView, State
from moorage_testing import builders
from moorage_testing.builders import an_attempt

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def a_run(name: str, *pods: PodView, job: str = "Waiting", **more: Any) -> RunView:
    made: Any = {"state": State.WAITING, "gpus": 1, "gpu_type": "a100", "created": NOON - timedelta(hours=5)}
    made |= {"restart_limit": 3, "command": ""}
    attempt = an_attempt(1, name, *pods, job=name, state=job, created=NOON - timedelta(hours=1))
    return builders.a_run(name, attempts=(attempt,), **made | more)


def a_pod(message: str = "", *, reason: str = "Unschedulable", node: str = "") -> PodView:
    return PodView(name="p", attempt=1, phase="Pending", reason=reason, message=message, node=node)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        pytest.param(
            a_run("a", a_pod("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")), "gpus", id="gpus"
        ),
        pytest.param(
            a_run("a", a_pod("0/2 nodes are available: 2 Insufficient nvidia.com/mig-1g.5gb.")),
            "gpus",
            id="a slice",
        ),
        pytest.param(a_run("a", a_pod("0/2 nodes are available: 2 Insufficient memory.")), "memory", id="memory"),
        pytest.param(a_run("a", a_pod("0/2 nodes are available: 2 Insufficient cpu.")), "cpu", id="cpu"),
        pytest.param(
            a_run("a", a_pod("0/2 nodes are available: 2 node(s) had untolerated taint {x: }.")),
            "node",
            id="taint",
        ),
        pytest.param(a_run("a", a_pod(reason="SchedulingGated")), "machine", id="gated"),
        pytest.param(a_run("a", job="Suspended"), "queue", id="Kueue"),
        pytest.param(a_run("a", a_pod(reason="", node="n1")), "starting", id="placed"),
        pytest.param(a_run("a"), "pod", id="no pod"),
        pytest.param(a_run("a", state=State.RESTARTING), "restart", id="restarting"),
        pytest.param(a_run("a", a_pod(), state=State.RUNNING), "", id="runs"),
        pytest.param(a_run("a", state=State.SUCCEEDED), "", id="over"),
    ],
)
def test_why_a_run_waits_is_one_word(run, reason):
    assert wait_reason(run) == reason


def test_runs_are_counted_by_state_reason_and_tenant():
    runs = [
        a_run("a", a_pod("Insufficient nvidia.com/gpu"), gpus=2),
        a_run("b", a_pod("Insufficient nvidia.com/gpu"), gpus=1),
        a_run("c", state=State.RUNNING),
        replace(a_run("d", state=State.SUCCEEDED), namespace="default"),
    ]
    rows = measure_runs(runs, lambda namespace: "vision" * (namespace == "lab"), NOON)
    assert {row.family: row.values for row in rows} == {
        RUNS: {("Waiting", "vision"): 2, ("Running", "vision"): 1, ("Succeeded", ""): 1},
        WAITING: {("gpus", "vision"): 2},
        WAITING_GPUS: {("a100", "vision"): 3},
        OLDEST_WAIT: {("vision",): 3600.0, ("",): 0.0},
    }


def test_maps_are_summed_by_tenant():
    counts = {"ready": 4, "leased": 2, "done": 10, "dead": 1, "waiting": 0, "large": 0, "workers": 2}
    rows = measure_maps([("lab", "running", counts), ("lab", "paused", counts)], lambda _: "vision")
    assert {row.family: row.values for row in rows} == {
        MAPS: {("running", "vision"): 1, ("paused", "vision"): 1},
        ITEMS: {
            ("waiting", "vision"): 0,
            ("ready", "vision"): 8,
            ("leased", "vision"): 4,
            ("done", "vision"): 20,
            ("dead", "vision"): 2,
            ("large", "vision"): 0,
        },
        WORKERS: {("vision",): 4},
    }


def test_workspaces_are_counted_by_phase():
    workspaces = [
        {"metadata": {"namespace": "lab"}, "status": {"phase": "Running"}},
        {"metadata": {"namespace": "lab"}},
    ]
    (row,) = measure_workspaces(workspaces, lambda _: "")
    assert (row.family, row.values) == (WORKSPACES, {("Running", ""): 1, ("Waiting", ""): 1})
