"""Nodes and hosts of tenants at admission."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.decide.tenancy import inject, judge_ingress, judge_pod

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


@pytest.mark.parametrize("tolerations", [[], [MINE], [{"key": "nvidia.com/gpu", "operator": "Exists"}]])
def test_ones_own_nodes_and_other_taints_are_free(tolerations: Any) -> None:
    other = {"metadata": {"name": "b"}, "spec": {"namespace": "b", "cpuNodes": {"selector": {"pool": "b"}}}}
    assert not judge_pod(a_pod(tolerations=tolerations), LAB, [LAB, other])


def with_domain(name: str, domain: str, **more: str) -> Any:
    return {"metadata": {"name": name}, "spec": {"namespace": name, "ingress": {"domain": domain} | more}}


A, B = with_domain("a", "a.example.org", className="a"), with_domain("b", "b.example.org")


def an_ingress(*hosts: str, tls: tuple[str, ...] = (), cls: str | None = None, **spec: Any) -> Any:
    rules = [{"host": host} if host else {} for host in hosts]
    return {"spec": {"rules": rules, "tls": [{"hosts": list(tls)}], "ingressClassName": cls} | spec}


@pytest.mark.parametrize(
    ("ingress", "tenant", "is_good"),
    [
        (an_ingress("a.example.org", "x.a.example.org", "*.a.example.org", cls="a"), A, True),
        (an_ingress("x.A.Example.org.", cls="a"), A, True),
        (an_ingress("x.a.example.org", cls="nginx"), A, False),
        (an_ingress("x.a.example.org"), A, False),
        (an_ingress("evil-a.example.org", cls="a"), A, False),
        (an_ingress("b.example.org", cls="a"), A, False),
        (an_ingress("x.a.example.org", tls=("b.example.org",), cls="a"), A, False),
        (an_ingress("", cls="a"), A, False),
        (an_ingress(cls="a", defaultBackend={"service": {}}), A, False),
        (an_ingress("x.b.example.org"), None, False),
        (an_ingress("*.b.example.org"), OPS, False),
        (an_ingress(""), OPS, False),
        (an_ingress("other.example.org"), OPS, True),
    ],
)
def test_hosts_are_their_teams(ingress: Any, tenant: Any, is_good: bool) -> None:
    assert (judge_ingress(ingress, tenant, [A, B, OPS]) == ()) is is_good


def test_where_nobody_has_a_domain_hosts_are_free() -> None:
    assert judge_ingress(an_ingress("", "x.example.org"), OPS, [OPS, LAB]) == ()
