"""What a map costs beside its items.

    python benchmarks/map_overhead.py [--peers PYTHON] [--only sleeping|lognormal|trivial]

1. sleeping: items of 50 ms on local workers, against the ideal makespan (items × 50 ms / workers). Bar: 1.05. The
   start of the workers counts.
2. lognormal: 150,000 items of 1–60 s, 4 s on average, on 3,600 workers, by a simulated clock: the queue itself
   (decide.leasing over SQLite) and workers that ask as the real one does, 50 ms for each answer; against
   max(total / workers, longest). Bars: 1.05 where the items say how long they take, else 1.35.
3. trivial: `moorage.map` of 10,000 calls that do nothing, against multiprocessing.Pool, joblib and
   dask.distributed on as many processes, each from nothing to all results. Bar: at least dask's rate.
   --peers is a Python that has them (`uv venv peers`, `uv pip install --python peers/bin/python joblib
   'dask[distributed]'`); a peer that it lacks is said to be not installed.

All figures are of one run. Exit code 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

SLEEP_SECONDS, SLEEPING_ITEMS, SLEEPING_WORKERS, SLEEPING_BAR = 0.05, 4000, 8, 1.05
ITEMS, WORKERS = 150_000, 3_600
MEAN, SHORTEST, LONGEST, SIGMA = 4.0, 1.0, 60.0, 1.0
LOGNORMAL_BARS = {"hinted": 1.05, "unknown": 1.35}
TICK = 0.05  # simulated seconds until a request is answered, together with all others of that time
WANT = 100
CALLS, PROCESSES = 10_000, 2


def nap(_: int) -> None:
    time.sleep(SLEEP_SECONDS)


def increment(number: int) -> int:
    return number + 1


# -- 1


def sleeping() -> bool:
    import moorage

    ideal = SLEEPING_ITEMS * SLEEP_SECONDS / SLEEPING_WORKERS
    began = time.perf_counter()
    options = {"where": "local", "parallelism": SLEEPING_WORKERS, "progress": False}
    first = 0.0
    for _ in moorage.map(nap, range(SLEEPING_ITEMS), **options):
        first = first or time.perf_counter() - began
    took = time.perf_counter() - began
    print(
        f"sleeping: {SLEEPING_ITEMS:,} items of 50 ms on {SLEEPING_WORKERS} workers: {took:.2f} s,"
        f" ideal {ideal:.2f} s, ratio {took / ideal:.3f} (bar {SLEEPING_BAR}); first result at {first:.2f} s"
    )
    return took / ideal <= SLEEPING_BAR


# -- 2


@dataclass(slots=True)
class Worker:
    """As `moorage.worker.mapworker.engine` with one slot: asks for more when it begins the last that it has."""

    name: str
    number: int = 0
    running: tuple[int, int] | None = None
    todo: deque[tuple[int, int]] = field(default_factory=deque)
    reports: list[tuple[int, int, float]] = field(default_factory=list)
    dry: bool = False
    asking: bool = False


def durations(generator: random.Random) -> list[float]:
    """Lognormal, cut to the bounds, with the mean asked for."""
    raw = [generator.lognormvariate(0.0, SIGMA) for _ in range(ITEMS)]
    low, high = 0.01, 100.0
    for _ in range(60):
        scale = math.sqrt(low * high)
        mean = sum(min(LONGEST, max(SHORTEST, scale * one)) for one in raw) / ITEMS
        low, high = (scale, high) if mean < MEAN else (low, scale)
    return [min(LONGEST, max(SHORTEST, scale * one)) for one in raw]


def simulate(seconds: list[float], *, hinted: bool) -> float:
    """The makespan in simulated seconds."""
    import msgspec

    from moorage.decide.maps.leasing import Call, Exchange, Outcome, Policy, Report
    from moorage.queue.store import NewItem, open_store

    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        store = open_store(f"{folder}/queue.db")
        made = store.create_map(
            namespace="lab", name="m", owner="ada", policy=Policy(), request="m", limits={}, priority=0, now=0
        )
        of = made.map.id
        for start in range(0, len(seconds), 2000):
            part = seconds[start : start + 2000]
            store.add_items(
                of, [NewItem(value=msgspec.Raw(b"0"), seconds=one if hinted else None) for one in part]
            )
        store.change_map(of, closed=True)
        workers = [Worker(f"pod-{at}") for at in range(WORKERS)]
        ends: list[tuple[float, int]] = []  # of running items
        asks = list(range(WORKERS))  # workers with a request to be answered at the end of this tick
        now, last, done = 0.0, 0.0, 0

        def begin(at: int, moment: float) -> None:
            worker = workers[at]
            if worker.running is None and worker.todo:
                worker.running = worker.todo.popleft()
                heapq.heappush(ends, (moment + seconds[worker.running[0]], at))
            idle = worker.running is None
            if not worker.asking and not worker.todo and (idle or not worker.dry):
                worker.asking = True
                asks.append(at)

        for worker in workers:
            worker.asking = True
        while done < len(seconds):
            tick = now + TICK if asks else ends[0][0] + TICK
            while ends and ends[0][0] <= tick:
                moment, at = heapq.heappop(ends)
                worker = workers[at]
                assert worker.running is not None
                worker.reports.append((*worker.running, seconds[worker.running[0]]))
                worker.running = None
                done, last = done + 1, moment
                begin(at, moment)
            now = tick
            answered, asks = asks, []
            calls = []
            for at in answered:
                worker = workers[at]
                worker.number += 1
                held = [*worker.todo, *([worker.running] if worker.running else [])]
                reports = [
                    Report(item=item, lease=lease, outcome=Outcome.DONE, seconds=took, value=msgspec.Raw(b"1"))
                    for item, lease, took in worker.reports
                ]
                worker.reports.clear()
                calls.append(
                    Call(
                        of,
                        Exchange(
                            session=worker.name, request=worker.number, reports=reports, held=held, want=WANT
                        ),
                    )
                )
            for start in range(0, len(calls), 400):
                replies = store.exchange(calls[start : start + 400], round(now * 1000)).replies
                for at, reply in zip(answered[start : start + 400], replies, strict=True):
                    worker = workers[at]
                    items = getattr(reply, "items", [])
                    worker.asking, worker.dry = False, not items
                    worker.todo.extend((item, lease) for item, lease, _ in items)
                    if items or worker.running is not None:
                        begin(at, now)
        store.close()
    return last


def lognormal() -> bool:
    seconds = durations(random.Random(7))
    best = max(sum(seconds) / WORKERS, max(seconds))
    fine = True
    for kind, bar in LOGNORMAL_BARS.items():
        took = simulate(seconds, hinted=kind == "hinted")
        fine = fine and took / best <= bar
        print(
            f"lognormal, {kind} times: {ITEMS:,} items, {WORKERS:,} workers: {took:.1f} s, at best {best:.1f} s,"
            f" ratio {took / best:.3f} (bar {bar})"
        )
    return fine


# -- 3

PEER = """
import json, sys, time

def increment(number):
    return number + 1

def pool(chunk):
    import multiprocessing
    with multiprocessing.Pool(PROCESSES) as made:
        return list(made.imap(increment, range(CALLS), chunksize=chunk))

def joblib():
    from joblib import Parallel, delayed
    return Parallel(n_jobs=PROCESSES)(delayed(increment)(one) for one in range(CALLS))

def dask():
    from distributed import Client
    with Client(n_workers=PROCESSES, threads_per_worker=1, dashboard_address=None, processes=True) as client:
        return client.gather(client.map(increment, range(CALLS)))

if __name__ == "__main__":
    calls = {"Pool": lambda: pool(1), "Pool, 100 in one": lambda: pool(100), "joblib": joblib, "dask": dask}
    call = calls[sys.argv[1]]
    began = time.perf_counter()
    try:
        found = call()
    except ImportError:
        print("null")
        sys.exit()
    took = time.perf_counter() - began
    assert found == list(range(1, CALLS + 1))
    print(json.dumps(took))
"""
PEERS = ("Pool", "Pool, 100 in one", "joblib", "dask")


def trivial(peers: str) -> bool:
    import moorage

    began = time.perf_counter()
    found = list(moorage.map(increment, range(CALLS), where="local", parallelism=PROCESSES, progress=False))
    took = time.perf_counter() - began
    assert found == list(range(1, CALLS + 1))
    print(f"trivial: {CALLS:,} calls on {PROCESSES} processes: moorage.map {took:.2f} s, {CALLS / took:,.0f}/s")
    fine = True
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "peer.py"
        text = textwrap.dedent(PEER).replace("CALLS", str(CALLS)).replace("PROCESSES", str(PROCESSES))
        script.write_text(text)
        for peer in PEERS:
            done = subprocess.run(
                [peers, str(script), peer], capture_output=True, text=True, check=False, timeout=300
            )
            if done.returncode:
                print(f"  {peer}: failed: {done.stderr.strip().rpartition(chr(10))[2]}")
                continue
            theirs = json.loads(done.stdout.strip().rpartition("\n")[2])
            if theirs is None:
                print(f"  {peer}: not installed")
                continue
            print(f"  {peer}: {theirs:.2f} s, {CALLS / theirs:,.0f}/s; moorage.map {theirs / took:.2f} of that")
            if peer == "dask":
                fine = took <= theirs
    return fine


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--only", choices=["sleeping", "lognormal", "trivial"])
    options = parser.parse_args()
    parts = {"sleeping": sleeping, "lognormal": lognormal, "trivial": lambda: trivial(options.peers)}
    fine = [part() for name, part in parts.items() if options.only in (None, name)]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
