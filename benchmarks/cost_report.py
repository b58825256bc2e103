"""Reports of money over a full store: how long a server takes for each.

    python benchmarks/cost_report.py             # 1,000 pods, 30 days: some minutes to fill
    python benchmarks/cost_report.py --postgres  # the same in a PostgreSQL that is made for it
    python benchmarks/cost_report.py --full      # with all five minutes of the last 14 days: half an hour to fill

The history goes through the server's stores as in life: nodes and pods as the recorder writes them, readings as
the collector adds them and as they are thinned out. A pod has a reading an hour, and in the last 12 hours one in
five minutes: every hour of every pod is there, which reports read, each of fewer readings than in life. With
`--full` there is a reading in half a minute for as long as readings are kept (12 hours), and one in five minutes
for as long as those are (14 days): every row is there that is there in life. Pods hold a GPU each and live for two
days on average; each is a run of its own. `idle_report.py` has the reports of idle work.

Each report is asked for as `moor cost report` and the others do, of a server without a network in between.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from asking import HEAD, at_work, timed
from dashboard import a_node, a_pod
from usage_history import GIB, Walks, place

from moorage.api.storedrecords import StoredPod
from moorage.attempts.store import open_attempts
from moorage.decide.rates import Rate
from moorage.decide.usage.intervals import Interval, Open
from moorage.decide.usage.nodelives import Begin, NodeLife
from moorage.decide.usage.samples import Level, floor
from moorage.model.names import PRICES_CONFIGMAP, PRICES_KEY, SYSTEM_NAMESPACE
from moorage.model.retention import SAMPLE_HOURS, SAMPLE_WINDOW_DAYS
from moorage.model.tenant import TENANTS
from moorage.server.rightsizing import CACHE_SECONDS
from moorage.server.service import ServerService
from moorage_kube.clock import SYSTEM, rfc3339
from moorage_kube.resources import CONFIGMAPS, JOBS, NODES, PODS
from moorage_local.testing.fakeapi import FakeApi

TOKEN = "an-administrators-token"
GPUS_OF_NODE = 8
TEAMS = 20
TYPE = "NVIDIA-A100-SXM4-80GB"
NODE_PRICES = {
    "source": "a benchmark", "date": "2026-11-01", "currency": "USD",
    "owned": [{"name": "rack", "nodes": ["gpu-*"], "purchase": 60000000, "years": 5}],
}  # fmt: skip
POD_PRICES = {
    "source": "a benchmark", "date": "2026-11-01", "currency": "USD",
    "pods": [{"cpu": 0.04, "memory": 0.005, "gpus": {TYPE: 2.5}}],
}  # fmt: skip


class History:
    """Pods that come and go, one on each GPU: what a recorder and a collector see."""

    def __init__(self, pods: int, seed: int, start: datetime, *, full: bool) -> None:
        self.full = full
        self.walks = Walks(pods, seed)
        self.places: dict[str, tuple[int, datetime]] = {}
        self.pods: list[Interval] = []
        self._note(start)

    def _note(self, at: datetime) -> None:
        uids = self.walks.uids
        for uid in self.places.keys() - set(uids):
            number, began = self.places.pop(uid)
            self.pods.append(an_interval(uid, number, began, at))
        for number, uid in enumerate(uids):
            self.places.setdefault(uid, (number, at))

    def rounds(self, start: datetime, end: datetime) -> Iterator[tuple[datetime, list[Any]]]:
        """The readings of each round."""
        at = start
        while at < end:
            self.walks.seconds = seconds_between(end - at, full=self.full)
            readings = self.walks.readings(at)
            self._note(at)
            yield at, readings
            at += timedelta(seconds=self.walks.seconds)

    def intervals(self, now: datetime) -> list[Interval]:
        """Of every pod."""
        running = [an_interval(uid, number, began, None, now) for uid, (number, began) in self.places.items()]
        return [*self.pods, *running]


def seconds_between(age: timedelta, *, full: bool) -> int:
    """Two readings of a pod. `full`: as fine as what is kept of readings of this age."""
    if age <= timedelta(hours=SAMPLE_HOURS):
        return Level.SLOT if full else Level.WINDOW
    return Level.WINDOW if full and age <= timedelta(days=SAMPLE_WINDOW_DAYS) else Level.HOUR


def an_interval(
    uid: str, number: int, start: datetime, end: datetime | None, now: datetime | None = None
) -> Interval:
    made = int(uid[:8], 16)
    return Interval(
        pod_uid=uid,
        namespace=f"team-{made % TEAMS}",
        pod=f"train-{made}",
        run=f"train-{made}",
        attempt=1,
        owner=f"person{made % 40:02}",
        node=f"gpu-{number // GPUS_OF_NODE:03}",
        gpu_type=TYPE,
        gpus=1,
        cpu_milli=4000 + 1000 * (made % 5),
        memory_bytes=(256 + 16 * (made % 9)) * GIB,  # far above what the readings say
        started_at=start,
        ended_at=end,
        last_seen_at=end or now or start,
        work=f"work-{made % 400}",
        gpu_counts=(("nvidia.com/gpu", 1),),
    )


def a_life(number: int, start: datetime) -> NodeLife:
    return NodeLife(
        node_uid=f"uid-gpu-{number:03}",
        node=f"gpu-{number:03}",
        gpu_type=TYPE,
        devices=(("nvidia.com/gpu", GPUS_OF_NODE),),
        cpu_milli=96_000,
        memory_bytes=4096 * GIB,
        started_at=start,
        first_seen_at=start,
        last_seen_at=start,
    )


def fill(service: ServerService, history: History, *, start: datetime, end: datetime, tidy: Any) -> None:
    nodes = -(-len(history.walks.uids) // GPUS_OF_NODE)
    service.usage.apply_nodes([Begin(a_life(number, start)) for number in range(nodes)], now=start)
    day = start
    for at, readings in history.rounds(start, end):
        service.samples.add(readings)
        if not at.timestamp() % Level.WINDOW:
            service.samples.downsample(at)
        if not at.timestamp() % Level.HOUR:
            tidy()
        if at >= day + timedelta(days=1):
            day = at
            print(f"  {(at - start).days} days", flush=True)
    service.usage.apply([Open(interval) for interval in history.intervals(end)], now=end)


def keep_ends(where: Path | str, intervals: list[Interval]) -> None:
    """How pods ended, and the memory they used, as the server keeps it: what `moor rightsize` goes by."""
    kept = [
        StoredPod(
            uid=interval.pod_uid,
            job_uid=f"job-{interval.pod_uid}",
            namespace=interval.namespace,
            run=interval.run,
            attempt=1,
            name=interval.pod,
            phase="Succeeded",
            started=interval.started_at,
            ended=interval.ended_at,
            exit_code=0,
            memory_limit_bytes=interval.memory_bytes,
            peak_memory_bytes=interval.memory_bytes // 3,
            gpus=interval.gpus,
            gone=interval.ended_at,
        )
        for interval in intervals
        if interval.ended_at is not None
    ]
    store = open_attempts(where)
    store.write([], kept)
    store.close()


def show_cluster(api: FakeApi, history: History, now: datetime) -> None:
    """Put what runs now, tenants and prices into the API, as the recorder would see it."""
    for number in range(-(-len(history.walks.uids) // GPUS_OF_NODE)):
        node = a_node(number, GPUS_OF_NODE)
        node["metadata"]["labels"]["nvidia.com/gpu.product"] = TYPE
        node["metadata"]["uid"] = f"uid-gpu-{number:03}"
        api.put(NODES, node)
    for interval in history.intervals(now):
        if interval.ended_at is None:
            pod = a_pod(interval.run, interval.owner, node=interval.node)
            pod["metadata"] |= {"uid": interval.pod_uid, "namespace": interval.namespace}
            began = rfc3339(interval.started_at)
            pod["status"]["startTime"] = began
            pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] = began
            api.put(PODS, pod)
            meta = {key: pod["metadata"][key] for key in ("name", "namespace", "labels", "annotations")}
            api.put(JOBS, {"metadata": meta, "spec": {"template": {}}, "status": {"active": 1}})
    for number in range(TEAMS):
        api.put(TENANTS, {"metadata": {"name": f"tenant-{number}"}, "spec": {"namespace": f"team-{number}"}})
    prices = {PRICES_KEY: yaml.safe_dump(NODE_PRICES)}
    api.put(CONFIGMAPS, {"metadata": {"name": PRICES_CONFIGMAP, "namespace": SYSTEM_NAMESPACE}, "data": prices})


def reports(days: float) -> dict[str, tuple[str, Any]]:
    """Title → path and body."""
    since = f"{int(days * 24)}h"
    files = {"nodePrices": yaml.safe_dump(NODE_PRICES), "podPrices": yaml.safe_dump(POD_PRICES), "since": since}
    return {
        **{
            f"cost report --by {by}": (f"/api/v1/cost?since={since}&by={by}", None)
            for by in ("tenant", "user", "run", "day", "node")
        },
        "cost report --by tenant, a day": ("/api/v1/cost?since=24h&by=tenant", None),
        "cost of each day by tenant (chart)": (f"/api/v1/cost/daily?since={since}&by=tenant", None),
        "cost compare": ("/api/v1/cost/compare", files),
        "rightsize": ("/api/v1/rightsize", None),
        "idle": ("/api/v1/idle", None),
    }


async def measure(service: ServerService, days: float, times: int) -> None:
    async with at_work(service):
        gc.collect()
        gc.freeze()
        print(f"{HEAD}  report")
        for title, (path, body) in reports(days).items():
            pause = CACHE_SECONDS + 0.1 if title == "rightsize" else 0.0  # until it reads anew
            words, answer = await timed(service, path, token=TOKEN, body=body, times=times, pause=pause)
            rows = next((len(answer[name]) for name in ("rows", "jobs", "works", "work") if name in answer), 0)
            print(f"{words}  {title}: {rows:,} rows", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--days", type=float, default=30)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--full", action="store_true", help="readings as fine as they are kept")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    gc.set_threshold(10_000, 50, 100)  # as the service sets it
    end = floor(SYSTEM.now(), Level.WINDOW)
    start = floor(end - timedelta(days=options.days), Level.HOUR)
    with tempfile.TemporaryDirectory() as name, place(Path(name), options.postgres) as (where, size, tidy):
        api = FakeApi(users={TOKEN: "root"})
        api.readers |= {
            ("root", namespace) for namespace in (None, *(f"team-{number}" for number in range(TEAMS)))
        }
        service = ServerService(
            api,
            usage_db=Path(name) / "usage.db",
            database=str(where) if options.postgres else None,
            page_token="a-page-token",
            rate=Rate(per_second=0, burst=1),
        )
        history, began = History(options.pods, options.seed, start, full=options.full), time.monotonic()
        fill(service, history, start=start, end=end, tidy=tidy)
        pods = len(history.intervals(end))
        print(
            f"{options.pods:,} pods at a time, {pods:,} in {options.days:g} days;"
            f" {size() / 1e6:.0f} MB of samples; filled in {(time.monotonic() - began) / 60:.0f} min"
        )
        keep_ends(where if options.postgres else Path(name) / "attempts.db", history.intervals(end))
        show_cluster(api, history, end)
        asyncio.run(measure(service, options.days, options.times))
    os._exit(0)


if __name__ == "__main__":
    main()
