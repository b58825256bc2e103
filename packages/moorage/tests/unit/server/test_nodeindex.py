"""The views of runs and nodes that the server keeps are those that would be made anew from every object."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.runs.state import view_runs
from moorage.decide.usage.gpus import gpu_type, sum_gpus, view_gpus
from moorage.decide.usage.nodes import view_nodes
from moorage.model.names import RUN_LABEL
from moorage.server.nodeindex import NodeIndex
from moorage.server.runindex import RunIndex
from moorage_kube.errors import NotFound
from moorage_kube.informer import Informer, index_by_label, wait_synced
from moorage_kube.meta import labels_of
from moorage_kube.resources import JOBS, NODES, PODS, Resource
from moorage_local.testing.fakeapi import FakeApi

RUNS, SPACES, TYPES = ("a", "b"), ("default", "vision"), ("a100", "t4")


def a_node(name: str, kind: str) -> dict[str, Any]:
    amounts = {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"}
    labels = {"nvidia.com/gpu.product": kind}
    return {"metadata": {"name": name, "labels": labels}, "status": {"capacity": amounts, "allocatable": amounts}}


def a_job(run: str, space: str, attempt: int) -> dict[str, Any]:
    labels = {RUN_LABEL: run, "moorage.dev/attempt": str(attempt)}
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "metadata": {"name": f"{run}-{attempt}", "namespace": space, "labels": labels},
        "spec": {"template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}},
    }  # fmt: skip


def a_pod(run: str, space: str, phase: str, node: str) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    owner = {"kind": "Job", "name": f"{run}-1", "uid": f"{space}-{run}-1", "controller": True}
    meta = {"name": f"{run}-pod", "namespace": space, "uid": f"pod-{space}-{run}", "ownerReferences": [owner]}
    return {
        "metadata": meta | {"labels": {RUN_LABEL: run}},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": phase},
    }


runs, spaces, nodes = st.sampled_from(RUNS), st.sampled_from(SPACES), st.sampled_from(("n1", "n2"))
phases = st.sampled_from(("Pending", "Running"))
changes = st.one_of(
    st.tuples(st.just(NODES), st.builds(a_node, nodes, st.sampled_from(TYPES)), st.booleans()),
    st.tuples(st.just(JOBS), st.builds(a_job, runs, spaces, st.integers(1, 2)), st.booleans()),
    st.tuples(st.just(PODS), st.builds(a_pod, runs, spaces, phases, nodes), st.booleans()),
)  # fmt: skip


@given(st.lists(st.lists(changes, max_size=4), max_size=4))
def test_kept_views_are_those_that_would_be_made_anew(rounds):
    asyncio.run(follow(rounds))


async def follow(rounds: list[list[tuple[Resource, dict[str, Any], bool]]]) -> None:
    api = FakeApi()
    nodes, jobs, pods = (Informer(api, resource) for resource in (NODES, JOBS, PODS))
    for informer in (jobs, pods):
        informer.add_index("run", index_by_label(RUN_LABEL))
    gpus = NodeIndex(nodes, pods, lambda node, there: next(iter(view_gpus([node], there).nodes), None))
    offers = NodeIndex(nodes, pods, lambda node, there: view_nodes([node], there)[0])
    index = RunIndex(nodes=nodes, jobs=jobs, pods=pods, by_run="run")
    tasks = [asyncio.create_task(informer.run()) for informer in (nodes, jobs, pods)]
    await wait_synced(nodes, jobs, pods)
    for steps in rounds:
        for resource, obj, is_deleted in steps:
            meta = obj["metadata"]
            if is_deleted:
                with contextlib.suppress(NotFound):
                    await api.delete(resource, meta["name"], meta.get("namespace"))
            else:
                api.put(resource, obj)
        for informer in (nodes, jobs, pods):
            stored = (await api.list(informer.resource)).items
            async with asyncio.timeout(60):
                while by_name(informer.all()) != by_name(stored):  # noqa: ASYNC110
                    await asyncio.sleep(0)
        kinds = {node["metadata"]["name"]: gpu_type(labels_of(node)) for node in nodes.all()}
        assert index.all() == view_runs(jobs.all(), pods.all(), node_types=kinds)
        assert sum_gpus(gpus.all()) == view_gpus(nodes.all(), pods.all())
        assert offers.all() == view_nodes(nodes.all(), pods.all())
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def by_name(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(objects, key=lambda obj: (obj["metadata"].get("namespace") or "", obj["metadata"]["name"]))
