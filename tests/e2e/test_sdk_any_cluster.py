"""`moorage.Client` against the server of whichever cluster the environment chose."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

import moorage
from moorage.apimachinery.resources import NAMESPACES
from moorage.errors import AlreadyExists, Conflict, Forbidden, NotFound
from moorage.kube.client import KubeClient
from moorage.sdk.local import loop
from moorage.testing.cluster import Cluster

pytestmark = pytest.mark.cluster("api", "scheduler", "controllers", "kubelet")


@pytest.fixture
def client(cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[moorage.Client]:
    """In a namespace that bears the test's name, by the cluster's kubeconfig as the CLI finds it."""
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    for name in ("MOORAGE_SERVER", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)

    async def make() -> None:
        async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
            await api.create(NAMESPACES, {"metadata": {"name": unique}})

    async def remove() -> None:
        async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
            await api.delete(NAMESPACES, unique)

    loop().run(make())
    with moorage.Client(namespace=unique) as made:
        yield made
    loop().run(remove())


@pytest.mark.timeout(300)
def test_a_program_does_what_the_command_line_does(client: moorage.Client, unique: str) -> None:
    made = client.volumes.create("data", "64Mi", key="once")
    assert (made.namespace, made.size) == (unique, "64Mi")
    assert client.volumes.create("data", "64Mi", key="once").created == made.created
    with pytest.raises(AlreadyExists):
        client.volumes.create("data", "64Mi")
    with pytest.raises(Conflict):
        client.volumes.resize("data", "1Mi")
    assert [one.name for one in client.volumes.list()] == ["data"]

    code = "import sys; print('hello'); print(input()); sys.exit(4)"
    loops = "import time\nwhile True: time.sleep(0.2)"
    container = client.containers.create("localhost/host", [sys.executable, "-c", loops], name="c1", cpus=0.1)
    assert (container.state, container.exit_code) == ("created", None)
    client.containers.start("c1")
    lines = client.containers.logs("c1", follow=True)
    done = None
    while done is None:
        try:
            done = client.containers.exec("c1", [sys.executable, "-c", code], stdin=b"typed\n")
        except Conflict:  # it does not run yet
            client.jobs()
    assert (done.exit_code, done.stdout) == (4, b"hello\ntyped\n")
    assert [one.name for one in client.containers.list()] == ["c1"]
    client.containers.stop("c1")
    assert list(lines) == []
    assert client.containers.wait("c1") != 0
    client.containers.remove("c1")
    with pytest.raises(NotFound) as caught:
        client.containers.get("c1")
    assert caught.value.code == "not_found"

    assert client.gpus().totals.total == sum(len(node.gpus) for node in client.gpus().nodes)
    assert client.top(since="1h").by == "user"
    with pytest.raises(NotFound):
        client.explain("none")
    assert client.workspaces.create("w1", running=False, dry_run=True).running is False
    assert list(client.workspaces.list()) == []
    client.volumes.delete("data")


def test_somebody_unknown_is_refused(client: moorage.Client) -> None:
    url, _ = loop().run(_address(client))
    with moorage.Client(url, "wrong") as stranger, pytest.raises((Forbidden, moorage.errors.Unauthorized)):
        stranger.jobs()


async def _address(client: moorage.Client) -> tuple[str, object]:
    return await (await client._over._connection.site()).address()
