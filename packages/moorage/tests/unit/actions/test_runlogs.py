"""The log of a run in one view: its order, and what is said between the lines."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from moorage.actions.runlogs import Began, Ended, Line, RunLog, Unreadable
from moorage.api.storedrecords import StoredRun
from moorage_kube.errors import Forbidden, NotFound
from moorage_kube.resources import JOBS, PODS
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.builders import a_run_job, a_run_pod

pytestmark = pytest.mark.anyio


class Api(FakeApi):
    """With logs: the lines of each pod, and whether it goes on until it is let go."""

    def __init__(self):
        super().__init__()
        self.lines, self.containers, self.held = {}, {}, {}

    async def logs(self, pod, namespace, *, container=None, tail_lines=None, follow=False, **_):  # noqa: ARG002
        self.containers[pod] = container
        lines = self.lines[pod]
        if isinstance(lines, Exception):
            raise lines
        for at, line in enumerate([] if tail_lines == 0 else lines):
            yield f"2026-11-21T12:00:{at:02}Z {line}\n".encode()
        if follow and pod in self.held:
            await self.held[pod].wait()


class Watch:
    """Jobs and pods as they are in the API."""

    def __init__(self, api):
        self._api, self.version, self.closed, self._changed = api, 0, False, asyncio.Event()

    def jobs_of_run(self, _namespace, _run):
        return list(self._api._objects.get(JOBS, {}).values())

    def pods_of_run(self, _namespace, _run):
        return list(self._api._objects.get(PODS, {}).values())

    async def beyond(self, version):
        while self.version <= version:
            self._changed.clear()
            await self._changed.wait()
        return self.version

    def change(self):
        self.version += 1
        self._changed.set()


def put_job(api, attempt=1, end=""):
    api.put(JOBS, a_run_job("train", attempt, name=f"train-{attempt}", created=NOON, end=end))


def put_pod(api, name, phase="Running", attempt=1, **pod):
    containers = ("main", "proxy")
    api.put(PODS, a_run_pod(name, attempt=attempt, phase=phase, containers=containers, created=NOON, **pod))


def brief(event):
    match event:
        case Began(_, pod):
            return f"begins {pod.name}"
        case Line(pod, text):
            return f"{pod}: {text.decode()}"
        case Ended(run):
            return f"ends {run.state if run else 'deleted'}"
    return event


async def all_of(events):
    async with aclosing(events):
        return [brief(event) async for event in events]


class NoRecords:
    async def run(self, _namespace, _name):
        return StoredRun()


def log_of(api, **options):
    return RunLog(api, "lab", "train", clock=FakeClock(), records=NoRecords(), **options)


async def test_attempts_come_in_order_with_the_default_container_of_each_pod():
    api = Api()
    put_job(api)
    put_job(api, 2)
    put_pod(api, "b", attempt=2, annotations={"kubectl.kubernetes.io/default-container": "proxy"})
    put_pod(api, "a", "Failed")
    api.lines = {"a": ["1", "2"], "b": ["3"]}
    log = log_of(api)
    await log.open(follow=False)
    assert await all_of(log.read()) == ["begins a", "a: 1", "a: 2", "begins b", "b: 3", "ends Running"]
    assert api.containers == {"a": "main", "b": "proxy"}


async def test_a_log_that_may_not_be_read_is_an_error_before_the_first_line():
    api = Api()
    put_job(api)
    put_pod(api, "a")
    api.lines["a"] = Forbidden("pods/log is forbidden")
    for follow in (False, True):
        with pytest.raises(Forbidden):
            await log_of(api).open(follow=follow)


async def test_a_log_that_becomes_unreadable_is_reported_and_the_others_go_on():
    api = Api()
    put_job(api)
    put_pod(api, "a", "Failed")
    put_pod(api, "b", "Succeeded")
    api.lines = {"a": Forbidden("no"), "b": ["1"]}
    log = log_of(api)
    await log.open(follow=False)
    assert await all_of(log.read()) == ["begins a", Unreadable("a", "no"), "begins b", "b: 1", "ends Running"]


async def test_following_prints_an_ended_attempt_to_its_end_before_the_next():
    api = Api()
    put_job(api)
    put_job(api, 2, end="Complete")
    put_pod(api, "a", "Failed")
    put_pod(api, "b", "Succeeded", attempt=2)
    api.lines = {"a": ["1", "2", "3"], "b": ["4"]}
    watch, log = Watch(api), log_of(api)
    await log.open(follow=True)
    assert await all_of(log.follow(watch)) == [
        "begins a", "a: 1", "a: 2", "a: 3", "begins b", "b: 4", "ends Succeeded",
    ]  # fmt: skip


async def test_a_pod_that_never_ends_does_not_hold_up_the_next_attempt():
    """Its node is lost: it stays Running while the next attempt prints."""
    api = Api()
    put_job(api)
    put_job(api, 2)
    put_pod(api, "a")
    put_pod(api, "b", attempt=2)
    api.lines, api.held = {"a": ["1"], "b": ["2"]}, {"a": asyncio.Event(), "b": asyncio.Event()}
    watch, log = Watch(api), log_of(api)
    await log.open(follow=True)
    events = []
    async with aclosing(log.follow(watch)) as following:
        async for event in following:
            events.append(brief(event))
            if {"a: 1", "b: 2"} <= set(events):
                break
    assert sorted(events) == ["a: 1", "b: 2", "begins a", "begins b"]


async def test_following_a_run_that_is_deleted_ends():
    api = Api()
    put_job(api)
    watch, log = Watch(api), log_of(api)
    await log.open(follow=True)
    following = asyncio.create_task(all_of(log.follow(watch)))
    await asyncio.sleep(0)
    api.remove(JOBS, "train-1", "lab")
    watch.change()
    while not following.done():
        log._clock.advance(1)
        watch.change()
        await asyncio.sleep(0)
    assert following.result()[-1] == "ends deleted"


async def test_an_unknown_attempt_is_refused():
    api = Api()
    put_job(api)
    with pytest.raises(NotFound, match="run train has no attempt 2"):
        await log_of(api, attempt=2).open(follow=False)
