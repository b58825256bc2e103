"""Two servers on one PostgreSQL under load, one of them ended every so many seconds, and PostgreSQL restarted.

    python benchmarks/two_replicas.py [--minutes 10] [--every 20] [--restarts-every 30] [--seed 1]

Servers are ended by SIGTERM and by SIGKILL in turns, behind a balancer that knows no more than kube-proxy. Our own
clients (SDK, workers of maps in pods) repeat what may be repeated; plain HTTP clients beside them repeat nothing.
PostgreSQL is shut down (fast), stopped without a checkpoint (immediate), or its postmaster gets SIGKILL; which of
these and when is drawn by the seed.
With --kubeconfig: on a cluster where Moorage is installed with two servers. Pods of the server, the webhook and
the extender are deleted in turns, every other one by force. Set MOORAGE_RATE_LIMIT=0 on the server before.

    python benchmarks/two_replicas.py --kubeconfig FILE --url http://SERVICE --database URL --namespace TENANT \\
        --image IMAGE

Printed: requests, failed, sent again, of both; intervals of GPU use, attempts, lines of logs, items, their output
and audit entries that are missing. Exit code 1 when a request of our own clients failed, or something is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from moorage.model.names import SYSTEM_NAMESPACE
from moorage_kube.remote.client import KubeClient
from moorage_kube.remote.config import load_connection
from moorage_kube.resources import PODS, Obj
from moorage_testing.postgres import RESTARTS, Postgres, throwaway_postgres
from moorage_testing.replicaload import Load
from moorage_testing.replicas import Site, two_replicas

SERVICES = ("server", "webhook", "extender")


async def measure(site: Site, postgres: Postgres, options: argparse.Namespace) -> int:
    chance = random.Random(options.seed)

    def ways() -> Iterator[str]:
        end = time.monotonic() + 60 * options.minutes
        while options.restarts_every and time.monotonic() < end:
            yield chance.choice(RESTARTS)

    def pause() -> float:
        return chance.uniform(0.5, 1.5) * float(options.restarts_every)

    async with site.running():
        load = Load(site.cluster.kubeconfig, site.url, postgres.url)
        began = time.monotonic()
        async with load.running(), asyncio.TaskGroup() as group:
            group.create_task(site.kill_in_turns(seconds=60 * options.minutes, every=options.every))
            group.create_task(site.restart_database(postgres, ways(), pause=pause))
        print(f"{time.monotonic() - began:.0f} s, servers ended {site.kills} times,", end=" ")
        print(f"{site.balancer.connections} connections, {site.balancer.refused} refused")
        print(f"PostgreSQL restarted {dict(site.restarts)}, away for {site.longest_away:.1f} s at most")
    return report(load)


async def measure_pods(load: Load, kubeconfig: Path, *, seconds: float, every: float) -> int:
    """The same on a cluster, by deleting pods."""
    began = time.monotonic()
    ended: Counter[str] = Counter()
    async with KubeClient(load_connection(kubeconfig)) as api, load.running():
        for number in itertools.count():
            if time.monotonic() - began > seconds:
                break
            service, by_force = SERVICES[number % len(SERVICES)], number // len(SERVICES) % 2 == 1
            turn = time.monotonic()
            pods = await ready_pods(api, service)
            oldest = min(pods, key=lambda pod: pod["metadata"]["creationTimestamp"])["metadata"]["name"]
            print(f"{turn - began:.0f} s: {'by force' if by_force else 'deleted'}: {oldest}", flush=True)
            await api.delete(PODS, oldest, SYSTEM_NAMESPACE, grace_period_seconds=0 if by_force else None)
            ended[f"{service}{', by force' if by_force else ''}"] += 1
            await asyncio.sleep(2.0)  # it is no longer among those that are ready
            while len(await ready_pods(api, service)) < len(pods):  # noqa: ASYNC110 -- the API server is asked
                await asyncio.sleep(1.0)
            await asyncio.sleep(max(0.0, turn + every - time.monotonic()))
    print(f"{time.monotonic() - began:.0f} s, pods ended: {dict(ended)}")
    return report(load)


async def ready_pods(api: KubeClient, service: str) -> list[Obj]:
    """Those that are not ending."""
    pods = (
        await api.list(PODS, SYSTEM_NAMESPACE, label_selector=f"app.kubernetes.io/name=moorage-{service}")
    ).items
    return [
        pod
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        and any(
            each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ())
        )
    ]


def report(load: Load) -> int:
    ours, plain = load.ours, load.plain
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
    parser.add_argument(
        "--restarts-every", type=float, default=30.0, help="seconds between two restarts of PostgreSQL; 0: none"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep logs and data here")
    parser.add_argument("--kubeconfig", type=Path, help="of a cluster where Moorage is installed; with a token")
    parser.add_argument("--url", help="of the server there, such as that of its Service")
    parser.add_argument("--database", help="its PostgreSQL, to look for what is lost")
    parser.add_argument("--namespace", default="default", help="of a tenant, for runs and maps")
    parser.add_argument("--image", default="", help="of runs and maps; it has python3")
    options = parser.parse_args()
    if options.kubeconfig:
        load = Load(
            options.kubeconfig,
            options.url,
            options.database,
            namespace=options.namespace,
            image=options.image,
        )
        return asyncio.run(
            measure_pods(load, options.kubeconfig, seconds=60 * options.minutes, every=options.every)
        )
    with (
        tempfile.TemporaryDirectory(prefix="moorage-two-") as scratch,
        throwaway_postgres(connections=100) as postgres,
    ):
        folder = options.folder or Path(scratch)
        folder.mkdir(exist_ok=True)
        with two_replicas(folder, postgres.url) as site:
            return asyncio.run(measure(site, postgres, options))


if __name__ == "__main__":
    sys.exit(main())
