"""A volume that cannot be mounted, as commands tell of it, on whichever cluster the environment chose."""

from __future__ import annotations

import asyncio

import pytest

from moorage.model.names import HOST_ENV_ANNOTATION
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import CONFIGMAPS, PODS, Obj
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(600),
    pytest.mark.cluster("kubelet", "controllers", "scheduler"),
]


async def typed(cluster: Cluster, namespace: str, *words: str) -> str:
    done = await asyncio.to_thread(cluster.moor, *words, "-n", namespace)
    return str(done.stdout)


async def test_a_pod_is_no_longer_told_of_a_configmap_that_is_there_by_now(
    cluster: Cluster, api: KubeClient, namespace: str
) -> None:
    is_local = cluster.kind == "local"
    pod: Obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "job", "annotations": {HOST_ENV_ANNOTATION: "true"} if is_local else {}},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "busybox" if is_local else cluster.image,
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
