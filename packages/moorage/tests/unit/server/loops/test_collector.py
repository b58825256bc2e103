"""A round of readings: one question to each node, all sources put together, gaps where one is silent."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import Any

import pytest

from moorage.decide.usage.readings import is_sampled
from moorage.decide.usage.samples import GpuReading, Reading
from moorage.server.cluster import Cluster
from moorage.server.loops.collector import Collector
from moorage.server.memoryuse import MemoryUse
from moorage.server.usagesources import GpuSources, MetricsApi, SourceSettings
from moorage.usage.samples import SampleStore
from moorage_kube.clock import rfc3339
from moorage_kube.errors import ServerError
from moorage_kube.informers import Informers
from moorage_kube.resources import ENDPOINTSLICES, JOBS, NODES, PODS, Obj
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio


def a_pod(name: str, node: str, **labels: str) -> Obj:
    return {
        "metadata": {
            "name": name, "namespace": "lab", "uid": f"uid-{name}",
            "labels": {f"moorage.dev/{label}": value for label, value in labels.items()},
        },
        "spec": {"nodeName": node, "containers": [{"name": "main"}]},
        "status": {"phase": "Running", "startTime": rfc3339(NOON)},
    }  # fmt: skip


class Kubelets:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.seconds = 0.0
        self.silent: set[str] = set()
        self.clock: FakeClock

    async def summary(self, node: Obj) -> Any:
        name = node["metadata"]["name"]
        self.asked.append(name)
        if name in self.silent:
            raise ServerError("away")
        cpu = {"time": rfc3339(self.clock.now()), "usageCoreNanoSeconds": int(self.seconds * 1e9)}
        container = {"name": "main", "cpu": cpu, "memory": {"workingSetBytes": 4096}}
        pod = {"n1": "train", "n2": "notebook"}.get(name, "")
        return {"pods": [{"podRef": {"uid": f"uid-{pod}"}, "containers": [container]}]}


class Raw:
    async def raw(self, _method: str, _path: str) -> bytes:
        container = {"usage": {"cpu": "2", "memory": "8192"}}
        item = {"metadata": {"namespace": "lab", "name": "notebook"}, "containers": [container]}
        return json.dumps({"items": [item]}).encode()


async def exporter(_url: str, _params: Any) -> bytes:
    return b'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-1",namespace="lab",pod="train"} 40\n'


@asynccontextmanager
async def a_collector(tmp_path, kubelets: Kubelets, notes: list[Any], raw: Any = None):
    api, clock = FakeApi(), FakeClock()
    kubelets.clock = clock
    for name in ("n1", "n2", "n3"):
        api.put(NODES, {"metadata": {"name": name}, "spec": {}, "status": {}})
    for pod in (a_pod("train", "n1", run="train"), a_pod("notebook", "n2", workspace="w"), a_pod("dns", "n3")):
        api.put(PODS, pod)
    api.put(
        ENDPOINTSLICES,
        {
            "metadata": {"namespace": "kube-system", "name": "d", "labels": {"app": "dcgm-exporter"}},
            "endpoints": [{"addresses": ["10.0.0.1"]}],
            "ports": [{"port": 9400}],
        },
    )
    informers = Informers()
    nodes, pods, jobs = (informers.of(api, resource) for resource in (NODES, PODS, JOBS))
    cluster = Cluster(api, clock=clock, informers=informers)
    tasks = [asyncio.create_task(informer.run()) for informer in (nodes, pods, jobs)]
    for informer in (nodes, pods, jobs):
        await informer.synced.wait()
    store = SampleStore(tmp_path / "samples.db")
    collector = Collector(
        cluster,
        store,
        kubelets=MemoryUse(cluster, kubelets, notes.append, clock=clock, also=is_sampled),
        gpus=GpuSources(api, SourceSettings(namespaces=("kube-system",)), clock=clock, fetch=exporter),
        metrics_api=MetricsApi(raw, clock=clock),
        clock=clock,
    )
    try:
        yield collector, store, clock
    finally:
        store.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_node_is_asked_once_for_all_who_want_to_know(tmp_path):
    kubelets, notes = Kubelets(), []
    async with a_collector(tmp_path, kubelets, notes) as (collector, store, clock):
        assert await collector.collect() == 2
        clock.advance(30.0)
        kubelets.seconds = 45.0
        assert await collector.collect() == 2
        latest = store.latest()
    assert sorted(kubelets.asked) == ["n1", "n1", "n2", "n2"]  # nothing is measured on n3
    assert notes == [{"uid-train": 4096}] * 2  # the peak of memory is kept of runs
    gpu = GpuReading(device="GPU-1", utilisation=40.0)
    at = latest["uid-train"].at
    assert latest == {
        "uid-train": Reading(
            pod_uid="uid-train", at=at, cpu_milli=1500, memory_bytes=4096, gpus=(gpu,), namespace="lab"
        ),
        "uid-notebook": Reading(pod_uid="uid-notebook", at=at, cpu_milli=1500, memory_bytes=4096, namespace="lab"),
    }
    assert (collector.counts.readings, collector.failures) == (4, 0)


async def test_a_silent_node_leaves_a_gap_and_is_asked_less_and_less(tmp_path):
    kubelets = Kubelets()
    kubelets.silent = {"n2"}
    async with a_collector(tmp_path, kubelets, []) as (collector, store, clock):
        for _ in range(6):
            await collector.collect()
            clock.advance(30.0)
        assert set(store.latest()) == {"uid-train"}
    assert kubelets.asked.count("n1") == 6
    assert kubelets.asked.count("n2") == 3
    assert collector.failures == 3


async def test_the_metrics_api_speaks_for_kubelets_that_may_not_be_asked(tmp_path):
    kubelets = Kubelets()
    kubelets.silent = {"n2"}
    async with a_collector(tmp_path, kubelets, [], raw=Raw()) as (collector, store, _):
        await collector.collect()
        notebook = store.latest()["uid-notebook"]
    assert (notebook.cpu_milli, notebook.memory_bytes) == (2000, 8192)
