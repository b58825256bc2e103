"""A policy holds, and a node's holds are named, on whichever cluster the environment chose."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from moorage.model.policy import POLICIES, gpu_cluster_policy
from moorage_kube.errors import ApiError, Invalid
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import DEPLOYMENTS, JOBS, NAMESPACES, PDBS, PODS, Obj
from moorage_kube.testing import waiting
from moorage_testing.hollow import hollow_nodes

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 180.0  # bounds a hang
until = partial(waiting.until, patience=PATIENCE_SECONDS)


@pytest.fixture
async def namespace(api: KubeClient, unique: str) -> AsyncIterator[str]:
    meta = {"name": unique, "labels": {"moorage.dev/guard": "enabled", "team": unique}}
    await api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    yield unique
    await api.delete(NAMESPACES, unique)


@pytest.fixture
async def policy(api: KubeClient, namespace: str) -> AsyncIterator[str]:
    """The ready-made policy, for the test's own namespace."""
    policy = gpu_cluster_policy()
    policy["metadata"]["name"] = namespace
    policy["spec"]["namespaceSelector"] = {"matchLabels": {"team": namespace}}
    await api.create(POLICIES, policy)
    yield namespace
    await api.delete(POLICIES, namespace)


def a_deployment(**spec: Any) -> Obj:
    container = {"name": "c", "image": "example.test/none:1", "command": ["sleep", "1000"]}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]} | spec}
    selector = {"matchLabels": {"app": "web"}}
    meta = {"name": "web"}
    return {"metadata": meta, "spec": {"replicas": 1, "selector": selector, "template": template}}


def a_job(gpus: int) -> Obj:
    container = {
        "name": "c",
        "image": "example.test/none:1",
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }
    pod = {"restartPolicy": "Never", "nodeSelector": {"nvidia.com/gpu.product": "none-such"}}
    return {"metadata": {"name": "big"}, "spec": {"template": {"spec": pod | {"containers": [container]}}}}


@pytest.mark.cluster("api")
async def test_the_ready_made_policy_fills_in_and_denies(api, policy):
    async def is_filled() -> bool:
        made = await api.create(
            DEPLOYMENTS, a_deployment() | {"metadata": {"generateName": "w-"}}, policy, dry_run=True
        )
        (container,) = made["spec"]["template"]["spec"]["containers"]
        return bool((container.get("resources") or {}).get("limits"))

    await until("the webhook to know the policy", is_filled)
    made = await api.create(DEPLOYMENTS, a_deployment(), policy)
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "500m", "memory": "2Gi"}
    with pytest.raises(Invalid) as refused:
        await api.create(JOBS, a_job(99), policy)
    assert "nodeSelector[nvidia.com/gpu.product]" in refused.value.message
    assert "resources.limits[nvidia.com/gpu]" in refused.value.message


def a_plain_job(**spec: Any) -> Obj:
    container = {"name": "c", "image": "example.test/none:1", "command": ["true"]}
    pod = {"restartPolicy": "Never", "containers": [container]}
    return {"metadata": {"generateName": "plain-"}, "spec": spec | {"template": {"spec": pod}}}


@pytest.mark.cluster("api")
@pytest.mark.parametrize(
    "spec", [{}, {"podReplacementPolicy": "TerminatingOrFailed"}, {"backoffLimit": 3}], ids=str
)
async def test_a_plain_job_is_admitted_under_the_ready_made_policy(api, policy, spec):
    async def is_filled() -> bool:
        made = await api.create(JOBS, a_plain_job(**spec), policy, dry_run=True)
        return made["spec"].get("podFailurePolicy") is not None

    await until("the webhook to know the policy", is_filled)
    made = await api.create(JOBS, a_plain_job(**spec), policy)
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [137]}}
    assert made["spec"]["podFailurePolicy"] == {"rules": [rule]}
    assert made["spec"]["podReplacementPolicy"] == "Failed"


@pytest.mark.cluster("api")
@pytest.mark.parametrize("rules", [{"memoryLimit": {"level": "maybe"}}, {"gpuType": {"level": "fill"}}, None])
async def test_a_policy_that_is_none_is_refused_by_its_schema(api, unique, rules):
    policy = gpu_cluster_policy() | {"metadata": {"name": unique}, "spec": {"rules": rules}}
    with pytest.raises(ApiError) as refused:
        await api.create(POLICIES, policy)
    assert refused.value.status == 422


@pytest.mark.cluster("scheduler")
async def test_doctor_names_what_holds_a_node(cluster, api, namespace):
    async with hollow_nodes(api, f"{namespace}-a", f"{namespace}-b", gpus=2, gpu_type=namespace):
        spec = {
            "nodeName": f"{namespace}-a",
            "containers": [{"name": "c", "image": "example.test/none:1"}],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        }
        meta = {"name": "lone", "labels": {"app": "lone"}}
        await api.create(PODS, {"metadata": meta, "spec": spec}, namespace)
        budget = {
            "metadata": {"name": "keep"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": meta["labels"]}},
        }
        await api.create(PDBS, {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"} | budget, namespace)

        def reports() -> Any:
            return json.loads(cluster.moor("doctor", "nodes", "-o", "json").stdout)

        found = {one["node"]: one for one in await asyncio.to_thread(reports)}
        holds = {hold["rule"] for hold in found[f"{namespace}-a"]["holds"] if hold["pod"] == f"{namespace}/lone"}
        assert holds == {"no-controller", "local-storage", "budget"}
        assert found[f"{namespace}-b"]["mayGo"]
