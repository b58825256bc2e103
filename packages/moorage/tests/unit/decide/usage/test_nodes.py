"""What each node offers, and what is taken of it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import asdict

from moorage.decide.usage.nodes import NodeState, view_nodes
from moorage_kube.testing import builders
from moorage_testing.builders import a_run_pod

GIB = 2**30


def a_node(name: str = "node-1", *, conditions: Any = None, spec: Any = None, **more: str) -> dict[str, Any]:
    made: Any = {"created": "2026-11-20T12:00:00Z", "cpu": "8", "memory": "32Gi", "allocatable": more}
    made |= {"conditions": conditions or [], "spec": spec, "status": {"nodeInfo": {"kubeletVersion": "v1.33.0"}}}
    return builders.a_node(name, gpu_type="a100", ready=True if conditions is None else None, **made)


def a_pod(name: str, *, node: str = "node-1", run: str = "", phase: str = "Running") -> dict[str, Any]:
    return a_run_pod(name, run=run, phase=phase, node=node, gpus=1, limits={"cpu": "500m", "memory": "1Gi"})


def test_a_node_is_shown_with_what_its_unfinished_pods_ask_for():
    pods = [
        a_pod("a", run="train"),
        a_pod("b", run="train"),
        a_pod("c"),
        a_pod("d", run="old", phase="Succeeded"),
        a_pod("e", run="elsewhere", node="node-9"),
        a_pod("f", run="waiting", node="", phase="Pending"),
    ]
    taint = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    (node,) = view_nodes([a_node(spec={"taints": [taint]}, **{"nvidia.com/gpu": "4"})], pods)
    facts = asdict(node)
    assert facts.pop("created").isoformat() == "2026-11-20T12:00:00+00:00"
    assert facts == {
        "name": "node-1",
        "state": "Ready",
        "reason": "",
        "cordoned": False,
        "gpu_type": "a100",
        "gpus": 4,
        "gpus_used": 3,
        "cpu": 8000,
        "cpu_used": 1500,
        "memory": 32 * GIB,
        "memory_used": 3 * GIB,
        "pods": 3,
        "runs": ("lab/train",),
        "taints": ("gpu=yes:NoSchedule",),
        "version": "v1.33.0",
        "instance_type": "",
        "market": "",
        "region": "",
    }


def test_nodes_are_sorted_and_a_node_without_gpus_has_no_type():
    nodes = view_nodes([a_node("b"), a_node("a", **{"nvidia.com/gpu": "1"})], [])
    assert [(node.name, node.gpu_type) for node in nodes] == [("a", "a100"), ("b", "")]


@pytest.mark.parametrize(
    ("spec", "conditions", "want"),
    [
        pytest.param({"unschedulable": True}, None, (NodeState.CORDONED, "takes no new pods"), id="cordoned"),
        pytest.param({}, [], (NodeState.NOT_READY, "its kubelet has not reported"), id="never reported"),
        pytest.param(
            {"unschedulable": True},
            [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}],
            (NodeState.NOT_READY, "NodeStatusUnknown, takes no new pods"),
            id="lost and cordoned",
        ),
        pytest.param(
            {},
            [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "True"}],
            (NodeState.READY, "DiskPressure"),
            id="short of disk",
        ),
    ],
)
def test_the_state_has_its_reason(spec, conditions, want):
    (node,) = view_nodes([a_node(spec=spec, conditions=conditions)], [])
    assert (node.state, node.reason) == want
