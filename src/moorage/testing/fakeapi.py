"""An `Api` in memory, for tests of what reads and writes through one.

It stores what it is given: no schema, no admission, no controllers. Merge patches only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from moorage.apimachinery.api import ObjList, PatchKind, WatchEvent
from moorage.apimachinery.meta import Key, key_of, labels_of
from moorage.apimachinery.resources import SUBJECTACCESSREVIEWS, TOKENREVIEWS, Obj, Resource
from moorage.apimachinery.selectors import parse_field_selector, parse_label_selector
from moorage.errors import AlreadyExists, ApiError, Conflict, MethodNotAllowed, NotFound


@dataclass(frozen=True, slots=True)
class Call:
    """One call that was made."""

    verb: str
    resource: str
    name: str = ""
    namespace: str = ""
    body: Any = None


class FakeApi:
    """Implements `moorage.apimachinery.api.Api`. `users` are the tokens that a TokenReview accepts."""

    def __init__(self, *, users: dict[str, str] | None = None) -> None:
        self.users = dict(users or {})
        self.readers: set[tuple[str, str]] = set()  # a SubjectAccessReview allows: user, and namespace or name
        self.calls: list[Call] = []
        self.failing: ApiError | None = None  # raised by every call while set
        self._objects: dict[Resource, dict[Key, Obj]] = {}
        self._watchers: list[tuple[Resource, str | None, asyncio.Queue[WatchEvent | None]]] = []
        self._history: list[tuple[int, Resource, WatchEvent]] = []
        self._versions = count(1)
        self._version = 0

    def put(self, resource: Resource, obj: Obj) -> Obj:
        """Create or replace without being asked through the API, as other parties of a cluster do."""
        obj = json.loads(json.dumps(obj))
        key = self._key(resource, obj)
        known = self._objects.setdefault(resource, {}).get(key)
        obj.setdefault("apiVersion", resource.api_version)
        obj.setdefault("kind", resource.kind)
        obj["metadata"].setdefault("uid", known["metadata"]["uid"] if known else f"uid-{resource.plural}-{key}")
        self._version = next(self._versions)
        obj["metadata"]["resourceVersion"] = str(self._version)
        self._objects[resource][key] = obj
        self._tell(resource, WatchEvent("MODIFIED" if known else "ADDED", obj))
        return obj

    def remove(self, resource: Resource, name: str, namespace: str = "") -> None:
        """Delete at once."""
        obj = self._objects[resource].pop(Key(namespace, name))
        self._version = next(self._versions)
        gone = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        self._tell(resource, WatchEvent("DELETED", gone))

    def break_watches(self) -> None:
        """End every watch, as a server that restarts does."""
        for _, _, queue in self._watchers:
            queue.put_nowait(None)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        self._called("get", resource, name, namespace)
        found = self._objects.get(resource, {}).get(Key(namespace or "", name))
        if found is None:
            raise NotFound(f'{resource} "{name}" not found')
        return _copy(found)

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int | None = None,  # noqa: ARG002
        cont: str | None = None,  # noqa: ARG002
    ) -> ObjList:
        self._called("list", resource, "", namespace)
        labels = parse_label_selector(label_selector or "")
        fields = parse_field_selector(field_selector or "")
        items = [
            obj
            for key, obj in sorted(self._objects.get(resource, {}).items())
            if (not namespace or key.namespace == namespace) and labels.matches(labels_of(obj)) and fields(obj)
        ]
        return ObjList([_copy(obj) for obj in items], str(self._version))

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,  # noqa: ARG002
    ) -> AsyncIterator[WatchEvent]:
        self._called("watch", resource, "", namespace)
        labels = parse_label_selector(label_selector or "")
        queue: asyncio.Queue[WatchEvent | None] = asyncio.Queue()
        for version, kind, event in self._history:
            if version > int(resource_version) and kind == resource:
                queue.put_nowait(event)
        watcher = (resource, namespace, queue)
        self._watchers.append(watcher)
        try:
            while (event_or_end := await queue.get()) is not None:
                obj = event_or_end.object
                if labels.matches(labels_of(obj)) and namespace in (None, obj["metadata"].get("namespace")):
                    yield WatchEvent(event_or_end.type, _copy(obj))
        finally:
            self._watchers.remove(watcher)

    async def create(
        self, resource: Resource, obj: Obj, namespace: str | None = None, *, dry_run: bool = False
    ) -> Obj:
        self._called("create", resource, obj.get("metadata", {}).get("name", ""), namespace, obj)
        if resource == TOKENREVIEWS:
            user = self.users.get(obj["spec"]["token"])
            status: Obj = {"authenticated": user is not None}
            if user is not None:
                status["user"] = {"username": user}
            return {**obj, "status": status}
        if resource == SUBJECTACCESSREVIEWS:
            spec = obj["spec"]
            wanted = spec.get("resourceAttributes") or {"name": spec["nonResourceAttributes"]["path"]}
            key = (obj["spec"]["user"], wanted.get("namespace") or wanted.get("name"))
            return {**obj, "status": {"allowed": key in self.readers}}
        if namespace:
            obj = {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}
        key = self._key(resource, obj)
        if key in self._objects.get(resource, {}):
            raise AlreadyExists(f'{resource} "{key.name}" already exists')
        return _copy(obj if dry_run else self.put(resource, obj))

    async def update(self, resource: Resource, obj: Obj, *, subresource: str | None = None) -> Obj:
        self._called("update", resource, obj["metadata"]["name"], obj["metadata"].get("namespace"), obj)
        known = self._objects.get(resource, {}).get(self._key(resource, obj))
        if known is None:
            raise NotFound(f'{resource} "{obj["metadata"]["name"]}" not found')
        if obj["metadata"].get("resourceVersion") not in (None, known["metadata"]["resourceVersion"]):
            raise Conflict("the object has been modified")
        if subresource == "status":
            obj = {**known, "status": obj.get("status")}
        return _copy(self.put(resource, obj))

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        namespace: str | None = None,
        *,
        kind: PatchKind = "merge",
        subresource: str | None = None,  # noqa: ARG002
        field_manager: str | None = None,  # noqa: ARG002
        force: bool = False,  # noqa: ARG002
    ) -> Obj:
        self._called("patch", resource, name, namespace, patch)
        if kind != "merge":
            raise MethodNotAllowed(f"this fake has no {kind} patch")
        known = self._objects.get(resource, {}).get(Key(namespace or "", name))
        if known is None:
            raise NotFound(f'{resource} "{name}" not found')
        return _copy(self.put(resource, _merged(known, patch)))

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        grace_period_seconds: int | None = None,  # noqa: ARG002
        uid: str | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] | None = None,  # noqa: ARG002
    ) -> None:
        self._called("delete", resource, name, namespace)
        known = self._objects.get(resource, {}).get(Key(namespace or "", name))
        if known is None:
            raise NotFound(f'{resource} "{name}" not found')
        if uid not in (None, known["metadata"]["uid"]):
            raise Conflict("another object bears the name now")
        self.remove(resource, name, namespace or "")

    async def create_subresource(
        self, resource: Resource, name: str, subresource: str, body: Obj, namespace: str | None = None
    ) -> Obj:
        self._called(f"create {subresource}", resource, name, namespace, body)
        raise MethodNotAllowed(f"this fake has no subresource {subresource}")

    def _called(
        self, verb: str, resource: Resource, name: str = "", namespace: str | None = None, body: Any = None
    ) -> None:
        self.calls.append(Call(verb, resource.plural, name, namespace or "", body))
        if self.failing is not None:
            raise self.failing

    def _key(self, resource: Resource, obj: Obj) -> Key:
        return key_of(obj) if resource.namespaced else Key("", obj["metadata"]["name"])

    def _tell(self, resource: Resource, event: WatchEvent) -> None:
        self._history.append((self._version, resource, event))
        for kind, _, queue in self._watchers:
            if kind == resource:
                queue.put_nowait(event)


def _copy(obj: Obj) -> Obj:
    copied: Obj = json.loads(json.dumps(obj))
    return copied


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result
