"""The server's page for Prometheus: how long it takes, and how long it holds up others.

    python benchmarks/metrics_page.py [--nodes 200] [--gpus 8] [--pods 2000] [--series 10000] [--times 20]

A server with an API in its memory, and SQLite files in a temporary folder. Each pod that runs has a reading of
its GPU, half a minute old at most. Series that the cluster does not have
are of requests to many routes. While the page is made another coroutine asks for its turn each millisecond:
the longest that it waits is how long another request would be held up.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import tempfile
import time
from pathlib import Path

from asking import ask
from dashboard import TOKEN, Load

from moorage.decide.rates import Rate
from moorage.decide.usage.samples import GpuReading, Reading
from moorage.server.service import ServerService
from moorage_kube.clock import SYSTEM
from moorage_kube.resources import PODS
from moorage_local.testing.fakeapi import FakeApi

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


async def add_readings(service: ServerService, api: FakeApi) -> int:
    """One of each pod that runs; how many there are."""
    pods = [pod for pod in (await api.list(PODS)).items if pod["spec"].get("nodeName")]
    readings = [
        Reading(
            pod_uid=str(pod["metadata"]["uid"]), at=SYSTEM.now(), cpu_milli=1000, memory_bytes=2**30,
            gpus=(GpuReading(device=f"GPU-{number}", utilisation=number % 101),),
            namespace=str(pod["metadata"]["namespace"]),
        )
        for number, pod in enumerate(pods)
    ]  # fmt: skip
    await asyncio.to_thread(service.samples.add, readings)
    return len(readings)


def count_series(page: bytes) -> int:
    return sum(bool(line) and not line.startswith(b"#") for line in page.splitlines())


async def longest_wait(stop: asyncio.Event) -> float:
    """Seconds beyond the millisecond that was asked for."""
    longest = 0.0
    while not stop.is_set():
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        longest = max(longest, time.perf_counter() - began - 0.001)
    return longest


async def measure(options: argparse.Namespace, folder: Path) -> None:
    api = FakeApi(users={})
    Load(api, nodes=options.nodes, gpus=options.gpus, pods=options.pods)
    service = ServerService(api, usage_db=folder / "usage.db", page_token=TOKEN, rate=Rate(per_second=0, burst=1))
    running = asyncio.create_task(service.run())
    try:
        began = time.perf_counter()
        page = await ask(service, "/metrics", token=TOKEN)
        readings = await add_readings(service, api)
        print(f"first page: {1000 * (time.perf_counter() - began):.0f} ms, {count_series(page):,} series")
        number = 0
        while count_series(page) < options.series:
            for _ in range(40):
                service.context.times.seconds.observe(0.01, f"/api/v1/route{number}", METHODS[number % 5])
                number += 1
            page = await ask(service, "/metrics", token=TOKEN)
        gc.collect()
        gc.freeze()
        took, waits, used = [], [], []
        for _ in range(options.times):
            stop = asyncio.Event()
            waiting = asyncio.create_task(longest_wait(stop))
            await asyncio.sleep(0.005)
            began, cpu = time.perf_counter(), time.process_time()
            page = await ask(service, "/metrics", token=TOKEN)
            took.append(time.perf_counter() - began)
            used.append(time.process_time() - cpu)
            stop.set()
            waits.append(await waiting)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    gpus = options.nodes * options.gpus
    print(f"{gpus:,} GPUs on {options.nodes} nodes, {options.pods:,} pods, {readings:,} readings")
    print(f"{count_series(page):,} series, {len(page) / 1024:,.0f} KiB, {options.times} pages:")
    for name, values in (("time", took), ("processor", used), ("longest wait of another", waits)):
        print(f"  {name}: median {1000 * statistics.median(values):.0f} ms, most {1000 * max(values):.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--series", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=20)
    options = parser.parse_args()
    gc.set_threshold(10_000, 50, 100)  # as the service sets it
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(options, Path(folder)))
    os._exit(0)


if __name__ == "__main__":
    main()
