"""Two servers on one PostgreSQL under load, one of them ended every so many seconds.

    python benchmarks/two_replicas.py [--minutes 10] [--every 20]

Servers are ended by SIGTERM and by SIGKILL in turns, behind a balancer that knows no more than kube-proxy. Our own
clients (SDK, workers of maps in pods) repeat what may be repeated; plain HTTP clients beside them repeat nothing.
Printed: requests, failed, sent again, of both; intervals of GPU use, attempts, lines of logs, items, their output
and audit entries that are missing. Exit code 1 when a request of our own clients failed, or something is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from moorage.testing.postgres import throwaway_postgres
from moorage.testing.replicaload import Load
from moorage.testing.replicas import Site, two_replicas


async def measure(site: Site, database: str, *, seconds: float, every: float) -> int:
    async with site.running():
        load = Load(site, database)
        began = time.monotonic()
        async with load.running():
            await site.kill_in_turns(seconds=seconds, every=every)
        ours, plain = load.ours, load.plain
        print(f"{time.monotonic() - began:.0f} s, servers ended {site.kills} times,", end=" ")
        print(f"{site.balancer.connections} connections, {site.balancer.refused} refused")
        print(ours.report("our clients"))
        print(plain.report("plain clients, nothing repeated"))
        print("checked: " + ", ".join(f"{number} {what}" for what, number in sorted(ours.checked.items())))
        print(f"lost: {len(ours.lost)}")
        print("\n".join(f"  {what}" for what in ours.lost[:20]))
    return 1 if ours.failed or ours.lost else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two ends")
    parser.add_argument("--folder", type=Path, help="keep logs and data here")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="moorage-two-") as scratch,
        throwaway_postgres(connections=100) as postgres,
    ):
        folder = options.folder or Path(scratch)
        folder.mkdir(exist_ok=True)
        with two_replicas(folder, postgres.url) as site:
            return asyncio.run(measure(site, postgres.url, seconds=60 * options.minutes, every=options.every))


if __name__ == "__main__":
    sys.exit(main())
