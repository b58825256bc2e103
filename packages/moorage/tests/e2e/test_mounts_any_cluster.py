"""A volume that cannot be mounted, as commands tell of it, on whichever cluster the environment chose."""

from __future__ import annotations

import asyncio

import pytest

from moorage.model.argo import WORKFLOWS
from moorage.model.names import HOST_ENV_ANNOTATION
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import CONFIGMAPS, PODS, SECRETS, Obj
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(600),
    pytest.mark.cluster("kubelet", "controllers", "scheduler"),
]


def on(cluster: Cluster) -> tuple[str, dict[str, str]]:
    """The image of pods, and their annotations."""
    if cluster.kind == "local":
        return "busybox", {HOST_ENV_ANNOTATION: "true"}
    return cluster.image, {}


async def typed(cluster: Cluster, namespace: str, *words: str) -> str:
    done = await asyncio.to_thread(cluster.moor, *words, "-n", namespace)
    return str(done.stdout)


async def test_a_step_whose_secret_is_missing_is_told_and_runs_when_it_is_created(
    cluster: Cluster, api: KubeClient, namespace: str
) -> None:
    image, notes = on(cluster)
    container = {
        "image": image,
        "command": ["sh", "-c", "cat /keys/token"],
        "volumeMounts": [{"name": "keys", "mountPath": "/keys"}],
    }
    spec = {
        "entrypoint": "main",
        "podMetadata": {"annotations": notes},
        "volumes": [{"name": "keys", "secret": {"secretName": "late"}}],
        "templates": [
            {"name": "main", "steps": [[{"name": "fit", "template": "fit"}]]},
            {"name": "fit", "container": container},
        ],
    }
    meta = {"name": "train"}
    obj = {"apiVersion": WORKFLOWS.api_version, "kind": WORKFLOWS.kind, "metadata": meta, "spec": spec}
    await api.create(WORKFLOWS, obj, namespace)

    async def told() -> str | None:
        text = await typed(cluster, namespace, "explain", "train/fit")
        return text if "cannot be mounted" in text else None

    text: str = await until("explain to tell of the Secret", told)
    node = next(pod["spec"]["nodeName"] for pod in (await api.list(PODS, namespace)).items)
    why = 'MountVolume.SetUp failed for volume "keys" : secret "late" not found'
    way = (
        f"The Secret late does not exist: create it with `kubectl create secret generic late -n {namespace}"
        " --from-file=KEY=FILE`; the pod then starts by itself"
    )
    short = (
        f'its pod does not start on {node}: volume keys (Secret late) cannot be mounted: secret "late" not found'
    )
    assert text.splitlines()[0] == f"step fit of workflow {namespace}/train waits: {short}"
    assert text.splitlines()[1:3] == [why, way]
    whole = await typed(cluster, namespace, "explain", "train")
    assert whole.splitlines()[:5] == [
        f"workflow {namespace}/train waits: {short}",
        "",
        "Waiting",
        f"  fit: {short}",
        f"    {way}",
    ]
    assert f"FailedMount: {why}" in await typed(cluster, namespace, "workflow", "get", "train")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "late"}, "stringData": {"token": "t"}}
    await api.create(SECRETS, secret, namespace)

    async def phase() -> str | None:
        found = str(((await api.get(WORKFLOWS, "train", namespace)).get("status") or {}).get("phase") or "")
        return found if found in ("Succeeded", "Failed", "Error") else None

    assert await until("the workflow to end", phase) == "Succeeded"


async def test_a_pod_is_no_longer_told_of_a_configmap_that_is_there_by_now(
    cluster: Cluster, api: KubeClient, namespace: str
) -> None:
    image, notes = on(cluster)
    pod: Obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "job", "annotations": notes},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "command": ["sh", "-c", "exec sleep 600"],
                    "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}},
                    "volumeMounts": [{"name": "config", "mountPath": "/config"}],
                }
            ],
            "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "config", "configMap": {"name": "late"}}],
        },
    }
    await api.create(PODS, pod, namespace)

    async def told() -> str | None:
        text = await typed(cluster, namespace, "explain", "job")
        return text if "cannot be mounted" in text else None

    text: str = await until("explain to tell of the ConfigMap", told)
    assert "volume config (ConfigMap late) cannot be mounted" in text.splitlines()[0]
    assert f"`kubectl create configmap late -n {namespace} --from-file=KEY=FILE`" in text
    await api.create(
        CONFIGMAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}}, namespace
    )

    async def runs() -> bool:
        text = await typed(cluster, namespace, "explain", "job")
        return text.splitlines()[0].startswith(f"pod {namespace}/job is running on ")

    await until("the pod to run", runs)
