"""The recorder as a process of its own that is killed (SIGKILL) at random and started again.

Time is the file's: the process records the cluster as the file has it, again and again, and prints each minute
that it has recorded whole. So the truth is known to the minute, and a kill hits wherever the process is.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

from moorage.usage.store import UsageStore
from moorage_kube.clock import rfc3339
from moorage_kube.testing.clock import NOON

MINUTE = timedelta(minutes=1)
MINUTES = 120
SEED = 20261125

RECORDER = """
import asyncio, json, sys
from datetime import timedelta
from pathlib import Path
from moorage_kube.informer import Informer
from moorage_kube.resources import NODES, PODS
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.testing.fakeapi import FakeApi
from moorage.usage.recorder import Recorder
from moorage.usage.store import UsageStore

async def main(folder):
    shown = -1
    while True:
        world = json.loads((folder / "world.json").read_text())
        api, clock = FakeApi(), FakeClock()
        clock.advance(timedelta(minutes=world["minute"]))
        for resource, objects in ((NODES, world["nodes"]), (PODS, world["pods"])):
            for obj in objects:
                api.put(resource, obj)
        nodes, pods = Informer(api, NODES), Informer(api, PODS)
        watches = [asyncio.create_task(informer.run()) for informer in (nodes, pods)]
        await nodes.synced.wait()
        await pods.synced.wait()
        store = UsageStore(folder / "usage.db")
        await Recorder(store, pods=pods, nodes=nodes, clock=clock).record()
        store.close()
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        if world["minute"] != shown:
            shown = world["minute"]
            print(shown, flush=True)

asyncio.run(main(Path(sys.argv[1])))
"""


@dataclass(frozen=True)
class Life:
    """Of a node or a pod, in minutes after noon."""

    name: str
    start: int
    end: int
    node: str = ""  # a pod's

    def is_there(self, minute: int) -> bool:
        return self.start <= minute < self.end


def a_world(nodes: list[Life], pods: list[Life], minute: int) -> dict[str, object]:
    amounts = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "4"}
    return {
        "minute": minute,
        "nodes": [
            {
                "metadata": {
                    "name": node.name,
                    "uid": f"uid-{node.name}",
                    "creationTimestamp": rfc3339(NOON + node.start * MINUTE),
                },
                "status": {"capacity": amounts, "allocatable": amounts},
            }
            for node in nodes
            if node.is_there(minute)
        ],
        "pods": [
            {
                "metadata": {"namespace": "lab", "name": pod.name, "uid": f"uid-{pod.name}"},
                "spec": {
                    "nodeName": pod.node,
                    "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "1"}}}],
                },
                "status": {"phase": "Running", "startTime": rfc3339(NOON + pod.start * MINUTE)},
            }
            for pod in pods
            if pod.is_there(minute)
        ],
    }


def lives(rng: random.Random) -> tuple[list[Life], list[Life]]:
    nodes = [Life(f"n{at}", start := rng.randrange(60), start + rng.randrange(20, 60)) for at in range(5)]
    pods = []
    for at in range(12):
        node = rng.choice(nodes)
        start = rng.randrange(node.start, node.end - 1)
        pods.append(Life(f"p{at}", start, rng.randrange(start + 1, node.end), node.name))
    return nodes, pods


def test_a_recorder_killed_at_random_counts_no_minute_twice_and_loses_none_beyond_a_gap(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    nodes, pods = lives(rng)
    recorded: list[int] = []
    kills = 0
    minute = 0

    def show(minute: int) -> None:
        whole = tmp_path / "next.json"
        whole.write_text(json.dumps(a_world(nodes, pods, minute)))
        whole.rename(tmp_path / "world.json")

    show(0)
    while minute < MINUTES:
        process = subprocess.Popen(
            [sys.executable, "-c", RECORDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        try:
            for _ in range(rng.randrange(1, 20)):  # so many minutes until it is killed
                line = process.stdout.readline()
                assert line.strip().isdigit(), "the recorder ended by itself"
                recorded.append(int(line))
                minute += rng.randrange(1, 4)
                show(minute)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()  # in the middle of recording this minute, or not
            kills += 1
            process.communicate()
        minute += rng.choice([0, 0, 7])  # and while none runs, time may pass
        show(minute)
    show(MINUTES * 10)
    process = subprocess.Popen([sys.executable, "-c", RECORDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while process.stdout.readline().strip() != str(MINUTES * 10):
        pass
    process.kill()
    process.communicate()
    assert kills >= 4
    store = UsageStore(tmp_path / "usage.db")
    spans: dict[str, list[tuple[int, int]]] = {}
    for name, started, ended in [
        *((life.node, life.started_at, life.ended_at) for life in store.every_life()),
        *((pod.pod, pod.started_at, pod.ended_at) for pod in store.everything()),
    ]:
        assert ended is not None
        spans.setdefault(name, []).append(((started - NOON) // MINUTE, -((NOON - ended) // MINUTE)))
    store.close()
    for true in (*nodes, *pods):
        seen = [minute for minute in recorded if true.is_there(minute)]
        mine = sorted(spans.get(true.name, []))
        assert all(end <= start for (_, end), (start, _) in pairwise(mine)), true  # nothing twice
        counted = sum(end - start for start, end in mine)
        assert counted <= true.end - true.start, true  # nothing too much
        assert counted >= (max(seen) - true.start if seen else 0), true  # all up to when it was last seen
