"""What the history of pods' usage costs: bytes on the disk, seconds of a report, CPU of a round.

    python benchmarks/usage_history.py                      # 1,000 pods, 30 days, a reading every 30 s: an hour
    python benchmarks/usage_history.py --pods 100 --days 3  # a look
    python benchmarks/usage_history.py --postgres           # the same in a PostgreSQL that is made for it
    python benchmarks/usage_history.py --only-parsing       # seconds

PostgreSQL removes deleted rows every half minute or so (autovacuum), which is half a day of readings here, where a
round takes milliseconds. So the rows are removed after every hour of readings.

Every reading goes through the store as the collector's do, and is thinned out as the server does it. The readings
themselves are random walks, so that nothing compresses better than in life. Reading what sources answer is
measured apart: a kubelet's summary of 110 pods and a page of DCGM's exporter of 8 GPUs are decoded, as often as so
many pods with a GPU each need them in a round, and made into readings. The network is not part of it.
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

from moorage.cluster.kubelets import SUMMARY_MAX_BYTES
from moorage.decide.usage.readings import (
    GPU_METRICS,
    Measured,
    gpus_of,
    make_readings,
    measured_by_kubelet,
    parse_exposition,
)
from moorage.decide.usage.samples import SLOT_SECONDS, GpuReading, Reading
from moorage.usage.samples import SampleStore
from moorage_kube.documents import parse_json

START = datetime(2026, 1, 1, tzinfo=UTC)
GIB = 2**30
OWNERS = 50
PODS_OF_NODE, GPUS_OF_NODE = 110, 8  # 110: the most that a kubelet takes, where nobody says more
PARSED_ROUNDS = 11
ROUNDS_OF_HOUR = 3600 // SLOT_SECONDS
BAR_BYTES, BAR_SECONDS, BAR_CORE = 10**9, 2.0, 0.05


class Walks:
    """Readings of pods, each a random walk. A pod lives for two days on average; another takes its place."""

    def __init__(self, pods: int, seed: int, *, seconds: int = SLOT_SECONDS) -> None:
        self.seconds = seconds  # between two readings
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
            if chance.random() < self.seconds / 172_800:
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


def summary_page(node: int) -> bytes:
    """A kubelet's /stats/summary of PODS_OF_NODE pods of two containers, with the parts that kubelets send."""
    time_ = START.isoformat().replace("+00:00", "Z")

    def part(name: str) -> dict[str, Any]:
        cpu = {"time": time_, "usageNanoCores": 812_345_678, "usageCoreNanoSeconds": 98_765_432_109_876}
        memory = {"time": time_, "availableBytes": GIB, "usageBytes": 3 * GIB, "workingSetBytes": 2 * GIB}
        disk = {"time": time_, "availableBytes": GIB, "capacityBytes": 9 * GIB, "usedBytes": GIB, "inodes": 65_000}
        return {"name": name, "startTime": time_, "cpu": cpu, "memory": memory, "rootfs": disk, "logs": disk}

    pods = []
    for number in range(PODS_OF_NODE):
        whole = part("")
        pods.append(
            {
                "podRef": {"name": f"pod-{node}-{number}", "namespace": "lab", "uid": f"{node}-{number}"},
                "startTime": time_,
                "containers": [part("main"), part("proxy")],
                "cpu": whole["cpu"],
                "memory": whole["memory"],
                "network": {"time": time_, "name": "eth0", "rxBytes": 1 << 40, "txBytes": 1 << 40},
                "volume": [{"name": "home", "time": time_, "usedBytes": GIB, "capacityBytes": 9 * GIB}],
                "ephemeral-storage": whole["rootfs"],
            }
        )
    return json.dumps({"node": part("node"), "pods": pods}).encode()


def exporter_page(node: int) -> bytes:
    """A page of DCGM's exporter of GPUS_OF_NODE GPUs with a pod each: 20 metrics, of which four are wanted."""
    names = [*GPU_METRICS, *(f"DCGM_FI_DEV_OTHER_{number}" for number in range(16))]
    lines = []
    for name in names:
        lines += [f"# HELP {name} What it is.", f"# TYPE {name} gauge"]
        for gpu in range(GPUS_OF_NODE):
            holder, number = divmod(node * GPUS_OF_NODE + gpu, PODS_OF_NODE)
            labels = (
                f'gpu="{gpu}",UUID="GPU-{node}-{gpu}",device="nvidia{gpu}",modelName="NVIDIA A100-SXM4-80GB",'
                f'Hostname="node-{node}",DCGM_FI_DRIVER_VERSION="550.54.15",container="main",namespace="lab",'
                f'pod="pod-{holder}-{number}"'
            )
            lines.append(f"{name}{{{labels}}} 42")
    return "\n".join(lines).encode()


def parsing(pods: int) -> dict[str, float]:
    """CPU seconds of reading all answers of a round, and what that is of a core, at a round every SLOT_SECONDS."""
    summaries = [summary_page(node) for node in range(-(-pods // PODS_OF_NODE))]
    pages = [exporter_page(node) for node in range(-(-pods // GPUS_OF_NODE))]
    objects = [
        {"metadata": {"name": f"pod-{node}-{number}", "namespace": "lab", "uid": f"{node}-{number}"}, "spec": {}}
        for node in range(len(summaries))
        for number in range(PODS_OF_NODE)
    ][:pods]
    before: dict[str, Measured] = {}
    seconds: dict[str, list[float]] = {"summaries": [], "exporters": [], "readings": []}
    for round_ in range(PARSED_ROUNDS):
        began = cpu_seconds()
        measured: dict[str, Measured] = {}
        for summary in summaries:
            measured |= measured_by_kubelet(parse_json(summary, bytes_max=SUMMARY_MAX_BYTES))
        seconds["summaries"].append(cpu_seconds() - began)
        began = cpu_seconds()
        gpus = [use for page in pages for use in gpus_of(parse_exposition(page.decode("utf-8", "replace")))]
        seconds["exporters"].append(cpu_seconds() - began)
        began = cpu_seconds()
        readings = make_readings(
            objects, measured, before, gpus, at=START + round_ * timedelta(seconds=SLOT_SECONDS)
        )
        seconds["readings"].append(cpu_seconds() - began)
        before = measured
        known = sum(len(reading.gpus) for reading in readings)
        if len(readings) != pods or known != pods or len(gpus) != len(pages) * GPUS_OF_NODE:
            raise SystemExit(
                f"{len(readings)} readings of {pods} pods, {len(gpus)} GPUs: pages were not understood"
            )
    medians = {name: sorted(values)[len(values) // 2] for name, values in seconds.items()}
    print(f"a round of {pods} pods: {len(summaries)} summaries of {PODS_OF_NODE} pods ({len(summaries[0])} bytes),"
          f" {len(pages)} pages of {GPUS_OF_NODE} GPUs ({len(pages[0])} bytes)")  # fmt: skip
    for name, value in medians.items():
        print(f"{1000 * value:7.1f} ms of CPU  {name}")
    core = sum(medians.values()) / SLOT_SECONDS
    print(f"{100 * core:.2f} % of a core to read answers, a round every {SLOT_SECONDS} s")
    return {"parsing_core": core}


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@contextlib.contextmanager
def place(folder: Path, postgres: bool) -> Iterator[tuple[Path | str, Callable[[], int], Callable[[], object]]]:
    """Where the store is, what measures its bytes on the disk, and what does an hour's work of the database."""
    if not postgres:
        path = folder / "samples.db"
        yield path, lambda: sum(file.stat().st_size for file in folder.glob("samples.db*")), lambda: None
        return
    import psycopg

    from moorage_testing.postgres import new_database, throwaway_postgres

    with throwaway_postgres() as server:
        url = new_database(server.url)

        def size() -> int:
            with psycopg.connect(url) as db:
                row = db.execute("SELECT pg_database_size(current_database())").fetchone()
                return int(row[0]) if row else 0

        def vacuum() -> None:
            with psycopg.connect(url, autocommit=True) as db:
                db.execute("VACUUM")

        def tables() -> None:
            with psycopg.connect(url) as db:
                for name, rows, bytes_of_rows, bytes_of_indexes in db.execute(
                    "SELECT relname, n_live_tup, pg_table_size(relid), pg_indexes_size(relid)"
                    " FROM pg_stat_user_tables ORDER BY pg_total_relation_size(relid) DESC"
                ).fetchall():
                    print(f"{name}: {rows} rows, {bytes_of_rows / 1e6:.1f} + {bytes_of_indexes / 1e6:.1f} MB")

        yield url, size, vacuum
        tables()


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
    parser.add_argument("--only-parsing", action="store_true", help="read what sources answer, and keep nothing")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    parsed = parsing(options.pods)
    if options.only_parsing:
        return
    walks, rounds = Walks(options.pods, options.seed), int(options.days * 86400 / SLOT_SECONDS)
    with tempfile.TemporaryDirectory() as name, place(Path(name), options.postgres) as (where, size, tidy):
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
            if number % ROUNDS_OF_HOUR == ROUNDS_OF_HOUR - 1:
                tidy()
            if number % 2880 == 2879:
                print(f"day {number // 2880 + 1}: {size() / 1e6:.0f} MB", flush=True)
        now = START + rounds * timedelta(seconds=SLOT_SECONDS)
        figures: dict[str, float] = parsed | {
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
