"""What the history of what pods use costs: bytes on the disk, seconds of a report, CPU of a round.

    python benchmarks/usage_history.py                      # 1,000 pods, 30 days, a reading every 30 s: an hour
    python benchmarks/usage_history.py --pods 100 --days 3  # a look
    python benchmarks/usage_history.py --postgres           # the same in a PostgreSQL that is made for it

Every reading goes through the store as the collector's do, and is thinned out as the server does it. The readings
themselves are random walks, so that nothing compresses better than in life. The parsing of a kubelet's summary and
of an exporter's page is measured apart, on pages of eight pods each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from moorage.decide.usage.samples import SLOT_SECONDS, GpuReading, Reading
from moorage.usage.samples import SampleStore

START = datetime(2026, 1, 1, tzinfo=UTC)
GIB = 2**30
OWNERS = 50
BAR_BYTES, BAR_SECONDS, BAR_CORE = 10**9, 2.0, 0.05


class Walks:
    """Readings of pods, each a random walk. A pod lives for two days on average; another takes its place."""

    def __init__(self, pods: int, seed: int) -> None:
        self._chance = random.Random(seed)
        self._pods = [self._new(number) for number in range(pods)]
        self._made = pods

    def _new(self, number: int) -> list[Any]:
        chance = self._chance
        return [f"{number:08x}-0000-4000-8000-{chance.getrandbits(48):012x}", f"user-{chance.randrange(OWNERS)}",
                chance.randrange(16_000), chance.randrange(64 * GIB), chance.uniform(0, 100)]  # fmt: skip

    def readings(self, at: datetime) -> list[Reading]:
        chance = self._chance
        for at_number, pod in enumerate(self._pods):
            if chance.random() < SLOT_SECONDS / 172_800:
                self._pods[at_number] = self._new(self._made)
                self._made += 1
            pod[2] = max(0, pod[2] + chance.randrange(-400, 401))
            pod[3] = max(0, pod[3] + chance.randrange(-(2**26), 2**26))
            pod[4] = min(100.0, max(0.0, pod[4] + chance.uniform(-8, 8)))
        return [
            Reading(
                pod_uid=uid,
                at=at,
                cpu_milli=cpu,
                memory_bytes=memory,
                gpus=(
                    GpuReading(
                        device=f"GPU-{uid}",
                        utilisation=round(use, 1),
                        memory_bytes=memory // 2,
                        memory_total_bytes=80 * GIB,
                        power_watts=60 + 6 * use,
                    ),
                ),
                owner=owner,
                namespace="lab",
            )
            for uid, owner, cpu, memory, use in self._pods
        ]

    @property
    def uids(self) -> list[str]:
        return [pod[0] for pod in self._pods]


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@contextlib.contextmanager
def place(folder: Path, postgres: bool) -> Iterator[tuple[Path | str, Callable[[], int]]]:
    """Where the store is, and what measures its bytes on the disk."""
    if not postgres:
        path = folder / "samples.db"
        yield path, lambda: sum(file.stat().st_size for file in folder.glob("samples.db*"))
        return
    import psycopg

    from moorage.testing.postgres import new_database, throwaway_postgres

    with throwaway_postgres() as server:
        url = new_database(server.url)

        def size() -> int:
            with psycopg.connect(url) as db:
                row = db.execute("SELECT pg_database_size(current_database())").fetchone()
                return int(row[0]) if row else 0

        yield url, size


def reports(store: SampleStore, uids: list[str], now: datetime) -> dict[str, Callable[[], Any]]:
    day, month, hour = timedelta(days=1), timedelta(days=30), timedelta(hours=1)
    return {
        "GPU utilisation of the cluster, by hour, a month": lambda: store.sums(now - month, now, 3600),
        "use of each owner, by day, a month": lambda: store.sums(now - month, now, 86400, by_owner=True),
        "GPU utilisation of the cluster, by 5 min, a day": lambda: store.sums(now - day, now, 300),
        "one pod over its life": lambda: store.points(uids[0], now - month, now, 3600),
        "one pod over 6 h, every reading": lambda: store.points(uids[0], now - 6 * hour, now, 30),
        "use of all running pods over their lives": lambda: store.use_of(uids),
        "all running pods, last 30 min, by 5 min (idleness)": lambda: store.points(uids, now - hour / 2, now, 300),
        "newest reading of all pods": store.latest,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--days", type=float, default=30)
    parser.add_argument("--minutes", type=float, default=1e9, help="stop making readings after this, and report")
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    walks, rounds = Walks(options.pods, options.seed), int(options.days * 86400 / SLOT_SECONDS)
    with tempfile.TemporaryDirectory() as name, place(Path(name), options.postgres) as (where, size):
        store, spent, worst = SampleStore(where), 0.0, 0.0
        end = time.monotonic() + 60 * options.minutes
        for number in range(rounds):
            if time.monotonic() >= end:
                rounds = number
                print(f"stopped after {rounds * SLOT_SECONDS / 86400:.1f} days")
                break
            at = START + number * timedelta(seconds=SLOT_SECONDS)
            some = walks.readings(at)
            before, began = cpu_seconds(), time.monotonic()
            store.add(some)
            if number % 10 == 0:
                store.downsample(at)
            spent, worst = spent + cpu_seconds() - before, max(worst, time.monotonic() - began)
            if number % 2880 == 2879:
                print(f"day {number // 2880 + 1}: {size() / 1e6:.0f} MB", flush=True)
        now = START + rounds * timedelta(seconds=SLOT_SECONDS)
        figures: dict[str, float] = {
            "bytes": size(),
            "core": spent / (rounds * SLOT_SECONDS),
            "longest_round_seconds": worst,
        }
        print(f"{figures['bytes'] / 1e6:.0f} MB on the disk (bar: {BAR_BYTES / 1e6:.0f})")
        print(f"{100 * figures['core']:.2f} % of a core in the store (bar: {100 * BAR_CORE:.0f} % in all)")
        print(f"longest round: {worst:.2f} s")
        for title, report in reports(store, walks.uids, now).items():
            began = time.monotonic()
            rows = len(report())
            figures[title] = time.monotonic() - began
            print(f"{figures[title]:6.3f} s  {title}: {rows} rows (bar: {BAR_SECONDS} s)")
        store.close()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
