"""The same questions about runs, through each way in: the command line, REST over HTTP, the Python client, pages.

A story says what happened to a run whose first pod is gone. Every way then lists the run and shows it, and whole
answers are compared: what is known of the pod that is gone is known to all of them, or to none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import moorage
from moorage.api.jobs import JobSummary
from moorage.cli.main import main
from moorage.cli.session import Session
from moorage.client.cluster import SELF_SUBJECT_REVIEWS
from moorage.client.connection import Connection, at_url
from moorage.decide.rates import Rate
from moorage.sdk.local import loop
from moorage.server.service import ServerService
from moorage_kube.clock import rfc3339
from moorage_kube.errors import NotFound
from moorage_kube.resources import JOBS, NODES, PODS, Obj, Resource
from moorage_kube.serving import serve
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_kube.testing.waiting import until
from moorage_local.testing.fakeapi import FakeApi

NAMESPACE = "lab"
USER = "ada"
TOKEN = "kube-token"
GPU = {"limits": {"nvidia.com/gpu": "1", "memory": "1Gi"}, "requests": {"nvidia.com/gpu": "1"}}
SUMMARY = [field.encode_name for field in msgspec.structs.fields(JobSummary)]
FIRST_STARTED = NOON - timedelta(minutes=50)
AGAIN_STARTED = NOON - timedelta(minutes=10)


class Lab(FakeApi):
    """A cluster in memory, in which everything is done as USER, and what a server over it keeps."""

    service: ServerService
    url: str

    def __init__(self) -> None:
        super().__init__(users={TOKEN: USER})
        self.readers.add((USER, NAMESPACE))
        for name, kind in (("gpu-1", "a100"), ("gpu-2", "h100")):
            self.put(
                NODES,
                {
                    "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": kind}},
                    "spec": {},
                    "status": {
                        "allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "2"}
                    },
                },
            )

    def with_token(self, *_: str) -> Lab:
        return self

    async def create(self, resource: Resource, obj: Obj, *args: Any, **options: Any) -> Obj:
        if resource == SELF_SUBJECT_REVIEWS:
            return {"status": {"userInfo": {"username": USER}}}
        return await super().create(resource, obj, *args, **options)

    async def logs(self, pod: str, *_: Any, **_options: Any) -> AsyncIterator[bytes]:
        raise NotFound(f"pods {pod!r} not found")
        yield b""

    def job(self, attempt: int = 1, *, status: Obj | None = None, notes: Obj | None = None, **spec: Any) -> None:
        """The Job of an attempt of the run, made or changed."""
        labels = {"moorage.dev/run": "train", "moorage.dev/attempt": str(attempt), "project": "vision"}
        first = {"kind": "Job", "name": "train", "uid": self.uid_of_job(1)} if attempt > 1 else None
        pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "resources": GPU}]}}
        self.put(
            JOBS,
            {
                "metadata": {
                    "namespace": NAMESPACE,
                    "name": name_of(attempt),
                    "labels": labels,
                    "annotations": {"moorage.dev/owner": USER, "moorage.dev/command": "python train.py"}
                    | (notes or {}),
                    "creationTimestamp": rfc3339(NOON - timedelta(hours=1) + timedelta(minutes=attempt)),
                    "ownerReferences": [first] if first else [],
                },
                "spec": {"backoffLimit": 2, "template": pod} | spec,
                "status": status or {},
            },
        )

    def pod(self, name: str, attempt: int = 1, *, phase: str = "Running", node: str = "gpu-1") -> None:
        is_first = name.endswith("-x")
        started = FIRST_STARTED if is_first else AGAIN_STARTED
        state: Obj = {"running": {"startedAt": rfc3339(started)}}
        if phase == "Failed":
            ended = rfc3339(started + timedelta(minutes=20))
            state = {"terminated": {"startedAt": rfc3339(started), "finishedAt": ended, "exitCode": 3}}
        owner = {"kind": "Job", "name": name_of(attempt), "controller": True}
        self.put(
            PODS,
            {
                "metadata": {
                    "namespace": NAMESPACE,
                    "name": name,
                    "uid": name,
                    "labels": {"moorage.dev/run": "train", "moorage.dev/attempt": str(attempt)},
                    "creationTimestamp": rfc3339(started - timedelta(minutes=1)),
                    "ownerReferences": [owner | {"uid": self.uid_of_job(attempt)}],
                },
                "spec": {"nodeName": node, "containers": [{"name": "main", "resources": GPU}]},
                "status": {"phase": phase, "containerStatuses": [{"name": "main", "state": state}]},
            },
        )

    def uid_of_job(self, attempt: int) -> str:
        return str(
            next(
                obj["metadata"]["uid"]
                for obj in self._objects[JOBS].values()
                if obj["metadata"]["name"] == name_of(attempt)
            )
        )

    async def kept(self, *, gone: int) -> None:
        """Wait until the server has kept this number of pods as gone, and has seen all that is there."""

        async def is_seen() -> bool:
            run = await self.service.keeper.read_run(NAMESPACE, "train")
            seen = [*self.service.cluster.jobs.all(), *self.service.cluster.pods.all()]
            there = [obj for kind in (JOBS, PODS) for obj in self._objects[kind].values()]
            is_up_to_date = {_version(obj) for obj in seen} == {_version(obj) for obj in there}
            return is_up_to_date and bool(run.pods) and sum(pod.gone is not None for pod in run.pods) == gone

        await until("the server to see all, and to keep what is gone", is_seen)

    async def first_pod(self, *, phase: str = "Running") -> None:
        self.job(status={"active": 1})
        self.pod("train-x", phase=phase)
        await self.kept(gone=0)


def _version(obj: Obj) -> str:
    return str(obj["metadata"]["resourceVersion"])


def name_of(attempt: int) -> str:
    return "train" if attempt == 1 else f"train-r{attempt}"


# -- what happened to the run


async def drained(lab: Lab) -> None:
    """Its node was drained, and the next attempt runs on another one."""
    await lab.first_pod()
    failed = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "DisruptionTarget"}
    lab.remove(PODS, "train-x", NAMESPACE)
    lab.job(status={"failed": 1, "conditions": [failed | {"lastTransitionTime": rfc3339(NOON)}]})
    lab.job(2, status={"active": 1})
    lab.pod("train-r2-y", 2, node="gpu-2")
    await lab.kept(gone=1)


async def restarted(lab: Lab) -> None:
    """Its first pod failed by itself, and Kubernetes made another one for the same Job."""
    await lab.first_pod(phase="Failed")
    lab.remove(PODS, "train-x", NAMESPACE)
    lab.job(status={"failed": 1, "active": 1})
    lab.pod("train-y", node="gpu-2")
    await lab.kept(gone=1)


async def suspended(lab: Lab) -> None:
    await lab.first_pod()
    lab.remove(PODS, "train-x", NAMESPACE)
    lab.job(suspend=True, notes={"moorage.dev/suspended": '{"by":"ada","why":"the demo"}'})
    await lab.kept(gone=1)


async def resumed(lab: Lab) -> None:
    await suspended(lab)
    was = {"type": "Suspended", "status": "False", "reason": "JobResumed", "lastTransitionTime": rfc3339(NOON)}
    lab.job(status={"active": 1, "conditions": [was]}, suspend=False)
    lab.pod("train-y", node="gpu-2")
    await lab.kept(gone=1)


async def cancelled(lab: Lab) -> None:
    await lab.first_pod()
    lab.remove(PODS, "train-x", NAMESPACE)
    lab.job(suspend=True, notes={"moorage.dev/ended": "Cancelled by ada"})
    await lab.kept(gone=1)


async def deleted(lab: Lab) -> None:
    await lab.first_pod()
    lab.remove(PODS, "train-x", NAMESPACE)
    lab.remove(JOBS, "train", NAMESPACE)
    await lab.kept(gone=1)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A cluster with a server over it, on loopback, in the SDK's own loop."""
    context = _serving(Lab(), tmp_path)
    yield loop().run(context.__aenter__())
    loop().run(context.__aexit__(None, None, None))


@contextlib.asynccontextmanager
async def _serving(lab: Lab, folder: Path) -> AsyncIterator[Lab]:
    lab.service = ServerService(
        lab, usage_db=folder / "usage.db", page_token="page", clock=FakeClock(), rate=Rate(per_second=0)
    )
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    stop = asyncio.Event()
    tasks = [asyncio.create_task(lab.service.run()), asyncio.create_task(serve(lab.service.app, sock, stop=stop))]
    lab.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    try:
        yield lab
    finally:
        stop.set()
        await tasks[1]
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# -- the ways in


@dataclass(frozen=True)
class Answers:
    """What a way says of the run: in the list of its namespace (None: it is not there), and shown alone."""

    listed: Any
    shown: Any


def rest(lab: Lab) -> Answers:
    jobs = json.loads(_get(lab, f"/api/v1/jobs?namespace={NAMESPACE}"))["jobs"]
    return Answers(next(iter(jobs), None), json.loads(_get(lab, f"/api/v1/jobs/{NAMESPACE}/train")))


def sdk(lab: Lab) -> Answers:
    with moorage.Client(lab.url, TOKEN, namespace=NAMESPACE) as client:
        jobs = json.loads(msgspec.json.encode(list(client.jobs.list())))
        return Answers(next(iter(jobs), None), json.loads(msgspec.json.encode(client.jobs.get("train"))))


def command_line(lab: Lab, capsys: pytest.CaptureFixture[str]) -> Answers:
    jobs = json.loads(moor(lab, capsys, "jobs", "-o", "json"))
    shown = json.loads(moor(lab, capsys, "show", "train", "-o", "json"))
    shown.pop("use", None)  # of another route
    return Answers(next(iter(jobs), None), shown)


def moor(lab: Lab, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    @contextlib.asynccontextmanager
    async def opener(_target: Any) -> AsyncIterator[Session]:
        server = Connection(at_url(lab.url, TOKEN))
        try:
            yield Session(api=lab, namespace=NAMESPACE, server=server, clock=FakeClock())  # type: ignore[arg-type]
        finally:
            await server.close()

    capsys.readouterr()
    code = main(list(words), opener=opener)
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    return printed.out


def _get(lab: Lab, path: str) -> str:
    request = urllib.request.Request(lab.url + path, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request) as answer:
        return str(answer.read().decode())


Story = Callable[[Lab], Awaitable[None]]


@pytest.mark.parametrize("story", [drained, restarted, suspended, resumed, cancelled, deleted])
def test_every_way_in_says_the_same_of_a_run(story: Story, lab: Lab, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    loop().run(story(lab))  # type: ignore[arg-type]
    first, others = rest(lab), {"sdk": sdk(lab), "moor": command_line(lab, capsys)}
    assert first.shown["started"] == rfc3339(FIRST_STARTED)
    assert [pod["name"] for attempt in first.shown["history"] for pod in attempt["pods"]][0] == "train-x"
    if story is deleted:
        assert first.listed is None
    else:
        assert first.listed == _summary(first.shown)
    assert {way: answers.shown for way, answers in others.items()} == dict.fromkeys(others, first.shown)
    assert _summary(others["sdk"].listed) == first.listed
    assert others["moor"].listed == (None if story is deleted else first.shown)


@pytest.mark.parametrize("story", [drained, restarted, suspended, resumed, cancelled])
def test_pages_show_what_the_answers_have(story: Story, lab: Lab):
    loop().run(story(lab))  # type: ignore[arg-type]
    shown = rest(lab).shown
    listed, page = _get(lab, "/jobs?whose=all"), _get(lab, f"/jobs/{NAMESPACE}/train")
    assert f"/nodes/{shown['node']}" in listed
    assert f"/nodes/{shown['node']}" in page
    assert shown["started"] in page
    for pod in (pod for attempt in shown["history"] for pod in attempt["pods"]):
        assert pod["name"] in page


def _summary(job: Any) -> Any:
    return None if job is None else {name: job[name] for name in SUMMARY}
