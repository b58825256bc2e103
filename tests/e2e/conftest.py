"""What every scene on a cluster has: a client, a namespace, a browser."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from moorage.apimachinery.resources import NAMESPACES
from moorage.errors import ApiError
from moorage.kube.client import KubeClient
from moorage.kube.serverurl import server_url
from moorage.testing.browser import ARGS, LAUNCH_MS, chromium_path
from moorage.testing.cluster import Cluster
from moorage.testing.waiting import until


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[KubeClient]:
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as client:
        yield client


@pytest.fixture
async def namespace(api: KubeClient, unique: str) -> AsyncIterator[str]:
    """A namespace that bears the test's name."""
    await api.create(NAMESPACES, {"metadata": {"name": unique}})
    yield unique
    await api.delete(NAMESPACES, unique)


@pytest.fixture
async def login_server(cluster: Cluster, api: KubeClient) -> str:
    """The server's address, for people who log in with a password."""
    if cluster.address not in ("", "127.0.0.1"):
        pytest.skip("passwords go over plain http to 127.0.0.1 only: run it without MOORAGE_TEST_ADDRESS")
    return (await server_url(api)).rstrip("/")


async def until_printed(api: KubeClient, namespace: str, pod: str, words: bytes) -> None:
    """Wait until the container `main` has printed these words: a pod that runs need not have begun its work."""

    async def read() -> bool:
        try:
            return words in b"".join([chunk async for chunk in api.logs(pod, namespace, container="main")])
        except ApiError:  # this container does not run yet
            return False

    await until(f"{pod} to print {words.decode()}", read)


@pytest.fixture
def browser() -> Iterator[Any]:
    path = chromium_path()
    playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=ARGS, timeout=LAUNCH_MS)
        yield launched
        launched.close()
