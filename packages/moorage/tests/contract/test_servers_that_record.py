"""Two servers on one PostgreSQL: one records, the other takes over, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moorage.api.auditrecords import AuditRecord, AuditRecords
from moorage.attempts.logs import LogFolder
from moorage.attempts.logtable import LogTable
from moorage.decide.usage.intervals import Interval, Open
from moorage.server.fileimport import move_logs, move_usage
from moorage.server.service import RECORDING, ServerService
from moorage.sql.leases import LEASE_SECONDS
from moorage.usage.store import UsageStore
from moorage_kube.clock import rfc3339, rfc3339_micro
from moorage_kube.resources import JOBS, NODES, PODS
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def a_pod(uid: str, *, end: Any = None) -> dict[str, Any]:
    state = {"running": {"startedAt": rfc3339(NOON)}}
    if end is not None:
        state = {"terminated": {"exitCode": 0, "startedAt": rfc3339(NOON), "finishedAt": rfc3339(end)}}
    return {
        "metadata": {
            "namespace": "lab",
            "name": uid,
            "uid": uid,
            "labels": {"moorage.dev/run": "train", "moorage.dev/attempt": "1"},
            "annotations": {"moorage.dev/owner": "ada"},
            "ownerReferences": [{"kind": "Job", "controller": True, "uid": "j1"}],
        },
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
        "status": {
            "phase": "Running" if end is None else "Succeeded",
            "startTime": rfc3339(NOON),
            "containerStatuses": [{"name": "main", "state": state}],
        },
    }


A_JOB = {
    "metadata": {"namespace": "lab", "name": "train", "uid": "j1", "labels": {"moorage.dev/run": "train"}},
    "spec": {"template": {"spec": {"containers": []}}},
}


class Cluster(FakeApi):
    """Its pods print what is in `printed`; a log that is followed never ends."""

    def __init__(self) -> None:
        super().__init__()
        self.printed: dict[str, list[bytes]] = {}
        self.followers = 0
        self._news = asyncio.Event()  # set, and replaced, when a pod prints

    def print(self, uid: str, text: str) -> None:
        lines = self.printed.setdefault(uid, [])
        lines.append(f"{rfc3339_micro(NOON + timedelta(seconds=len(lines)))} {text}\n".encode())
        self._news.set()
        self._news = asyncio.Event()

    async def logs(self, pod: str, _namespace: str, *, follow: bool = False, **_: Any) -> AsyncIterator[bytes]:
        at = 0
        self.followers += 1
        try:
            while True:
                news, lines = self._news, self.printed.get(pod, [])
                for line in lines[at:]:
                    yield line
                at = len(lines)
                if not follow:
                    return
                await news.wait()
        finally:
            self.followers -= 1


class Scene:
    """A cluster, and servers on one database that come and go."""

    def __init__(self, folder: Path, url: str) -> None:
        self.api, self.clock, self.folder, self.url = Cluster(), FakeClock(), folder, url
        self._running: list[ServerService] = []
        self.api.put(NODES, {"metadata": {"name": "n1", "labels": {"nvidia.com/gpu.product": "a100"}}})

    @contextlib.asynccontextmanager
    async def server(self, name: str) -> AsyncIterator[ServerService]:
        """A server whose caches are current; ended as by SIGTERM unless it ended before."""
        folder = self.folder / name
        folder.mkdir()
        service = ServerService(
            self.api, usage_db=folder / "usage.db", database=self.url, page_token="page", clock=self.clock
        )
        async with self.running(service):
            yield service

    @contextlib.asynccontextmanager
    async def running(self, service: ServerService) -> AsyncIterator[None]:
        task = asyncio.create_task(service.run())
        self._running.append(service)
        try:
            await self.until(lambda: service.cluster.synced)
            yield
        finally:
            self._running.remove(service)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, condition: Callable[[], Any]) -> Any:
        async with asyncio.timeout(240):
            while not (value := condition()):
                await self.pass_time(0.1)
        return value

    async def pass_time(self, seconds: float) -> None:
        """Let servers work, then the fake clock run. It stands still while they are at their leases: on a busy
        machine those would run out."""
        await asyncio.sleep(0.01)
        self.clock.advance(seconds)
        for service in self._running * 2:  # a pass reads and takes
            await asyncio.sleep(0)
            await service._leases.do(lambda _: None)  # type: ignore[union-attr]

    def intervals(self) -> dict[str, Interval]:
        store = UsageStore(self.url)
        try:
            return {interval.pod_uid: interval for interval in store.everything()}
        finally:
            store.close()

    async def kept_lines(self, service: ServerService, uid: str) -> list[bytes]:
        log = await service.keeper.read_log(uid)
        return [line.split(b" ", 1)[1] for line in log.lines.splitlines()]


@pytest.fixture
def scene(tmp_path: Path, postgres_url: str) -> Scene:
    return Scene(tmp_path, postgres_url)


async def test_one_records_and_what_went_while_none_did_is_charged_to_its_end(scene: Scene) -> None:
    scene.api.put(JOBS, A_JOB)
    scene.api.put(PODS, a_pod("p1"))
    async with contextlib.AsyncExitStack() as first_alone, scene.server("second") as second:
        first = await first_alone.enter_async_context(scene.server("first"))
        await scene.until(lambda: first.leader.leading != second.leader.leading and scene.intervals())
        leader, other = (first, second) if first.leader.leading else (second, first)
        assert other.leader.term is None
        # the leader is as good as dead: its row stands still, and it writes no more
        await leader._leases.do(lambda table: table.take(RECORDING, "dead", table.read(RECORDING)))  # type: ignore[union-attr]
        await scene.until(lambda: not leader.leader.leading)
        scene.api.put(PODS, a_pod("p2"))
        await scene.until(lambda: any(pod["metadata"]["uid"] == "p2" for pod in other.cluster.pods.all()))
        died = scene.clock.now()
        scene.api.remove(PODS, "p1", "lab")
        scene.api.remove(PODS, "p2", "lab")
        await scene.until(lambda: not other.cluster.pods.all() and not leader.cluster.pods.all())
        gone = scene.clock.now()

        def closed() -> dict[str, Interval] | None:
            known = scene.intervals()
            is_whole = known.keys() == {"p1", "p2"} and all(interval.ended_at for interval in known.values())
            return known if is_whole else None

        known = await scene.until(closed)
        for interval in known.values():
            assert interval.started_at == NOON
            assert interval.ended_at is not None
            assert died <= interval.ended_at <= gone + timedelta(seconds=1)
        assert scene.clock.now() - died < timedelta(seconds=10 * LEASE_SECONDS)
        run = await first.keeper.read_run("lab", "train")
        assert run == await second.keeper.read_run("lab", "train")
        assert {pod.uid for pod in run.pods} == {"p1", "p2"}


async def test_a_log_that_two_servers_kept_in_turns_has_each_line_once_and_both_show_it(scene: Scene) -> None:
    scene.api.put(JOBS, A_JOB)
    scene.api.put(PODS, a_pod("p1"))
    scene.api.print("p1", "one")
    async with scene.server("second") as second:
        async with scene.server("first") as first:
            await scene.until(lambda: first.leader.leading or second.leader.leading)
            async with asyncio.timeout(240):
                while await scene.kept_lines(first, "p1") != [b"one"] or await scene.kept_lines(second, "p1") != [
                    b"one"
                ]:
                    await scene.pass_time(0.5)
            assert scene.api.followers == 1  # by one of the two
            scene.api.print("p1", "two")
        scene.api.print("p1", "three")
        scene.api.put(PODS, a_pod("p1", end=NOON + timedelta(minutes=1)))
        wanted = [b"one", b"two", b"three"]
        async with asyncio.timeout(240):
            while await scene.kept_lines(second, "p1") != wanted:
                await scene.pass_time(0.5)
        assert await scene.kept_lines(second, "p1") == wanted


async def test_a_write_of_one_server_is_not_told_again_by_a_record_that_comes_to_the_other(scene: Scene) -> None:
    path = "/apis/batch/v1/namespaces/lab/jobs/train"
    async with scene.server("first") as first, scene.server("second") as second:
        first.own_writes.note("ada", "DELETE", path)
        await first.own_writes.tell()
        record = AuditRecord(
            at=scene.clock.now(), account="ada", verb="delete", path=path, action="delete run lab/train",
            target="lab/train", client="", status=200,
        )  # fmt: skip
        other = msgspec.structs.replace(
            record, path=f"{path}-2", target="lab/train-2", action="delete run lab/train-2"
        )
        await second.changes.take(AuditRecords(records=(record, other)))
        rows = await second.sessions.do(lambda store: store.audit())
        assert [row.what for row in rows] == ["delete run lab/train-2"]


async def test_what_a_server_kept_in_files_is_moved_once_it_has_a_database(scene: Scene) -> None:
    folder = scene.folder / "first"
    folder.mkdir()
    interval = Interval(
        pod_uid="old", namespace="lab", pod="old", run="train", attempt=1, owner="ada", node="n1", gpu_type="a100",
        gpus=1, cpu_milli=0, memory_bytes=0, started_at=NOON, ended_at=NOON, last_seen_at=NOON,
    )  # fmt: skip
    files = UsageStore(folder / "usage.db")
    files.apply([Open(interval)])
    files.close()
    service = ServerService(
        scene.api, usage_db=folder / "usage.db", database=scene.url, page_token="page", clock=scene.clock
    )
    async with scene.running(service):
        assert await scene.until(scene.intervals) == {"old": interval}
        await scene.until(lambda: not (folder / "usage.db").exists())
    store = UsageStore(scene.url)
    assert move_usage(folder, store) == 0  # there is no such file any more
    store.close()


def test_the_logs_of_pods_that_are_kept_are_moved(tmp_path: Path, postgres_url: str) -> None:
    from tests.contract.test_stored_logs import keep_pods

    keep_pods(postgres_url, "p1")
    folder = LogFolder(tmp_path / "attempts", keep_bytes=4096)
    for uid in ("p1", "gone"):
        folder.append(uid, b"a\nb\n")
        folder.finish(uid)
    logs = LogTable(postgres_url, keep_bytes=4096)
    assert move_logs(tmp_path, logs) == 2
    assert logs.read("p1").data == b"a\nb\n"
    assert logs.is_finished("p1")
    assert [size.key for size in logs.sizes()] == ["p1"]
    assert move_logs(tmp_path, logs) == 0
    logs.close()
