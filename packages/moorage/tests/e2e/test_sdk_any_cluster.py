"""`moorage.Client` against the server of whichever cluster the environment chose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import moorage
from moorage.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from moorage.sdk.local import loop
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import NAMESPACES
from moorage_testing.cluster import Cluster


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


@pytest.mark.cluster("api", "scheduler", "controllers", "kubelet")
@pytest.mark.timeout(900)
def test_a_program_does_what_the_command_line_does(cluster: Cluster, client: moorage.Client, unique: str) -> None:
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
    container = client.containers.create(cluster.image, [cluster.python, "-c", loops], name="c1", cpu=0.1)
    assert (container.state, container.exit_code) == ("created", None)
    client.containers.start("c1")
    lines = client.containers.logs("c1", follow=True)
    done = None
    while done is None:
        try:
            done = client.containers.exec("c1", [cluster.python, "-c", code], stdin=b"typed\n")
        except Conflict:  # it does not run yet
            list(client.jobs.list())
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


@pytest.mark.cluster("api", "scheduler", "controllers", "kubelet")
@pytest.mark.timeout(900)
def test_a_run_is_started_followed_waited_for_and_deleted(
    cluster: Cluster, client: moorage.Client, unique: str
) -> None:
    code = "import os, sys; print(os.environ['GREETING']); print(os.getcwd()); sys.exit(3)"
    image = None if cluster.kind == "local" else cluster.image
    asked = {"env": {"GREETING": "hello"}, "cpu": "100m", "time": "5m", "checkpoint": "kept:64Mi", "key": "once"}
    asked |= {"image": image}
    made = client.jobs.run([cluster.python, "-c", code], **asked)  # type: ignore[arg-type]
    again = client.jobs.run([cluster.python, "-c", code], **asked)  # type: ignore[arg-type]
    assert (made.namespace, made.state, again.name) == (unique, "Waiting", made.name)
    assert any("creating the checkpoint volume kept" in note for note in made.notes)
    greeting, folder = client.jobs.logs(made.name, follow=True)
    assert greeting == "hello"
    if cluster.kind == "local":  # elsewhere the image chooses its folder
        assert folder != "/"
    done = client.jobs.wait(made.name, timeout=120)
    assert (done.state, done.exit_code, done.reason) == ("Failed", 3, "exit code 3")
    assert (len(done.history), done.history[0].pods[0].exit_code) == (1, 3)
    assert cluster.python in done.command
    assert client.jobs.cancel(made.name).state == "Failed"
    assert list(client.jobs.logs(made.name, tail=1)) == [folder]
    client.jobs.delete(made.name)
    loops = "import time\nprint('on', flush=True)\nwhile True: time.sleep(0.2)"
    endless = client.jobs.run(
        [cluster.python, "-c", loops], name="endless", image=image, cpu="100m", grace_period_seconds=1
    )
    lines = client.jobs.logs("endless", follow=True)
    assert next(lines) == "on"
    assert client.jobs.cancel(endless.name).state == "Cancelled"
    assert list(lines) == []
    assert client.jobs.wait("endless").reason.startswith("Cancelled by ")
    client.jobs.delete("endless")


@pytest.mark.cluster("api")
@pytest.mark.timeout(900)
def test_a_run_that_waits_is_known_at_once_and_goes_when_it_is_deleted(
    client: moorage.Client, unique: str
) -> None:
    """Without a node's help: as the API server alone judges it."""
    asked = {"image": "python:3.12-slim", "host_env": True, "cpu": "100m", "memory": "64Mi"}
    tried = client.jobs.run(["true"], dry_run=True, **asked)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        client.jobs.get(tried.name)
    made = client.jobs.run(["sleep", "600"], name="train", **asked)  # type: ignore[arg-type]
    found = client.jobs.get("train")
    assert (found.namespace, found.owner, found.command) == (unique, made.owner, "sleep 600")
    with pytest.raises(AlreadyExists) as taken:
        client.jobs.run(["sleep", "600"], name="train", **asked)  # type: ignore[arg-type]
    assert taken.value.field == "name"
    with pytest.raises(Invalid) as refused:
        client.jobs.run(["true"], time="soon", volumes=["none:/data"], **asked)  # type: ignore[arg-type]
    assert refused.value.field == "time"
    assert "volume 'none' not found" in refused.value.message
    cancelled = client.jobs.cancel("train")
    assert (cancelled.state, client.jobs.wait("train", timeout=60).state) == ("Cancelled", "Cancelled")
    assert [one.name for one in client.jobs.list(state="Cancelled")] == ["train"]
    client.jobs.delete("train")
    with pytest.raises(NotFound):
        client.jobs.cancel("train")


@pytest.mark.cluster("api")
def test_somebody_unknown_is_refused(client: moorage.Client) -> None:
    url, _ = loop().run(_address(client))
    with moorage.Client(url, "wrong") as stranger, pytest.raises((Forbidden, moorage.errors.Unauthorized)):
        list(stranger.jobs.list())


async def _address(client: moorage.Client) -> tuple[str, object]:
    return await (await client._over._connection.site()).address()
