"""What 20 documents that are meant to stop the services cost another person, in one run beside none.

    python benchmarks/hostile_texts.py [--rounds 30] [--hostile 20]

A local cluster of its own. A round of the other person is: a pod from its creation to its end, the front page, the
list of pods, and a workflow without pods from its creation to its end. First the rounds beside none; then one
member creates the documents and has each checked over REST, again and again while the rounds go on.
Exit code 1 where one of pod, page and list took more than a second longer than the slowest beside none.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from moorage.cluster.serverurl import server_url
from moorage.model.argo import WORKFLOWS
from moorage.model.names import HOST_IMAGE
from moorage_kube.errors import ApiError
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import NAMESPACES, PODS, Obj, Resource
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster, local_cluster
from moorage_testing.hostile import hostile_documents

BAR_SECONDS = 1.0
JUDGED = ("pod", "page", "list")
PAUSE_SECONDS = 1.0  # between two rounds


class Other:
    """The other person, who measures how long each thing takes."""

    def __init__(self, api: KubeClient, session: aiohttp.ClientSession, page: str) -> None:
        self._api, self._session, self._page = api, session, page
        self._number = 0

    async def round(self) -> dict[str, float]:
        self._number += 1
        row: dict[str, float] = {}
        await asyncio.sleep(PAUSE_SECONDS)
        for name, work in (
            ("pod", self._pod),
            ("page", self._show),
            ("list", self._list),
            ("workflow", self._workflow),
        ):
            began = time.monotonic()
            await work()
            row[name] = time.monotonic() - began
        return row

    async def _pod(self) -> None:
        container = {"name": "main", "image": HOST_IMAGE, "command": ["true"]}
        pod: Obj = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"pod-{self._number}"},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
        await self._api.create(PODS, pod, "ada")
        await self._until_ended(PODS, f"pod-{self._number}")

    async def _show(self) -> None:
        async with self._session.get(self._page) as answer:
            answer.raise_for_status()
            await answer.read()

    async def _list(self) -> None:
        await self._api.list(PODS, "ada")

    async def _workflow(self) -> None:
        (workflow,) = (copy.deepcopy(obj) for _, obj in hostile_documents() if obj["metadata"]["name"] == "words")
        workflow["metadata"]["name"] = f"honest-{self._number}"
        workflow["spec"]["templates"][0]["steps"][0][0]["when"] = "{{=1 + 1 == 2}}"
        await self._api.create(WORKFLOWS, workflow, "ada")
        await self._until_ended(WORKFLOWS, f"honest-{self._number}")

    async def _until_ended(self, resource: Resource, name: str) -> None:
        async def phase() -> bool:
            obj = await self._api.get(resource, name, "ada")
            return (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed")

        await until(f"{name} to end", phase)


async def attack(api: KubeClient, session: aiohttp.ClientSession, server: str, count: int) -> None:
    """Create the documents, and have them checked until this is cancelled."""
    documents = hostile_documents()[:count]

    async def one(number: int) -> None:
        resource, obj = documents[number]
        for time_ in range(10_000):
            mine = copy.deepcopy(obj)
            mine["metadata"]["name"] += f"-{time_}"
            with contextlib.suppress(ApiError):
                await api.create(resource, mine, "mallory")
            if resource is WORKFLOWS:
                with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError):
                    path = f"{server}/api/v1/workflows/mallory/lint"
                    async with session.post(path, json={"namespace": "mallory", "workflow": obj}) as answer:
                        await answer.read()
            await asyncio.sleep(5)

    async with asyncio.TaskGroup() as tasks:
        for number in range(len(documents)):
            tasks.create_task(one(number))


async def measure(cluster: Cluster, rounds: int, count: int) -> int:
    facts = json.loads(cluster.moor("status", "-o", "json").stdout)
    async with (
        KubeClient.from_kubeconfig(cluster.kubeconfig) as api,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session,
    ):
        headers = {"Authorization": f"Bearer {api.connection.token}"}
        for name in ("ada", "mallory"):
            await api.create(NAMESPACES, {"metadata": {"name": name}})
        other = Other(api, session, facts["page"])
        await other.round()  # what is loaded once
        none = [await other.round() for _ in range(rounds)]
        async with aiohttp.ClientSession(headers=headers) as hostile:
            attacking = asyncio.create_task(attack(api, hostile, (await server_url(api)).rstrip("/"), count))
            await asyncio.sleep(3)
            beside = [await other.round() for _ in range(rounds)]
            attacking.cancel()
            await asyncio.gather(attacking, return_exceptions=True)
        workflows = (await api.list(WORKFLOWS, "mallory")).items
    pids = json.loads(cluster.moor("status", "-o", "json").stdout)["processes"]
    print(
        f"{count} documents of one member, {rounds} rounds of another; {len(workflows)} hostile workflows in all"
    )
    print(f"{'':10} {'none: median':>13} {'max':>8} {'beside: median':>15} {'max':>8} {'more at most':>13}")
    worst = 0.0
    for name in none[0]:
        before, after = [row[name] for row in none], [row[name] for row in beside]
        more = max(after) - max(before)
        worst = max(worst, more) if name in JUDGED else worst
        print(
            f"{name:10} {statistics.median(before):11.2f} s {max(before):6.2f} s"
            f" {statistics.median(after):13.2f} s {max(after):6.2f} s {more:11.2f} s"
        )
    for name, pid in pids.items():
        if pid:
            stayed = "the same process" if pid == facts["processes"][name] else "started again"
            print(f"{name:14} {peak_mib(pid):6.0f} MB at most, {stayed}")
    print(f"(bar: at most {BAR_SECONDS:g} s more for {', '.join(JUDGED)})")
    return 0 if worst <= BAR_SECONDS else 1


def peak_mib(pid: int) -> float:
    """The most memory that a process has had."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(row for row in rows if row.startswith("VmHWM")).split()[1]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--hostile", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moor-") as folder, local_cluster(Path(folder) / "d") as cluster:
        return asyncio.run(measure(cluster, options.rounds, options.hostile))


if __name__ == "__main__":
    sys.exit(main())
