"""Pods killed for memory do not wander, on whichever cluster the environment chose."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from moorage.decide.runs.memorykills import is_gated, ledger_from
from moorage.model.policy import POLICIES
from moorage.webhooks.config import webhook_configurations
from moorage_kube.errors import ApiError
from moorage_kube.meta import annotations_of, controller_ref, is_deleting, labels_of
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    REPLICASETS,
    STATEFULSETS,
    VALIDATING_WEBHOOKS,
    Obj,
)
from moorage_kube.testing.waiting import until
from moorage_testing.hollow import HollowNodes, hollow_nodes

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("scheduler", "controllers")]

OTHERS = (
    "memoryLimit", "resourceRequests", "guaranteedQos", "retryWithoutLimit", "gpuNodes", "gpuType", "gpuCount",
    "missingCommand",
)  # fmt: skip


@pytest.fixture
async def namespace(api: KubeClient, unique: str) -> AsyncIterator[str]:
    meta = {"name": unique, "labels": {"moorage.dev/guard": "enabled", "team": unique}}
    await api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    yield unique
    await api.delete(NAMESPACES, unique)


@pytest.fixture
async def nodes(api: KubeClient, namespace: str) -> AsyncIterator[HollowNodes]:
    names = [f"{namespace}-{n}" for n in range(3)]
    async with hollow_nodes(api, *names, gpus=0, labels={"hollow": namespace}) as made:
        yield made


async def hold_bombs(api: KubeClient, namespace: str, **rule: Any) -> None:
    """A policy with this rule alone, known to the webhook when this returns."""
    rules = {one: {"level": "off"} for one in OTHERS} | {"restartBomb": {"level": "fill"} | rule}
    rules["unsupportedAnnotations"] = {"level": "deny"}
    spec = {"namespaceSelector": {"matchLabels": {"team": namespace}}, "rules": rules}
    with contextlib.suppress(ApiError):
        await api.delete(POLICIES, namespace)
    body = {
        "apiVersion": POLICIES.api_version,
        "kind": POLICIES.kind,
        "metadata": {"name": namespace},
        "spec": spec,
    }
    await api.create(POLICIES, body)

    async def is_known() -> bool:
        pod = a_pod(namespace)
        pod["metadata"]["annotations"] = {"scheduler.alpha.kubernetes.io/name": "x"}
        try:
            await api.create(PODS, pod, namespace, dry_run=True)
        except ApiError:
            return True
        return False

    await until("the webhook to know the policy", is_known)


@pytest.fixture(autouse=True)
async def no_policy_stays(api: KubeClient, unique: str) -> AsyncIterator[None]:
    yield
    with contextlib.suppress(ApiError):
        await api.delete(POLICIES, unique)


def pod_spec(namespace: str, memory: str = "1Gi", **more: Any) -> Obj:
    sizes = {"memory": memory, "cpu": "100m"}
    container = {
        "name": "c",
        "image": "example.test/none:1",
        "resources": {"requests": dict(sizes), "limits": sizes},
    }
    return {"nodeSelector": {"hollow": namespace}, "containers": [container]} | more


def a_pod(namespace: str, memory: str = "1Gi", **meta: Any) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "step-"} | meta,
        "spec": pod_spec(namespace, memory, restartPolicy="Never"),
    }


def a_workload(namespace: str, replicas: int, memory: str = "1Gi", **spec: Any) -> Obj:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": pod_spec(namespace, memory)}
    more = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": "web"}, "spec": more | spec}


async def pods_of(api: KubeClient, namespace: str) -> list[Obj]:
    return (await api.list(PODS, namespace)).items


def is_running(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running" and not is_deleting(pod)


def memory_of(pod: Obj) -> str:
    return str(pod["spec"]["containers"][0]["resources"]["limits"]["memory"])


async def running(api: KubeClient, namespace: str, count: int) -> list[Obj]:
    async def read() -> list[Obj]:
        found = [one for one in await pods_of(api, namespace) if is_running(one)]
        return found if len(found) == count else []

    found: list[Obj] = await until(f"{count} running pods", read)
    return found


async def until_memory_is(api: KubeClient, namespace: str, *wanted: str) -> None:
    """Every running pod has what is wanted of it."""

    async def read() -> bool:
        return [memory_of(one) for one in await pods_of(api, namespace) if is_running(one)] == list(wanted)

    await until(f"pods with {', '.join(wanted)}", read)


async def one_held(api: KubeClient, namespace: str) -> Obj | None:
    found = [one for one in await pods_of(api, namespace) if is_gated(one) and not is_deleting(one)]
    return found[0] if len(found) == 1 else None


async def held(api: KubeClient, namespace: str) -> Obj:
    found: Obj = await until("one held pod", lambda: one_held(api, namespace))
    return found


async def kill_until(
    api: KubeClient,
    nodes: Any,
    namespace: str,
    used: str,
    ready: Callable[[], Awaitable[Any]],
    *,
    limit: str = "",
) -> Any:
    """Kill what runs for its memory until then: a replacement that was let in before the webhook had seen the kill
    has slipped past, and is killed as well. With `limit` only pods of that limit: what is waited for may begin to
    run between two looks."""
    killed: set[str] = set()

    async def read() -> Any:
        if found := await ready():
            return found
        for one in await pods_of(api, namespace):
            name = one["metadata"]["name"]
            if is_running(one) and name not in killed and limit in ("", memory_of(one)):
                killed.add(name)
                await nodes.evict(namespace, name, used=used)
        return None

    return await until(f"what follows kills at {used}", read)


async def told(api: KubeClient, namespace: str, kind: str, reason: str) -> str:
    async def read() -> str:
        for event in (await api.list(EVENTS, namespace)).items:
            if event["involvedObject"]["kind"] == kind and event["reason"] == reason:
                return str(event["message"])
        return ""

    said: str = await until(f"an event {reason} about a {kind}", read)
    return said


async def test_one_replica_of_a_deployment_is_held_and_the_others_stay_until_it_gets_more_memory(
    api, namespace, nodes
):
    await hold_bombs(api, namespace)
    await api.create(DEPLOYMENTS, a_workload(namespace, 3), namespace)
    first, *_ = await running(api, namespace, 3)
    await nodes.evict(namespace, first["metadata"]["name"], used="3Gi")
    pod = await held(api, namespace)
    assert labels_of(pod)["moorage.dev/memory"] == "held"
    assert "used 3Gi" in annotations_of(pod)["moorage.dev/memory-held"]
    said = await told(api, namespace, "Deployment", "KilledForMemory")
    assert f"on node {first['spec']['nodeName']}" in said
    assert "moorage.dev/memory-release=yes" in await told(api, namespace, "Pod", "HeldForMemory")
    owner = controller_ref(first)
    keeper = await api.get(REPLICASETS, owner["name"], namespace)
    assert [one.pod for one in ledger_from(annotations_of(keeper)["moorage.dev/memory-kills"]).kills] == [
        first["metadata"]["name"]
    ]
    await running(api, namespace, 2)

    more = a_workload(namespace, 3, "2Gi")["spec"]["template"]
    await api.patch(DEPLOYMENTS, "web", {"spec": {"template": more}}, namespace)
    await until_memory_is(api, namespace, "2Gi", "2Gi", "2Gi")

    async def is_none_held() -> bool:
        return not any(is_gated(pod) for pod in await pods_of(api, namespace))

    await until("the held pod of the old template to go", is_none_held)


async def test_a_stateful_set_that_waits_for_its_held_pod_moves_on_when_its_template_changes(
    api, namespace, nodes
):
    await hold_bombs(api, namespace, level="deny")
    await api.create(STATEFULSETS, a_workload(namespace, 2, serviceName="web"), namespace)
    await running(api, namespace, 2)
    await nodes.evict(namespace, "web-0", used="3Gi")
    pod = await held(api, namespace)
    assert pod["metadata"]["name"] == "web-0"
    assert [one["metadata"]["name"] for one in await running(api, namespace, 1)] == ["web-1"]

    async def is_noted() -> bool:
        return "moorage.dev/memory-kills" in annotations_of(await api.get(STATEFULSETS, "web", namespace))

    await until("the StatefulSet to bear what happened", is_noted)
    more = a_workload(namespace, 2, "2Gi")["spec"]["template"]
    await api.patch(STATEFULSETS, "web", {"spec": {"template": more}}, namespace)
    await until_memory_is(api, namespace, "2Gi", "2Gi")


async def test_a_job_that_would_try_again_waits_until_its_user_lets_it(api, namespace, nodes):
    await hold_bombs(api, namespace)
    ignores = {
        "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    }
    template = {"spec": pod_spec(namespace, restartPolicy="Never")}
    spec = {"backoffLimit": 3, "podFailurePolicy": ignores, "template": template}
    await api.create(JOBS, {"metadata": {"name": "bomb"}, "spec": spec}, namespace)
    (first,) = await running(api, namespace, 1)
    await nodes.finish(namespace, first["metadata"]["name"], 137, "OOMKilled")
    pod = await held(api, namespace)
    release = {"metadata": {"annotations": {"moorage.dev/memory-release": "yes"}}}
    await api.patch(PODS, pod["metadata"]["name"], release, namespace)
    (again,) = await running(api, namespace, 1)
    assert again["metadata"]["name"] == pod["metadata"]["name"]
    await nodes.evict(namespace, again["metadata"]["name"], used="2Gi")  # which this Job ignores
    assert (await held(api, namespace))["metadata"]["name"] != pod["metadata"]["name"]


async def test_an_owner_of_a_kind_we_do_not_know_is_held_too_but_not_its_other_pods(api, namespace, nodes):
    await hold_bombs(api, namespace)
    owner = await api.create(CONFIGMAPS, {"metadata": {"name": "flow"}}, namespace)
    ref = {"apiVersion": "v1", "kind": "ConfigMap", "name": "flow", "uid": owner["metadata"]["uid"]}
    refs = {"ownerReferences": [ref | {"controller": True}]}
    await api.create(PODS, a_pod(namespace, **refs), namespace)
    (first,) = await running(api, namespace, 1)
    await nodes.finish(namespace, first["metadata"]["name"], 137, "OOMKilled")
    await told(api, namespace, "ConfigMap", "KilledForMemory")
    other = a_pod(namespace, **refs)
    other["spec"]["containers"][0]["args"] = ["another step"]
    for pod, gated in ((a_pod(namespace, **refs), True), (other, False), (a_pod(namespace, "2Gi", **refs), False)):
        made = await api.create(PODS, pod, namespace)
        assert is_gated(made) is gated


async def test_where_the_policy_allows_it_the_replacement_gets_more_memory_up_to_its_cap(api, namespace, nodes):
    await hold_bombs(api, namespace, escalation={"max": "3Gi"})
    await api.create(DEPLOYMENTS, a_workload(namespace, 1), namespace)
    for used, wanted in (("1Gi", "2Gi"), ("2Gi", "3Gi")):

        async def raised(wanted: str = wanted) -> bool:
            return [memory_of(one) for one in await pods_of(api, namespace) if is_running(one)] == [wanted]

        await kill_until(api, nodes, namespace, used, raised, limit=used)
    assert "raised from" in await told(api, namespace, "Pod", "MemoryRaised")
    assert memory_of(await kill_until(api, nodes, namespace, "3Gi", lambda: one_held(api, namespace))) == "1Gi"


async def test_a_milder_policy_lets_go_of_what_is_held(api, namespace, nodes):
    await hold_bombs(api, namespace)
    await api.create(DEPLOYMENTS, a_workload(namespace, 1), namespace)
    await kill_until(api, nodes, namespace, "3Gi", lambda: one_held(api, namespace))
    rules = {"spec": {"rules": {"restartBomb": {"level": "warn"}}}}
    await api.patch(POLICIES, namespace, rules)
    await running(api, namespace, 1)


@pytest.mark.cluster("kubelet")
async def test_a_job_really_killed_for_its_memory_is_not_made_again(cluster, api, namespace):
    await hold_bombs(api, namespace)
    grow = "import time\nkept = []\nwhile True:\n    kept.append(bytearray(8 * 2**20))\n    time.sleep(0.02)\n"
    ignores = {
        "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    }
    spec = pod_spec(namespace, "96Mi", restartPolicy="Never")
    del spec["nodeSelector"]
    spec["containers"][0] |= {"image": cluster.image, "command": [cluster.python, "-c", grow]}
    job = {"backoffLimit": 5, "podFailurePolicy": ignores, "template": {"spec": spec}}
    await api.create(JOBS, {"metadata": {"name": "bomb"}, "spec": job}, namespace)
    pod = await held(api, namespace)
    assert "killed for memory" in annotations_of(pod)["moorage.dev/memory-held"]
    places = [one["spec"].get("nodeName") for one in await pods_of(api, namespace)]
    assert len([one for one in places if one]) == 1  # it has seen one node, and no other


@pytest.mark.parametrize("failure_policy", ["Ignore", "Fail"])
async def test_a_webhook_that_is_down_concerns_namespaces_that_opted_in_and_no_others(
    api, namespace, failure_policy
):
    other = f"{namespace}-free"
    meta = {"name": other, "labels": {"team": namespace}}
    await api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    resources = (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
    made = webhook_configurations(url="https://127.0.0.1:1", failure_policy=failure_policy)
    try:
        for resource, config in zip(resources, made, strict=True):
            config["metadata"]["name"] = namespace
            config["webhooks"] = [one for one in config["webhooks"] if "namespaceSelector" in one]
            for one in config["webhooks"]:
                one["namespaceSelector"].setdefault("matchLabels", {})["team"] = namespace  # of this test alone
            await api.create(resource, config)

        async def is_in_force() -> bool:
            try:
                await api.create(PODS, a_pod(namespace), namespace, dry_run=True)
            except ApiError:
                return True
            return False

        if failure_policy == "Fail":
            await until("the registration to be in force", is_in_force)
        else:
            await api.create(PODS, a_pod(namespace), namespace)
        free = await api.create(PODS, a_pod(namespace), other)
        assert "moorage.dev/owner" not in labels_of(free)
        assert not free["spec"].get("schedulingGates")
    finally:
        for resource in resources:
            with contextlib.suppress(ApiError):
                await api.delete(resource, namespace)
        await api.delete(NAMESPACES, other)
