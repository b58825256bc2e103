"""`moor machines`: what may be asked for, what it costs, and how to ask."""

from __future__ import annotations

import json

import pytest

from moorage.cli.machines import QUOTAS
from moorage.model.machine import MACHINES
from moorage_kube.errors import Forbidden, NotFound
from moorage_kube.resources import NODES
from moorage_kube.testing.builders import a_condition, an_object
from moorage_kube.testing.clock import FakeClock
from moorage_testing.builders import keyed

PRICES = """\
currency: EUR
machines:
- {name: p4, cpu: 16, memory: 64Gi, gpus: 4, prices: [{onDemand: 32.5, spot: 9.75}]}
"""
MACHINE = an_object(
    MACHINES,
    "lab",
    labels=keyed(machine_group="lab"),
    spec={"machineTypes": [{"name": "big", "available": 2, "spec": {"cpu": "4", "memory": "8Gi"}}]},
    status={
        "availableMachines": [{"name": "big", "usage": {"maximum": 2, "reserved": 1, "used": 1}}],
        "conditions": [a_condition("Ready", False, reason="NoRoom", message="one place has no node")],
    },
)


@pytest.fixture
def lab(moor):
    moor.clock = FakeClock()
    moor.server.serves = moor.api
    moor.node("cpu-1")
    moor.node("gpu-1", gpus=4)
    node = moor.api.objects["nodes", "", "gpu-1"]
    node["metadata"]["labels"] |= {
        "node.kubernetes.io/instance-type": "p4",
        "karpenter.sh/capacity-type": "spot",
        "topology.kubernetes.io/region": "eu-1",
    }
    moor.api.put(NODES, node)
    return moor


def test_the_types_are_listed_with_free_machines_and_commands(lab):
    done = lab("machines")
    assert done.code == 0
    assert done.out.splitlines() == [
        "TYPE   FREE         READY   GPUS     CPU   MEMORY   MARKET   REGION",
        "p4     4/4 GPUs     1/1     4 a100   16    64Gi     spot     eu-1",
        "cpu    16/16 CPUs   1/1     -        16    64Gi     -        -",
    ]
    assert done.err.splitlines() == [
        "ask for one:",
        "  moor run --gpus 4 --gpu-type a100 -- COMMAND  # p4",
        "  moor run --cpu 16 -- COMMAND                  # cpu",
    ]
    assert lab("machines", "-o", "name").out == "p4\ncpu\n"


@pytest.mark.parametrize("way", ["option", "variable"])
def test_prices_come_from_the_price_file(lab, tmp_path, monkeypatch, way):
    file = tmp_path / "prices.yaml"
    file.write_text(PRICES)
    monkeypatch.setenv("MOORAGE_PRICES", str(file) if way == "variable" else "")
    given = ["--prices", str(file)] if way == "option" else []
    lines = [line.split() for line in lab("machines", *given).out.splitlines()]
    assert lines[0][:3] == ["TYPE", "FREE", "PRICE/H"]
    assert [line[:5] for line in lines[1:]] == [
        ["p4", "4/4", "GPUs", "9.75", "EUR"],
        ["cpu", "16/16", "CPUs", "-", "1/1"],
    ]
    priced, unpriced = json.loads(lab("machines", *given, "-o", "json").out)
    assert (priced["pricePerHour"], priced["currency"], unpriced["pricePerHour"]) == (9.75, "EUR", None)
    assert priced["ask"] == "moor run --gpus 4 --gpu-type a100 -- COMMAND"


def test_machines_of_the_kind_are_listed_with_the_nodes_and_a_group_with_its_use(lab):
    lab.api.put(MACHINES, MACHINE)
    done = lab("machines")
    assert done.out.splitlines()[-1].split() == ["lab/big", "1/2", "machines", "2/2", "-", "4", "8Gi", "-", "-"]
    assert "moor run --machine lab/big -- COMMAND" in done.err
    assert done.err.splitlines()[-1] == "note: lab: one place has no node"
    group = lab("machines", "lab")
    assert group.out.splitlines()[1].split() == [
        *("lab", "big", "2", "1", "1"), *("-",) * 4, *("4", "CPU,", "8Gi", "False", "(NoRoom)"),
    ]  # fmt: skip
    assert group.err == "note: lab: one place has no node\n"
    other = lab("machines", "other")
    assert (other.code, other.err) == (1, "error: machine group 'other' not found\nhint: there are: lab\n")


def test_nodes_reserved_for_a_team_or_a_machine_group_are_separate_rows(lab):
    guards = {"gpu-1": ("moorage.dev/machine-group", "lab"), "cpu-2": ("moorage.dev/tenant", "red")}
    lab.node("cpu-2")
    for name, (key, value) in guards.items():
        node = lab.api.objects["nodes", "", name]
        node["spec"] = {"taints": [{"key": key, "value": value, "effect": "NoSchedule"}]}
        lab.api.put(NODES, node)
    done = lab("machines")
    assert [line.split("  ")[0] for line in done.out.splitlines()[1:]] == ["p4 (lab)", "cpu", "cpu (red)"]
    assert done.err.splitlines() == ["ask for one:", "  moor run --cpu 16 -- COMMAND  # cpu"]
    items = json.loads(lab("machines", "-o", "json").out)
    assert [(item["type"], item["keptFor"]) for item in items] == [("p4", "lab"), ("cpu", ""), ("cpu", "red")]
    assert {item["cpuFreeMillicores"] for item in items} == {16000}


def test_the_quota_of_the_namespace_is_noted(lab):
    status = {"hard": {"requests.nvidia.com/gpu": "8"}, "used": {"requests.nvidia.com/gpu": "3"}}
    lab.api.put(QUOTAS, an_object(QUOTAS, "q", namespace="default", status=status))
    assert lab("machines").err.splitlines()[-1] == "quota of namespace default: GPUs (nvidia.com/gpu) 3/8"
    lab.api.refuse["list", "resourcequotas"] = Forbidden("no")
    assert "quota" not in lab("machines").err


def test_a_member_who_may_list_neither_nodes_nor_machines_gets_them_from_the_server(lab):
    lab.api.refuse |= {("list", "nodes"): Forbidden("no"), ("list", "machines"): Forbidden("no")}
    node = {"name": "g", "state": "Ready", "gpuType": "h100", "gpus": 8, "gpusUsed": 6}
    lab.server.answers["/api/v1/nodes"] = {"now": "2026-01-05T12:00:00Z", "nodes": [node]}
    assert lab("machines").out.splitlines()[1].split()[:5] == ["8xh100", "2/8", "GPUs", "1/1", "8"]


def test_a_cluster_without_nodes_comes_with_a_hint(moor):
    moor.api.refuse["list", "machines"] = NotFound("no such kind")
    moor.server.answers["/api/v1/nodes"] = {"now": "2026-01-05T12:00:00Z"}
    done = moor("machines")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("this cluster has no nodes; its administrator adds them")
    assert moor("machines", "lab").err.startswith("error: this cluster has no kind Machine")
