"""Memory of each process over runs that come and go, on an API server that has watched clients.

    python benchmarks/memory.py [--runs 100] [--at-once 8] [--watchers 3] [--job 0] [--delete-events] [--out FILE]

A local cluster of its own. Each run is the Job that `moor run -- true` would make; it ends, is seen to have ended,
and is deleted as `moor cancel --delete` does. All the while clients list and watch pods, Jobs and events. With
`--job` a single Job of so many pods runs and is deleted after them. A cluster keeps events for an hour: with
`--delete-events` those of a run go with it, so that what stays for good is seen within minutes.

Printed ten times: RSS and PSS of each process in MB, and the size of the data folder's files. Then the growth of
each process in kB a run over the last half, by least squares. The proof is taken with `--runs 2000 --job 3000`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from moorage.actions.runfacts import Around, read_facts
from moorage.actions.runs import cancel_run
from moorage.actions.submit import create_run
from moorage.apimachinery.informer import Informer, wait_synced
from moorage.apimachinery.meta import is_condition_true
from moorage.apimachinery.resources import EVENTS, JOBS, NAMESPACES, NODES, PODS, Obj
from moorage.decide.runs.job import plan_run
from moorage.decide.runs.request import Caller, ClusterFacts, RunRequest
from moorage.errors import NotFound
from moorage.kube.client import KubeClient
from moorage.kube.serverurl import server_url
from moorage.testing.cluster import Cluster, local_cluster
from moorage.testing.killing import LAUNCHER, Trouble, until_so

NAMESPACE = "runs"
PROCESSES = ("supervisor", "localcluster", LAUNCHER, "services", "admission", "ingress")
PRINTS = 10
WATCHED = (PODS, JOBS, EVENTS)
JOB_PARALLELISM = 100
PATIENCE_SECONDS = 1200.0  # for one run, or the Job; bounds a hang
TRUE = "/bin/true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured at one moment. Memory in kB by process; `files`: bytes of the data folder's files."""

    when: str
    runs: int
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
    for path in data.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a pod's files go while we look
            if path.is_file() and not path.is_symlink():
                name = path.name.partition("-")[0] if ".db" in path.name else path.parent.name
                found[name if ".db" in name or name == "log" else "others"] += path.stat().st_size
    return dict(found)


class Bench:
    """Clients that watch, people who run and delete."""

    def __init__(self, api: KubeClient, cluster: Cluster, watchers: int) -> None:
        self._api = api
        self._data = cluster.home
        self._trouble = Trouble(cluster, random.Random(0))
        self._began = time.monotonic()
        self.watching = [Informer(api, resource) for resource in WATCHED for _ in range(watchers)]
        self.jobs = Informer(api, JOBS, NAMESPACE)
        self.pods = Informer(api, PODS, NAMESPACE)
        self._events = Informer(api, EVENTS)
        self.delete_events = False
        self.live: set[str] = set()
        self.done = 0
        self.failed: list[str] = []

    @property
    def informers(self) -> list[Informer]:
        return [*self.watching, self.jobs, self.pods, self._events]

    def figures(self, when: str) -> Figures:
        pids = {name: self._trouble.pid(name) for name in PROCESSES}
        memory = {name: memory_of(pid) for name, pid in pids.items() if pid is not None}
        return Figures(
            when=when,
            runs=self.done,
            seconds=time.monotonic() - self._began,
            rss={name: rss for name, (rss, _) in memory.items()},
            pss={name: pss for name, (_, pss) in memory.items()},
            files=sizes_of(self._data),
            events=len(self._events),
        )

    async def a_run(self, number: int, facts: ClusterFacts) -> None:
        """Comes, ends, goes."""
        name = f"run-{number:05}"
        request = RunRequest(command=(TRUE,), namespace=NAMESPACE, name=name, cpu="10m", memory="16Mi")
        caller = Caller(user="bench", cwd="/", program=TRUE, token=f"token-{number}")
        plan = plan_run(request, caller, facts)
        assert not plan.problems, plan.problems
        self.live.add(name)
        await create_run(self._api, plan, NAMESPACE, note=self.failed.append)
        await self._until(lambda: _has_ended(self.jobs.get(name, NAMESPACE)))
        job = self.jobs.get(name, NAMESPACE)
        assert job is not None
        if not is_condition_true(job, "Complete"):
            self.failed.append(f"{name}: {job.get('status')}")
        await cancel_run(self._api, NAMESPACE, name, by="bench", delete=True)
        await self._until(lambda: self.jobs.get(name, NAMESPACE) is None)
        self.live.discard(name)
        if self.delete_events:
            await self._forget()
        self.done += 1

    async def _forget(self) -> None:
        """Delete what events there are of runs that are gone; events come late."""
        for event in self._events.all():
            about = event["involvedObject"]
            if about.get("namespace") == NAMESPACE and about["name"][: len("run-00000")] not in self.live:
                with contextlib.suppress(NotFound):
                    await self._api.delete(EVENTS, event["metadata"]["name"], event["metadata"]["namespace"])

    async def a_job(self, pods: int) -> tuple[float, float]:
        """Seconds that a Job of so many pods takes to end, and to go with all its pods."""
        template = {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": "localhost/host",
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


async def measure(bench: Bench, api: KubeClient, runs: int, at_once: int, job: int) -> list[Figures]:
    await api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    found: list[Figures] = []

    def note(when: str) -> None:
        found.append(bench.figures(when))
        print(found[-1], flush=True)

    async def around() -> Around:
        return Around(nodes=(await api.list(NODES)).items)

    following = [asyncio.create_task(informer.run()) for informer in bench.informers]
    await wait_synced(*bench.informers)
    request = RunRequest(command=(TRUE,), namespace=NAMESPACE)
    facts = (await read_facts(api, request, around=around(), url=server_url(api))).facts
    numbers = iter(range(runs))
    note("at first")

    async def come_and_go() -> None:
        for number in numbers:
            await bench.a_run(number, facts)
            if bench.done % max(1, runs // PRINTS) == 0:
                note(f"{bench.done} runs")

    await asyncio.gather(*(come_and_go() for _ in range(at_once)))
    if job:
        ran, went = await bench.a_job(job)
        note(f"a Job of {job} pods")
        print(f"the Job of {job}: {ran:.0f} s ({job / ran:.1f} pods/s), deleted in {went:.0f} s", flush=True)
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
        bench.delete_events = options.delete_events
        found = await measure(bench, api, options.runs, options.at_once, options.job)
    if options.out is not None:
        options.out.write_text("".join(json.dumps(asdict(figures)) + "\n" for figures in found))
    half = [figures for figures in found if figures.when.endswith("runs") and figures.runs * 2 >= options.runs]
    for name in PROCESSES if half else ():
        rss = slope([(figures.runs, figures.rss[name]) for figures in half if name in figures.rss])
        pss = slope([(figures.runs, figures.pss[name]) for figures in half if name in figures.pss])
        print(f"{name}: {rss:+.2f} kB a run (PSS {pss:+.2f}) over the last {half[-1].runs - half[0].runs} runs")
    for line in bench.failed[:20]:
        print(f"  failed: {line}")
    return 1 if bench.failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--watchers", type=int, default=3, help="of pods, of Jobs and of events, each")
    parser.add_argument("--job", type=int, default=0, help="pods of a Job that comes after the runs")
    parser.add_argument("--delete-events", action="store_true", help="delete a run's events with it")
    parser.add_argument("--out", type=Path, default=None, help="a line of JSON for each moment")
    options = parser.parse_args()
    nodes = ("--nodes", "4", "--node-cpu", "64", "--node-memory", "64Gi")
    with (
        tempfile.TemporaryDirectory(prefix="memory-") as folder,
        local_cluster(Path(folder) / "data", *nodes) as cluster,
    ):
        return asyncio.run(play(cluster, options))


if __name__ == "__main__":
    sys.exit(main())
