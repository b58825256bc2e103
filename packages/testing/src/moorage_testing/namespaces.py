"""Separate parts of a test on a shared cluster: a client, a namespace, and the output of its pods."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from moorage_kube.errors import ApiError
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import NAMESPACES
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[KubeClient]:
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as client:
        yield client


@pytest.fixture
async def namespace(api: KubeClient, unique: str) -> AsyncIterator[str]:
    """A namespace with the test's name."""
    await api.create(NAMESPACES, {"metadata": {"name": unique}})
    yield unique
    await api.delete(NAMESPACES, unique)


async def until_printed(api: KubeClient, namespace: str, pod: str, words: bytes) -> None:
    """Wait until the container `main` has printed these words: a running pod may not have begun its work."""

    async def read() -> bool:
        try:
            return words in b"".join([chunk async for chunk in api.logs(pod, namespace, container="main")])
        except ApiError:  # this container does not run yet
            return False

    await until(f"{pod} to print {words.decode()}", read)
