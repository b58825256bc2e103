"""Where a second scheduler is installed, it gets the new GPU pods: by our webhook, asked by the API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest

from moorage.model.names import SCHEDULER_CONFIGMAP, SYSTEM_NAMESPACE
from moorage.model.secondscheduler import make_scheduler_switch
from moorage_kube.errors import AlreadyExists
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import CONFIGMAPS, NAMESPACES, PODS, SERVICEACCOUNTS, Obj
from moorage_kube.testing import waiting

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api")]

until = partial(waiting.until, patience=180.0)


@pytest.fixture
async def namespace(api: KubeClient, unique: str) -> AsyncIterator[str]:
    meta = {"name": unique, "labels": {"moorage.dev/guard": "enabled"}}
    await api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    try:
        await api.create(SERVICEACCOUNTS, {"metadata": {"name": "default"}}, unique)
    except AlreadyExists:
        pass  # a control plane without controllers makes none
    yield unique
    await api.delete(NAMESPACES, unique)


@pytest.fixture
async def switch(api: KubeClient, namespace: str) -> AsyncIterator[None]:
    await api.create(CONFIGMAPS, make_scheduler_switch(), SYSTEM_NAMESPACE)
    yield
    await api.delete(CONFIGMAPS, SCHEDULER_CONFIGMAP, SYSTEM_NAMESPACE)

    async def is_forgotten() -> bool:
        return await scheduler_of(api, namespace, gpus=1) == "default-scheduler"

    await until("the webhook has seen it go, before the next test makes pods", is_forgotten)


async def scheduler_of(api: KubeClient, namespace: str, *, gpus: int = 0, named: str = "") -> str:
    """The scheduler of a pod as it would be stored; nothing is."""
    limits = {"cpu": "1", "memory": "1Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    spec: Obj = {"containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]}
    spec |= {"schedulerName": named} if named else {}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asked"}, "spec": spec}
    made = await api.create(PODS, pod, namespace, dry_run=True)
    return str(made["spec"]["schedulerName"])


async def test_without_one_every_pod_is_of_the_clusters_own(api: KubeClient, namespace: str) -> None:
    assert await scheduler_of(api, namespace, gpus=1) == "default-scheduler"


@pytest.mark.usefixtures("switch")
async def test_gpu_pods_that_leave_the_choice_open_are_of_the_second(api: KubeClient, namespace: str) -> None:
    async def is_chosen() -> bool:
        return await scheduler_of(api, namespace, gpus=1) == "moorage-scheduler"

    await until("the webhook has seen the switch", is_chosen)
    assert await scheduler_of(api, namespace) == "default-scheduler"
    assert await scheduler_of(api, namespace, gpus=1, named="mine") == "mine"
