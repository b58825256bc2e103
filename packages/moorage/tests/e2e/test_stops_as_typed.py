"""A run whose program leaves with exit code 0 when it is told to stop goes on later, unless it was cancelled."""

from __future__ import annotations

import asyncio
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import Resource
from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import Cluster

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

PRIORITYCLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
HIGH = {"metadata": {"name": "high"}, "value": 100_000, "preemptionPolicy": "PreemptLowerPriority"}
LEAVES_WELL = textwrap.dedent(
    """
    import pathlib, signal, sys
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    begun = pathlib.Path(sys.argv[1])
    if begun.exists():
        print("finished")
        sys.exit(0)
    begun.touch()
    while True:
        signal.pause()
    """
)


class Scene:
    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        (folder / "leaves.py").write_text(LEAVES_WELL)

    def run(self, name: str, *options: str) -> None:
        self._start(name, options, "python3", "leaves.py", str(self.folder / name))
        wait_until(f"{name} to begin", (self.folder / name).exists)

    def run_at_once(self, name: str, *options: str) -> None:
        self._start(name, options, "true")

    def _start(self, name: str, options: tuple[str, ...], *command: str) -> None:
        size = ("--cpu", "100m", "--memory", "128Mi")
        self.cluster.moor("run", "--name", name, *size, *options, "--", *command, cwd=self.folder)

    def show(self, name: str) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.cluster.moor("show", name, "-o", "json").stdout)
        return shown

    def until_state(self, name: str, state: str) -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            run = self.show(name)
            return run if run["state"] == state else None

        return wait_until(f"{name} to be {state}", reached, patience=300)

    def until_finished(self, name: str) -> dict[str, Any]:
        run = self.until_state(name, "Succeeded")
        logs = self.cluster.moor("logs", "--no-prefix", name)
        assert logs.stdout.splitlines()[-1:] == ["finished"], (run, logs.stdout, logs.stderr)
        return run


async def _allow_preemption(cluster: Cluster) -> None:
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
        await api.create(PRIORITYCLASSES, HIGH)


@pytest.mark.parametrize(
    "own_cluster", [("--nodes", "1", "--gpus", "1", "--gpu-type", "a100")], indirect=["own_cluster"]
)
def test_a_program_that_leaves_well_when_told_to_stop_goes_on_later(own_cluster, tmp_path):
    scene = Scene(own_cluster, tmp_path)
    asyncio.run(_allow_preemption(own_cluster))
    scene.run("suspended", "--restart-limit", "0")
    for name in ("cancelled", "shut-down"):
        scene.run(name)
    scene.run("preempted", "--gpus", "1")
    scene.run_at_once("early")

    own_cluster.moor("suspend", "suspended")
    own_cluster.moor("cancel", "cancelled")
    scene.run_at_once("urgent", "--gpus", "1", "--priority-class", "high")
    assert scene.until_finished("preempted")["restarts"] == 1
    scene.until_state("urgent", "Succeeded")
    scene.until_state("early", "Succeeded")
    scene.until_state("suspended", "Suspended")
    scene.until_state("cancelled", "Cancelled")

    own_cluster.moor("down")
    own_cluster.restart()
    scene.until_finished("shut-down")
    own_cluster.moor("resume", "suspended")
    assert scene.until_finished("suspended")["restarts"] == 0
    for name, state in (("early", "Succeeded"), ("cancelled", "Cancelled")):
        run = scene.show(name)
        assert (run["state"], run["restarts"], len(run["history"])) == (state, 0, 1)
