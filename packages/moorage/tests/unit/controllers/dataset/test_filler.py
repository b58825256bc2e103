"""The pods that fill, copy and back up volumes."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.controllers.dataset.filler import Runtime, make_pod_spec, pod_beside
from moorage.model.names import MACHINE_GROUP_LABEL
from moorage_kube.errors import UsageError

GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def a_pod(name: str, node: str, claim: str, **spec: Any) -> dict[str, Any]:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    return {
        "metadata": {"name": name, "namespace": "lab"},
        "spec": {"nodeName": node, "containers": [], "volumes": volumes, **spec},
        "status": {"phase": "Running"},
    }


def a_claim(mode: str) -> dict[str, Any]:
    return {"metadata": {"name": "home", "namespace": "lab"}, "spec": {"accessModes": [mode]}}


def test_a_volume_of_one_node_is_reached_on_a_tainted_node_by_the_tolerations_of_its_user():
    user = a_pod("lab-0", "gpu-1", "home", tolerations=[GPU_TAINT])
    beside = pod_beside(a_claim("ReadWriteOnce"), [a_pod("other", "cpu-1", "scratch"), user])
    spec = make_pod_spec(Runtime("moorage", "python3"), ["wait"], claims={"/data": ("home", False)}, beside=beside)
    [term] = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}]}
    assert spec["tolerations"] == [GPU_TAINT]


def test_a_volume_of_many_nodes_may_be_reached_anywhere():
    assert pod_beside(a_claim("ReadWriteMany"), [a_pod("lab-0", "gpu-1", "home")]) is None


def test_a_volume_in_use_on_a_node_kept_for_machines_is_refused_with_the_way_out():
    guest = a_pod("train-0", "gpu-1", "home", tolerations=[{"key": MACHINE_GROUP_LABEL, "value": "gpus"}])
    guest["metadata"]["labels"] = {MACHINE_GROUP_LABEL: "gpus"}
    with pytest.raises(UsageError, match="in use by pod train-0 on node gpu-1") as refusal:
        pod_beside(a_claim("ReadWriteOnce"), [guest])
    assert "ReadWriteMany" in str(refusal.value.hint)
    assert pod_beside(a_claim("ReadWriteOnce"), [guest | {"status": {"phase": "Succeeded"}}]) is None
