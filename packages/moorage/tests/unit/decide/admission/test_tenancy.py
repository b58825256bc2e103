"""Nodes of tenants at admission."""

from __future__ import annotations

from typing import Any

from moorage.decide.admission.tenancy import inject

LAB = {"metadata": {"name": "lab"}, "spec": {"namespace": "lab", "cpuNodes": {"selector": {"pool": "lab"}}}}
OPS = {"metadata": {"name": "ops"}, "spec": {"namespace": "ops"}}
MINE = {"key": "moorage.dev/tenant", "operator": "Equal", "value": "lab", "effect": "NoSchedule"}


def a_pod(*, gpus: int = 0, **spec: Any) -> Any:
    limits = {"cpu": "1"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {
        "metadata": {"name": "x"},
        "spec": {"containers": [{"name": "m", "resources": {"limits": limits}}]} | spec,
    }


def test_a_pod_without_gpus_is_sent_to_its_teams_nodes_and_one_with_gpus_is_not() -> None:
    had = {"key": "x", "operator": "Exists"}
    assert inject(a_pod(nodeSelector={"disk": "ssd"}, tolerations=[had]), LAB) == (
        {"op": "add", "path": "/spec/nodeSelector", "value": {"disk": "ssd", "pool": "lab"}},
        {"op": "add", "path": "/spec/tolerations", "value": [had, MINE]},
    )
    assert inject(a_pod(nodeSelector={"pool": "lab"}, tolerations=[MINE]), LAB) == ()  # twice changes nothing
    assert inject(a_pod(gpus=1), LAB) == ()
    assert inject(a_pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}]), LAB) == ()
    assert inject(a_pod(), OPS) == ()
    assert inject(a_pod(), None) == ()
