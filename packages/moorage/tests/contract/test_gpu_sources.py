"""What GPUs do: one suite for DCGM's exporter, Prometheus, and the node agent with real and simulated GPUs."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from moorage.decide.usage.readings import GPU_METRICS, GpuUse, parse_exposition
from moorage.decide.usage.samples import GpuReading
from moorage.server.usagesources import METRICS_API, GpuSources, MetricsApi, SourceSettings
from moorage_kube.clock import SYSTEM
from moorage_kube.errors import Forbidden, ServerError
from moorage_kube.resources import ENDPOINTSLICES
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.nodeagent.gpuexporter import exposition, read_real, rows_of, serve
from moorage_local.nodeagent.node import NodeSpec
from moorage_local.nodeagent.podfolder import Admission
from moorage_local.nodeagent.podstats import PodStat
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio

GIB, MIB = 2**30, 2**20
WANT = {
    "GPU-n1-0": ("lab", "train-x", 50.0, 2 * GIB, 40 * GIB, 230.0),
    "GPU-n1-1": ("", "", 0.0, 0, 40 * GIB, 60.0),
}
TRAIN = Admission(
    uid="u1",
    namespace="lab",
    name="train-x",
    at="2026-01-05T10:00:00Z",
    gpus=(0,),
    devices={"main": ("GPU-n1-0",)},
)
STATS = {"u1": PodStat(at=NOON, cpu_nanoseconds=9, nano_cores=500_000_000, memory_bytes=2 * GIB)}
SIMULATED = NodeSpec(
    name="n1", cpu_milli=1, memory_bytes=1, gpus=2, gpu_type="NVIDIA-A100", gpu_memory_bytes=40 * GIB
)
REAL = NodeSpec(
    name="n1", cpu_milli=1, memory_bytes=1, gpus=2, gpu_type="NVIDIA-A100", real_gpu_uuids=("GPU-n1-0", "GPU-n1-1")
)


class FakeNvml:
    """The module pynvml on a machine with two GPUs, and one that fell off its bus."""

    class NVMLError(Exception): ...

    nvmlMemory_v2 = 33554472

    def __init__(self, *, driver: bool = True, old: bool = False) -> None:
        self.driver, self.old, self.shut = driver, old, 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError

    def nvmlShutdown(self) -> None:
        self.shut += 1

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 2:
            raise self.NVMLError
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> bytes | str:
        return f"GPU-n1-{handle}".encode() if handle else "GPU-n1-0"

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> Any:
        if version is None:  # an H200 that nobody used: 615 MiB
            return SimpleNamespace(used=(0 if handle else 2 * GIB) + 615 * MIB, total=40 * GIB)
        if self.old:
            raise self.NVMLError
        assert version == self.nvmlMemory_v2
        return SimpleNamespace(used=0 if handle else 2 * GIB, reserved=615 * MIB, total=40 * GIB)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=0 if handle else 50)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 60_000 if handle else 230_000


def page_of(spec: NodeSpec) -> str:
    return exposition(rows_of(spec, [TRAIN], STATS, read_real(FakeNvml())))


class Fetch:
    """Answers by address; an exception is raised."""

    def __init__(self, **answers: Any) -> None:
        self.answers, self.asked = answers, list[str]()

    async def __call__(self, url: str, params: Any) -> bytes:
        self.asked.append(url)
        answer = self.answers[url.split("/")[2].split(":")[0].replace(".", "_")]
        if isinstance(answer, Exception):
            raise answer
        return (answer(params) if callable(answer) else answer).encode()


def query_answer(params: Any) -> str:
    series = [each for each in parse_exposition(page_of(SIMULATED)) if each.name in params["query"]]
    assert set(GPU_METRICS) == {each.name for each in series}
    renamed = {"pod": "exported_pod", "namespace": "exported_namespace"}
    results = [
        {
            "metric": {"__name__": each.name, "pod": "dcgm-exporter", "namespace": "gpu-operator"}
            | {renamed.get(name, name): value for name, value in each.labels.items()},
            "value": [0, str(each.value)],
        }
        for each in series
    ]
    free = [result for result in results if "exported_pod" not in result["metric"]]
    for result in free:  # a GPU that no pod holds
        result["metric"] |= {"exported_pod": "", "exported_namespace": ""}
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": results}})


def a_slice(address: str, port: int, label: str = "app=nvidia-dcgm-exporter") -> Any:
    name, value = label.split("=")
    return {
        "metadata": {"namespace": "gpu-operator", "name": f"dcgm-{port}", "labels": {name: value}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address]}],
        "ports": [{"name": "metrics", "port": port}],
    }


@pytest.fixture(params=["exporter", "prometheus", "local-simulated", "local-nvml"])
async def sources(request):
    api, settings, fetch = FakeApi(), SourceSettings(namespaces=("gpu-operator",)), None
    async with AsyncExitStack() as stack:
        if request.param == "exporter":
            api.put(ENDPOINTSLICES, a_slice("exporter", 9400))
            fetch = Fetch(exporter=page_of(SIMULATED))
        elif request.param == "prometheus":
            settings = SourceSettings(prometheus="http://prom:9090/")
            fetch = Fetch(prom=query_answer)
        else:

            async def page() -> str:
                return page_of(REAL if request.param == "local-nvml" else SIMULATED)

            settings = SourceSettings(namespaces=("gpu-operator",), token="of-metrics")
            server = await stack.enter_async_context(await serve(page, token="of-metrics"))
            port = server.sockets[0].getsockname()[1]
            api.put(ENDPOINTSLICES, a_slice("127.0.0.1", port, "app.kubernetes.io/name=dcgm-exporter"))
        gpu_sources = GpuSources(api, settings, clock=SYSTEM, fetch=fetch)
        yield gpu_sources
        await gpu_sources.close()


async def test_every_source_says_the_same_of_gpus(sources):
    assert {
        use.gpu.device: (
            use.namespace, use.pod, use.gpu.utilisation, use.gpu.memory_bytes, use.gpu.memory_total_bytes,
            use.gpu.power_watts,
        )
        for use in await sources.gpus()
    } == WANT  # fmt: skip
    assert sources.rests.failures == 0


@pytest.mark.parametrize(("asked", "given"), [("right", "wrong"), ("right", ""), ("", "")])
async def test_the_local_exporter_says_nothing_without_its_token(asked, given):
    async def page() -> str:
        return page_of(SIMULATED)

    api = FakeApi()
    async with await serve(page, token=asked) as server:
        port = server.sockets[0].getsockname()[1]
        api.put(ENDPOINTSLICES, a_slice("127.0.0.1", port))
        settings = SourceSettings(namespaces=("gpu-operator",), token=given)
        sources = GpuSources(api, settings, clock=SYSTEM)
        assert await sources.gpus() == []
        assert sources.rests.failures == 1
        await sources.close()


async def test_a_source_that_fails_is_left_alone_for_a_while():
    api, clock = FakeApi(), FakeClock()
    for name in ("good", "bad"):
        api.put(ENDPOINTSLICES, a_slice(name, 9400 + len(name)))
    fetch = Fetch(good=page_of(SIMULATED), bad=ServerError("away"))
    sources = GpuSources(api, SourceSettings(namespaces=("gpu-operator",)), clock=clock, fetch=fetch)
    for _ in range(4):
        assert len(await sources.gpus()) == 2
        clock.advance(20.0)
    assert [url.split("/")[2] for url in fetch.asked].count("bad:9403") == 2
    assert sources.rests.failures == 2


async def test_without_exporters_nothing_is_known_of_gpus():
    clock, fetch = FakeClock(), Fetch()
    sources = GpuSources(FakeApi(), SourceSettings(namespaces=("gpu-operator",)), clock=clock, fetch=fetch)
    assert await sources.gpus() == []
    assert fetch.asked == []


async def test_prometheus_that_answers_nonsense_is_a_failure():
    fetch = Fetch(prom="<html>")
    sources = GpuSources(FakeApi(), SourceSettings(prometheus="http://prom:9090"), clock=FakeClock(), fetch=fetch)
    assert await sources.gpus() == []
    assert sources.rests.failures == 1


class Raw:
    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, 0

    async def raw(self, _method: str, path: str) -> bytes:
        assert path == METRICS_API
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return bytes(self.answer)


async def test_a_cluster_without_the_metrics_api_is_asked_seldom():
    clock, raw = FakeClock(), Raw(Forbidden("no"))
    metrics_api = MetricsApi(raw, clock=clock)
    for _ in range(3):
        assert await metrics_api.measured() == {}
    assert raw.asked == 1
    assert await MetricsApi(None, clock=clock).measured() == {}


def test_a_machine_without_a_driver_has_no_readings():
    assert read_real(FakeNvml(driver=False)) == {}
    nvml = FakeNvml()
    assert set(read_real(nvml)) == {"GPU-n1-0", "GPU-n1-1"}
    assert nvml.shut == 1


def test_what_a_driver_reserves_is_not_used_where_it_can_tell():
    now, before = read_real(FakeNvml()), read_real(FakeNvml(old=True))
    assert [now[f"GPU-n1-{index}"].memory_bytes for index in (0, 1)] == [2 * GIB, 0]
    assert before["GPU-n1-1"].memory_bytes == 615 * MIB


def test_a_simulated_gpu_of_a_pod_that_was_seen_once_is_left_out():
    young = {"u1": PodStat(at=NOON, cpu_nanoseconds=9, nano_cores=None, memory_bytes=1)}
    assert [row.device for row in rows_of(SIMULATED, [TRAIN], young, {})] == ["GPU-n1-1"]


def test_a_gpu_use_is_what_a_reading_holds():
    assert GpuUse(namespace="", pod="", gpu=GpuReading(device="d", utilisation=1.0)).gpu.power_watts is None
