"""A cluster in memory for tests of the command line, with verbs, watches, logs, and Moorage's server."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from moorage.cli.main import main
from moorage.cli.session import Session, Target
from moorage.client.connection import Connection, at_url
from moorage.decide.rates import Rate
from moorage.server.service import ServerService
from moorage_kube.clock import SYSTEM, Clock, rfc3339
from moorage_kube.errors import ApiError, NotFound, NotReady, ServerError
from moorage_kube.resources import NODES, Obj, Resource
from moorage_kube.serving import serve
from moorage_kube.testing.clock import FakeClock
from moorage_local.testing.fakeapi import FakeApi

T = TypeVar("T")
SERVED = re.compile("/api/v1/(jobs|gpus|nodes|explain(/.*)?|jobs/.*/overview)")


class CliApi(FakeApi):
    """Implements `moorage_kube.api.PodApi`. `refuse` maps (verb, plural) to an error to raise."""

    def __init__(self) -> None:
        super().__init__()
        self.refuse: dict[tuple[str, str], ApiError] = {}
        self.pod_logs: dict[str, list[str]] = {}
        self.on_call: Callable[[str, str, str], None] | None = None
        self.user = "ada"

    def with_token(self, *_: str) -> CliApi:
        return self

    @property
    def objects(self) -> dict[tuple[str, str, str], Obj]:
        """The stored objects, by plural, namespace and name."""
        return {
            (resource.plural, *key): obj
            for resource, stored in self._objects.items()
            for key, obj in stored.items()
        }

    def put(self, resource: Resource, obj: Obj, namespace: str = "default") -> Obj:
        """Create or replace an object, like another client."""
        meta = dict(obj["metadata"])
        if resource.namespaced:
            meta.setdefault("namespace", namespace)
        meta.setdefault("creationTimestamp", rfc3339(SYSTEM.now()))
        return super().put(resource, obj | {"metadata": meta})

    def remove(self, resource: Resource, name: str, namespace: str = "default") -> None:
        super().remove(resource, name, namespace if resource.namespaced else "")

    def named(self, resource: Resource) -> list[str]:
        return sorted(name for plural, _, name in self.objects if plural == resource.plural)

    def count(self, verb: str, plural: str, name: str) -> int:
        """Return how often this call was made."""
        return sum((call.verb, call.resource, call.name) == (verb, plural, name) for call in self.calls)

    def _called(
        self, verb: str, resource: Resource, name: str = "", namespace: str | None = None, body: Any = None
    ) -> None:
        super()._called(verb, resource, name, namespace, body)
        if self.on_call is not None:
            self.on_call(verb, resource.plural, name)
        error = self.refuse.get((verb, resource.plural))
        if error is not None:
            raise error

    def _stored(self, resource: Resource, name: str, namespace: str | None) -> Obj:
        return super()._stored(resource, name, (namespace or "default") if resource.namespaced else None)

    async def create(
        self, resource: Resource, obj: Obj, namespace: str | None = None, *, dry_run: bool = False
    ) -> Obj:
        if resource.plural == "selfsubjectreviews":
            return {"status": {"userInfo": {"username": self.user}}}
        own = obj.get("metadata", {}).get("namespace")
        namespace = (namespace or own or "default") if resource.namespaced else None
        return await super().create(resource, obj, namespace, dry_run=dry_run)

    async def create_subresource(
        self, resource: Resource, name: str, subresource: str, body: Obj, namespace: str | None = None
    ) -> Obj:
        if subresource != "eviction":
            return await super().create_subresource(resource, name, subresource, body, namespace)
        self._called(subresource, resource, name, namespace)
        self.remove(resource, name, namespace or "default")
        return body

    async def logs(
        self,
        pod: str,
        namespace: str,  # noqa: ARG002
        *,
        tail_lines: int | None = None,
        timestamps: bool = False,
        **_: Any,
    ) -> AsyncIterator[bytes]:
        """Yield the lines of `pod_logs`; a line ERROR breaks the connection once."""
        self._called("logs", Resource("", "v1", "pods", "Pod"), pod)
        if pod not in self.pod_logs:
            raise NotFound(f'pods "{pod}" not found')
        lines = self.pod_logs[pod]
        if tail_lines is not None:
            lines = lines[len(lines) - tail_lines :] if tail_lines else []
        for at, line in enumerate(list(lines)):
            if line == "ERROR":
                self.pod_logs[pod].remove("ERROR")
                raise ServerError("the connection broke", status=0)
            stamp = f"2026-11-21T12:00:{at:02}.123456789Z " if timestamps else ""
            text = f"{stamp}{line}\n".encode()
            yield text[:9]
            yield text[9:]


class FakeServer:
    """A fake of Moorage's server: it answers by path, or is missing.

    With `serves` it has the runs of that cluster.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.serves: CliApi | None = None
        self.asked: list[tuple[str, Any]] = []

    async def ask(
        self,
        kind: type[T],
        method: str,
        path: str,
        *,
        params: Mapping[str, object] | None = None,
        body: object = None,
        **_: Any,
    ) -> T:
        self.asked.append((path, params if method == "GET" else msgspec.to_builtins(body)))
        if path not in self.answers and self.serves is not None and SERVED.fullmatch(path):
            async with served(self.serves) as server:
                return await server.ask(kind, method, path, params=params, body=body)
        if path not in self.answers:
            raise NotReady("this cluster has no Moorage server")
        answer = self.answers[path]
        if isinstance(answer, Exception):
            raise answer
        return msgspec.convert(answer, kind)

    async def address(self) -> tuple[str, dict[str, str]]:
        raise NotReady("this cluster has no Moorage server")


@contextlib.asynccontextmanager
async def served(api: CliApi) -> AsyncIterator[Connection]:
    """Run a server for a cluster on localhost; its clock always shows noon."""
    api.users["kube-token"] = api.user
    api.readers |= {(api.user, namespace) for namespace in ("default", "other")}
    with tempfile.TemporaryDirectory() as folder:
        service = ServerService(
            api, usage_db=Path(folder) / "usage.db", page_token="page", clock=FakeClock(), rate=Rate(per_second=0)
        )
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        stop = asyncio.Event()
        tasks = [asyncio.create_task(service.run()), asyncio.create_task(serve(service.app, sock, stop=stop))]
        connection = Connection(at_url(f"http://127.0.0.1:{sock.getsockname()[1]}", "kube-token"))
        try:
            yield connection
        finally:
            await connection.close()
            stop.set()
            await tasks[1]
            tasks[0].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class Moor:
    """Runs a command line with a cluster in memory."""

    capsys: pytest.CaptureFixture[str]
    api: CliApi = field(default_factory=CliApi)
    server: FakeServer = field(default_factory=FakeServer)
    clock: Clock = SYSTEM
    targets: list[Target] = field(default_factory=list)

    def __call__(self, *words: str) -> Done:
        @contextlib.asynccontextmanager
        async def opener(target: Target) -> AsyncIterator[Session]:
            self.targets.append(target)
            yield Session(
                api=self.api,
                namespace=target.namespace or "default",
                server=self.server,  # type: ignore[arg-type]  # it streams nothing
                as_user=target.as_user,
                clock=self.clock,
            )

        self.capsys.readouterr()
        code = main(list(words), opener=opener)
        out, err = self.capsys.readouterr()
        return Done(code, out, err)

    def node(self, name: str, *, gpus: int = 0, runtime: str = "process://1", gpu_type: str = "a100") -> None:
        labels = {"nvidia.com/gpu.product": gpu_type, "nvidia.com/gpu.present": "true"} if gpus else {}
        allocatable = {"cpu": "16", "memory": "64Gi", "pods": "110"}
        if gpus:
            allocatable["nvidia.com/gpu"] = str(gpus)
        self.api.put(
            NODES,
            {
                "metadata": {"name": name, "labels": labels},
                "spec": {},
                "status": {
                    "allocatable": allocatable,
                    "capacity": allocatable,
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "nodeInfo": {"containerRuntimeVersion": runtime},
                },
            },
        )


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def moor(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Moor:
    """Commands are typed in an empty folder: `moor run` makes a snapshot of it."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path_factory.mktemp("typed"))
    return Moor(capsys)


@pytest.fixture
def api() -> CliApi:
    return CliApi()
