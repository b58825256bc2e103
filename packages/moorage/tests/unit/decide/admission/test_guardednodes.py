"""Nodes that are kept for a tenant or for a machine group: one rule for both."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.decide.admission.order import admit, judge
from moorage.decide.admission.review import OPERATOR, Request
from moorage.model.machine import parse_machine

LAB = {"metadata": {"name": "lab"}, "spec": {"namespace": "lab", "cpuNodes": {"selector": {"pool": "lab"}}}}
OPS = {"metadata": {"name": "ops"}, "spec": {"namespace": "ops"}}
DAEMONS = "system:serviceaccount:kube-system:daemon-set-controller"
ALL = {"operator": "Exists"}


def a_pool(*, taint: bool) -> Any:
    size = {"cpu": "1", "memory": "1Gi"}
    spec = {
        "nodePool": [{"name": "n", "mode": "ready", "taint": taint, "machineType": [{"name": "small"}]}],
        "machineTypes": [{"name": "small", "spec": size, "available": 1}],
    }
    return parse_machine({"metadata": {"name": "gpu"}, "spec": spec})


def a_pod(*, labels: Any = None, owner: str = "", **spec: Any) -> Any:
    meta: Any = {"name": "x", "namespace": "ops", "labels": labels or {}}
    if owner:
        meta["ownerReferences"] = [{"kind": owner, "name": "d", "uid": "1", "controller": True}]
    return {"metadata": meta, "spec": {"containers": [{"name": "m"}]} | spec}


GUARDS = {"of a tenant": {"tenants": (LAB, OPS)}, "of a machine group": {"pools": {"gpu": a_pool(taint=True)}}}
NODES = {
    "n": frozenset({("moorage.dev/tenant", "lab"), ("moorage.dev/machine-group", "gpu")}),
    "free": frozenset(),
}
TAINTS = {"of a tenant": ("moorage.dev/tenant", "lab"), "of a machine group": ("moorage.dev/machine-group", "gpu")}


def refused(pod: Any, *, user: str = "mallory", old: Any = None, tenant: Any = OPS, **facts: Any) -> list[str]:
    operation = "CREATE" if old is None else "UPDATE"
    fields = {
        "kind": "Pod",
        "operation": operation,
        "user": user,
        "obj": pod,
        "old": old,
        "tenant": tenant,
        "node_taints": NODES,
    }
    request = Request(**fields, **facts)
    by_admission, by_validation = ([refusal.field for refusal in ask(request).refusals] for ask in (admit, judge))
    assert by_admission == by_validation
    return by_admission


@pytest.mark.parametrize("whose", GUARDS)
@pytest.mark.parametrize("tenant", [OPS, None], ids=["of a team", "of no team"])
@pytest.mark.parametrize(
    "way",
    [
        pytest.param(lambda key, value: {"nodeName": "n"}, id="it names its node"),
        pytest.param(lambda key, value: {"tolerations": [ALL]}, id="it tolerates everything"),
        pytest.param(
            lambda key, value: {"tolerations": [ALL | {"key": "", "effect": "NoSchedule"}]}, id="an effect"
        ),
        pytest.param(lambda key, value: {"tolerations": [ALL | {"key": key}]}, id="any value"),
        pytest.param(lambda key, value: {"tolerations": [{"key": key, "value": value}]}, id="the taint"),
    ],
)
def test_no_way_leads_onto_guarded_nodes(whose, tenant, way):
    spec = way(*TAINTS[whose])
    [field] = refused(a_pod(**spec), tenant=tenant, **GUARDS[whose])
    assert field in ("spec.nodeName", "spec.tolerations[0]")
    nothing_guarded = {"tenants": (OPS,), "pools": {"gpu": a_pool(taint=False)}}
    assert not refused(a_pod(**spec), tenant=tenant, **nothing_guarded)


@pytest.mark.parametrize("whose", GUARDS)
def test_a_toleration_added_later_leads_there_neither(whose):
    """A pod that waits, by a gate of its owner's, may get tolerations as long as it has no node."""
    gated = a_pod(schedulingGates=[{"name": "mine.example.org/wait"}])
    other = {"key": "nvidia.com/gpu", "operator": "Exists"}
    assert refused(a_pod(tolerations=[other, ALL]), old=gated, **GUARDS[whose]) == ["spec.tolerations[1]"]
    assert not refused(a_pod(tolerations=[other]), old=gated, **GUARDS[whose])
    stored = a_pod(tolerations=[ALL], nodeName="n")  # of a DaemonSet, or older than the taint
    assert not refused(a_pod(tolerations=[ALL], nodeName="n"), old=stored, **GUARDS[whose])


@pytest.mark.parametrize("whose", GUARDS)
def test_a_free_node_may_be_named_and_an_unknown_one_may_not(whose):
    assert not refused(a_pod(nodeName="free"), **GUARDS[whose])
    assert refused(a_pod(nodeName="new"), **GUARDS[whose]) == ["spec.nodeName"]


def test_ones_own_nodes_are_free():
    tenants = {"tenants": (LAB, OPS)}
    mine = {"key": "moorage.dev/tenant", "value": "lab", "effect": "NoSchedule"}
    assert not refused(a_pod(tolerations=[mine]), tenant=LAB, **tenants)
    guest = {"moorage.dev/machine-group": "gpu", "moorage.dev/machine-type": "small"}
    assert not refused(a_pod(labels=guest), **GUARDS["of a machine group"])


@pytest.mark.parametrize("whose", GUARDS)
def test_an_administrators_daemons_run_on_every_node_and_a_members_do_not(whose):
    pod = a_pod(owner="DaemonSet", tolerations=[ALL])
    assert not refused(pod, user=DAEMONS, tenant=None, **GUARDS[whose])
    assert refused(pod, user=DAEMONS, **GUARDS[whose])
    assert not refused(a_pod(nodeName="n"), user="system:node:n", **GUARDS[whose])


@pytest.mark.parametrize("whose", GUARDS)
def test_what_the_operator_makes_of_a_members_template_gets_no_further(whose):
    """A workflow's step, a map's worker, a workspace: their pods have the member's tolerations."""
    assert refused(a_pod(tolerations=[ALL]), user=OPERATOR, **GUARDS[whose])


def test_a_label_added_later_makes_no_guest_of_a_pod():
    gpu = {"key": "moorage.dev/machine-group", "value": "gpu"}
    pod = a_pod(labels={"moorage.dev/machine-group": "gpu"}, tolerations=[gpu])
    assert refused(pod, old=a_pod(), **GUARDS["of a machine group"]) == ["spec.tolerations[0]"]


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
EVERYWHERE = {"topologyKey": "kubernetes.io/os", "labelSelector": {}}


@pytest.mark.parametrize(
    ("term", "fields"),
    [
        ({"namespaceSelector": {}}, ["namespaceSelector"]),
        ({"namespaceSelector": {"matchLabels": {"a": "b"}}}, ["namespaceSelector"]),
        ({"namespaces": ["ops", "lab"]}, ["namespaces"]),
        ({"namespaces": ["ops"]}, []),
        ({}, []),
    ],
)
def test_a_team_keeps_pods_of_others_off_no_node(term, fields):
    def a_lonely_pod(kind: str) -> Any:
        return a_pod(affinity={"podAntiAffinity": {kind: [EVERYWHERE | term]}})

    where = f"spec.affinity.podAntiAffinity.{REQUIRED}[0]"
    assert refused(a_lonely_pod(REQUIRED)) == [f"{where}.{field}" for field in fields]
    assert refused(a_lonely_pod(REQUIRED), user=OPERATOR) == [f"{where}.{field}" for field in fields]
    assert not refused(a_lonely_pod(REQUIRED), tenant=None)
    assert not refused(a_lonely_pod(REQUIRED), old=a_lonely_pod(REQUIRED))
    assert not refused(a_lonely_pod("preferredDuringSchedulingIgnoredDuringExecution"))
