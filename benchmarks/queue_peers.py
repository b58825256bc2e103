"""One peer on PostgreSQL: jobs that do nothing, by its own worker in this process; prints {"rate": jobs/s}.

    PYTHON benchmarks/queue_peers.py pgqueuer|procrastinate URL JOBS

For `queue_throughput.py --peers PYTHON`; imports nothing of ours.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any


async def pgqueuer(url: str, jobs: int) -> float:
    import psycopg
    from pgqueuer import PgQueuer
    from pgqueuer.db import PsycopgDriver
    from pgqueuer.types import QueueExecutionMode

    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    queue = PgQueuer(PsycopgDriver(connection))
    await queue.qm.queries.install()
    done = 0

    @queue.entrypoint("nothing")
    async def nothing(_: Any) -> None:
        nonlocal done
        done += 1

    for start in range(0, jobs, 1000):
        some = min(1000, jobs - start)
        await queue.qm.queries.enqueue(["nothing"] * some, [b"2019"] * some, [0] * some)
    began = time.perf_counter()
    await queue.run(batch_size=100, mode=QueueExecutionMode.drain)
    took = time.perf_counter() - began
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} done")
    return jobs / took


async def procrastinate(url: str, jobs: int) -> float:
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=20))
    done = 0

    @app.task(name="nothing")
    async def nothing(date: str) -> None:  # noqa: ARG001  (its payload)
        nonlocal done
        done += 1

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for start in range(0, jobs, 1000):
            some = min(1000, jobs - start)
            await nothing.batch_defer_async(*({"date": "2019"} for _ in range(some)))
        began = time.perf_counter()
        await app.run_worker_async(wait=False, concurrency=10, install_signal_handlers=False)
        took = time.perf_counter() - began
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} done")
    return jobs / took


if __name__ == "__main__":
    run = {"pgqueuer": pgqueuer, "procrastinate": procrastinate}[sys.argv[1]]
    print(json.dumps({"rate": asyncio.run(run(sys.argv[2], int(sys.argv[3])))}))
