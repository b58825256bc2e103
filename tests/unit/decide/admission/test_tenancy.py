"""Nodes of tenants at admission."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.decide.admission.tenancy import inject, judge_pod

LAB = {"metadata": {"name": "lab"}, "spec": {"namespace": "lab", "cpuNodes": {"selector": {"pool": "lab"}}}}
OPS = {"metadata": {"name": "ops"}, "spec": {"namespace": "ops"}}
OTHER = {"metadata": {"name": "b"}, "spec": {"namespace": "b", "cpuNodes": {"selector": {"pool": "b"}}}}
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


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeName": "cpu-1"},
        {"tolerations": [{"operator": "Exists"}]},
        {"tolerations": [{"operator": "Exists", "effect": "NoSchedule"}]},
        {"tolerations": [{"key": "moorage.dev/tenant", "operator": "Exists"}]},
        {"tolerations": [{"key": "moorage.dev/tenant", "value": "lab"}]},
    ],
    ids=str,
)
@pytest.mark.parametrize("tenant", [OPS, None])
def test_no_way_leads_onto_another_teams_nodes(spec: Any, tenant: Any) -> None:
    assert judge_pod(a_pod(**spec), tenant, [LAB, OPS])
    assert not judge_pod(a_pod(**spec), tenant, [OPS]), "nobody has nodes of their own: nothing is forbidden"


def test_a_toleration_added_later_leads_there_neither() -> None:
    """A pod that waits, by a gate of its owner's, may get tolerations as long as it has no node."""
    whole, gated = {"operator": "Exists"}, a_pod(schedulingGates=[{"name": "mine.example.org/wait"}])
    (refusal,) = judge_pod(a_pod(tolerations=[MINE, whole]), LAB, [LAB, OTHER], old=gated)
    assert refusal.field == "spec.tolerations[1]"
    assert not judge_pod(a_pod(tolerations=[MINE]), LAB, [LAB, OTHER], old=gated)
    stored = a_pod(tolerations=[whole], nodeName="n")  # of a DaemonSet, or older than the tenant
    assert not judge_pod(a_pod(tolerations=[whole], nodeName="n"), LAB, [LAB, OTHER], old=stored)


@pytest.mark.parametrize("tolerations", [[], [MINE], [{"key": "nvidia.com/gpu", "operator": "Exists"}]])
def test_ones_own_nodes_and_other_taints_are_free(tolerations: Any) -> None:
    assert not judge_pod(a_pod(tolerations=tolerations), LAB, [LAB, OTHER])
