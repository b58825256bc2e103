"""A cluster in memory for the command line: the verbs, watches, logs, and Moorage's server."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from moorage.apimachinery.api import ObjList, WatchEvent
from moorage.apimachinery.resources import NODES, Obj, Resource
from moorage.apimachinery.selectors import parse_field_selector, parse_label_selector
from moorage.cli.main import main
from moorage.cli.session import Session, Target
from moorage.clock import SYSTEM, Clock, rfc3339
from moorage.errors import AlreadyExists, ApiError, Conflict, NotFound, NotReady


def merge(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


class FakeApi:
    """Implements `moorage.cli.session.ClusterApi`. `refuse` maps (verb, plural) to an error to raise."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Obj] = {}
        self.version = 0
        self.history: list[tuple[int, str, Resource, Obj]] = []
        self.news = asyncio.Event()
        self.refuse: dict[tuple[str, str], ApiError] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.pod_logs: dict[str, list[str]] = {}
        self.on_call: Callable[[str, str, str], None] | None = None
        self.user = "ada"

    def put(self, resource: Resource, obj: Obj, namespace: str = "default") -> Obj:
        """Store an object as somebody else would; an existing one is replaced."""
        obj = copy.deepcopy(obj)
        meta = obj["metadata"]
        if resource.namespaced:
            meta.setdefault("namespace", namespace)
        self.version += 1
        meta["resourceVersion"] = str(self.version)
        meta.setdefault("uid", f"uid-{self.version}")
        meta.setdefault("creationTimestamp", rfc3339(SYSTEM.now()))
        obj.setdefault("apiVersion", resource.api_version)
        obj.setdefault("kind", resource.kind)
        key = (resource.plural, meta.get("namespace") or "", meta["name"])
        kind = "MODIFIED" if key in self.objects else "ADDED"
        self.objects[key] = obj
        self._tell(kind, resource, obj)
        return copy.deepcopy(obj)

    def remove(self, resource: Resource, name: str, namespace: str = "default") -> None:
        found = self.objects.pop((resource.plural, namespace if resource.namespaced else "", name))
        self.version += 1
        self._tell("DELETED", resource, found)

    def named(self, resource: Resource) -> list[str]:
        return sorted(name for plural, _, name in self.objects if plural == resource.plural)

    def _tell(self, kind: str, resource: Resource, obj: Obj) -> None:
        self.history.append((self.version, kind, resource, copy.deepcopy(obj)))
        self.news.set()
        self.news = asyncio.Event()

    def _note(self, verb: str, resource: Resource, name: str) -> None:
        self.calls.append((verb, resource.plural, name))
        if self.on_call is not None:
            self.on_call(verb, resource.plural, name)
        error = self.refuse.get((verb, resource.plural))
        if error is not None:
            raise error

    def _key(self, resource: Resource, name: str, namespace: str | None) -> tuple[str, str, str]:
        return (resource.plural, (namespace or "default") if resource.namespaced else "", name)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        await asyncio.sleep(0)
        self._note("get", resource, name)
        try:
            return copy.deepcopy(self.objects[self._key(resource, name, namespace)])
        except KeyError:
            raise NotFound(f'{resource.plural} "{name}" not found') from None

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int | None = None,
        cont: str | None = None,
    ) -> ObjList:
        await asyncio.sleep(0)
        self._note("list", resource, "")
        found = [
            copy.deepcopy(obj)
            for (plural, there, _), obj in sorted(self.objects.items())
            if plural == resource.plural
            and namespace in (None, there)
            and self._selected(obj, label_selector, field_selector)
        ]
        return ObjList(found, str(self.version))

    def _selected(self, obj: Obj, labels: str | None, fields: str | None) -> bool:
        if labels and not parse_label_selector(labels).matches(obj["metadata"].get("labels")):
            return False
        return not fields or parse_field_selector(fields)(obj)

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> AsyncIterator[WatchEvent]:
        seen = int(resource_version)
        while True:
            news = self.news
            for version, kind, about, obj in list(self.history):
                if version > seen and about == resource and self._selected(obj, label_selector, field_selector):
                    yield WatchEvent(kind, copy.deepcopy(obj))
                seen = max(seen, version)
            await news.wait()

    async def create(
        self, resource: Resource, obj: Obj, namespace: str | None = None, *, dry_run: bool = False
    ) -> Obj:
        await asyncio.sleep(0)
        if resource.plural == "selfsubjectreviews":
            return {"status": {"userInfo": {"username": self.user}}}
        name = obj["metadata"]["name"]
        self._note("create", resource, name)
        if self._key(resource, name, namespace) in self.objects:
            raise AlreadyExists(f'{resource.plural} "{name}" already exists')
        return copy.deepcopy(obj) if dry_run else self.put(resource, obj, namespace or "default")

    async def update(self, resource: Resource, obj: Obj, *, subresource: str | None = None) -> Obj:
        raise NotImplementedError

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        namespace: str | None = None,
        *,
        kind: str = "merge",
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
    ) -> Obj:
        found = await self.get(resource, name, namespace)
        self._note("patch", resource, name)
        return self.put(resource, merge(found, patch), namespace or "default")

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        grace_period_seconds: int | None = None,
        uid: str | None = None,
        propagation: str | None = None,
    ) -> None:
        found = await self.get(resource, name, namespace)
        self._note("delete", resource, name)
        if uid is not None and found["metadata"]["uid"] != uid:
            raise Conflict("the uid is another")
        self.remove(resource, name, namespace or "default")

    async def create_subresource(
        self, resource: Resource, name: str, subresource: str, body: Obj, namespace: str | None = None
    ) -> Obj:
        await asyncio.sleep(0)
        self._note(subresource, resource, name)
        if subresource == "eviction":
            self.remove(resource, name, namespace or "default")
        return body

    async def logs(
        self,
        pod: str,
        namespace: str,
        *,
        container: str | None = None,
        follow: bool = False,
        tail_lines: int | None = None,
        since_seconds: int | None = None,
        timestamps: bool = False,
    ) -> AsyncIterator[bytes]:
        """Lines of `pod_logs`; ERROR breaks the connection once."""
        self._note("logs", Resource("", "v1", "pods", "Pod"), pod)
        if pod not in self.pod_logs:
            raise NotFound(f'pods "{pod}" not found')
        lines = self.pod_logs[pod]
        if tail_lines is not None:
            lines = lines[len(lines) - tail_lines :] if tail_lines else []
        for at, line in enumerate(list(lines)):
            if line == "ERROR":
                self.pod_logs[pod].remove("ERROR")
                from moorage.errors import ServerError

                raise ServerError("the connection broke", status=0)
            stamp = f"2026-11-21T12:00:{at:02}.123456789Z " if timestamps else ""
            text = f"{stamp}{line}\n".encode()
            yield text[:9]
            yield text[9:]


class FakeServer:
    """Moorage's server: answers by path, or is not there."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, Mapping[str, str] | None]] = []

    async def post(self, path: str, body: Any) -> Any:
        self.asked.append((path, body))
        if path not in self.answers:
            raise NotReady("this cluster has no Moorage server")
        return copy.deepcopy(self.answers[path])

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        self.asked.append((path, params))
        if path not in self.answers:
            raise NotReady("this cluster has no Moorage server")
        return copy.deepcopy(self.answers[path])


@dataclass
class Moor:
    """Type a command line against a cluster in memory."""

    capsys: pytest.CaptureFixture[str]
    api: FakeApi = field(default_factory=FakeApi)
    server: FakeServer = field(default_factory=FakeServer)
    clock: Clock = SYSTEM
    targets: list[Target] = field(default_factory=list)

    def __call__(self, *words: str) -> Done:
        @contextlib.asynccontextmanager
        async def opener(target: Target) -> AsyncIterator[Session]:
            self.targets.append(target)
            yield Session(
                api=self.api,  # type: ignore[arg-type]
                namespace=target.namespace or "default",
                server=self.server,
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
    """What came of it."""

    code: int
    out: str
    err: str


@pytest.fixture
def moor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Moor:
    monkeypatch.setenv("NO_COLOR", "1")
    return Moor(capsys)


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()
