"""Memory of runs, as kubelets tell it: of which pods, and what of their answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moorage.server.cluster import Cluster
from moorage.server.memoryuse import SAMPLE_SECONDS, MemoryUse, memory_of
from moorage_kube.clock import rfc3339
from moorage_kube.errors import ServerError
from moorage_kube.informers import Informers
from moorage_kube.resources import JOBS, NODES, PODS, Obj
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio


def a_pod(uid: str, node: str = "n1", *, run: str = "train", peak: str = "", phase: str = "Running") -> Obj:
    notes = {"localcluster.moorage.dev/peak-memory-bytes": peak} if peak else {}
    labels = {"moorage.dev/run": run} if run else {}
    return {
        "metadata": {"name": uid, "namespace": "lab", "uid": uid, "labels": labels, "annotations": notes},
        "spec": {"nodeName": node, "containers": [{"name": "main"}, {"name": "sidecar"}]},
        "status": {"phase": phase, "startTime": rfc3339(NOON)},
    }


def told(uid: str, **used: Any) -> Any:
    containers = [{"name": name, "memory": {"workingSetBytes": size}} for name, size in used.items()]
    return {"podRef": {"uid": uid}, "containers": containers}


class Nodes:
    """Kubelets by the name of their node; an exception is raised."""

    def __init__(self, **answers: Any) -> None:
        self.answers, self.asked = answers, list[str]()

    async def summary(self, node: Obj) -> Any:
        self.asked.append(node["metadata"]["name"])
        answer = self.answers[node["metadata"]["name"]]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def sampled(kubelets: Nodes, *pods: Obj, waits: tuple[float, ...] = (0.0,)) -> list[dict[str, int]]:
    """What was noted of samples, each so many seconds after the one before."""
    api, clock, notes = FakeApi(), FakeClock(), list[dict[str, int]]()
    for name in kubelets.answers:
        api.put(NODES, {"metadata": {"name": name}, "spec": {}, "status": {}})
    for pod in pods:
        api.put(PODS, pod)
    informers = Informers()
    nodes, pod_informer, jobs = (informers.of(api, resource) for resource in (NODES, PODS, JOBS))
    cluster = Cluster(api, clock=clock, informers=informers)
    tasks = [asyncio.create_task(informer.run()) for informer in (nodes, pod_informer, jobs)]
    for informer in (nodes, pod_informer, jobs):
        await informer.synced.wait()
    try:
        use = MemoryUse(cluster, kubelets, lambda used: notes.append(dict(used)), clock=clock)
        for seconds in waits:
            clock.advance(seconds)
            await use.summaries()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return notes


async def test_the_container_of_a_run_is_measured_and_nothing_else() -> None:
    summary = {"pods": [told("p1", main=500, sidecar=9), told("other", main=7)]}
    assert await sampled(Nodes(n1=summary), a_pod("p1"), a_pod("other", run="")) == [{"p1": 500}]


async def test_nodes_without_such_pods_are_not_asked() -> None:
    kubelets = Nodes(n1={}, n2={}, n3={}, n4={})
    ended, of_no_run = a_pod("p3", "n3", phase="Succeeded"), a_pod("p4", "n4", run="")
    assert await sampled(kubelets, a_pod("p1"), a_pod("p2", "n2", peak="5"), ended, of_no_run) == []
    assert kubelets.asked == ["n1"]


async def test_a_node_that_does_not_answer_is_left_out() -> None:
    kubelets = Nodes(n1=ServerError("away"), n2={"pods": [told("p2", main=3)]})
    assert await sampled(kubelets, a_pod("p1"), a_pod("p2", "n2")) == [{"p2": 3}]


async def test_a_node_speaks_only_of_its_own_pods() -> None:
    kubelets = Nodes(n1={"pods": [told("p1", main=5)]}, n2={"pods": [told("p1", main=9), told("p2", main=3)]})
    assert await sampled(kubelets, a_pod("p1"), a_pod("p2", "n2")) == [{"p1": 5, "p2": 3}]


async def test_the_longer_a_node_does_not_answer_the_less_it_is_asked() -> None:
    kubelets = Nodes(n1=ServerError("away"), n2={})
    await sampled(kubelets, a_pod("p1"), a_pod("p2", "n2"), waits=(SAMPLE_SECONDS,) * 8)
    assert [kubelets.asked.count(name) for name in ("n1", "n2")] == [4, 8]


@pytest.mark.parametrize(
    "summary",
    [
        None,
        [],
        {},
        {"pods": None},
        {"pods": [None, {}, {"podRef": 1}]},
        {"pods": [{"podRef": {"uid": "p1"}, "containers": "x"}]},
        {"pods": [told("p1", main=None)]},
        {"pods": [told("p1", main="5")]},
        {"pods": [told("p1", main=0)]},
    ],
)
def test_an_answer_of_another_shape_tells_nothing(summary: Any) -> None:
    assert memory_of(summary, [a_pod("p1")]) == {}
