"""Logs and facts of runs stay when their pods go, on whichever cluster the environment chose; commands as typed.

On nodes with a kubelet the pods really print; on hollow nodes the facts alone are looked at.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from moorage_kube.errors import Forbidden, NotFound
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import JOBS, NODES, PODS, Obj, Resource
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster
from moorage_testing.hollow import hollow_nodes

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

PRINTS = "i=0; while [ $i -lt 3 ]; do i=$((i+1)); echo step $i; done; sleep 600 & wait $!"
STEPS = ["step 1", "step 2", "step 3"]


class Scene:
    """Runs of one namespace, by the command line."""

    def __init__(self, cluster: Cluster, api: KubeClient, namespace: str) -> None:
        self.cluster, self.api, self.namespace = cluster, api, namespace

    async def moor(self, *args: str, check: bool = True) -> Any:
        head, *rest = args
        project = None
        if self.cluster.kind != "local":
            project = self.cluster.home / "project"  # what nodes are sent
            project.mkdir(exist_ok=True)
        return await asyncio.to_thread(
            self.cluster.moor, head, "-n", self.namespace, *rest, check=check, cwd=project
        )

    async def run(self, name: str, *options: str, script: str = PRINTS) -> None:
        fixed = ("--cpu", "100m", "--memory", "64Mi", "--grace-period", "1", *self.cluster.image_options)
        await self.moor("run", "--name", name, *fixed, *options, "--", "sh", "-c", script)

    async def logs(self, name: str, *options: str) -> list[str]:
        done = await self.moor("logs", name, "--no-prefix", *options, check=False)
        lines: list[str] = done.stdout.splitlines()
        return lines

    async def show(self, name: str) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads((await self.moor("show", name, "-o", "json")).stdout)
        return shown

    async def printed(self, name: str, attempt: int = 1) -> Obj:
        """The pod of an attempt, once it has printed all steps and the server keeps them."""
        selector = f"moorage.dev/run={name},moorage.dev/attempt={attempt}"

        async def read() -> Obj | None:
            pods = [
                pod
                for pod in (await self.api.list(PODS, self.namespace, label_selector=selector)).items
                if (pod.get("status") or {}).get("phase") == "Running"
                and "deletionTimestamp" not in pod["metadata"]
            ]
            return pods[-1] if pods and await self.logs(name, "--attempt", str(attempt)) == STEPS else None

        pod: Obj = await until(f"attempt {attempt} of {name} to print", read)
        return pod

    async def gone(self, pod: Obj) -> None:
        async def read() -> bool:
            try:
                there = await self.api.get(PODS, pod["metadata"]["name"], self.namespace)
            except NotFound:
                return True
            return bool(there["metadata"]["uid"] != pod["metadata"]["uid"])

        await until("the pod to be gone", read)

    async def kept(self, name: str, pod: Obj) -> dict[str, Any]:
        """The facts of a pod that is gone, once the server has seen it go."""

        async def read() -> dict[str, Any] | None:
            pods = [one for attempt in (await self.show(name))["history"] for one in attempt["pods"]]
            return next((one for one in pods if one["name"] == pod["metadata"]["name"] and one["gone"]), None)

        facts: dict[str, Any] = await until("the facts of the pod", read)
        return facts


@pytest.fixture
async def scene(cluster: Cluster, api: KubeClient, namespace: str) -> Scene:
    return Scene(cluster, api, namespace)


def assert_facts(facts: dict[str, Any], pod: Obj) -> None:
    assert facts["node"] == pod["spec"]["nodeName"]
    assert facts["started"]
    assert facts["ended"]
    assert facts["reason"] or facts["exitCode"] is not None


@pytest.mark.cluster("scheduler", "controllers", "kubelet")
async def test_a_cancelled_run_keeps_its_log_and_facts(scene):
    await scene.run("stopped")
    pod = await scene.printed("stopped")
    await scene.moor("cancel", "stopped")
    await scene.gone(pod)
    assert_facts(await scene.kept("stopped", pod), pod)
    assert await scene.logs("stopped") == STEPS
    assert await scene.logs("stopped", "--tail", "1") == STEPS[-1:]
    shown = await scene.show("stopped")
    assert (shown["state"], shown["node"]) == ("Cancelled", pod["spec"]["nodeName"])
    text = (await scene.moor("show", "stopped")).stdout
    assert "Failed, gone" in text or "Succeeded, gone" in text
    assert "its pod is deleted" not in text


@pytest.mark.cluster("scheduler", "controllers", "kubelet")
async def test_an_evicted_attempt_keeps_its_log_and_the_next_one_follows(scene):
    await scene.run("moved")
    first = await scene.printed("moved")
    name = first["metadata"]["name"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": scene.namespace},
    }
    await scene.api.create_subresource(PODS, name, "eviction", body, scene.namespace)
    await scene.gone(first)
    await scene.printed("moved", attempt=2)
    facts = await scene.kept("moved", first)
    assert_facts(facts, first)
    assert facts["reason"] == "EvictionByEvictionAPI"
    assert await scene.logs("moved") == STEPS * 2
    assert await scene.logs("moved", "--attempt", "1") == STEPS


@pytest.mark.cluster("scheduler", "controllers", "kubelet")
async def test_a_deleted_pod_and_the_one_made_in_its_place_are_both_told_of(scene):
    await scene.run("again", "--retries", "2")
    first = await scene.printed("again")
    await scene.api.delete(PODS, first["metadata"]["name"], scene.namespace)
    await scene.gone(first)
    assert_facts(await scene.kept("again", first), first)

    async def both() -> bool:
        return await scene.logs("again") == STEPS * 2

    await until("the logs of both pods", both)


@pytest.mark.cluster("scheduler", "controllers", "kubelet")
async def test_a_finished_run_whose_job_is_deleted_is_shown_until_it_is_forgotten(scene):
    await scene.run("done", script="echo all; exit 3")

    async def ended() -> bool:
        return bool((await scene.show("done"))["state"] == "Failed")

    await until("the run to end", ended)
    await scene.api.delete(JOBS, "done", scene.namespace, propagation="Background")

    async def deleted() -> dict[str, Any] | None:
        shown = await scene.show("done")
        pods = shown["history"][0]["pods"]
        return shown if shown["state"] == "Deleted" and pods and pods[0]["gone"] else None

    shown = await until("the run to be deleted", deleted)
    assert (shown["reason"], shown["exitCode"], shown["command"]) == ("was Failed", 3, "sh -c 'echo all; exit 3'")
    assert await scene.logs("done") == await scene.logs("done", "-f") == ["all"]
    await scene.moor("cancel", "done", "--forget")
    refused = await scene.moor("show", "done", check=False)
    assert (refused.returncode, "not found" in refused.stderr) == (1, True)
    assert await scene.logs("done") == []


@pytest.mark.cluster("scheduler", "controllers", "kubelet")
async def test_who_may_not_read_logs_of_pods_gets_none_that_are_kept(scene, unique):
    await scene.run("secret")
    pod = await scene.printed("secret")
    await scene.moor("cancel", "secret")
    await scene.gone(pod)
    rbac = "rbac.authorization.k8s.io"
    rules = [
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
    ]
    role = Resource(rbac, "v1", "roles", "Role")
    binding = Resource(rbac, "v1", "rolebindings", "RoleBinding")
    await scene.api.create(role, {"metadata": {"name": "looks"}, "rules": rules}, scene.namespace)
    bound = {
        "metadata": {"name": "looks"},
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "looks"},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": f"eve-{unique}"}],
    }
    await scene.api.create(binding, bound, scene.namespace)
    with pytest.raises(Forbidden):
        await anext(scene.api.as_user(f"eve-{unique}").logs(pod["metadata"]["name"], scene.namespace))
    refused = await scene.moor("logs", "secret", "--as", f"eve-{unique}", check=False)
    assert "step" not in refused.stdout
    assert refused.returncode != 0 or "may not read" in refused.stderr


@pytest.mark.cluster("scheduler", "controllers")
async def test_the_facts_of_an_attempt_on_a_lost_node_stay(cluster, api, namespace, unique):
    """On hollow nodes: the node goes, and says no more; its pod is removed by others."""
    scene = Scene(cluster, api, namespace)
    async with hollow_nodes(api, f"{unique}-a", f"{unique}-b", gpus=1, gpu_type=unique) as nodes:
        image = [] if cluster.kind == "local" else ["--image", "example.test/none:1"]
        await scene.moor(
            "run", "--name", "lost", "--gpus", "1", "--gpu-type", unique, "--cpu", "1", "--memory", "64Mi", *image,
            "--", "sh", "-c", PRINTS,
        )  # fmt: skip

        async def running(attempt: int) -> Obj | None:
            selector = f"moorage.dev/run=lost,moorage.dev/attempt={attempt}"
            pods = (await api.list(PODS, namespace, label_selector=selector)).items
            return next((pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"), None)

        first = await until("the first attempt", lambda: running(1))
        nodes.lose(first["spec"]["nodeName"])
        await api.delete(NODES, first["spec"]["nodeName"])
        await until("the second attempt", lambda: running(2))
        await scene.gone(first)
        facts = await scene.kept("lost", first)
        assert (facts["node"], bool(facts["started"]), facts["phase"]) == (
            first["spec"]["nodeName"],
            True,
            "Failed",
        )
        assert [attempt["number"] for attempt in (await scene.show("lost"))["history"]] == [1, 2]
