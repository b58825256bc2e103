"""Many CronWorkflows due in the same minute: how late the first and the last Workflow is created.

    python benchmarks/cron_start.py [--count 1000]

A local cluster of its own, with all services in it. The Workflows are suspended from the start: what is measured
is the schedule, not the work. Printed: seconds from the slot until the first, the median and the last Workflow is
there; how many slots have no Workflow, or two; CPU seconds and memory of the processes of Moorage meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from moorage.model.argo import CRON_WORKFLOWS, WORKFLOWS
from moorage_kube.clock import SYSTEM
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import NAMESPACES
from moorage_testing.cluster import local_cluster

TICKS = os.sysconf("SC_CLK_TCK")
NAMESPACE = "many"


def a_cron(number: int, slot: datetime) -> dict[str, Any]:
    template = {"name": "main", "suspend": {}}
    return {
        "apiVersion": CRON_WORKFLOWS.api_version,
        "kind": CRON_WORKFLOWS.kind,
        "metadata": {"name": f"cron-{number}", "namespace": NAMESPACE},
        "spec": {
            "schedules": [f"{slot.minute} {slot.hour} * * *"],
            "workflowSpec": {"entrypoint": "main", "suspend": True, "templates": [template]},
        },
    }


def used(home: Path) -> dict[str, tuple[float, float]]:
    """CPU seconds and resident MiB of each process whose command line names the data folder."""
    out = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if str(home).encode() not in b" ".join(words):
                continue
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            status = dict(
                line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line
            )
        except (OSError, ValueError):
            continue
        name = " ".join(word.decode() for word in words[1:5] if not word.startswith(b"-"))[:60]
        cpu = (int(fields[11]) + int(fields[12])) / TICKS
        out[f"{folder.name} {name}"] = (cpu, int(status.get("VmRSS", "0 kB").split()[0]) / 1024)
    return out


async def measure(kubeconfig: Path, home: Path, count: int) -> None:
    async with KubeClient.from_kubeconfig(kubeconfig) as api:
        await api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        spare = timedelta(seconds=90 + count / 10)  # to create them all, and settle
        slot = (SYSTEM.now() + spare).replace(second=0, microsecond=0) + timedelta(minutes=1)
        for begin in range(0, count, 50):
            numbers = range(begin, min(count, begin + 50))
            await asyncio.gather(
                *(api.create(CRON_WORKFLOWS, a_cron(number, slot), NAMESPACE) for number in numbers)
            )
        await SYSTEM.sleep((slot - SYSTEM.now()).total_seconds() - 5)
        before = used(home)
        version = (await api.list(WORKFLOWS, NAMESPACE)).resource_version
        late: dict[str, float] = {}
        twins = 0
        async with asyncio.timeout(600):
            async for event in api.watch(WORKFLOWS, NAMESPACE, resource_version=version):
                if event.type != "ADDED":
                    continue
                name = event.object["metadata"]["name"]
                twins += name in late
                late[name] = (SYSTEM.now() - slot).total_seconds()
                if len(late) == count:
                    break
        await SYSTEM.sleep(20)
        after = used(home)
        total = len((await api.list(WORKFLOWS, NAMESPACE)).items)
    seconds = sorted(late.values())
    median = statistics.median(seconds)
    print(f"{count} CronWorkflows due at {slot:%H:%M}, seconds until their Workflows are there:")
    print(f"  first {seconds[0]:.1f}, median {median:.1f}, last {seconds[-1]:.1f}")
    print(f"Workflows: {total}; created twice: {twins + total - count}")
    for name, (cpu, memory) in sorted(after.items(), key=lambda row: -row[1][0])[:6]:
        spent = cpu - before.get(name, (0.0, 0.0))[0]
        print(f"  {name}: {spent:.1f} CPU s, {memory:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "data"
        with local_cluster(home, "--nodes", "1") as cluster:
            asyncio.run(measure(cluster.kubeconfig, home, options.count))


if __name__ == "__main__":
    main()
