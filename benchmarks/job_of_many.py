"""A Job of many tiny pods on the local cluster: pods per second until all succeeded, and seconds to delete it.

    python benchmarks/job_of_many.py [--pods 300] [--nodes 2] [--alternate CHECKOUT] [--rounds 1]

Starts a cluster in a folder of its own and makes a Job whose completions and parallelism are `--pods`. When
it is complete it is deleted in the foreground, until its last pod is gone. Then the same Job with pods that
sleep is made, and deleted in the background as soon as all its pods exist and the nodes are full. Printed for
each: wall time, and the CPU seconds that each process of the platform (the pods and their shims apart) took
per pod, which other load on the machine changes less. `--alternate` does the same with another checkout of
this repository that has its own `.venv`, in turn, and prints the ratios of the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

from moorage_kube.errors import NotFound
from moorage_kube.meta import is_condition_true
from moorage_kube.remote.client import KubeClient
from moorage_kube.remote.config import load_connection
from moorage_kube.resources import JOBS, PODS, Obj

LOOK_SECONDS = 0.5
PODS_MAX = 110  # of each node
TICK = os.sysconf("SC_CLK_TCK")
PARTS = ("localcluster", "services", "admission", "ingress")


def a_job(pods: int, *command: str) -> Obj:
    container = {
        "name": "main",
        "image": "localhost/host",
        "command": list(command),
        "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}},
    }
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    spec = {"completions": pods, "parallelism": pods, "backoffLimit": 0, "template": template}
    return {"metadata": {"name": "many", "namespace": "default"}, "spec": spec}


def cpu_seconds(data: Path) -> dict[str, float]:
    """CPU time of each process of the platform; that of its ended children, the launchers of pods, by itself."""
    out: dict[str, float] = {}
    for part in PARTS:
        try:
            pid = int((data / "run" / f"{part}.pid").read_text())
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        out[part] = (int(fields[11]) + int(fields[12])) / TICK
        out[f"{part}'s children"] = (int(fields[13]) + int(fields[14])) / TICK
    return out


def machine_seconds() -> float:
    """CPU time of the whole machine, other people's work included."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return (sum(map(int, fields[:3])) + sum(map(int, fields[5:8]))) / TICK


def peak_bytes(data: Path, part: str) -> int:
    text = Path(f"/proc/{int((data / 'run' / f'{part}.pid').read_text())}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) * 1024


class Scene:
    """One cluster, and what was measured on it."""

    def __init__(self, api: KubeClient, data: Path, pods: int, nodes: int) -> None:
        self._api, self._data, self._pods = api, data, pods
        self._places = min(pods, nodes * PODS_MAX)
        self.figures: dict[str, float] = {}

    async def play(self) -> None:
        await self._api.create(JOBS, a_job(self._pods, "true"))
        await self._measured("run", self._is_complete)
        self.figures["run: pods per second"] = self._pods / self.figures["run: seconds"]
        await self._api.delete(JOBS, "many", "default", propagation="Foreground")
        await self._measured("delete ended", self._is_gone)
        await self._api.create(JOBS, a_job(self._pods, "sleep", "3600"))
        await self._measured("fill", self._is_full)
        await self._api.delete(JOBS, "many", "default", propagation="Background")
        await self._measured("delete running", self._is_gone)
        self.figures["peak memory of localcluster, MiB"] = peak_bytes(self._data, "localcluster") / 2**20

    async def _measured(self, what: str, is_done: Callable[[], Awaitable[bool]]) -> None:
        before, machine, began = cpu_seconds(self._data), machine_seconds(), time.monotonic()
        while True:
            if await is_done():
                break
            await asyncio.sleep(LOOK_SECONDS)
        self.figures[f"{what}: seconds"] = time.monotonic() - began
        self.figures[f"{what}: machine, CPU ms per pod"] = (machine_seconds() - machine) / self._pods * 1000
        for name, spent in cpu_seconds(self._data).items():
            self.figures[f"{what}: {name}, CPU ms per pod"] = (spent - before.get(name, 0.0)) / self._pods * 1000

    async def _is_complete(self) -> bool:
        return is_condition_true(await self._api.get(JOBS, "many", "default"), "Complete")

    async def _is_full(self) -> bool:
        status = (await self._api.get(JOBS, "many", "default")).get("status") or {}
        if status.get("active", 0) < self._pods:
            return False
        pods = (await self._api.list(PODS, "default", label_selector="job-name=many")).items
        return sum(pod["status"].get("phase") == "Running" for pod in pods) >= self._places

    async def _is_gone(self) -> bool:
        try:
            await self._api.get(JOBS, "many", "default")
        except NotFound:
            return not (await self._api.list(PODS, "default", label_selector="job-name=many")).items
        return False


async def scene(data: Path, pods: int, nodes: int) -> dict[str, float]:
    async with KubeClient(load_connection(data / "kubeconfig")) as api:
        made = Scene(api, data, pods, nodes)
        await made.play()
        return made.figures


def one_round(python: str, pods: int, nodes: int) -> dict[str, float]:
    """With the `moor` beside this Python."""
    moor = str(Path(python).with_name("moor"))
    folder = Path(tempfile.mkdtemp(prefix="moor-"))
    data = folder / "d"
    try:
        up = [moor, "up", "--data", str(data), "--nodes", str(nodes), "--port", "0", "--api-port", "0"]
        subprocess.run(up, check=True, capture_output=True)
        try:
            return asyncio.run(scene(data, pods, nodes))
        finally:
            subprocess.run([moor, "down", "--data", str(data)], check=True, capture_output=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pods", type=int, default=300)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--alternate", type=Path, help="another checkout, with its own .venv")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    subjects = {"this": sys.executable}
    if options.alternate is not None:
        subjects["other"] = str(options.alternate.absolute() / ".venv" / "bin" / "python")
    figures_of: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in subjects}
    for _ in range(options.rounds):
        for name, python in subjects.items():
            for figure, value in one_round(python, options.pods, options.nodes).items():
                figures_of[name][figure].append(value)
    medians = {
        name: {figure: statistics.median(values) for figure, values in of.items()}
        for name, of in figures_of.items()
    }
    print(f"{options.pods} pods on {options.nodes} nodes, {options.rounds} rounds")
    print(f"{'':52}" + "".join(f"{name:>10}" for name in subjects) + ("     ratio" if len(subjects) > 1 else ""))
    for figure, value in medians["this"].items():
        row = [value, *(medians[name].get(figure, 0.0) for name in subjects if name != "this")]
        ratio = f"{row[1] / value:10.2f}" if len(row) > 1 and value else ""
        print(f"{figure:52}" + "".join(f"{median:10.1f}" for median in row) + ratio)
    return 0


if __name__ == "__main__":
    sys.exit(main())
