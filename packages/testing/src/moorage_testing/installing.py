"""A cluster in memory for tests of installations: server-side apply, and the controllers that react to it.

`moor` runs a command line with it.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from moorage.actions.install.cluster import RESOURCES
from moorage.decide.install.record import InstallRecord, parse_record
from moorage.decide.install.steps import REGISTRATIONS
from moorage.model.names import SYSTEM_NAMESPACE
from moorage_kube.errors import Conflict, NotFound
from moorage_kube.mergepatch import merge_patch
from moorage_kube.meta import Key
from moorage_kube.resources import (
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    NAMESPACES,
    SELFSUBJECTACCESSREVIEWS,
    STORAGECLASSES,
    Obj,
    Resource,
)
from moorage_kube.testing.clock import QuickClock
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.commandline import Moor

IMAGE = "registry.example.org/moorage:0.1.0"
IS_DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}
DEFAULT_CLASS = {"metadata": {"name": "fast", "annotations": IS_DEFAULT}}


class InstallableApi(FakeApi):
    """`FakeApi` with apply by merging.

    `denied`: rights that are always refused; `theirs`: fields of another manager.

    Deployments come up at once unless named in `broken`.
    """

    def __init__(self, *, kubernetes: str = "v1.36.2") -> None:
        super().__init__()
        self.kubernetes = kubernetes
        self.denied: set[tuple[str, str]] = set()  # verb and plural
        self.theirs: dict[str, str] = {}  # name of an object → field
        self.broken: set[str] = set()
        self.fail_after: int | None = None  # writes until the connection breaks, as when the command is killed
        self.writes = 0  # so far
        self.put(STORAGECLASSES, _copy(DEFAULT_CLASS))

    async def version(self) -> Obj:
        return {"gitVersion": self.kubernetes}

    async def create(
        self, resource: Resource, obj: Obj, namespace: str | None = None, *, dry_run: bool = False
    ) -> Obj:
        if resource is SELFSUBJECTACCESSREVIEWS:
            asked = obj["spec"]["resourceAttributes"]
            denied = {"*"} if asked["verb"] == "*" and self.denied else set()
            return {"status": {"allowed": not denied and (asked["verb"], asked["resource"]) not in self.denied}}
        return await super().create(resource, obj, namespace, dry_run=dry_run)

    async def raw(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",  # noqa: ARG002
    ) -> bytes:
        if method == "GET":
            return b"ok"
        if "dryRun" not in (params or {}):
            self._count()
        resource, meta = RESOURCES[body["kind"]], body["metadata"]
        assert path == resource.path(namespace=meta.get("namespace"), name=meta["name"])
        if meta.get("namespace"):
            await self.get(NAMESPACES, meta["namespace"])  # raises NotFound, as a server does
        if meta["name"] in self.theirs and "force" not in (params or {}):
            raise _conflict(meta["name"], self.theirs[meta["name"]])
        try:
            before: Obj = await self.get(resource, meta["name"], meta.get("namespace"))
        except NotFound:
            before = {}
        after: Any = merge_patch(_copy(before), _copy(body))
        _settle(after, self.broken)
        if after == before or "dryRun" in (params or {}):
            return json.dumps(after).encode()
        return json.dumps(self.put(resource, after)).encode()

    def _called(
        self, verb: str, resource: Resource, name: str = "", namespace: str | None = None, body: Any = None
    ) -> None:
        if verb.split()[0] in ("create", "update", "patch", "delete"):
            self._count()
        super()._called(verb, resource, name, namespace, body)

    def _count(self) -> None:
        if self.fail_after is not None:
            if self.fail_after == 0:
                raise ConnectionResetError("the connection broke")
            self.fail_after -= 1
        self.writes += 1

    def clear(self) -> None:
        """Remove all objects."""
        self._objects.clear()
        self.put(STORAGECLASSES, _copy(DEFAULT_CLASS))

    def snapshot(self) -> dict[tuple[str, str, str], Obj]:
        """All objects by kind, namespace and name, without the fields that differ between installations."""
        objects = {}
        for resource, stored in self._objects.items():
            for key, obj in stored.items():
                seen = _copy(obj)
                for field in ("resourceVersion", "uid", "creationTimestamp"):
                    seen["metadata"].pop(field, None)
                if resource.kind == "Secret":
                    seen["data"] = sorted(seen.get("data") or ())  # passwords and keys
                objects[resource.kind, key.namespace, key.name] = seen
        return objects

    def names(self, resource: Resource) -> set[str]:
        """Return the names of all objects of a kind."""
        return {key.name for key in self._objects.get(resource, {})}

    def stored(self, resource: Resource, name: str, namespace: str = "") -> Obj:
        """Return the stored object; raises KeyError."""
        return self._objects[resource][Key(namespace, name)]

    def has(self, resource: Resource, name: str, namespace: str = "") -> bool:
        return Key(namespace, name) in self._objects.get(resource, {})


@pytest.fixture
def api() -> InstallableApi:
    return InstallableApi()


@pytest.fixture
def moor(api: InstallableApi, capsys: pytest.CaptureFixture[str]) -> Moor:
    return Moor(capsys, api=api, server=None, clock=QuickClock())  # type: ignore[arg-type]  # no command asks it


def record_of(api: InstallableApi) -> InstallRecord:
    return parse_record(api.stored(CONFIGMAPS, "moorage-install", SYSTEM_NAMESPACE))


def cuts(writes: int) -> list[int]:
    """Numbers of writes after which the connection breaks: 0, three by chance, and the last three."""
    return [0, *random.sample(range(1, writes - 3), 3), *range(writes - 3, writes)]


def _copy(obj: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(obj))  # twenty times faster than deepcopy


def _settle(obj: Obj, broken: set[str]) -> None:
    """Change an object as the cluster's own controllers, and our operator, would."""
    if obj["kind"] == CRDS.kind:
        obj["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
    if obj["kind"] == DEPLOYMENTS.kind and obj["metadata"]["name"] not in broken:
        count = obj["spec"]["replicas"]
        obj["status"] = {"replicas": count, "updatedReplicas": count, "availableReplicas": count}
    if obj["kind"] in REGISTRATIONS:
        for webhook in obj["webhooks"]:
            client = webhook["clientConfig"]
            client["caBundle"] = base64.b64encode(b"authority").decode()
            if not client["service"]["path"].endswith("/token"):
                client["service"]["path"] += "/token"


def _conflict(name: str, field: str) -> Conflict:
    cause = {"reason": "FieldManagerConflict", "message": 'conflict with "kubectl-edit" using v1', "field": field}
    error = Conflict(f"apply failed with 1 conflict: {name}")
    error.details = {"causes": [cause]}
    return error
