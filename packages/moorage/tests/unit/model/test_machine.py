"""Machines as an admin writes them: every fault at once, by its field."""

from __future__ import annotations

from typing import Any

from moorage.model.machine import check_machine, parse_machine


def a_machine(name: str = "m", group: str = "gpu", **spec: Any) -> dict[str, Any]:
    size = {"cpu": "4000m", "memory": "12Gi", "gpu": {"type": "nvidia.com/gpu", "num": 1, "family": "ampere"}}
    return {
        "metadata": {"name": name, "uid": "u", "labels": {"moorage.dev/machine-group": group}},
        "spec": {
            "nodePool": [{"name": "n0", "mode": "ready", "taint": False, "machineType": [{"name": "big"}]}],
            "machineTypes": [{"name": "big", "spec": size, "available": 1}],
        }
        | spec,
    }


def test_the_machine_of_the_documents_is_read_field_by_field() -> None:
    pool = parse_machine(a_machine())
    assert pool.group == "gpu"
    assert pool.offers == {"n0": ("big",)}
    kind = pool.types["big"]
    assert (kind.available, kind.family, kind.devices) == (1, "ampere", 1)
    assert kind.size == {"cpu": 4000, "memory": 12 * 2**30, "nvidia.com/gpu": 1}
    assert check_machine(a_machine()) == []


def test_only_nodes_in_mode_ready_offer_anything() -> None:
    nodes = [
        {"name": mode, "mode": mode, "machineType": [{"name": "big"}]} for mode in ("not-ready", "maintenance")
    ]
    assert parse_machine(a_machine(nodePool=nodes)).offers == {}


def test_any_extended_resource_counts() -> None:
    fpga = {"cpu": 1, "memory": "1Gi", "gpu": {"type": "xilinx.com/fpga", "num": "2"}}
    machine = a_machine(machineTypes=[{"name": "big", "spec": fpga, "available": 1}])
    assert check_machine(machine) == []
    assert parse_machine(machine).types["big"].devices == 2


def test_all_faults_are_told_at_once() -> None:
    wrong = {"cpu": "0", "memory": "lots", "gpu": {"type": "gpu", "num": "1.5"}}
    machine = a_machine(
        nodePool=[
            {"name": "n0", "mode": "asleep", "machineType": [{"name": "nosuch"}]},
            {"name": "n0", "mode": "ready", "machineType": []},
            {"name": "n1", "mode": "ready", "machineType": []},
        ],
        machineTypes=[{"name": "big", "spec": wrong, "available": 1}],
    )
    taken = [{"name": "n1", "mode": "ready", "machineType": []}]
    others = [machine, a_machine("other", nodePool=taken)]
    assert [fault.field for fault in check_machine(machine, others)] == [
        "metadata.labels[moorage.dev/machine-group]",
        "spec.machineTypes[0].spec.cpu",
        "spec.machineTypes[0].spec.memory",
        "spec.machineTypes[0].spec.gpu.type",
        "spec.machineTypes[0].spec.gpu.num",
        "spec.nodePool[0].mode",
        "spec.nodePool[0].machineType[0].name",
        "spec.nodePool[1].name",
        "spec.nodePool[2].name",
    ]
