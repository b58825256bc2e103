"""One peer on PostgreSQL: jobs that do nothing, by its own worker in this process; prints {"rate": jobs/s,
"settings", "pilots"}: of several settings those that were fastest in a short run.

    PYTHON benchmarks/queue_peers.py pgqueuer|procrastinate URL JOBS

For `queue_throughput.py --peers PYTHON`; imports nothing of ours.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

PILOT_JOBS = 2000
SETTINGS = {
    # driver, jobs in a batch. The docs tune by batch size; a worker's calls are tasks of one loop without a bound
    "pgqueuer": [(driver, batch) for driver in ("asyncpg", "psycopg") for batch in (10, 100, 400)],
    "procrastinate": [(concurrency,) for concurrency in (1, 10, 30)],
}


async def pgqueuer(url: str, jobs: int, driver: str, batch: int) -> float:
    import contextlib

    from pgqueuer import PgQueuer

    connection: Any
    if driver == "asyncpg":
        import asyncpg
        from pgqueuer.db import AsyncpgDriver

        connection = await asyncpg.connect(url)
        queue = PgQueuer(AsyncpgDriver(connection))
    else:
        import psycopg
        from pgqueuer.db import PsycopgDriver

        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        queue = PgQueuer(PsycopgDriver(connection))
    from pgqueuer.types import QueueExecutionMode

    if not await queue.qm.queries.has_table(queue.qm.queries.qbe.settings.queue_table):
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
    await queue.run(batch_size=batch, mode=QueueExecutionMode.drain)
    took = time.perf_counter() - began
    with contextlib.suppress(Exception):  # it closes it itself, by some drivers
        await connection.close()
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} done")
    return jobs / took


async def procrastinate(url: str, jobs: int, concurrency: int) -> float:
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=20))
    done = 0

    @app.task(name="nothing")
    async def nothing(date: str) -> None:  # noqa: ARG001  (its payload)
        nonlocal done
        done += 1

    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        for start in range(0, jobs, 1000):
            some = min(1000, jobs - start)
            await nothing.batch_defer_async(*({"date": "2019"} for _ in range(some)))
        began = time.perf_counter()
        await app.run_worker_async(wait=False, concurrency=concurrency, install_signal_handlers=False)
        took = time.perf_counter() - began
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} done")
    return jobs / took


async def best(name: str, url: str, jobs: int) -> dict[str, Any]:
    """The rate with the settings that were fastest for PILOT_JOBS."""
    run = {"pgqueuer": pgqueuer, "procrastinate": procrastinate}[name]
    tried = {}
    for settings in SETTINGS[name]:
        try:
            tried[settings] = await run(url, PILOT_JOBS, *settings)
        except ImportError:
            continue  # a driver that is not installed
    chosen = max(tried, key=lambda one: tried[one])
    pilots = {" ".join(map(str, one)): round(rate) for one, rate in tried.items()}
    return {"rate": await run(url, jobs, *chosen), "settings": " ".join(map(str, chosen)), "pilots": pilots}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(best(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
