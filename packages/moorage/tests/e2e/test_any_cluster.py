"""The run, its guards and its restarts, on whichever cluster the environment chose.

Nodes are hollow (they take pods and say that they run), so a control plane without a kubelet plays the same
scenes: scheduler, Job controller and API are the cluster's own; operator, webhook, extender and server ours.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from moorage_kube.errors import ApiError, Invalid, NotFound
from moorage_kube.meta import is_condition_true, labels_of
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import JOBS, NAMESPACES, NODES, PODS, PRIORITYCLASSES, Obj, Resource
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster
from moorage_testing.hollow import HollowNodes, hollow_nodes

pytestmark = pytest.mark.anyio

TENANTS = Resource("moorage.dev", "v1alpha1", "tenants", "Tenant", namespaced=False)
ROLEBINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
PEOPLE = ("ada", "grace", "linus")


@pytest.fixture
async def namespace(api: KubeClient, unique: str) -> AsyncIterator[str]:
    """A namespace of the test's own, guarded by our webhook."""
    await api.create(
        NAMESPACES,
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": unique, "labels": {"moorage.dev/guard": "enabled"}},
        },
    )
    people = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name} for name in PEOPLE]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    binding = {"metadata": {"name": "people"}, "subjects": people, "roleRef": role}
    await api.create(
        ROLEBINDINGS, {"apiVersion": ROLEBINDINGS.api_version, "kind": "RoleBinding"} | binding, unique
    )
    yield unique
    await api.delete(NAMESPACES, unique)


@pytest.fixture
async def nodes(api: KubeClient, unique: str) -> AsyncIterator[HollowNodes]:
    """Two hollow nodes of two GPUs of a type that bears the test's name, so that nobody else's pods land there."""
    async with hollow_nodes(api, f"{unique}-a", f"{unique}-b", gpus=2, gpu_type=unique) as made:
        yield made


def moor(cluster: Cluster, namespace: str, *args: str, check: bool = True) -> Any:
    project = cluster.home / "project"  # what a real cluster is shipped
    project.mkdir(exist_ok=True)
    (project / "train.py").write_text("print('never really run')\n")
    return cluster.moor(*args[:1], "-n", namespace, *args[1:], check=check, cwd=project)


def run(cluster: Cluster, namespace: str, name: str, gpus: int, gpu_type: str, *options: str) -> None:
    image = [] if cluster.kind == "local" else ["--image", "example.test/none:1"]
    moor(
        cluster, namespace, "run", "--name", name, "--gpus", str(gpus), "--gpu-type", gpu_type, "--cpu", "1",
        "--memory", "1Gi", *image, *options, "--", "python3", "train.py",
    )  # fmt: skip


async def running_pod(api: KubeClient, namespace: str, run_name: str, attempt: int = 1) -> Obj:
    async def read() -> Obj | None:
        selector = f"moorage.dev/run={run_name},moorage.dev/attempt={attempt}"
        pods = (await api.list(PODS, namespace, label_selector=selector)).items
        return next((pod for pod in pods if pod["status"].get("phase") == "Running"), None)

    found: Obj = await until(f"attempt {attempt} of {run_name} to run", read)
    return found


async def state(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    done = await asyncio.to_thread(moor, cluster, namespace, "show", name, "-o", "json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def until_state(cluster: Cluster, namespace: str, name: str, wanted: str) -> dict[str, Any]:
    async def read() -> dict[str, Any] | None:
        found = await state(cluster, namespace, name)
        return found if found["state"] == wanted else None

    found: dict[str, Any] = await until(f"{name} to be {wanted}", read)
    return found


@pytest.mark.cluster("api")
async def test_a_wrong_tenant_is_refused_by_its_schema(api, unique):
    tenant = {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": unique},
        "spec": {"namespace": "Not A Name", "defaults": {"memory": "2Gi"}, "surprise": 1},
    }
    with pytest.raises(ApiError) as refused:
        await api.create(TENANTS, tenant)
    assert isinstance(refused.value, Invalid)
    assert "spec.namespace" in refused.value.message


@pytest.mark.cluster("api")
async def test_a_run_becomes_a_guarded_job_whose_owner_cannot_be_forged(cluster, api, namespace, nodes, unique):
    run(cluster, namespace, "guarded", 1, unique, "--time", "2h", "--as", "ada")
    job = await api.get(JOBS, "guarded", namespace)
    pod = job["spec"]["template"]["spec"]
    resources = pod["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"] == {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    assert (job["spec"]["backoffLimit"], pod["restartPolicy"], pod["activeDeadlineSeconds"]) == (0, "Never", 7200)
    assert labels_of(job)["moorage.dev/owner"] == "ada"
    forged = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "forged", "labels": {"moorage.dev/owner": "mallory", "moorage.dev/run": "forged"}},
        "spec": {
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": {"moorage.dev/owner": "mallory", "moorage.dev/run": "forged"}},
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [
                        {
                            "name": "main",
                            "image": "localhost/host",
                            "command": ["true"],
                            "resources": {"limits": {"cpu": "1", "memory": "64Mi"}},
                        }
                    ],
                },
            },
        },
    }
    made = await api.create(JOBS, forged, namespace)
    stamped = {
        labels_of(made)["moorage.dev/owner"],
        made["spec"]["template"]["metadata"]["labels"]["moorage.dev/owner"],
    }
    assert len(stamped) == 1
    assert "mallory" not in stamped


@pytest.mark.cluster("api")
async def test_a_job_without_a_memory_limit_that_would_be_tried_again_is_refused(api, namespace):
    """R6: no bomb that wanders from node to node."""
    labels = {"moorage.dev/run": "bomb"}
    bomb = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "bomb", "labels": labels},
        "spec": {
            "backoffLimit": 6,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "restartPolicy": "OnFailure",
                    "containers": [{"name": "main", "image": "localhost/host", "command": ["true"]}],
                },
            },
        },
    }
    with pytest.raises(ApiError, match="backoffLimit") as refused:
        await api.create(JOBS, bomb, namespace)
    assert "restartPolicy" in refused.value.message
    with pytest.raises(NotFound):
        await api.get(JOBS, "bomb", namespace)


@pytest.mark.cluster("scheduler", "controllers", "extender")
async def test_seed_003_with_the_extender_all_three_pods_run(cluster, api, namespace, nodes, unique):
    for name, gpus in (("one", 1), ("two", 1), ("three", 2)):
        await asyncio.to_thread(run, cluster, namespace, name, gpus, unique)
        await running_pod(api, namespace, name)
    where = {
        name: (await running_pod(api, namespace, name))["spec"]["nodeName"] for name in ("one", "two", "three")
    }
    assert where["one"] == where["two"] != where["three"]


@pytest.mark.cluster("scheduler", "controllers")
async def test_a_drained_run_is_started_again_elsewhere_and_counted_apart_from_failures(
    cluster, api, namespace, nodes, unique
):
    await asyncio.to_thread(run, cluster, namespace, "moved", 1, unique, "--retries", "2")
    before = (await running_pod(api, namespace, "moved"))["spec"]["nodeName"]
    await asyncio.to_thread(cluster.moor, "drain", before)
    after = await running_pod(api, namespace, "moved", attempt=2)
    assert after["spec"]["nodeName"] != before
    found = await state(cluster, namespace, "moved")
    assert (found["state"], found["restarts"]) == ("Running", 1)
    second = await api.get(JOBS, "moved-r2", namespace)
    assert second["spec"]["backoffLimit"] == 2, "a drain used up a retry"
    assert second["metadata"]["ownerReferences"][0]["name"] == "moved"
    await asyncio.to_thread(cluster.moor, "uncordon", before)
    await nodes.finish(namespace, after["metadata"]["name"], 0)
    await until_state(cluster, namespace, "moved", "Succeeded")


@pytest.mark.cluster("scheduler", "controllers")
async def test_a_run_preempted_by_a_higher_priority_is_started_again(cluster, api, namespace, nodes, unique):
    await asyncio.to_thread(run, cluster, namespace, "low", 2, unique)
    await asyncio.to_thread(run, cluster, namespace, "other", 2, unique)
    await running_pod(api, namespace, "low")
    await running_pod(api, namespace, "other")
    await api.create(
        PRIORITYCLASSES,
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": unique},
            "value": 1000,
        },
    )
    try:
        await asyncio.to_thread(run, cluster, namespace, "high", 2, unique, "--priority-class", unique)
        high = await running_pod(api, namespace, "high")

        async def second_attempt() -> Obj | None:
            jobs = (await api.list(JOBS, namespace, label_selector="moorage.dev/attempt=2")).items
            return jobs[0] if jobs else None

        again = await until("the preempted run's second attempt", second_attempt)
        assert labels_of(again)["moorage.dev/run"] in {"low", "other"}
        await nodes.finish(namespace, high["metadata"]["name"], 0)
        await running_pod(api, namespace, labels_of(again)["moorage.dev/run"], attempt=2)
    finally:
        await api.delete(PRIORITYCLASSES, unique)


@pytest.mark.cluster("scheduler", "controllers")
async def test_a_run_whose_node_is_gone_is_started_again(cluster, api, namespace, nodes, unique):
    await asyncio.to_thread(run, cluster, namespace, "lost", 1, unique)
    node = (await running_pod(api, namespace, "lost"))["spec"]["nodeName"]
    nodes.lose(node)
    await api.delete(NODES, node)
    after = await running_pod(api, namespace, "lost", attempt=2)
    assert after["spec"]["nodeName"] != node


@pytest.mark.cluster("scheduler", "controllers")
@pytest.mark.parametrize(
    ("exit_code", "reason", "shown"),
    [
        pytest.param(137, "OOMKilled", "OOMKilled", id="killed for memory"),
        pytest.param(1, None, "Failed", id="failed by itself"),
    ],
)
async def test_a_run_that_died_by_its_own_doing_is_not_started_again(
    cluster, api, namespace, nodes, unique, exit_code, reason, shown
):
    await asyncio.to_thread(run, cluster, namespace, "own", 1, unique)
    pod = await running_pod(api, namespace, "own")
    await nodes.finish(namespace, pod["metadata"]["name"], exit_code, reason)
    found = await until_state(cluster, namespace, "own", shown)
    assert found["restarts"] == 0
    jobs = (await api.list(JOBS, namespace, label_selector="moorage.dev/run=own")).items
    assert [job["metadata"]["name"] for job in jobs] == ["own"]


@pytest.mark.cluster("scheduler", "controllers")
async def test_a_run_evicted_by_its_kubelet_for_memory_is_not_started_again(
    cluster, api, namespace, nodes, unique
):
    """Seed 000's wandering bomb: Kubernetes calls this a disruption too."""
    await asyncio.to_thread(run, cluster, namespace, "bomb", 1, unique)
    pod = await running_pod(api, namespace, "bomb")
    status = {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: memory. Container main was using 9Gi",
        "conditions": [
            *pod["status"]["conditions"],
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "TerminationByKubelet",
                "message": "The node was low on resource: memory.",
                "lastTransitionTime": pod["metadata"]["creationTimestamp"],
            },
        ],
    }
    await api.patch(PODS, pod["metadata"]["name"], {"status": status}, namespace, subresource="status")

    async def judged() -> Obj | None:
        job = await api.get(JOBS, "bomb", namespace)
        return job if "moorage.dev/ended" in (job["metadata"].get("annotations") or {}) else None

    job = await until("the operator's judgement", judged)
    assert is_condition_true(job, "Failed")
    jobs = (await api.list(JOBS, namespace, label_selector="moorage.dev/run=bomb")).items
    assert [job["metadata"]["name"] for job in jobs] == ["bomb"]


@pytest.mark.cluster("scheduler", "controllers")
async def test_everybody_sees_who_holds_what_and_why_a_run_waits(cluster, api, namespace, nodes, unique):
    await asyncio.to_thread(run, cluster, namespace, "first", 2, unique, "--as", "ada", "--time", "2h")
    await asyncio.to_thread(run, cluster, namespace, "second", 2, unique, "--as", "grace")
    await running_pod(api, namespace, "first")
    await running_pod(api, namespace, "second")
    await asyncio.to_thread(run, cluster, namespace, "third", 1, unique, "--as", "linus")

    async def in_use() -> list[Any] | None:
        gpus = json.loads((await asyncio.to_thread(cluster.moor, "gpus", "-o", "json")).stdout)
        mine = [gpu for gpu in gpus if gpu["node"].startswith(unique)]
        return mine if [gpu["state"] for gpu in mine] == ["used"] * 4 else None

    mine = await until("four GPUs in use", in_use)
    assert sorted({gpu["owner"] for gpu in mine}) == ["ada", "grace"]

    async def explained() -> str | None:
        done = await asyncio.to_thread(moor, cluster, namespace, "explain", "third", check=False)
        text: str = done.stdout
        return text if "ada" in text and "grace" in text else None

    text = await until("an explanation that names the holders", explained)
    assert "needs 1 GPU" in text
