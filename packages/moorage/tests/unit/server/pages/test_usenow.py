from __future__ import annotations

from moorage.decide.usage.gpus import view_gpus
from moorage.decide.usage.samples import GpuReading, Reading
from moorage.server.pages.usenow import use_now
from moorage_kube.testing.clock import NOON

GPU = "nvidia.com/gpu"


def a_node(name, gpus=4):
    ready = [{"type": "Ready", "status": "True"}]
    return {"metadata": {"name": name}, "status": {"allocatable": {GPU: str(gpus)}, "conditions": ready}}


def a_pod(name, node, gpus, devices=()):
    limits = {GPU: str(gpus)}
    status = {"phase": "Running", "startTime": "2026-11-21T11:00:00Z"}
    if devices:
        resources = [{"resourceID": device} for device in devices]
        main = {"name": "m", "allocatedResourcesStatus": [{"name": GPU, "resources": resources}]}
        status["containerStatuses"] = [main]
    return {
        "metadata": {"namespace": "lab", "name": name},
        "spec": {"nodeName": node, "containers": [{"resources": {"limits": limits, "requests": limits}}]},
        "status": status,
    }


def a_reading(*gpus):
    return Reading(
        pod_uid="u", at=NOON, gpus=tuple(GpuReading(device=device, utilisation=use) for device, use in gpus)
    )


def test_each_gpu_has_its_own_percent_and_what_is_not_measured_has_none():
    pods = [a_pod("by-device", "n1", 2, devices=("3", "2")), a_pod("silent", "n1", 1), a_pod("uuid", "n2", 1)]
    view = view_gpus([a_node("n1"), a_node("n2", gpus=1), a_node("n3", gpus=1)], pods)
    readings = {
        ("lab", "by-device"): a_reading(("n1/3", 90.4), ("n1/2", 10)),
        ("lab", "uuid"): a_reading(("GPU-8f2c", 50)),
    }
    use = use_now(view, readings)
    assert use.by_node == {"n1": (None, None, 10, 90), "n2": (50,), "n3": (None,)}
    assert (use.measured, use.mean) == (3, 50)
    assert use.text == "n1 - - 10 90\nn2 50"


def test_a_reading_of_other_gpus_than_the_pod_holds_is_not_shown():
    view = view_gpus([a_node("n1", gpus=2)], [a_pod("p", "n1", 2)])
    use = use_now(view, {("lab", "p"): a_reading(("a", 50))})
    assert (use.by_node, use.measured, use.text) == ({"n1": (None, None)}, 0, "")
