"""What kubelets, exporters, Prometheus and the metrics API tell, as readings of pods."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.usage.readings import (
    GpuUse,
    Measured,
    Series,
    cpu_milli,
    exporters,
    gpus_of,
    is_sampled,
    make_readings,
    measured_by_kubelet,
    measured_by_metrics_api,
    parse_exposition,
    series_of_query,
)
from moorage.decide.usage.samples import GpuReading, Reading
from moorage_kube.clock import rfc3339
from moorage_kube.meta import Key
from moorage_kube.testing.clock import NOON
from moorage_testing.builders import a_run_pod, keyed

MIB = 2**20
DCGM = """\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",Hostname="n1",container="main",namespace="lab",pod="train-x"} 87
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",Hostname="n1"} 0
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",Hostname="n1",container="main",namespace="lab",pod="train-x"} 1024
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-a",Hostname="n1",container="main",namespace="lab",pod="train-x"} 3072
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a",Hostname="n1",container="main",namespace="lab",pod="train-x"} 212.5
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-a"} 1410
"""
TRAIN = GpuUse(
    namespace="lab",
    pod="train-x",
    gpu=GpuReading(
        device="GPU-a", utilisation=87, memory_bytes=1024 * MIB, memory_total_bytes=4096 * MIB, power_watts=212.5
    ),
)
FREE = GpuUse(namespace="", pod="", gpu=GpuReading(device="GPU-b", utilisation=0))


def a_pod(uid: str = "u1", name: str = "train-x", *, gpus: int = 1, devices: Any = (), **labels: str) -> Any:
    resources = [{"resourceID": device, "health": "Healthy"} for device in devices]
    status = {"name": "main", "allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": resources}]}
    statuses = [status] if devices else []
    return a_run_pod(name, run="", uid=uid, labels=keyed(**labels), node="n1", gpus=gpus, statuses=statuses)


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        pytest.param(a_pod(), True, id="it holds a GPU"),
        pytest.param(a_pod(gpus=0, run="train"), True, id="of a run"),
        pytest.param(a_pod(gpus=0, workspace="w"), True, id="of a workspace"),
        pytest.param(a_pod(gpus=0), False, id="of the cluster's own"),
        pytest.param(a_pod() | {"status": {"phase": "Pending"}}, False, id="it does not run"),
    ],
)
def test_pods_of_users_and_with_gpus_are_measured(pod, want):
    assert is_sampled(pod) is want


def test_all_containers_of_a_pod_are_summed_up():
    cpu = {"time": rfc3339(NOON), "usageNanoCores": 250_000_000, "usageCoreNanoSeconds": 7}
    containers = [
        {"name": "main", "cpu": cpu, "memory": {"workingSetBytes": 100}},
        {"name": "sidecar", "cpu": cpu, "memory": {"workingSetBytes": 11}},
        {"name": "new"},
    ]
    summary = {"pods": [{"podRef": {"uid": "u1"}, "containers": containers, "memory": {"workingSetBytes": 999}}]}
    assert measured_by_kubelet(summary) == {
        "u1": Measured(cpu_milli=500, cpu_nanoseconds=14, cpu_at=NOON, memory_bytes=111)
    }


def test_a_pod_without_containers_is_told_whole():
    summary = {"pods": [{"podRef": {"uid": "u1"}, "memory": {"workingSetBytes": 999}}]}
    assert measured_by_kubelet(summary) == {"u1": Measured(memory_bytes=999)}


@pytest.mark.parametrize(
    "odd", [None, [], {"pods": 3}, {"pods": [None, {"podRef": 1}, {"podRef": {"uid": "u"}, "cpu": 1}]}]
)
def test_odd_summaries_say_little(odd):
    assert all(measured == Measured() for measured in measured_by_kubelet(odd).values())


def test_the_metrics_api_is_read():
    usage = {"cpu": "1250m", "memory": "2048Ki"}
    answer = {
        "items": [
            {
                "metadata": {"namespace": "lab", "name": "a"},
                "containers": [{"usage": usage}, {"usage": {"cpu": "5n"}}],
            },
            {"metadata": {"namespace": "lab", "name": "b"}, "containers": [{"usage": {"cpu": "much"}}]},
        ]
    }
    assert measured_by_metrics_api(answer) == {
        Key("lab", "a"): Measured(cpu_milli=1250, memory_bytes=2 * MIB),
        Key("lab", "b"): Measured(),
    }


def counted(seconds: float, at: float) -> Measured:
    return Measured(cpu_nanoseconds=round(seconds * 1e9), cpu_at=NOON + timedelta(seconds=at))


@pytest.mark.parametrize(
    ("before", "now", "want"),
    [
        pytest.param(counted(0, 0), Measured(cpu_milli=7), 7, id="as told"),
        pytest.param(counted(10, 0), counted(25, 30), 500, id="by its counter"),
        pytest.param(None, counted(25, 30), None, id="seen once"),
        pytest.param(counted(10, 30), counted(10, 30), None, id="the same reading"),
        pytest.param(counted(90, 0), counted(1, 30), None, id="it began anew"),
        pytest.param(counted(0, 0), counted(9, 3600), None, id="after a gap"),
    ],
)
def test_cpu_is_a_rate(before, now, want):
    assert cpu_milli(before, now) == want


def test_gpus_are_read_from_dcgms_exporter():
    assert gpus_of(parse_exposition(DCGM)) == [TRAIN, FREE]


def test_labels_may_hold_anything():
    (series,) = parse_exposition('DCGM_FI_DEV_GPU_UTIL{ a="x}\\"y\\\\\\n", b="," } 1.5 1700000000')
    assert series == Series("DCGM_FI_DEV_GPU_UTIL", {"a": 'x}"y\\\n', "b": ","}, 1.5)


@given(st.text())
def test_a_page_of_any_shape_is_read(text):
    assert (
        gpus_of(parse_exposition(text + '\nDCGM_FI_DEV_GPU_UTIL{UUID="GPU-b"} 0\nDCGM_FI_DEV_GPU_UTIL{'))
        is not None
    )


def test_prometheus_says_the_same():
    def result(name: str, value: str, **labels: str) -> Any:
        return {"metric": {"__name__": name, **labels}, "value": [1700000000.1, value]}

    scraped = {"namespace": "gpu-operator", "pod": "dcgm-exporter-1", "Hostname": "n1"}
    mine = {**scraped, "UUID": "GPU-a", "exported_namespace": "lab", "exported_pod": "train-x"}
    answer = {
        "status": "success",
        "data": {
            "resultType": "vector",
            "result": [
                result("DCGM_FI_DEV_GPU_UTIL", "87", **mine),
                result("DCGM_FI_DEV_FB_USED", "1024", **mine),
                result("DCGM_FI_DEV_FB_FREE", "3072", **mine),
                result("DCGM_FI_DEV_POWER_USAGE", "212.5", **mine),
                result("DCGM_FI_DEV_GPU_UTIL", "NaN", **mine, gpu="9"),
                {"metric": {}, "value": "odd"},
            ],
        },
    }
    assert gpus_of(series_of_query(answer)) == [TRAIN]


def test_instances_of_a_divided_gpu_are_devices():
    line = 'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-a",GPU_I_ID="3",namespace="lab",pod="p"} 5'
    assert [use.gpu.device for use in gpus_of(parse_exposition(line))] == ["GPU-a/3"]


def test_readings_put_sources_together():
    pods = [a_pod(), a_pod("u2", "quiet", gpus=0, run="quiet"), a_pod("u3", "by-device", devices=("GPU-b",))]
    measured = {"u1": Measured(cpu_milli=900, memory_bytes=5 * MIB)}
    assert make_readings(pods, measured, {}, [TRAIN, FREE], at=NOON) == [
        Reading(pod_uid="u1", at=NOON, cpu_milli=900, memory_bytes=5 * MIB, gpus=(TRAIN.gpu,), namespace="lab"),
        Reading(pod_uid="u3", at=NOON, gpus=(FREE.gpu,), namespace="lab"),
    ]


def a_slice(namespace: str, *addresses: str, ready: bool | None = True, port: Any = 9400) -> Any:
    return {
        "metadata": {"namespace": namespace, "name": "dcgm"},
        "endpoints": [{"addresses": list(addresses), "conditions": {"ready": ready}}],
        "ports": [{"name": "metrics", "port": port}],
    }


def test_exporters_are_believed_in_some_namespaces_only():
    slices = [
        a_slice("gpu-operator", "10.0.0.2", "10.0.0.1"),
        a_slice("gpu-operator", "10.0.0.3", ready=False),
        a_slice("kube-system", "fd00::1", ready=None),
        a_slice("kube-system", "10.0.0.9", port=None),
        a_slice("lab", "10.6.6.6"),
    ]
    assert exporters(slices, ["gpu-operator", "kube-system"]) == (
        "10.0.0.1:9400",
        "10.0.0.2:9400",
        "[fd00::1]:9400",
    )
