"""Runs that come and go leave nothing in any table of operator, server and extender, whatever its class."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from moorage.api.auditrecords import AuditRecord, AuditRecords
from moorage.controllers.manager import run_operator
from moorage.extender.cache import ExtenderCache
from moorage.extender.policies import make_policy
from moorage.model.names import ATTEMPT_LABEL, OWNER_ANNOTATION, RUN_LABEL
from moorage.server.service import ServerService
from moorage.sql.sqlite import SqliteDatabase
from moorage_kube.api import Api
from moorage_kube.clock import rfc3339
from moorage_kube.informers import Informers
from moorage_kube.resources import EVENTS, JOBS, NODES, PODS, Obj
from moorage_kube.testing.clock import FakeClock
from moorage_kube.testing.tables import tables
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio
RUNS = 20
CACHES_KIB = 32 * 1024  # of a server
HOUR_SECONDS = 3600
TURNS = 300  # of the loop; a FakeApi answers within some
OF_TESTS = ("FakeApi.", "FakeClock.")
BOUNDED = {
    "AwakeTime._sleeps",  # its newest: the clock of the test moves by hours
    "BoundedCache._entries",  # its `most` entries: packages/kube/tests/unit/test_cache.py
    "Scoreboard._changes",  # 1,000, and 4 for each node
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class OneApi(FakeApi):
    def guarded(self, guard: Callable[[], None]) -> Api:
        return self


async def settle() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)  # for threads of databases
    for _ in range(TURNS):
        await asyncio.sleep(0)


class Site:
    """The services of a process, and a cluster whose parts the test plays."""

    def __init__(self, folder: Path) -> None:
        self.api, self.clock, shared = OneApi(), FakeClock(), Informers()
        self.service = ServerService(
            self.api, usage_db=folder / "usage.db", page_token="page", clock=self.clock, informers=shared
        )
        extender = ExtenderCache(self.api, policy=make_policy("pack"))
        self._works = (
            run_operator(self.api, identity="a", leader_elect=False, clock=self.clock, informers=shared),
            self.service.run(),
            extender.run(),
        )
        self.api.put(NODES, {"metadata": {"name": "n"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}})

    async def __aenter__(self) -> Site:
        self._tasks = [asyncio.create_task(work) for work in self._works]
        await settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def come_and_go(self, batch: int, *, change: Callable[[int], str]) -> None:
        names = [f"run-{batch}-{number}" for number in range(RUNS)]
        pods = []
        for name in names:
            job = self.api.put(JOBS, a_job(name))
            pods.append(self.api.put(PODS, a_pod(name, job, rfc3339(self.clock.now()))))
        await settle()
        self.clock.advance(60)
        await settle()
        for number, (name, pod) in enumerate(zip(names, pods, strict=True)):
            ended = change(number)
            if ended:
                pod["status"]["phase"] = ended
                self.api.put(PODS, pod)
                word = {"Succeeded": "Complete", "Failed": "Failed"}[ended]
                conditions = [{"type": word, "status": "True", "lastTransitionTime": rfc3339(self.clock.now())}]
                job = await self.api.get(JOBS, name, "lab")
                self.api.put(JOBS, job | {"status": {"conditions": conditions}})
        await settle()
        self.clock.advance(60)
        await settle()
        for number, name in enumerate(names):
            first, second = ((JOBS, PODS), (PODS, JOBS))[number % 2]
            self.api.remove(first, name, "lab")
            await asyncio.sleep(0)
            self.api.remove(second, name, "lab")
        records = [
            AuditRecord(
                at=self.clock.now(),
                account="ada",
                verb="delete",
                action="delete run",
                target=name,
                path=f"/apis/batch/v1/namespaces/lab/jobs/{name}",
                client="",
                status=200,
            )
            for name in names
        ]
        await self.service.changes.take(AuditRecords(records=tuple(records)))
        for event in (await self.api.list(EVENTS)).items:
            self.api.remove(EVENTS, event["metadata"]["name"], event["metadata"]["namespace"])
        for _ in range(3):
            self.clock.advance(HOUR_SECONDS)
            await settle()


def a_job(name: str) -> Obj:
    labels = {RUN_LABEL: name, ATTEMPT_LABEL: "1"}
    container = {"name": "main", "image": "python", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    meta = {"name": name, "namespace": "lab", "uid": f"uid-{name}", "labels": labels}
    meta |= {"annotations": {OWNER_ANNOTATION: "ada"}, "creationTimestamp": "2026-11-21T12:00:00Z"}
    return {"metadata": meta, "spec": {"template": template}, "status": {}}


def a_pod(name: str, job: Obj, now: str) -> Obj:
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": name,
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    meta = {"name": name, "namespace": "lab", "uid": f"pod-{name}", "labels": job["metadata"]["labels"]}
    meta |= {"ownerReferences": [owner], "creationTimestamp": now}
    spec = job["spec"]["template"]["spec"] | {"nodeName": "n"}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running", "startTime": now}}


async def test_runs_that_come_and_go_leave_nothing_in_any_table(tmp_path: Path) -> None:
    async with Site(tmp_path) as site:
        ends = ("Succeeded", "Failed", "")
        for batch in range(2):
            await site.come_and_go(batch, change=lambda number: ends[number % 3])
        before = tables()
        for batch in range(2, 4):
            await site.come_and_go(batch, change=lambda number: ends[number % 3])
        after = tables()
    assert {
        name: (before[name], count)
        for name, count in after.items()
        if count >= before[name] + RUNS // 2 and name not in BOUNDED and not name.startswith(OF_TESTS)
    } == {}
    assert after["BoundedCache._entries"] < before["BoundedCache._entries"] + RUNS


async def test_the_page_caches_of_all_databases_are_bounded_together(tmp_path: Path) -> None:
    """A page that was read or written stays in the cache of its connection until the cache is full."""
    async with Site(tmp_path) as site:
        await site.come_and_go(0, change=lambda _: "Succeeded")
        databases = [each for each in gc.get_objects() if isinstance(each, SqliteDatabase)]
        bounds = {Path(each.name).name: -each.rows("PRAGMA cache_size")[0][0] for each in databases}
    assert {"attempts.db", "people.db", "usage.db"} <= bounds.keys()
    assert sum(bounds.values()) <= CACHES_KIB, bounds
