"""The keeper over a fake cluster: deleted pods, a killed keeper, and a full disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from datetime import timedelta
from typing import Any

import pytest

from moorage.attempts.keeper import LEAVE_SECONDS, SWEEP_SECONDS, YOUNG_SECONDS, Keeper, Limits
from moorage.attempts.logs import LogFolder, log_key
from moorage.attempts.reading import without_stamp
from moorage.attempts.store import open_attempts
from moorage.sql.thread import StoreThread
from moorage_kube.clock import rfc3339_micro
from moorage_kube.errors import NotFound, ServerError, StorageError
from moorage_kube.informers import Informers
from moorage_kube.resources import JOBS, NODES, PODS
from moorage_kube.testing.builders import a_container_status, an_owner
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.builders import a_run_job, a_run_pod

pytestmark = pytest.mark.anyio


class Cluster(FakeApi):
    """A fake API with logs that grow."""

    def __init__(self) -> None:
        super().__init__()
        self.printed: dict[str, list[bytes]] = {}
        self.ended: set[str] = set()
        self.failing_logs: Exception | None = None
        self.open = self.most_open = 0
        self.asked: list[tuple[str, bool]] = []
        self.news = asyncio.Event()

    def job(self, name: str = "train", uid: str = "j1") -> None:
        self.put(JOBS, a_run_job(name, uid=uid))

    def pod(self, uid: str = "p1", *, run: str = "train", job: str = "j1", exit_code: int | None = None) -> None:
        self.put(PODS, self.a_pod(uid, run=run, job=job, exit_code=exit_code))

    def a_pod(self, uid: str, *, run: str = "", job: str = "", exit_code: int | None = None) -> Any:
        if exit_code is not None:
            self.ended.add(uid)
            self._tell_news()
        self.printed.setdefault(uid, [])
        phase = "Running" if exit_code is None else "Failed" if exit_code else "Succeeded"
        status = a_container_status(exit_code=exit_code, started=NOON, finished=NOON)
        made = {"uid": uid, "owner": an_owner(uid=job), "node": "n1", "phase": phase, "statuses": [status]}
        return a_run_pod(uid, run=run, attempt=1, **made)

    def step(self, uid: str, *, exit_code: int | None = None, peak: int | None = None) -> None:
        """The pod of a step of the Workflow nightly. Its executor's container is listed before main."""
        pod = self.a_pod(uid, exit_code=exit_code)
        meta = pod["metadata"]
        meta["labels"] = {"workflows.argoproj.io/workflow": "nightly"}
        meta["annotations"] = {
            "workflows.argoproj.io/node-name": f"nightly.{uid}",
            "kubectl.kubernetes.io/default-container": "main",
        }
        if peak is not None:
            meta["annotations"]["localcluster.moorage.dev/peak-memory-bytes"] = str(peak)
        meta["ownerReferences"] = [an_owner("Workflow", "nightly", "w1")]
        pod["status"]["containerStatuses"].insert(0, a_container_status("wait", exit_code=3))
        self.put(PODS, pod)

    async def beside(
        self, uid: str, container: str, *, is_init: bool = False, exit_code: int | None = None
    ) -> None:
        """Another container of a step's pod: it runs, or has ended."""
        pod = await self.get(PODS, uid, "lab")
        rows = pod["status"].setdefault("initContainerStatuses" if is_init else "containerStatuses", [])
        state: dict[str, Any] = {"running": {}} if exit_code is None else {"terminated": {"exitCode": exit_code}}
        rows[:] = [row for row in rows if row["name"] != container] + [{"name": container, "state": state}]
        self.printed.setdefault(f"{uid}/{container}", [])
        if exit_code is not None:
            self.ended.add(f"{uid}/{container}")
        self.put(PODS, pod)
        self._tell_news()

    def print(self, uid: str, *texts: str) -> None:
        for text in texts:
            at = rfc3339_micro(NOON + timedelta(seconds=len(self.printed[uid])))
            self.printed[uid].append(f"{at} {text}\n".encode())
        self._tell_news()

    def vanish(self, uid: str) -> None:
        """A node that is gone with its pod: its log breaks off."""
        self.remove(PODS, uid, "lab")
        self.printed = {name: lines for name, lines in self.printed.items() if name.partition("/")[0] != uid}
        self._tell_news()

    def _tell_news(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()

    async def logs(
        self,
        pod: str,
        namespace: str,
        *,
        container: str = "main",
        follow: bool = False,
        since_seconds: int | None = None,
        **_: Any,
    ) -> Any:
        assert namespace == "lab"
        pod = pod if container == "main" else f"{pod}/{container}"
        self.asked.append((pod, follow))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            at = 0
            while True:
                news = self.news
                if self.failing_logs is not None:
                    raise self.failing_logs
                if pod not in self.printed:
                    raise NotFound(f"pods {pod!r} not found") if not at else ServerError("broke off")
                for line in self.printed[pod][at:]:
                    half = len(line) // 2
                    yield line[:half]
                    yield line[half:]
                at = len(self.printed[pod])
                if not follow or pod in self.ended:
                    return
                await news.wait()
        finally:
            self.open -= 1


class Scene:
    """A keeper that is started, killed and started again over one cluster and one folder."""

    def __init__(self, folder: Any, **limits: Any) -> None:
        self.api, self.clock, self.path = Cluster(), FakeClock(), folder
        self.limits = Limits(**limits)
        self.keeper: Keeper
        self.folder: LogFolder

    @contextlib.asynccontextmanager
    async def keeping(self, *, killed: bool = False) -> Any:
        """With `killed`, it ends without a word, as by SIGKILL: what is in memory is lost."""
        informers = Informers()
        jobs, pods, nodes = (informers.of(self.api, resource) for resource in (JOBS, PODS, NODES))  # type: ignore[arg-type]
        store = StoreThread("attempts", lambda: open_attempts(self.path / "attempts.db"))
        self.folder = LogFolder(self.path / "attempts", keep_bytes=self.limits.log_bytes)
        watched = {"api": self.api, "jobs": jobs, "pods": pods, "nodes": nodes}
        self.keeper = Keeper(store, self.folder, limits=self.limits, clock=self.clock, **watched)
        tasks = [asyncio.create_task(informer.run()) for informer in (jobs, pods, nodes)]
        for informer in (jobs, pods, nodes):
            await informer.synced.wait()
        try:
            yield self.keeper
        finally:
            if killed:
                for log in self.keeper._logs.values():
                    log.buffer.clear()
            await self.keeper.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            store.close()

    async def turn(self, *, everything: bool = False) -> None:
        """What has come to the informers and streams is kept."""
        for _ in range(4):
            await self.rest()
            await self.keeper.step(everything=everything)
        await self.rest()

    async def rest(self) -> None:
        """Let everything run that can; threads too."""
        for _ in range(30):
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.to_thread(int)
            for _ in range(30):
                await asyncio.sleep(0)

    async def kept(self, uid: str = "p1", container: str = "") -> list[str]:
        end = await self.keeper.read_log(uid, container)
        return [without_stamp(line).decode() for line in end.lines.split(b"\n")[:-1]]


@pytest.fixture
def scene(tmp_path: Any) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def running(scene: Scene) -> Scene:
    """A scene with a run and its pod p1."""
    scene.api.job()
    scene.api.pod()
    return scene


async def test_facts_and_log_of_a_deleted_pod_stay(running):
    running.api.print("p1", "step 1")
    async with running.keeping() as keeper:
        await running.turn(everything=True)
        running.api.print("p1", "step 2", "step 3")
        await running.turn()
        running.clock.advance(60)
        running.api.vanish("p1")
        await running.turn()
        (pod,) = (await keeper.read_run("lab", "train")).pods
        ended = NOON + timedelta(minutes=1)
        assert (pod.node, pod.phase, pod.reason, pod.ended) == ("n1", "Failed", "Deleted", ended)
        assert await running.kept() == ["step 1", "step 2", "step 3"]
        assert keeper.streams == 0


async def test_a_log_is_read_to_its_end_once(running):
    async with running.keeping() as keeper:
        await running.turn(everything=True)
        running.api.print("p1", "all")
        running.api.pod(exit_code=0)
        for _ in range(3):
            running.clock.advance(5)
            await running.turn()
        assert await running.kept() == ["all"]
        asked = len(running.api.asked)
        await running.turn(everything=True)
        assert (len(running.api.asked), keeper.streams) == (asked, 0)
    async with running.keeping():
        await running.turn(everything=True)
        assert len(running.api.asked) == asked, "a finished log is not read again by the next server"


@pytest.mark.parametrize("loses", [False, True], ids=["stopped", "killed"])
async def test_a_keeper_started_again_goes_on_where_it_was(running, loses):
    running.api.print("p1", "a", "same", "same")
    async with running.keeping(killed=loses):
        await running.turn(everything=True)
        running.api.print("p1", "b")
        await running.rest()
    running.api.print("p1", "c", "same")
    async with running.keeping():
        await running.turn(everything=True)
        running.api.print("p1", "d")
        await running.turn()
        assert await running.kept() == ["a", "same", "same", "b", "c", "same", "d"]


async def test_a_pod_that_went_while_nobody_kept_watch_is_gone(running):
    running.api.print("p1", "a")
    async with running.keeping():
        await running.turn(everything=True)
    running.api.vanish("p1")
    running.api.remove(JOBS, "train", "lab")
    running.clock.advance(600)
    async with running.keeping() as keeper:
        await running.turn(everything=True)
        run = await keeper.read_run("lab", "train")
        assert [(pod.gone, pod.ended) for pod in run.pods] == [(running.clock.now(), None)]
        assert [attempt.gone for attempt in run.attempts] == [running.clock.now()]
        assert await running.kept() == ["a"]


async def test_a_pod_that_has_just_gone_has_its_end_in_the_next_answer(running):
    async with running.keeping() as keeper:
        await running.turn(everything=True)
        keeper._running = True  # as between two steps
        running.api.vanish("p1")
        await running.rest()
        (pod,) = (await keeper.read_run("lab", "train")).pods
        assert (pod.phase, pod.reason, pod.gone) == ("Failed", "Deleted", running.clock.now())


async def test_a_connection_that_breaks_doubles_and_loses_nothing(running):
    running.api.print("p1", "a")
    async with running.keeping():
        await running.turn(everything=True)
        running.api.failing_logs = ServerError("node is away")
        running.api.print("p1", "b")
        await running.turn()
        assert await running.kept() == ["a"]
        running.api.failing_logs = None
        running.clock.advance(30)
        await running.turn()
        assert await running.kept() == ["a", "b"]


async def test_with_more_pods_than_streams_all_are_read_by_turns(tmp_path):
    scene = Scene(tmp_path, streams=4)
    scene.api.job()
    for at in range(12):
        scene.api.pod(f"p{at}")
        scene.api.print(f"p{at}", "one")
    async with scene.keeping():
        for _ in range(30):
            scene.clock.advance(11)
            await scene.turn()
        for at in range(12):
            scene.api.print(f"p{at}", "two")
        for _ in range(30):
            scene.clock.advance(11)
            await scene.turn()
        assert {at: await scene.kept(f"p{at}") for at in range(12)} == {at: ["one", "two"] for at in range(12)}
    assert scene.api.most_open <= 4


async def test_the_stream_of_a_lost_node_ends_some_time_after_its_pod(running):
    async with running.keeping() as keeper:
        await running.turn(everything=True)
        running.api.remove(PODS, "p1", "lab")  # the stream stays open, and says nothing
        await running.turn()
        assert keeper.streams == 1
        running.clock.advance(LEAVE_SECONDS + 1)
        await running.turn()
        assert keeper.streams == 0


async def test_an_erased_run_is_kept_no_more_while_its_pod_still_ends(running):
    running.api.print("p1", "secret")
    async with running.keeping() as keeper:
        await running.turn(everything=True)
        assert await keeper.erase("lab", "train") == 1
        running.api.print("p1", "more")
        running.api.pod(exit_code=1)
        await running.turn(everything=True)
        assert (await keeper.read_run("lab", "train")).pods == ()
        assert await running.kept() == []
        assert not (running.path / "attempts" / "p1").exists()


async def test_a_run_that_is_erased_while_its_log_is_written_leaves_nothing(running):
    writing, may_write = threading.Event(), threading.Event()
    async with running.keeping() as keeper:
        await running.turn(everything=True)
        append = running.folder.append

        def append_slowly(key: str, data: bytes) -> None:
            writing.set()
            may_write.wait()
            append(key, data)

        running.folder.append = append_slowly
        running.api.print("p1", "secret")
        await running.rest()
        stepping = asyncio.create_task(keeper.step(everything=False))
        await asyncio.to_thread(writing.wait)
        erasing = asyncio.create_task(keeper.erase("lab", "train"))
        await running.rest()
        may_write.set()
        await asyncio.gather(stepping, erasing)
        assert not (running.path / "attempts" / "p1").exists()


async def test_what_is_old_goes_and_so_do_the_oldest_logs_beyond_the_bound(tmp_path):
    scene = Scene(tmp_path, days=10, total_bytes=3000)
    scene.api.job()
    for uid in ("p1", "p2", "p3"):
        scene.api.pod(uid)
        scene.api.print(uid, "x" * 1200)
        scene.api.pod(uid, exit_code=0)
    async with scene.keeping() as keeper:
        for _ in range(3):
            await scene.turn(everything=True)
        for at, uid in enumerate(("p2", "p3", "p1")):  # p2 is the oldest
            for path in (tmp_path / "attempts" / uid).iterdir():
                os.utime(path, (at, at))
        await keeper.sweep()
        kept = {uid: len(await scene.kept(uid)) for uid in ("p1", "p2", "p3")}
        assert kept == {"p1": 1, "p2": 0, "p3": 1}
        assert 2400 < keeper.stored_bytes <= 3000
        scene.api.remove(JOBS, "train", "lab")
        for uid in ("p1", "p2", "p3"):
            scene.api.remove(PODS, uid, "lab")
        await scene.turn()
        assert len((await keeper.read_run("lab", "train")).pods) == 3
        scene.clock.advance(timedelta(days=11))
        assert timedelta(days=11).total_seconds() > SWEEP_SECONDS
        await scene.turn()
        assert (await keeper.read_run("lab", "train")).attempts == ()
        assert list((tmp_path / "attempts").iterdir()) == []


async def test_when_the_disk_fails_nothing_is_lost_that_the_kubelet_still_has(running):
    async with running.keeping() as keeper:
        await running.turn(everything=True)
        blocked = running.path / "attempts"
        blocked.write_text("")
        running.api.print("p1", "a")
        await running.rest()
        with pytest.raises(StorageError):
            await keeper.step(everything=False)
        blocked.unlink()
        running.clock.advance(301)
        await running.turn()
        assert await running.kept() == ["a"]


async def test_the_highest_use_of_memory_that_kubelets_tell_is_kept(running):
    async with running.keeping() as keeper:
        await running.turn(everything=True)
        seen = []
        for used in ({"p1": 500}, {"p1": 300, "of-no-run": 7}, {}, {"p1": 900}):
            keeper.note_memory(used)
            await running.turn()
            (pod,) = (await keeper.read_run("lab", "train")).pods
            seen.append(pod.peak_memory_bytes)
    assert seen == [500, 500, 500, 900]
    async with running.keeping() as keeper:  # after a restart of the server
        keeper.note_memory({"p1": 100})
        await running.turn(everything=True)
        (pod,) = (await keeper.read_run("lab", "train")).pods
    assert pod.peak_memory_bytes == 900


async def test_memory_that_is_not_more_than_before_costs_no_look(running):
    async with running.keeping() as keeper:
        await running.turn(everything=True)
        keeper.note_memory({"p1": 500})
        await running.turn()
        keeper.note_memory({"p1": 500})
        assert not keeper._dirty
        running.api.vanish("p1")
        await running.turn()
        assert not keeper._sampled, "of a pod that is gone nothing is remembered"


# -- steps of workflows


async def test_the_log_of_each_attempt_of_a_step_stays_when_its_pod_is_gone(scene):
    for uid, code in (("s1", 1), ("s2", 0)):
        scene.api.step(uid)
        scene.api.print(uid, f"try {uid}")
        scene.api.step(uid, exit_code=code, peak=3 << 20)
    async with scene.keeping() as keeper:
        await scene.turn(everything=True)
        for uid in ("s1", "s2"):
            scene.api.vanish(uid)
        await scene.turn()
        pods = await keeper.read_steps("lab", "nightly", "w1")
        assert [(pod.name, pod.workflow, pod.run, pod.node, pod.exit_code) for pod in pods] == [
            ("s1", "nightly", "", "n1", 1),
            ("s2", "nightly", "", "n1", 0),
        ]
        assert [pod.peak_memory_bytes for pod in pods] == [3 << 20] * 2
        assert all(pod.gone for pod in pods)
        assert [await scene.kept(uid) for uid in ("s1", "s2")] == [["try s1"], ["try s2"]]
        assert await keeper.read_steps("lab", "nightly", "another") == ()
        assert (await keeper.read_run("lab", "nightly")).pods == ()


async def test_a_step_that_ends_at_once_is_asked_for_its_log_once_and_a_silent_one_takes_no_room(scene):
    scene.api.step("s1")
    async with scene.keeping() as keeper:
        await scene.turn(everything=True)
        assert scene.api.asked == []
        scene.api.step("s1", exit_code=0)
        await scene.turn()
        await scene.turn(everything=True)
        assert scene.api.asked == [("s1", False)]
        assert (scene.folder.sizes(), scene.folder.is_finished("s1")) == ([], False)
        scene.api.vanish("s1")
        await scene.turn()
        assert keeper._silent == set()


async def test_the_log_of_a_step_that_goes_on_is_followed(scene):
    scene.api.step("s1")
    scene.api.print("s1", "a")
    async with scene.keeping():
        await scene.turn(everything=True)
        scene.clock.advance(YOUNG_SECONDS)
        await scene.turn()
        assert scene.api.asked == [("s1", True)]
        scene.api.print("s1", "b")
        await scene.turn()
        scene.api.vanish("s1")
        await scene.turn()
        assert await scene.kept("s1") == ["a", "b"]


async def test_the_logs_of_all_containers_that_the_author_of_a_step_wrote_stay(scene):
    scene.api.step("s1")
    await scene.api.beside("s1", "fetch", is_init=True, exit_code=0)
    await scene.api.beside("s1", "proxy")
    scene.api.print("s1", "main")
    scene.api.print("s1/fetch", "fetched")
    scene.api.print("s1/proxy", "listens")
    async with scene.keeping() as keeper:
        await scene.turn(everything=True)
        scene.clock.advance(YOUNG_SECONDS)
        await scene.turn()
        assert sorted(scene.api.asked) == [("s1", True), ("s1/fetch", True), ("s1/proxy", True)]
        scene.api.print("s1/proxy", "serves")
        await scene.turn()
        scene.api.vanish("s1")
        await scene.turn()
        assert await scene.kept("s1") == ["main"]
        assert await scene.kept("s1", "fetch") == ["fetched"]
        assert await scene.kept("s1", "proxy") == ["listens", "serves"]
        assert await scene.kept("s1", "wait") == []
        assert keeper.streams == 0
        scene.clock.advance(SWEEP_SECONDS)
        await scene.turn()
        assert await scene.kept("s1", "proxy") == ["listens", "serves"]
        assert await keeper.erase_steps("lab", "nightly") == 1
        assert scene.folder.sizes() == []


async def test_the_log_of_a_container_that_ended_is_read_once_though_the_step_goes_on(scene):
    scene.api.step("s1")
    pod = await scene.api.get(PODS, "s1", "lab")
    scene.api.put(PODS, pod | {"spec": pod["spec"] | {"restartPolicy": "Never"}})
    await scene.api.beside("s1", "fetch", is_init=True, exit_code=0)
    await scene.api.beside("s1", "silent", is_init=True, exit_code=0)
    scene.api.print("s1/fetch", "fetched")
    async with scene.keeping() as keeper:
        for _ in range(3):
            await scene.turn(everything=True)
        assert sorted(scene.api.asked) == [("s1/fetch", False), ("s1/silent", False)]
        assert (await scene.kept("s1", "fetch"), await scene.kept("s1", "silent")) == (["fetched"], [])
        assert [size.key for size in scene.folder.sizes()] == [log_key("s1", "fetch")]
        scene.api.vanish("s1")
        await scene.turn()
        assert keeper._silent == set()


async def test_what_is_kept_of_a_workflow_is_erased_for_good(scene):
    scene.api.step("s1")
    scene.api.print("s1", "a password")
    scene.api.step("s1", exit_code=0)
    async with scene.keeping() as keeper:
        await scene.turn(everything=True)
        assert await scene.kept("s1") == ["a password"]
        assert await keeper.erase_steps("lab", "nightly") == 1
        await scene.turn(everything=True)
        scene.api.step("s2")
        await scene.turn(everything=True)
        assert await keeper.read_steps("lab", "nightly", "w1") == ()
        assert await scene.kept("s1") == []
