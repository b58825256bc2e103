"""What the server spends on what it does again and again while nothing changes: CPU in ms of each look.

    python benchmarks/server_looks.py [--nodes 1000] [--pods 10000]

In one process, with a fake API, SQLite files in a temporary folder, and kubelets that answer at once with nothing:
what requests cost is not in it. Every other pod is a run. Printed is each look beside how often the server takes
it, then their sum as a share of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

from moorage.attempts import keeper as attempts
from moorage.attempts.logs import LogFolder
from moorage.attempts.store import open_attempts
from moorage.model.names import RUN_LABEL
from moorage.server import memoryuse
from moorage.server.cluster import Cluster
from moorage.sql.thread import StoreThread
from moorage.usage import recorder as usage
from moorage.usage.store import UsageStore
from moorage_kube.clock import SYSTEM
from moorage_kube.informers import Informers
from moorage_kube.resources import JOBS, NODES, PODS, Obj
from moorage_local.testing.fakeapi import FakeApi

CREATED = "2026-11-21T10:00:00Z"


class Api(FakeApi):
    """Logs that stay open and say nothing."""

    async def logs(self, *_: Any, **__: Any) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""


class Kubelets:
    async def summary(self, _node: Obj) -> Any:
        return {"pods": []}


def a_node(number: int) -> Obj:
    amounts = {"cpu": "96", "memory": "512Gi", "nvidia.com/gpu": "8"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": f"node-{number:05}"}, "spec": {}, "status": status}


def a_pod(number: int, nodes: int) -> Obj:
    amounts = {"cpu": "100m", "memory": "64Mi"} | ({"nvidia.com/gpu": "1"} if number % 5 == 0 else {})
    container = {"name": "main", "image": "none", "resources": {"limits": amounts, "requests": amounts}}
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": f"job-{number}",
        "uid": f"j{number}",
        "controller": True,
    }
    state = {"name": "main", "ready": True, "state": {"running": {"startedAt": CREATED}}}
    return {
        "metadata": {
            "name": f"job-{number}-x", "namespace": f"team-{number % 100}", "uid": f"p{number}",
            "creationTimestamp": CREATED, "ownerReferences": [owner],
            "labels": {RUN_LABEL: f"job-{number}"} if number % 2 == 0 else {},
        },
        "spec": {"nodeName": f"node-{number % nodes:05}", "containers": [container]},
        "status": {"phase": "Running", "startTime": CREATED, "containerStatuses": [state]},
    }  # fmt: skip


def a_job(pod: Obj) -> Obj:
    (owner,), meta = pod["metadata"]["ownerReferences"], pod["metadata"]
    kept = {name: meta[name] for name in ("namespace", "labels", "creationTimestamp")}
    template = {"metadata": {"labels": meta["labels"]}, "spec": {"containers": pod["spec"]["containers"]}}
    spec = {"parallelism": 1, "completions": 1, "template": template}
    return {"metadata": kept | {"name": owner["name"], "uid": owner["uid"]}, "spec": spec, "status": {"active": 1}}


async def cpu_ms(work: Coroutine[Any, Any, object]) -> float:
    began = time.process_time()
    await work
    return (time.process_time() - began) * 1000


async def measure(nodes: int, pods: int, folder: Path) -> None:
    api = Api()
    for number in range(nodes):
        api.put(NODES, a_node(number))
    for number in range(pods):
        pod = a_pod(number, nodes)
        api.put(PODS, pod)
        if pod["metadata"]["labels"]:
            api.put(JOBS, a_job(pod))
    cluster = Cluster(api, informers=Informers())
    recorder = usage.Recorder(UsageStore(folder / "usage.db"), pods=cluster.pods, nodes=cluster.nodes)
    store = StoreThread("attempts", lambda: open_attempts(folder / "attempts.db"))
    keeper = attempts.Keeper(
        store, LogFolder(folder / "logs", keep_bytes=2**20), api=api, jobs=cluster.jobs, pods=cluster.pods,
        nodes=cluster.nodes,
    )  # fmt: skip
    memory = memoryuse.MemoryUse(cluster, Kubelets(), keeper.note_memory, clock=SYSTEM)
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(cluster.run())
        for informer in (cluster.nodes, cluster.pods, cluster.jobs):
            await informer.synced.wait()
        await recorder.record()
        await keeper.step(everything=True)
        await keeper.step(everything=False)
        recorder._next_beat = 0.0
        sampling = max(memoryuse.SAMPLE_SECONDS, nodes / memoryuse.NODES_A_SECOND)
        looks = [
            ("use of GPUs: heartbeat", usage.HEARTBEAT_SECONDS, recorder.record(everything=False)),
            ("use of GPUs: everything", usage.LOOK_SECONDS, recorder.record()),
            ("kept runs: everything", attempts.LOOK_SECONDS, keeper.step(everything=True)),
            ("kept logs: a turn", attempts.TURN_SECONDS, keeper.step(everything=False)),
            ("memory of runs", sampling, memory.sample()),
        ]
        share = 0.0
        for name, seconds, work in looks:
            spent = await cpu_ms(work)
            share += spent / 1000 / seconds
            print(f"{name}: {spent:.0f} ms every {seconds:g} s", flush=True)
        print(f"in all: {share:.1%} of a core")
        await keeper.close()
        store.close()
        following.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=10000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moor-") as folder:
        asyncio.run(measure(options.nodes, options.pods, Path(folder)))


if __name__ == "__main__":
    main()
