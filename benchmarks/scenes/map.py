"""A map's items while workers, server and control plane are killed, stopped and frozen: each item is done once.

An item's function notes the item in a file and waits. Whoever is stopped (SIGSTOP, SIGCONT) comes back within
seconds; a frozen worker only after its lease has run out, when another has its item already: what it then brings
must not count. So an item may be begun more than once, by leases that were lost; there is one result of each, and
as many leases beyond the items as were lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from moorage.cli.datafolder import DataFolder
from moorage_testing.killing import EVERYTHING, Trouble, parent_of, pids_with
from scenes.outcome import Outcome, tell

NAME = "items"
WORKERS, SLOTS = 8, 4
KILL_SECONDS = 4.0  # an item takes so long that the map lasts for so much a kill
LEASE_SECONDS = 60.0  # the usual `lease_seconds` of a map
STOP_SECONDS = (0.2, 3.0)
ACTS = (  # each as often as it stands here
    *("kill worker",) * 8,
    *("stop worker",) * 3,
    "freeze worker",
    *("kill services",) * 2,
    *("stop services",) * 2,
    *("kill localcluster",) * 2,
    *("stop localcluster",) * 2,
    "kill everything",
    "kill launcher",
    "stop supervisor",
)
PAUSE_SECONDS = (0.0, 1.5)  # between what was brought back and the next
AHEAD = 40  # items that may be done before their share of the kills
PATIENCE_SECONDS = 300.0  # without any item done; bounds a hang
FUNCTION = """
import os, time

def work(item, log={log!r}, wait={wait!r}):
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, f"{{item}}\\n".encode())
    os.close(fd)
    time.sleep(wait)
    return {{"item": item, "square": item * item}}
"""


def workers(folder: Path) -> list[int]:
    """The workers themselves: not the shims that run them, nor their children, which run the function."""
    parents: dict[int, int | None] = {}
    for pid in pids_with("worker.pyz", str(folder)):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[1].endswith(b"worker.pyz") and words[2:] == [b""]:
                parents[pid] = parent_of(pid)
    return [pid for pid, parent in parents.items() if parent not in parents]


class Scene:
    """The map, and how far it is."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        self.cluster = trouble.cluster
        config = DataFolder(trouble.cluster.home).load_config()
        assert config is not None
        user = yaml.safe_load(trouble.cluster.kubeconfig.read_text())["users"][0]["user"]
        self._status = urllib.request.Request(
            f"http://127.0.0.1:{config.ports['server']}/api/v1/maps/default/{NAME}",
            headers={"Authorization": f"Bearer {user['token']}"},
        )
        self.counts: dict[str, Any] = {}
        self.fell = 0

    async def look(self) -> None:
        """Read the counts; they stay as they were when the server does not answer."""
        try:
            counts = await asyncio.to_thread(self._read)
        except (OSError, ValueError, KeyError):
            return
        self.fell += counts["done"] < self.counts.get("done", 0)
        self.counts = counts

    def _read(self) -> dict[str, Any]:
        with urllib.request.urlopen(self._status, timeout=10) as answer:
            return dict(json.load(answer)["counts"])

    @property
    def done(self) -> int:
        return int(self.counts.get("done", 0)) + int(self.counts.get("dead", 0))

    async def act(self, frozen: set[asyncio.Task[bool]]) -> None:
        trouble, chance = self.trouble, self.trouble.chance
        verb, name = chance.choice(ACTS).split()
        seconds = chance.uniform(*STOP_SECONDS)
        if name == "worker":
            if not (alive := workers(self.cluster.home.parent)):
                await asyncio.sleep(0.2)
            elif verb == "kill":
                trouble.kill_process(chance.choice(alive), name)
            elif verb == "stop":
                await trouble.stop_process(chance.choice(alive), name, seconds)
            else:
                freeze = trouble.stop_process(chance.choice(alive), "worker for long", LEASE_SECONDS * 1.2)
                frozen.add(asyncio.create_task(freeze))
        elif verb == "stop":
            await trouble.stop(name, seconds)
        else:
            await trouble.strike(EVERYTHING if name == "everything" else name)


async def play(trouble: Trouble, outcome: Outcome, *, kills: int, objects: int) -> None:
    """So many items under so many kills, stops and freezes."""
    scene, folder = Scene(trouble), trouble.cluster.home.parent
    log, results = folder / "log", folder / "results.jsonl"
    module = folder / "made.py"
    wait = round(kills * KILL_SECONDS * WORKERS * SLOTS / objects, 2)
    module.write_text(FUNCTION.format(log=str(log), wait=wait))
    workers_wanted = ("--parallelism", str(WORKERS), "--slots", str(SLOTS), "--cpu", "10m", "--memory", "512Mi")
    limits = ("--retries", "0", "--restart-limit", "100000", "--host-env")
    made = await asyncio.to_thread(
        trouble.cluster.moor,
        *("map", "create", NAME, "--range", f"0:{objects}", "--function", "made:work", *workers_wanted, *limits),
        cwd=folder,
    )
    assert made.stdout.strip() == NAME, made.stderr
    frozen: set[asyncio.Task[bool]] = set()
    since, before = time.monotonic(), -1
    while scene.done < objects or trouble.total < kills:
        if trouble.total < kills and scene.done >= trouble.total * objects // kills - AHEAD:
            await asyncio.sleep(trouble.chance.uniform(*PAUSE_SECONDS))
            struck = trouble.total
            await scene.act(frozen)
            if struck // 10 != trouble.total // 10:
                tell(f"{trouble.total} kills: {scene.done} items done")
        else:
            await asyncio.sleep(0.5)
        await trouble.bring_back()
        await scene.look()
        if scene.done >= objects:
            break
        if scene.done != before:
            since, before = time.monotonic(), scene.done
        elif time.monotonic() - since > PATIENCE_SECONDS:
            outcome.stuck.append(f"no item was done for {PATIENCE_SECONDS:g} s: {scene.counts}")
            return
    await asyncio.gather(*frozen)  # a worker that comes back late brings what must not count
    await scene.look()
    await asyncio.to_thread(trouble.cluster.moor, "map", "results", NAME, "-o", str(results))
    judge(scene, outcome, [json.loads(line) for line in results.read_text().splitlines()], objects)
    outcome.objects = objects
    begun = log.read_text().split()
    outcome.notes |= {"leases lost": scene.counts["lost"], "items begun": len(begun)}


def judge(scene: Scene, outcome: Outcome, rows: list[dict[str, Any]], objects: int) -> None:
    counts = scene.counts
    by_item: dict[int, list[Any]] = {}
    for row in rows:
        by_item.setdefault(row["item"], []).append(row["value"])
    for item in range(objects):
        results = by_item.get(item, [])
        if not results:
            outcome.lost.append(f"item {item} has no result")
        elif len(results) > 1:
            outcome.doubled.append(f"item {item} has {len(results)} results")
        elif results[0] != {"item": item, "square": item * item}:
            outcome.lost.append(f"item {item} has the result {results[0]}")
    if counts["dead"]:
        outcome.lost.append(f"{counts['dead']} items failed")
    if counts["done"] != objects:
        outcome.doubled.append(f"{counts['done']} items are counted as done")
    if scene.fell:
        outcome.lost.append(f"progress fell in {scene.fell} readings")
    beyond = counts["granted"] - counts["returned"] - objects - counts["lost"] - counts["failed"]
    if beyond:
        outcome.doubled.append(f"{beyond} leases beyond the items have no cause: {counts}")
