"""Many workspaces started at once: time until all are ready, against their processes' own start times.

    python benchmarks/workspaces_start.py [--count 100] [--jupyterlab]

A local cluster of its own; without `--jupyterlab` the workspaces are Python's own HTTP server, so that a hundred
fit on a laptop. Printed: seconds until all are ready; the sum of the seconds that one such process alone needs
until it answers (measured before, five times, the median); their ratio; CPU seconds and peak memory of the control
plane, of our services and of the ingress.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from moorage.model.workspace import BUILT_IN, WORKSPACES
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import NAMESPACES
from moorage_testing.cluster import local_cluster

PAGE = os.sysconf("SC_CLK_TCK")
SERVE = "exec python3 -m http.server --bind $(POD_IP) $(MOORAGE_PORT)"


def alone(jupyterlab: bool) -> float:
    """Seconds from the start of one application to its first answer."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    words = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    with tempfile.TemporaryDirectory() as home:
        if jupyterlab:
            given = BUILT_IN["jupyterlab"].args
            args = [one.replace("$(POD_IP)", "127.0.0.1").replace("$(MOORAGE_PORT)", str(port)) for one in given]
            words = [sys.executable, "-m", "jupyterlab", *(one.replace("$(HOME)", home) for one in args)]
        started = time.monotonic()
        process = subprocess.Popen(
            words,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=home,
            env=dict(os.environ) | {"HOME": home},
        )
        try:
            while True:
                with socket.socket() as sock:
                    if sock.connect_ex(("127.0.0.1", port)) == 0:
                        return time.monotonic() - started
                time.sleep(0.002)
        finally:
            process.kill()
            process.wait()


def used(pid: int) -> tuple[float, float]:
    """CPU seconds so far, and the peak of resident memory in MiB."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    peak = next(
        line.split()[1]
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return (int(fields[11]) + int(fields[12])) / PAGE, int(peak) / 1024


def a_workspace(name: str, jupyterlab: bool) -> dict:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    spec = {
        "resources": {"cpu": "10m", "memory": "1Gi" if jupyterlab else "64Mi"},
        "env": [{"name": "PATH", "value": path}],
    }
    spec |= {"type": "jupyterlab"} if jupyterlab else {"app": {"command": ["sh", "-c", SERVE], "ready": "/"}}
    return {
        "apiVersion": WORKSPACES.api_version,
        "kind": WORKSPACES.kind,
        "metadata": {"name": name, "namespace": "many"},
        "spec": spec,
    }


async def start_all(kubeconfig: Path, count: int, jupyterlab: bool) -> tuple[float, float]:
    """Seconds until the first and until the last workspace is ready."""
    async with KubeClient.from_kubeconfig(kubeconfig) as api:
        await api.create(NAMESPACES, {"metadata": {"name": "many"}})
        version = (await api.list(WORKSPACES, "many")).resource_version
        started = time.monotonic()

        async def make() -> None:
            await asyncio.gather(
                *(api.create(WORKSPACES, a_workspace(f"w{at}", jupyterlab), "many") for at in range(count))
            )

        making = asyncio.create_task(make())
        ready: dict[str, float] = {}
        async for event in api.watch(WORKSPACES, "many", resource_version=version):
            name = event.object["metadata"].get("name")
            if name and (event.object.get("status") or {}).get("phase") == "Running":
                ready.setdefault(name, time.monotonic() - started)
                if len(ready) == count:
                    break
        await making
        return min(ready.values()), max(ready.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--jupyterlab", action="store_true")
    options = parser.parse_args()
    single = statistics.median(alone(options.jupyterlab) for _ in range(5))
    with tempfile.TemporaryDirectory(prefix="moor-") as folder:
        home = Path(folder) / "home"
        nodes = ("--nodes", "4", "--node-cpu", "64", "--node-memory", "64Gi")
        with local_cluster(home, *nodes) as cluster:
            told = json.loads(cluster.moor("status", "--data", str(home), "-o", "json").stdout)
            pids = {name: pid for name, pid in told["processes"].items() if pid and name != "supervisor"}
            before = {name: used(pid)[0] for name, pid in pids.items()}
            first, last = asyncio.run(start_all(cluster.kubeconfig, options.count, options.jupyterlab))
            after = {name: used(pid) for name, pid in pids.items()}
    total = single * options.count
    kind = "JupyterLab" if options.jupyterlab else "python -m http.server"
    print(f"{options.count} workspaces ({kind}), {os.cpu_count()} CPUs")
    print(f"ready: the first after {first:.2f} s, all after {last:.2f} s")
    print(
        f"one process alone: {single:.3f} s to its first answer; {options.count} of them one by one: {total:.2f} s"
    )
    print(f"all ready / sum of their own start times: {last / total:.2f}")
    for name, (cpu, peak) in sorted(after.items()):
        spent = cpu - before[name]
        print(f"{name}: {spent:.2f} s of CPU ({1000 * spent / options.count:.0f} ms each), peak {peak:.0f} MiB")


if __name__ == "__main__":
    main()
