"""Memory of each process over runs, workflows, items of maps and watches that come and go.

    python benchmarks/memory.py [--runs 100] [--workflows 0] [--items 0] [--watches 0] [--job 0] [--at-once 8]
                                [--every N] [--minutes M] [--watchers 3] [--delete-events] [--out FILE]

A local cluster of its own. Each run is the Job that `moor run -- true` would make; it ends, is seen to have ended,
and is deleted as `moor cancel --delete` does. Then, where they are asked for: workflows of two steps, deleted once
they succeeded; maps of 10,000 items each by the SDK; watches of nodes at the API server and of GPUs at the server,
opened, read once and closed. All the while clients list and watch pods, Jobs and events. With `--job` a single Job
of so many pods runs and is deleted after them. A cluster keeps events for an hour: with `--delete-events` they are
deleted each second, so that what stays for good is seen within minutes.

Printed each N runs (left out: ten times): RSS and PSS of each process in MB, and the size of the data folder's
files. Then the growth of each process in kB a run, workflow, item and watch, over the last half of each, by least
squares. `--minutes` ends each kind after so many; what was reached is printed. The proof is taken with
`--runs 10000 --workflows 1000 --items 100000 --watches 10000 --every 200 --at-once 16 --watchers 1
--delete-events`, and with `--runs 2000 --job 3000`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp

import moorage
from moorage.actions.runfacts import ClusterNodes, read_facts
from moorage.actions.runs import cancel_run
from moorage.actions.submit import create_run
from moorage.cluster.serverurl import server_url
from moorage.decide.runs.job import plan_run
from moorage.decide.runs.request import Caller, ClusterFacts, RunRequest
from moorage.model.argo import WORKFLOWS
from moorage.model.names import HOST_IMAGE
from moorage_kube.errors import MoorageError, NotFound, ServerError
from moorage_kube.informer import Informer, wait_synced
from moorage_kube.meta import is_condition_true
from moorage_kube.remote.client import KubeClient
from moorage_kube.remote.config import load_connection
from moorage_kube.resources import EVENTS, JOBS, NAMESPACES, NODES, PODS, Obj
from moorage_testing.cluster import Cluster, local_cluster
from moorage_testing.killing import LAUNCHER, Trouble, until_so

NAMESPACE = "runs"
PROCESSES = ("supervisor", "localcluster", LAUNCHER, "services", "admission", "ingress")
PRINTS = 10
FORGET_SECONDS = 1.0  # between two deletions of all events…
AT_ONCE = 32  # …so many at a time
ITEMS = 10_000  # of a map
MEANT = {"items": ITEMS}  # how many of a kind come and go at once
WATCHED = (PODS, JOBS, EVENTS)
JOB_PARALLELISM = 100
PATIENCE_SECONDS = 1200.0  # for one run, or the Job; bounds a hang
TRUE = "/bin/true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured at one moment. Memory in kB by process; `files`: bytes of the data folder's files."""

    when: str
    kind: str  # of what came and went until then, and how many
    done: int
    seconds: float
    rss: dict[str, int]
    pss: dict[str, int]
    files: dict[str, int]
    events: int  # objects that the cluster keeps by itself, for an hour

    def __str__(self) -> str:
        memory = ", ".join(
            f"{name} {self.rss[name] / 1000:.1f} ({self.pss[name] / 1000:.1f})" for name in self.rss
        )
        files = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in sorted(self.files.items()))
        return f"{self.when}, {self.seconds:.0f} s: RSS (PSS) MB {memory}; files MB {files}; {self.events} events"


def memory_of(pid: int) -> tuple[int, int]:
    """RSS and PSS in kB."""
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0])
    return fields["Rss"], fields["Pss"]


def sizes_of(data: Path) -> dict[str, int]:
    """Bytes by database, log, and all else together."""
    found: Counter[str] = Counter()
    for folder, _, names in os.walk(data):  # passes over the folders of pods that go meanwhile
        for path in (Path(folder, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and not path.is_symlink():
                    name = path.name.partition("-")[0] if ".db" in path.name else path.parent.name
                    found[name if ".db" in name or name == "log" else "others"] += path.stat().st_size
    return dict(found)


class Bench:
    """Clients that watch, people who run and delete."""

    def __init__(self, api: KubeClient, cluster: Cluster, watchers: int) -> None:
        self._api = api
        self._data = cluster.home
        self._kubeconfig = cluster.kubeconfig
        self.url = ""  # of the server
        self._trouble = Trouble(cluster, random.Random(0))
        self._began = time.monotonic()
        self.watching = [Informer(api, resource) for resource in WATCHED for _ in range(watchers)]
        self.jobs = Informer(api, JOBS, NAMESPACE)
        self.pods = Informer(api, PODS, NAMESPACE)
        self.workflows = Informer(api, WORKFLOWS, NAMESPACE)
        self._events = Informer(api, EVENTS)
        self.failed: list[str] = []

    @property
    def informers(self) -> list[Informer]:
        return [*self.watching, self.jobs, self.pods, self.workflows, self._events]

    def figures(self, kind: str, done: int, when: str = "") -> Figures:
        pids = {name: self._trouble.pid(name) for name in PROCESSES}
        memory = {name: memory_of(pid) for name, pid in pids.items() if pid is not None}
        return Figures(
            when=when or f"{done} {kind}",
            kind=kind,
            done=done,
            seconds=time.monotonic() - self._began,
            rss={name: rss for name, (rss, _) in memory.items()},
            pss={name: pss for name, (_, pss) in memory.items()},
            files=sizes_of(self._data),
            events=len(self._events),
        )

    async def forget_events(self) -> None:
        """Delete events as they come, many at once: a DELETE of all takes one after the other, too late."""

        async def forget(name: str) -> None:
            with contextlib.suppress(NotFound):
                await self._api.delete(EVENTS, name, NAMESPACE)

        while True:
            with contextlib.suppress(ServerError):  # no answer in time, on a busy machine
                names = [event["metadata"]["name"] for event in (await self._api.list(EVENTS, NAMESPACE)).items]
                while names:
                    await asyncio.gather(*map(forget, names[:AT_ONCE]))
                    del names[:AT_ONCE]
            await asyncio.sleep(FORGET_SECONDS)

    async def a_run(self, number: int, facts: ClusterFacts) -> None:
        """Comes, ends, goes."""
        name = f"run-{number:05}"
        request = RunRequest(command=(TRUE,), namespace=NAMESPACE, name=name, cpu="10m", memory="16Mi")
        caller = Caller(user="bench", cwd="/", program=TRUE, token=f"token-{number}")
        plan = plan_run(request, caller, facts)
        assert not plan.problems, plan.problems
        await create_run(self._api, plan, NAMESPACE, note=self.failed.append)
        await self._until(lambda: _has_ended(self.jobs.get(name, NAMESPACE)))
        job = self.jobs.get(name, NAMESPACE)
        assert job is not None
        if not is_condition_true(job, "Complete"):
            self.failed.append(f"{name}: {job.get('status')}")
        await cancel_run(self._api, NAMESPACE, name, by="bench", delete=True)
        await self._until(lambda: self.jobs.get(name, NAMESPACE) is None)

    async def a_workflow(self, number: int, _: ClusterFacts) -> None:
        """Of two steps, one after the other."""
        name = f"workflow-{number:05}"
        amounts = {"cpu": "10m", "memory": "16Mi"}
        step = {"image": HOST_IMAGE, "command": [TRUE], "resources": {"requests": amounts, "limits": amounts}}
        steps = [[{"name": each, "template": "step"}] for each in ("first", "second")]
        workflow = {
            "metadata": {"name": name},
            "spec": {
                "entrypoint": "main",
                "templates": [{"name": "main", "steps": steps}, {"name": "step", "container": step}],
            },
        }
        await self._api.create(WORKFLOWS, workflow, NAMESPACE)
        await self._until(lambda: self._phase(name) in ("Succeeded", "Failed", "Error"))
        if self._phase(name) != "Succeeded":
            self.failed.append(f"{name}: {self._phase(name)}")
        await self._api.delete(WORKFLOWS, name, NAMESPACE, propagation="Background")
        await self._until(lambda: self.workflows.get(name, NAMESPACE) is None)

    def _phase(self, name: str) -> str:
        return str(((self.workflows.get(name, NAMESPACE) or {}).get("status") or {}).get("phase"))

    async def a_map(self, number: int, _: ClusterFacts) -> None:
        options = {"parallelism": 2, "namespace": NAMESPACE, "kubeconfig": self._kubeconfig, "progress": False}
        results = [each async for each in moorage.amap("operator:neg", range(ITEMS), **options)]
        if results != [-item for item in range(ITEMS)]:
            self.failed.append(f"map {number}: {len(results)} results")

    async def a_watch(self, number: int, _: ClusterFacts) -> None:
        """Read once, and closed: of the API server and of the server, in turns."""
        if number % 2:
            async with contextlib.aclosing(self._api.watch(NODES, resource_version="0")) as events:
                await anext(events)
            return
        who = {"Authorization": f"Bearer {load_connection(self._kubeconfig).token}"}
        async with aiohttp.ClientSession(headers=who) as session:
            while True:
                async with session.get(f"{self.url}/events/gpus") as answer:
                    if answer.status != 429:  # all places of this user are taken by watches that are being closed
                        answer.raise_for_status()
                        await answer.content.readline()
                        return
                await asyncio.sleep(float(answer.headers.get("Retry-After", 1)))

    async def a_job(self, pods: int) -> tuple[float, float]:
        """Seconds that a Job of so many pods takes to end, and to go with all its pods."""
        template = {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": HOST_IMAGE,
                    "command": [TRUE],
                    "resources": {"limits": {"cpu": "10m", "memory": "16Mi"}},
                }
            ],
        }
        job = {
            "metadata": {"name": "many"},
            "spec": {"completions": pods, "parallelism": JOB_PARALLELISM, "template": {"spec": template}},
        }
        began = time.monotonic()
        await self._api.create(JOBS, job, NAMESPACE)
        await self._until(lambda: _has_ended(self.jobs.get("many", NAMESPACE)))
        ended = time.monotonic()
        await self._api.delete(JOBS, "many", NAMESPACE, propagation="Background")
        await self._until(lambda: self.jobs.get("many", NAMESPACE) is None and not len(self.pods))
        return ended - began, time.monotonic() - ended

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await until_so(is_so, every=0.05)


def _has_ended(job: Obj | None) -> bool:
    return job is not None and (is_condition_true(job, "Complete") or is_condition_true(job, "Failed"))


async def measure(bench: Bench, api: KubeClient, options: argparse.Namespace) -> list[Figures]:
    await api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    found: list[Figures] = []

    def note(kind: str, done: int, when: str = "") -> None:
        found.append(bench.figures(kind, done, when))
        print(found[-1], flush=True)

    async def cluster_nodes() -> ClusterNodes:
        return ClusterNodes(nodes=(await api.list(NODES)).items)

    following = [asyncio.create_task(informer.run()) for informer in bench.informers]
    await wait_synced(*bench.informers)
    if options.delete_events:
        following.append(asyncio.create_task(bench.forget_events()))
    request = RunRequest(command=(TRUE,), namespace=NAMESPACE)
    facts = (await read_facts(api, request, cluster_nodes=cluster_nodes(), url=server_url(api))).facts
    bench.url = await server_url(api)

    async def repeat(kind: str, total: int, once: Callable[[int, ClusterFacts], Awaitable[None]]) -> None:
        end = time.monotonic() + 60 * options.minutes
        numbers = itertools.takewhile(lambda _: time.monotonic() < end, range(total))
        each, every, done = MEANT.get(kind, 1), options.every or max(1, total // PRINTS), 0

        async def come_and_go() -> None:
            nonlocal done
            for number in numbers:
                try:
                    await once(number, facts)
                except MoorageError as error:
                    bench.failed.append(f"{kind} {number}: {error}")
                done += 1
                if done % every == 0 or each > 1:
                    note(kind, done * each)

        note(kind, 0)
        async with asyncio.TaskGroup() as group:
            for _ in range(1 if each > 1 else options.at_once):
                group.create_task(come_and_go())

    await repeat("runs", options.runs, bench.a_run)
    if options.job:
        ran, went = await bench.a_job(options.job)
        note("pods", options.job, f"a Job of {options.job} pods")
        speed = f"{options.job / ran:.1f} pods/s"
        print(f"the Job of {options.job}: {ran:.0f} s ({speed}), deleted in {went:.0f} s", flush=True)
    if options.workflows:
        await repeat("workflows", options.workflows, bench.a_workflow)
    if options.items:
        await repeat("items", options.items // ITEMS, bench.a_map)
    if options.watches:
        await repeat("watches", options.watches, bench.a_watch)
    for task in following:
        task.cancel()
    await asyncio.wait(following)
    return found


def slope(points: list[tuple[float, float]]) -> float:
    """Of the straight line through them, by least squares."""
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


async def play(cluster: Cluster, options: argparse.Namespace) -> int:
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
        bench = Bench(api, cluster, options.watchers)
        found = await measure(bench, api, options)
    if options.out is not None:
        options.out.write_text("".join(json.dumps(asdict(figures)) + "\n" for figures in found))
    for kind in ("runs", "workflows", "items", "watches"):
        of_kind = [figures for figures in found if figures.kind == kind]
        half = [figures for figures in of_kind if figures.done * 2 >= of_kind[-1].done]
        for name in PROCESSES if len(half) > 1 else ():
            rss = slope([(figures.done, figures.rss[name]) for figures in half if name in figures.rss])
            pss = slope([(figures.done, figures.pss[name]) for figures in half if name in figures.pss])
            span = f"from {half[0].done} to {half[-1].done} {kind}"
            print(f"{name}: {rss:+.3f} kB each (PSS {pss:+.3f}), {span}")
    for line in bench.failed[:20]:
        print(f"  failed: {line}")
    return 1 if bench.failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--workflows", type=int, default=0)
    parser.add_argument("--items", type=int, default=0, help=f"of maps of {ITEMS} items")
    parser.add_argument("--watches", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--every", type=int, default=0, help="between two measurements; left out: a tenth")
    parser.add_argument("--minutes", type=float, default=math.inf, help="for each kind, at most")
    parser.add_argument("--watchers", type=int, default=3, help="of pods, of Jobs and of events, each")
    parser.add_argument("--job", type=int, default=0, help="pods of a Job that comes after the runs")
    parser.add_argument("--delete-events", action="store_true", help="delete events each second")
    parser.add_argument("--out", type=Path, default=None, help="a line of JSON for each moment")
    options = parser.parse_args()
    node = ("--nodes", "1", "--node-cpu", "256", "--node-memory", "256Gi")
    with (
        tempfile.TemporaryDirectory(prefix="memory-") as folder,
        local_cluster(Path(folder) / "data", *node) as cluster,
    ):
        return asyncio.run(play(cluster, options))


if __name__ == "__main__":
    sys.exit(main())
