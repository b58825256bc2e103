from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.decide.packing.policies import GpuNode
from moorage.extender.cache import ExtenderCache
from moorage.extender.ledger import ASSUME_SECONDS, Hold
from moorage_kube.meta import Key
from moorage_kube.resources import NODES, PODS, Obj
from moorage_kube.testing.clock import FakeClock
from moorage_kube.testing.examples import examples
from moorage_local.testing.fakeapi import FakeApi

GPU = "nvidia.com/gpu"


def a_node(name: str, gpus: int = 2, **labels: str) -> Obj:
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"cpu": "8", GPU: str(gpus)}}}


def a_pod(name: str, gpus: int = 1, node: str = "", phase: str = "Pending", **status: Any) -> Obj:
    return {
        "metadata": {"name": name, "namespace": "lab", "uid": f"uid-{name}"},
        "spec": {
            "containers": [{"name": "c", "resources": {"limits": {GPU: str(gpus)}}}],
            **({"nodeName": node} if node else {}),
        },
        "status": {"phase": phase, **status},
    }


@contextlib.asynccontextmanager
async def a_cache(api: FakeApi, **options: Any) -> AsyncIterator[ExtenderCache]:
    cache = ExtenderCache(api, **options)
    task = asyncio.create_task(cache.run())
    try:
        await cache.synced.wait()
        yield cache
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def quiet() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def node_in(cache: ExtenderCache, name: str = "n") -> GpuNode:
    node = cache.gpu_node(name)
    assert node is not None
    return node


@pytest.mark.anyio
async def test_bound_and_nominated_pods_count_as_used_and_finished_ones_do_not():
    api = FakeApi()
    api.put(NODES, a_node("n", 8))
    api.put(PODS, a_pod("bound", 2, "n", "Running"))
    api.put(PODS, a_pod("expected", 1, nominatedNodeName="n"))
    api.put(PODS, a_pod("done", 4, "n", "Succeeded"))
    api.put(PODS, a_pod("waiting", 4))
    async with a_cache(api) as cache:
        assert node_in(cache) == GpuNode(name="n", total={GPU: 8}, used={GPU: 3})
        assert cache.gpu_node("elsewhere") is None
        counted = cache.ledger.counted(Key("lab", "expected"))
        assert counted is not None
        assert counted.node == "n"
        assert len(cache.rooms("n")[GPU].free) == 5
        assert len(cache.rooms("n", without=Key("lab", "expected"))[GPU].free) == 6


@pytest.mark.anyio
async def test_the_type_of_gpus_is_read_from_the_labels_of_the_vendors():
    api = FakeApi()
    api.put(NODES, a_node("n", **{"nvidia.com/gpu.product": "a100", "accelerator": "old"}))
    api.put(NODES, a_node("m"))
    api.put(NODES, a_node("cpu", 0))
    async with a_cache(api) as cache:
        assert {node.name: kind for node, kind in cache.nodes()} == {"n": "a100", "m": "unknown"}


changes = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.one_of(
            st.none(),
            st.builds(
                lambda gpus, node, phase, nominated: (gpus, node, phase, nominated),
                st.integers(0, 3),
                st.sampled_from(["", "n", "m"]),
                st.sampled_from(["Pending", "Running", "Failed"]),
                st.sampled_from(["", "n", "m"]),
            ),
        ),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=examples(20, full=50))
@given(changes)
def test_counters_moved_by_changes_equal_a_count_from_scratch(steps):
    async def play() -> None:
        api = FakeApi()
        for name in ("n", "m"):
            api.put(NODES, a_node(name, 8))
        present: dict[str, Obj] = {}
        async with a_cache(api) as moved:
            for name, pod in steps:
                if pod is not None:
                    gpus, node, phase, nominated = pod
                    present[name] = api.put(PODS, a_pod(name, gpus, node, phase, nominatedNodeName=nominated))
                elif present.pop(name, None) is not None:
                    api.remove(PODS, name, "lab")
            await quiet()
            async with a_cache(api) as fresh:
                for name in ("n", "m"):
                    assert moved.gpu_node(name) == fresh.gpu_node(name)

    asyncio.run(play())


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("change", "used", "outcome"),
    [
        pytest.param({}, {"n": 1}, "", id="seen made, later than asked about: still on its way"),
        pytest.param({"node": "n"}, {"n": 1}, "right", id="bound as assumed"),
        pytest.param({"node": "m"}, {"m": 1}, "wrong", id="bound elsewhere"),
        pytest.param(
            {"conditions": [{"type": "PodScheduled", "status": "False"}]}, {}, "refused", id="not schedulable"
        ),
        pytest.param({"nominatedNodeName": "m"}, {"m": 1}, "refused", id="nominated elsewhere"),
        pytest.param({"phase": "Failed"}, {}, "gone", id="finished"),
        pytest.param(None, {}, "gone", id="deleted"),
    ],
)
async def test_an_assumed_placement_counts_until_something_newer_is_known(change, used, outcome):
    api = FakeApi()
    for name in ("n", "m"):
        api.put(NODES, a_node(name))
    pod = api.put(PODS, a_pod("first"))
    async with a_cache(api) as cache:
        hold = Hold("n", {GPU: 1}, 0)
        cache.assume(Key("lab", "first"), "uid-first", hold, version=int(pod["metadata"]["resourceVersion"]))
        assert node_in(cache).used == {GPU: 1}
        if change is None:
            api.remove(PODS, "first", "lab")
        else:
            api.put(PODS, a_pod("first", **change))
        await quiet()
        assert {name: node_in(cache, name).used.get(GPU, 0) for name in ("n", "m")} == {"n": 0, "m": 0} | used
        assert dict(cache.ledger.outcomes) == ({outcome: 1} if outcome else {})


@pytest.mark.anyio
async def test_an_assumption_nothing_is_heard_of_ends():
    api, clock = FakeApi(), FakeClock()
    api.put(NODES, a_node("n"))
    async with a_cache(api, clock=clock) as cache:
        cache.assume(Key("lab", "lost"), "uid-lost", Hold("n", {GPU: 1}, 0), version=1)
        clock.advance(ASSUME_SECONDS - 1)
        assert cache.asked_about(Key("lab", "next")) is None
        assert node_in(cache).used == {GPU: 1}
        clock.advance(1)
        assert cache.asked_about(Key("lab", "next")) is None
        assert node_in(cache).used == {}
        assert cache.ledger.outcomes["expired"] == 1


@pytest.mark.anyio
async def test_age_tells_how_long_nothing_was_heard():
    api, clock = FakeApi(), FakeClock()
    async with a_cache(api, clock=clock) as cache:
        clock.advance(30)
        assert cache.age_seconds() == 30
        api.put(NODES, a_node("n"))
        await quiet()
        assert cache.age_seconds() == 0


@pytest.mark.anyio
async def test_a_node_or_pod_that_cannot_be_read_is_passed_over():
    api = FakeApi()
    api.put(NODES, {"metadata": {"name": "odd"}, "status": {"allocatable": {GPU: "many"}}})
    api.put(NODES, a_node("n"))
    api.put(
        PODS,
        a_pod("odd", node="n")
        | {"spec": {"nodeName": "n", "containers": [{"resources": {"limits": {GPU: "x"}}}]}},
    )
    async with a_cache(api) as cache:
        assert cache.gpu_node("odd") is None
        assert node_in(cache).used == {}
