"""A server with a fake API, for requests without a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from moorage.decide.rates import Rate
from moorage.server.service import ServerService
from moorage_kube.clock import rfc3339
from moorage_kube.resources import JOBS, NODES, PODS, Obj
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_kube.testing.waiting import soon
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.htmlpage import Page

T = TypeVar("T")

TOKEN = "the-page-token"
GPU = "nvidia.com/gpu"
AT_WILL = Rate(per_second=0)  # the clock does not move


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    cookies: tuple[str, ...] = ()  # of every Set-Cookie

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def page(self) -> Page:
        return Page(self.text)


class Site:
    """A server with a fake API and a fake clock."""

    token = TOKEN

    def __init__(self, folder: Path, *, database: str | None = None) -> None:
        self.folder = folder
        self.api = FakeApi(users={"kube-token": "ada"})
        self.clock = FakeClock()
        self.service = ServerService(
            self.api,
            usage_db=folder / "usage.db",
            database=database,
            page_token=TOKEN,
            clock=self.clock,
            rate=AT_WILL,
        )
        self.bearer = {"authorization": f"Bearer {TOKEN}"}

    async def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        host: str = "127.0.0.1:8080",
        token: bool = True,
        client: str = "127.0.0.1",
    ) -> Answer:
        """Send one request and return the whole answer. With `token`, the request has the page token as bearer."""
        # the scope of an ASGI server with one request
        sent = {"host": host} | (self.bearer if token else {}) | dict(headers or {})
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "server": ("127.0.0.1", 8080),
            "client": (client, 5000),
        }
        # the request is sent at once; a second read waits for ever, as for a client that stays connected
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        never: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        answered: list[Any] = []

        async def receive() -> dict[str, Any]:
            return messages.pop(0) if messages else await never

        async def send(message: Any) -> None:
            answered.append(message)

        # collect the answer
        await self.service.app(scope, receive, send)
        start = answered[0]
        got = {name.decode(): value.decode() for name, value in reversed(start["headers"])}  # the first counts
        cookies = tuple(value.decode() for name, value in start["headers"] if name == b"set-cookie")
        return Answer(start["status"], got, b"".join(one.get("body", b"") for one in answered[1:]), cookies)

    @contextlib.asynccontextmanager
    async def stream(self, path: str, token: str = TOKEN) -> AsyncIterator[asyncio.Queue[Any]]:
        """Send a request with an endless answer; yield a queue of its chunks, and None if it ends."""
        chunks: asyncio.Queue[Any] = asyncio.Queue()
        gone = asyncio.Event()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())],
            "server": ("127.0.0.1", 8080),
            "client": ("127.0.0.1", 5000),
        }
        first = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> dict[str, Any]:
            if first:
                return first.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                chunks.put_nowait(message)

        task = asyncio.create_task(self.service.app(scope, receive, send))
        task.add_done_callback(lambda _: chunks.put_nowait(None))
        try:
            yield chunks
        finally:
            gone.set()
            await asyncio.gather(task, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Site]:
        task = asyncio.create_task(self.service.run())
        try:
            async with asyncio.timeout(120):
                for informer in (self.service.cluster.nodes, self.service.cluster.pods, self.service.cluster.jobs):
                    await informer.synced.wait()
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, check: Callable[[], T]) -> T:
        """Wait for a state of the server for at most two minutes."""
        return await soon("a state of the server", check, patience=120)

    def node(self, name: str = "n1", gpus: int = 2, kind: str = "a100", **spec: Any) -> Obj:
        return self.api.put(
            NODES,
            {
                "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": kind}},
                "spec": spec,
                "status": {
                    "allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110", GPU: str(gpus)},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            },
        )

    def run(
        self,
        name: str = "train",
        *,
        node: str = "",
        gpus: int = 1,
        owner: str = "ada",
        notes: Mapping[str, str] | None = None,
        phase: str | None = None,
        pod: bool = True,
        namespace: str = "lab",
    ) -> Obj:
        # labels and annotations as the platform writes them, on the Job and its pods
        labels = {"moorage.dev/run": name, "moorage.dev/attempt": "1"}
        annotations = {"moorage.dev/owner": owner, "moorage.dev/command": "python secret.py"} | dict(notes or {})
        created = rfc3339(NOON)
        spec: Obj = {"containers": [{"name": "main", "resources": {"limits": {GPU: str(gpus), "cpu": "1"}}}]}
        job = self.api.put(
            JOBS,
            {
                "metadata": {
                    "namespace": namespace,
                    "name": name,
                    "labels": labels,
                    "annotations": annotations,
                    "creationTimestamp": created,
                },
                "spec": {"template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}},
                "status": {},
            },
        )
        # a Job whose pod does not exist yet
        if not pod:
            return job
        # a pod with a node runs since the Job was created
        status: Obj = {"phase": phase or ("Running" if node else "Pending")}
        if node:
            status |= {
                "startTime": created,
                "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": created}}}],
            }
        self.api.put(
            PODS,
            {
                "metadata": {
                    "namespace": namespace,
                    "name": f"{name}-x",
                    "labels": labels,
                    "annotations": annotations,
                    "creationTimestamp": created,
                    "ownerReferences": [
                        {"controller": True, "uid": job["metadata"]["uid"], "kind": "Job", "name": name}
                    ],
                },
                "spec": spec | ({"nodeName": node} if node else {}),
                "status": status,
            },
        )
        return job


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)
