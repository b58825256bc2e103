"""`moor idle report` over two weeks: how long a server takes, with every window there that is there in life.

    python benchmarks/idle_report.py             # 1,000 pods at a time, 14 days: some minutes to fill
    python benchmarks/idle_report.py --postgres  # the same in a PostgreSQL that is made for it

Each pod holds a GPU and has ten readings in each five minutes, summed up as the store does it. Of the pods that
there are at a time half train and rest at times for minutes, most for two days; a quarter are workspaces, used in
some hours of the day and left at night; an eighth are pods of maps, eight of each; the others hang after hours of
training, and nobody looks. A source fails now and then, and a window or an hour is not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from asking import HEAD, at_work, timed
from usage_history import place

from moorage.decide.rates import Rate
from moorage.decide.usage.intervals import Interval, Open
from moorage.decide.usage.samples import MEASURES, GpuReading, Level, Reading, floor, measures_of, seconds_of
from moorage.server.service import ServerService
from moorage.usage.samples import PODS, WINDOWS, SampleStore
from moorage_kube.clock import SYSTEM
from moorage_local.testing.fakeapi import FakeApi

TOKEN = "an-administrators-token"
SLOTS = Level.WINDOW // Level.SLOT
TEAMS, PEOPLE = 20, 40
PODS_OF_MAP = 8
KINDS = ("training", "training", "workspace", "map", "training", "training", "workspace", "hanging")
POLICIES = {
    "that only warns": {"warnAfter": "4h"},
    "that suspends": {"warnAfter": "4h", "remindAfter": "1h", "suspendAfter": "2h"},
    "with quiet hours": {
        "warnAfter": "4h", "suspendAfter": "2h",
        "quietHours": {"timeZone": "Asia/Tokyo", "spans": [{"start": "19:00", "end": "09:00"}]},
    },
}  # fmt: skip


@dataclass
class Pod:
    """One that holds a GPU."""

    number: int
    place: int  # of its GPU
    kind: str  # of KINDS
    began: datetime
    ends: datetime
    hangs: datetime

    @property
    def uid(self) -> str:
        return f"{self.number:08x}-0000-4000-8000-000000000000"

    def interval(self, now: datetime) -> Interval:
        group = self.place // PODS_OF_MAP
        part_of = {"workspace": f"workspace/lab-{self.number}", "map": f"map/map-{group}"}
        team = (group if self.kind == "map" else self.number) % TEAMS
        return Interval(
            pod_uid=self.uid, namespace=f"team-{team}", pod=f"pod-{self.number}",
            run=f"train-{self.number}" if self.kind in ("training", "hanging") else "", attempt=1,
            owner=f"person{self.number % PEOPLE:02}", node=f"gpu-{self.number % 125:03}", gpu_type="a100", gpus=1,
            cpu_milli=8000, memory_bytes=2**36, started_at=self.began,
            ended_at=self.ends if self.ends <= now else None, last_seen_at=min(self.ends, now),
            part_of=part_of.get(self.kind, ""),
        )  # fmt: skip

    def use(self, at: datetime, chance: random.Random) -> tuple[float, int]:
        """Percent of its GPU and thousandths of a core, at most in five minutes."""
        idle = (chance.random(), chance.randrange(5, 40))
        if self.kind == "workspace":
            is_day = 9 <= (at.hour + 9) % 24 < 19 and at.weekday() < 5
            if is_day and self.number * 7919 // 3600 % 3 == at.hour % 3 and chance.random() < 0.5:
                return chance.uniform(6, 90), chance.randrange(300, 2000)
            return idle
        if self.kind == "hanging" and at >= self.hangs:
            return idle
        return (0.0, 150) if chance.random() < 0.002 else (chance.uniform(50, 100), chance.randrange(2000, 8000))


class Cluster:
    """As many pods as there are GPUs; one that ends makes room for another."""

    def __init__(self, pods: int, seed: int, start: datetime) -> None:
        self._chance = random.Random(seed)
        self._made = 0
        self.ended: list[Pod] = []
        self.running = [self._new(place, start) for place in range(pods)]

    def _new(self, place: int, at: datetime) -> Pod:
        number, chance = self._made, self._chance
        self._made += 1
        kind = KINDS[place // PODS_OF_MAP % len(KINDS)]
        hours = 24 * 30 if kind == "workspace" else chance.expovariate(1 / 48) + 0.5
        hangs = at + timedelta(hours=chance.expovariate(1 / 12))
        return Pod(number, place, kind, at, at + timedelta(hours=hours), hangs)

    def windows(self, at: datetime) -> Iterator[tuple[Pod, tuple[int, ...]]]:
        """The measures of the pods in five minutes."""
        chance = self._chance
        fails = chance.random() < 0.002
        for at_place, pod in enumerate(self.running):
            if pod.ends <= at:
                self.ended.append(pod)
                pod = self.running[at_place] = self._new(at_place, at)
            if fails or chance.random() < 0.0005:
                continue
            percent, cpu = pod.use(at, chance)
            gpu = GpuReading(
                device="0", utilisation=percent, memory_bytes=2**34, memory_total_bytes=2**36, power_watts=200
            )
            measures = measures_of(Reading(pod_uid=pod.uid, at=at, cpu_milli=cpu, memory_bytes=2**33, gpus=(gpu,)))
            yield (
                pod,
                tuple(value * SLOTS if is_sum else value for value, is_sum in zip(measures, _IS_SUM, strict=True)),
            )


_IS_SUM = tuple(name.endswith(("_sum", "_count")) or name == "slots" for name in MEASURES)


def fill(store: SampleStore, cluster: Cluster, start: datetime, end: datetime) -> None:
    """Windows of all the time, as the collector's readings would have become them, summed up each hour."""
    database, known, at = store._db, set[int](), start
    while at < end:
        rows, new = [], []
        for pod, measures in cluster.windows(at):
            if pod.number not in known:
                known.add(pod.number)
                new.append((pod.uid, pod.number, "", "", seconds_of(at), seconds_of(pod.ends)))
            rows.append((pod.number, seconds_of(at), *measures))
        with database.transaction():
            database.insert(PODS, new)
            database.upsert(WINDOWS, rows)
        at += timedelta(seconds=Level.WINDOW)
        if not at.timestamp() % Level.HOUR:
            store.downsample(at + timedelta(hours=1))
        if not at.timestamp() % 86400:
            print(f"  {(at - start).days} days", flush=True)


async def measure(service: ServerService, days: float, times: int) -> None:
    async with at_work(service):
        gc.collect()
        gc.freeze()
        print(f"{HEAD}  policy")
        for title, spec in POLICIES.items():
            body = {"since": f"{int(days * 24)}h", "spec": spec}
            words, answer = await timed(service, "/api/v1/idle/report", token=TOKEN, body=body, times=times)
            print(
                f"{words}  {title}: {len(answer['rows']):,} rows,"
                f" {answer['idleHours']:,.0f} of {answer['measuredHours']:,.0f} hours idle,"
                f" {answer['reclaimedHours']:,.0f} reclaimed",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--days", type=float, default=14)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    gc.set_threshold(10_000, 50, 100)  # as the service sets it
    end = floor(SYSTEM.now(), Level.HOUR)
    start = end - timedelta(days=options.days)
    with tempfile.TemporaryDirectory() as name, place(Path(name), options.postgres) as (where, size, _):
        api = FakeApi(users={TOKEN: "root"})
        api.readers.add(("root", None))
        service = ServerService(
            api,
            usage_db=Path(name) / "usage.db",
            database=str(where) if options.postgres else None,
            page_token="a-page-token",
            rate=Rate(per_second=0, burst=1),
        )
        cluster, began = Cluster(options.pods, options.seed, start), time.monotonic()
        fill(service.samples, cluster, start, end)
        intervals = [pod.interval(end) for pod in (*cluster.ended, *cluster.running)]
        service.usage.apply([Open(interval) for interval in intervals], now=end)
        print(
            f"{options.pods:,} pods at a time, {len(intervals):,} in {options.days:g} days;"
            f" {size() / 1e6:.0f} MB of samples; filled in {(time.monotonic() - began) / 60:.0f} min"
        )
        asyncio.run(measure(service, options.days, options.times))
    os._exit(0)


if __name__ == "__main__":
    main()
