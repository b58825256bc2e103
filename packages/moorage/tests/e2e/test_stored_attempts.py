"""Logs and facts of runs stay on a local cluster that is drained, preempts, is killed, and is shut down."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest

from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import PODS, Obj, Resource
from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import Cluster
from moorage_testing.killing import is_alive, send

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("promises")]
PRIORITYCLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
TWO_NODES = ("--nodes", "2", "--gpus", "1", "--gpu-type", "a100")
PRINTS = textwrap.dedent(
    """
    import pathlib, sys, time
    last, stop = int(sys.argv[1]), pathlib.Path(sys.argv[2])
    for step in range(last):
        print("step", step, flush=True)
        time.sleep(0.01)
    while not stop.exists():
        time.sleep(0.05)
    """
)


class Scene:
    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        (folder / "prints.py").write_text(PRINTS)

    def run(self, name: str, *options: str, steps: int = 3) -> None:
        self.cluster.moor(
            "run", "--name", name, "--cpu", "100m", "--memory", "128Mi", "--grace-period", "1", *options,
            "--", "python3", "prints.py", str(steps), str(self.folder / "stop"), cwd=self.folder,
        )  # fmt: skip

    def logs(self, name: str, *options: str) -> list[str]:
        return self.cluster.moor("logs", name, "--no-prefix", *options, check=False).stdout.splitlines()

    def show(self, name: str) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.cluster.moor("show", name, "-o", "json").stdout)
        return shown

    def pods(self, name: str) -> list[dict[str, Any]]:
        return [pod for attempt in self.show(name)["history"] for pod in attempt["pods"]]

    def until_printed(self, name: str, *options: str, steps: int = 3) -> None:
        wait_until(f"{name} to print", lambda: self.logs(name, *options) == lines(steps))

    def until_gone(self, name: str) -> dict[str, Any]:
        """The facts of the first pod of a run, once it is gone."""
        return wait_until(
            f"a pod of {name} to be gone", lambda: next((one for one in self.pods(name) if one["gone"]), None)
        )


async def create(cluster: Cluster, resource: Resource, obj: Obj) -> None:
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
        await api.create(resource, obj)


async def delete_pod(cluster: Cluster, name: str) -> None:
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
        await api.delete(PODS, name, "default")


def lines(steps: int) -> list[str]:
    return [f"step {step}" for step in range(steps)]


@pytest.mark.parametrize("own_cluster", [TWO_NODES], indirect=True)
def test_drained_and_preempted_attempts_keep_log_and_facts(own_cluster, tmp_path):
    scene = Scene(own_cluster, tmp_path)
    scene.run("moved", "--gpus", "1")
    scene.until_printed("moved")
    first = scene.pods("moved")[0]
    own_cluster.moor("drain", first["node"])
    facts = scene.until_gone("moved")
    assert (facts["name"], facts["node"], facts["reason"]) == (
        first["name"],
        first["node"],
        "EvictionByEvictionAPI",
    )
    assert facts["ended"]
    scene.until_printed("moved", "--attempt", "2")
    assert scene.logs("moved") == lines(3) * 2
    asyncio.run(create(own_cluster, PRIORITYCLASSES, {"metadata": {"name": "urgent"}, "value": 9}))
    scene.run("first", "--gpus", "1", "--priority-class", "urgent")
    preempted = wait_until(
        "the preempted pod", lambda: next((one for one in scene.pods("moved")[1:] if one["gone"]), None)
    )
    assert preempted["reason"] == "PreemptionByScheduler"
    assert scene.logs("moved", "--attempt", "2") == lines(3)


def test_what_is_kept_stays_over_down_and_up(own_cluster, tmp_path):
    scene = Scene(own_cluster, tmp_path)
    scene.run("before")
    scene.until_printed("before")
    own_cluster.moor("cancel", "before")
    facts = scene.until_gone("before")
    own_cluster.moor("down")
    own_cluster.restart()
    assert scene.until_gone("before") == facts
    assert scene.logs("before") == lines(3)
    own_cluster.moor("cancel", "before", "--delete")
    wait_until("the run to be deleted", lambda: scene.show("before")["state"] == "Deleted")
    assert scene.logs("before") == lines(3)


def test_a_server_killed_while_a_run_prints_doubles_and_loses_nothing(own_cluster, tmp_path, seed):
    scene, steps, draw = Scene(own_cluster, tmp_path), 1500, random.Random(seed)
    scene.run("prints", steps=steps)
    for _ in range(3):
        at = len(scene.logs("prints")) + draw.randrange(1, steps // 6)
        wait_until(f"step {at}", lambda at=at: len(scene.logs("prints")) >= min(at, steps))
        pid = json.loads(own_cluster.moor("status", "-o", "json").stdout)["processes"]["services"]
        send(pid, signal.SIGKILL)
        wait_until("the services to be gone", lambda pid=pid: not is_alive(pid))
    scene.until_printed("prints", steps=steps)
    wait_until("the server", lambda: own_cluster.moor("gpus", check=False).returncode == 0)
    (tmp_path / "stop").touch()
    wait_until("success", lambda: scene.show("prints")["state"] == "Succeeded")
    pod = scene.pods("prints")[0]

    def is_whole() -> bool:
        return (own_cluster.home / "attempts").exists() and any(own_cluster.home.glob("attempts/*/whole"))

    wait_until("the log to be kept to its end", is_whole)
    asyncio.run(delete_pod(own_cluster, pod["name"]))
    assert scene.until_gone("prints")["exitCode"] == 0
    assert scene.logs("prints") == lines(steps)
