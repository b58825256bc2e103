"""150,000 items on the local cluster while all around them is killed: nothing lost, each answered once.

    python benchmarks/map_endurance.py [--items 150000] [--workers 12] [--away 300] [--sqlite] [--seed 0]

Each item is a small feature computation over scikit-learn's digits (a shift and gradients by direction; 1,797
images), after a wait as if for a disk. Meanwhile, at moments drawn by the seed and spread over the items: one
worker in three is killed with -9, two nodes are drained, the server is killed with -9 five times, PostgreSQL
crashes and starts again, and the API server stands still (SIGSTOP) for `--away` seconds. Progress is read each
second.

Checked: all items done, none failed; the results equal a plain loop's, one for each item; executions beyond the
items are leases that were lost; progress never fell. Exit code 1 when one does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

NAME = "endurance"
VARIANTS = 84  # shifts of an image: 84 × 1,797 are a little more than 150,000
WAIT_SECONDS = 0.02
SERVER_KILLS, DRAINS = 5, 2
PATIENCE_SECONDS = 3600.0

FEATURES = f'''
import functools
import time

import numpy as np


@functools.cache
def images():
    from sklearn.datasets import load_digits

    return load_digits().images


def features(item, wait={WAIT_SECONDS}):
    """Means of the gradients of a shifted image in eight directions."""
    time.sleep(wait)
    image = np.roll(images()[item // {VARIANTS}], (item % 12, item % 7), (0, 1))
    down, right = np.gradient(image)
    sector = ((np.arctan2(down, right) + np.pi) * 4 / np.pi).astype(int) % 8
    size = np.hypot(down, right)
    return [round(float(size[sector == one].sum()), 6) for one in range(8)]
'''


@dataclass(slots=True)
class Seen:
    """What was read and done while the map ran."""

    progress: list[int] = field(default_factory=list)
    fell: int = 0
    unanswered: int = 0
    worker_kills: int = 0
    workers: set[int] = field(default_factory=set)
    server_kills: int = 0
    drains: int = 0
    crashes: int = 0
    away: float = 0.0
    counts: dict[str, Any] = field(default_factory=dict)


class Scene:
    """A local cluster in a folder of its own."""

    def __init__(self, folder: Path, queue_url: str | None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.env = {**os.environ} | ({"MOORAGE_QUEUE_URL": queue_url} if queue_url else {})
        activated = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self.status = urllib.request.Request("http://127.0.0.1")  # until it is up
        self.env |= {"PATH": activated, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    def moor(self, *words: str, check: bool = True, timeout: float = PATIENCE_SECONDS) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "moorage.cli.main", *words, "--data", str(self.data)],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            raise SystemExit(f"moor {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def up(self) -> None:
        self.moor("up", "--nodes", "3", "--port", "0", "--api-port", "0")
        page = urlsplit(json.loads(self.moor("status", "-o", "json"))["page"])
        token = yaml.safe_load((self.data / "kubeconfig").read_text())["users"][0]["user"]["token"]
        self.status = urllib.request.Request(
            f"http://{page.netloc}/api/v1/maps/default/{NAME}", headers={"Authorization": f"Bearer {token}"}
        )

    def pids(self, *words: str) -> list[int]:
        """Processes of this scene whose command line has all these words."""
        found = []
        for one in Path("/proc").iterdir():
            if one.name.isdigit():
                with contextlib.suppress(OSError):
                    line = (one / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                    mine = str(self.data) in line or (one / "cwd").readlink() == self.folder
                    if mine and all(word in line for word in words):
                        found.append(int(one.name))
        return found

    def workers(self) -> list[int]:
        """The workers themselves: not the shims that run them, nor the processes that run the function."""
        found = []
        for pid in self.pids("worker.pyz"):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if words[1].endswith(b"worker.pyz") and words[2:] == [b""]:
                    found.append(pid)
        return found

    def counts(self) -> dict[str, Any] | None:
        """None when the server does not answer."""
        try:
            with urllib.request.urlopen(self.status, timeout=10) as answer:
                return dict(json.load(answer)["counts"])
        except (OSError, ValueError, KeyError):
            return None


def kill(pids: list[int]) -> int:
    killed = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return killed


def trouble(scene: Scene, seen: Seen, total: int, away: float, chance: random.Random, postgres: Any) -> None:
    """Do everything once its share of the items is done."""

    def kill_server() -> None:
        while not kill(scene.pids("moorage.cli.services")):
            time.sleep(0.1)  # the last kill is not yet over
        seen.server_kills += 1

    def drain() -> None:
        node = f"node-{chance.randint(1, 3)}"
        scene.moor("drain", node, check=False)
        scene.moor("uncordon", node, check=False)
        seen.drains += 1

    def crash() -> None:
        postgres.stop()
        postgres.start()
        seen.crashes += 1

    def stand_still() -> None:
        stopped = scene.pids("moorage_local")
        began = time.monotonic()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        while time.monotonic() - began < away:
            time.sleep(1)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        seen.away = time.monotonic() - began

    acts: list[Callable[[], None]] = [kill_server] * SERVER_KILLS + [drain] * DRAINS
    if postgres is not None:
        acts.append(crash)
    chance.shuffle(acts)
    shares = sorted(chance.uniform(0.02, 0.45) for _ in acts)
    for share, act in [*zip(shares, acts, strict=True), (0.5, stand_still)]:
        while (seen.progress[-1] if seen.progress else 0) < share * total:
            time.sleep(0.2)
        act()


def kill_workers(scene: Scene, seen: Seen, chance: random.Random, ended: threading.Event) -> None:
    """One in three of all workers that ever were, at random moments."""
    while not ended.wait(chance.uniform(0.5, 6.0)):
        alive = scene.workers()
        seen.workers |= set(alive)
        if alive and seen.worker_kills < len(seen.workers) / 3:
            seen.worker_kills += kill([chance.choice(alive)])


def watch(scene: Scene, seen: Seen, total: int, ended: threading.Event) -> None:
    while not ended.is_set():
        began = time.monotonic()
        counts = scene.counts()
        if counts is None:
            seen.unanswered += 1
        else:
            now = counts["done"] + counts["dead"]
            seen.fell += bool(seen.progress) and now < seen.progress[-1]
            seen.progress.append(now)
            seen.counts = counts
            if now >= total:
                ended.set()
        ended.wait(max(0.0, 1.0 - (time.monotonic() - began)))


@contextlib.contextmanager
def database(sqlite: bool) -> Iterator[Any]:
    if sqlite:
        yield None
        return
    from moorage_testing.postgres import throwaway_postgres

    with throwaway_postgres() as postgres:
        yield postgres


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--items", type=int, default=150_000)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--away", type=float, default=300.0, help="seconds without API server")
    parser.add_argument("--sqlite", action="store_true", help="the queue in SQLite instead of PostgreSQL")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="endurance-") as home, database(options.sqlite) as postgres:
        scene = Scene(Path(home), None if postgres is None else postgres.url)
        (scene.folder / "made.py").write_text(FEATURES)
        try:
            scene.up()
            return play(scene, options, chance, postgres)
        finally:
            scene.moor("down", check=False)


def play(scene: Scene, options: argparse.Namespace, chance: random.Random, postgres: Any) -> int:
    total, seen, ended = options.items, Seen(), threading.Event()
    began = time.monotonic()
    workers = (
        "--parallelism",
        str(options.workers),
        "--cpu",
        "10m",
        "--memory",
        "256Mi",
        "--restart-limit",
        "1000",
    )
    scene.moor(
        *("map", "create", NAME, "--range", f"0:{total}", "--function", "made:features", "--host-env", *workers)
    )
    threads = [
        threading.Thread(target=watch, args=(scene, seen, total, ended), daemon=True),
        threading.Thread(target=kill_workers, args=(scene, seen, chance, ended), daemon=True),
        threading.Thread(target=trouble, args=(scene, seen, total, options.away, chance, postgres), daemon=True),
    ]
    for one in threads:
        one.start()
    if not ended.wait(PATIENCE_SECONDS):
        print(f"not done after {PATIENCE_SECONDS:.0f} s: {seen.counts}")
        return 1
    took = time.monotonic() - began
    for one in threads:
        one.join()
    scene.moor("map", "results", NAME, "-o", "features.jsonl")
    sys.path.insert(0, str(scene.folder))
    import made  # type: ignore[import-not-found]

    wrong = rows = 0
    items: set[int] = set()
    with (scene.folder / "features.jsonl").open() as file:
        for line in file:
            row = json.loads(line)
            rows += 1
            items.add(row["item"])
            wrong += row["value"] != made.features(row["item"], wait=0)
    return judge(seen, total, took, rows, len(items), wrong)


def judge(seen: Seen, total: int, took: float, rows: int, distinct: int, wrong: int) -> int:
    counts = seen.counts
    beyond = counts["granted"] - counts["returned"] - total
    said = {
        "items done": (counts["done"], total),
        "items failed": (counts["dead"], 0),
        "rows of the results": (rows, total),
        "distinct items in them": (distinct, total),
        "rows unlike a plain loop's": (wrong, 0),
        "readings in which progress fell": (seen.fell, 0),
        "executions beyond the items without a cause": (beyond - counts["lost"] - counts["failed"], 0),
    }
    print(f"{total} items in {took:.0f} s; {len(seen.progress)} readings, {seen.unanswered} without an answer")
    print(
        f"killed: {seen.worker_kills} of {len(seen.workers)} workers, the server {seen.server_kills} times;"
        f" drains {seen.drains}, crashes of PostgreSQL {seen.crashes}, {seen.away:.0f} s without API server"
    )
    print(
        f"leases {counts['granted']}: "
        + ", ".join(f"{one} {counts[one]}" for one in ("lost", "returned", "refused"))
    )
    held = True
    for name, (found, wanted) in said.items():
        print(f"  {'ok  ' if found == wanted else 'NOT '} {name}: {found} (wanted {wanted})")
        held = held and found == wanted
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
