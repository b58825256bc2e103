"""An `Api` in memory, for tests of its clients.

It stores objects unchanged: no schemas, no admission, no controllers. The contract tests of `Api`
(`tests/contract/test_api.py`) cover its behaviour. It refuses unsupported requests: apply, strategic merge patches
of custom resources, and subresources other than status.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import msgspec

from moorage_kube.api import ObjList, PatchKind, WatchEvent
from moorage_kube.clock import SYSTEM, Clock, rfc3339
from moorage_kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Invalid,
    MethodNotAllowed,
    NotFound,
    SelectorError,
)
from moorage_kube.mergepatch import merge_patch
from moorage_kube.meta import Key, key_of, labels_of
from moorage_kube.resources import PODS, SUBJECTACCESSREVIEWS, TOKENREVIEWS, Obj, Resource
from moorage_kube.selectors import parse_field_selector, parse_label_selector
from moorage_local.apiserver.kinds.builtin import builtin_kinds
from moorage_local.apiserver.kinds.kind import Kind
from moorage_local.apiserver.wire.patch import json_patch, strategic_merge


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call of the API."""

    verb: str
    resource: str
    name: str = ""
    namespace: str = ""
    body: Any = None


@dataclass(frozen=True, slots=True)
class _Change:
    """One object before and after a write; `shown` is sent to watchers."""

    version: int
    resource: Resource
    before: Obj | None
    after: Obj | None
    shown: Obj


class FakeApi:
    """Implements `moorage_kube.api.Api`. `users` are the tokens that a TokenReview accepts.

    `subresource="status"` or `put` writes the status, as on a server. `create` also accepts a status, for
    short tests.
    """

    def __init__(self, *, users: dict[str, str] | None = None, clock: Clock = SYSTEM) -> None:
        self.users = dict(users or {})
        self.readers: set[tuple[str, str]] = set()  # a SubjectAccessReview allows: user, and namespace or name
        self.calls: list[Call] = []
        self.failing: ApiError | None = None  # raised by every call while set
        self._objects: dict[Resource, dict[Key, Obj]] = {}
        self._watchers: list[tuple[Resource, asyncio.Queue[_Change | None]]] = []
        self._history: list[_Change] = []
        self._pages: dict[str, ObjList] = {}
        self._names = count(1)
        self._clock = clock
        self._versions = count(1)
        self._version = 0

    def put(self, resource: Resource, obj: Obj) -> Obj:
        """Create or replace an object without an API call, like other clients of a cluster."""
        obj = _given(obj)
        key = self._key(resource, obj)
        known = self._objects.setdefault(resource, {}).get(key)
        obj.setdefault("apiVersion", resource.api_version)
        obj.setdefault("kind", resource.kind)
        obj["metadata"].setdefault("uid", known["metadata"]["uid"] if known else f"uid-{resource.plural}-{key}")
        self._version = next(self._versions)
        obj["metadata"]["resourceVersion"] = str(self._version)
        self._objects[resource][key] = obj
        self._tell(_Change(self._version, resource, known, obj, obj))
        return obj

    def remove(self, resource: Resource, name: str, namespace: str = "") -> None:
        """Delete at once."""
        obj = self._objects[resource].pop(Key(namespace, name))
        self._version = next(self._versions)
        gone = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        self._tell(_Change(self._version, resource, obj, None, gone))

    def break_watches(self) -> None:
        """End all watches, as after a restart of the server."""
        for _, queue in self._watchers:
            queue.put_nowait(None)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        self._called("get", resource, name, namespace)
        return _copy(self._stored(resource, name, namespace))

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
        self._called("list", resource, "", namespace)
        if cont:
            page = self._pages[cont]
        else:
            matches = _matcher(resource, namespace, label_selector, field_selector)
            objects = sorted(self._objects.get(resource, {}).items())
            page = ObjList([_copy(obj) for _, obj in objects if matches(obj)], str(self._version))
        if not limit or len(page.items) <= limit:
            return page
        rest = f"page-{len(self._pages)}"
        self._pages[rest] = ObjList(page.items[limit:], page.resource_version)
        return ObjList(page.items[:limit], page.resource_version, rest)

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> AsyncIterator[WatchEvent]:
        self._called("watch", resource, "", namespace)
        matches = _matcher(resource, namespace, label_selector, field_selector)
        queue: asyncio.Queue[_Change | None] = asyncio.Queue()
        for change in self._history:
            if change.version > int(resource_version) and change.resource == resource:
                queue.put_nowait(change)
        watcher = (resource, queue)
        self._watchers.append(watcher)
        try:
            while (change_or_end := await queue.get()) is not None:
                if event := _event(change_or_end, matches):
                    yield event
        finally:
            if watcher in self._watchers:
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
        obj = _given(obj)
        meta = obj["metadata"]
        if namespace and meta.setdefault("namespace", namespace) != namespace:
            raise BadRequest(f"namespace {meta['namespace']!r} of the object, {namespace!r} of the request")
        if "name" not in meta and "generateName" in meta:
            meta["name"] = f"{meta['generateName']}{next(self._names):05}"
        key = self._key(resource, obj)
        if key in self._objects.get(resource, {}):
            raise AlreadyExists(f'{resource} "{key.name}" already exists')
        meta.setdefault("creationTimestamp", rfc3339(self._clock.now()))
        return obj if dry_run else _copy(self.put(resource, obj))

    async def update(self, resource: Resource, obj: Obj, *, subresource: str | None = None) -> Obj:
        self._called("update", resource, obj["metadata"]["name"], obj["metadata"].get("namespace"), obj)
        known = self._stored(resource, obj["metadata"]["name"], obj["metadata"].get("namespace"))
        return self._write(resource, known, _given(obj), subresource)

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        namespace: str | None = None,
        *,
        kind: PatchKind = "merge",
        subresource: str | None = None,
        field_manager: str | None = None,  # noqa: ARG002
        force: bool = False,  # noqa: ARG002
    ) -> Obj:
        self._called("patch", resource, name, namespace, patch)
        known = self._stored(resource, name, namespace)
        builtin = _builtin(resource)
        if kind == "merge":
            obj = merge_patch(_copy(known), patch)
        elif kind == "json":
            obj = json_patch(_copy(known), patch)
        elif kind == "strategic" and builtin:
            obj = strategic_merge(_copy(known), patch, builtin.codec.patch_type)
        else:
            raise MethodNotAllowed(f"this fake has no {kind} patch of {resource}: use merge or json")
        return self._write(resource, known, _given(obj), subresource)

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
        known = self._stored(resource, name, namespace)
        if uid not in (None, known["metadata"]["uid"]):
            raise Conflict(f"{resource} {name!r} has uid {known['metadata']['uid']}, not {uid}")
        if not known["metadata"].get("finalizers"):
            self.remove(resource, name, namespace or "")
        elif "deletionTimestamp" not in known["metadata"]:
            now = rfc3339(self._clock.now())
            self.put(resource, {**known, "metadata": {**known["metadata"], "deletionTimestamp": now}})

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

    def _stored(self, resource: Resource, name: str, namespace: str | None) -> Obj:
        known = self._objects.get(resource, {}).get(Key(namespace or "", name))
        if known is None:
            raise NotFound(f'{resource} "{name}" not found')
        return known

    def _write(self, resource: Resource, known: Obj, obj: Obj, subresource: str | None) -> Obj:
        """Store a change of `known`: only the part of the subresource, and only if version and uid match."""
        before, meta = known["metadata"], obj["metadata"]
        if meta.setdefault("resourceVersion", before["resourceVersion"]) != before["resourceVersion"]:
            raise Conflict(f"{resource} {meta['name']!r} has been modified")
        if meta.setdefault("uid", before["uid"]) != before["uid"]:
            raise Invalid(f"metadata.uid: Invalid value: {meta['uid']!r}: the object has {before['uid']!r}")
        if subresource not in (None, "status"):
            raise MethodNotAllowed(f"this fake has no subresource {subresource}: use status")
        if subresource == "status":
            # labels and annotations of a pod may come with its status, as on a server
            obj = {
                **known,
                "metadata": obj["metadata"] if resource == PODS else before,
                "status": obj.get("status"),
            }
        elif _has_status(resource):
            obj.pop("status", None)
            if "status" in known:
                obj["status"] = known["status"]
        if "creationTimestamp" in before:
            obj["metadata"].setdefault("creationTimestamp", before["creationTimestamp"])
        obj = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
        if obj == known:
            return _copy(known)
        stored = self.put(resource, obj)
        was_held = bool(before.get("deletionTimestamp") and before.get("finalizers"))
        if was_held and not stored["metadata"].get("finalizers"):
            key = self._key(resource, stored)
            self.remove(resource, key.name, key.namespace)
        return _copy(stored)

    def _tell(self, change: _Change) -> None:
        self._history.append(change)
        for resource, queue in self._watchers:
            if resource == change.resource:
                queue.put_nowait(change)


@functools.cache
def _builtin_kinds() -> dict[Resource, Kind]:
    return {kind.resource: kind for kind in builtin_kinds()}


def _builtin(resource: Resource) -> Kind | None:
    return _builtin_kinds().get(resource)


def _has_status(resource: Resource) -> bool:
    """Whether the status has its own subresource; custom resources have it, except those of Argo."""
    if resource.group == "argoproj.io":
        return False
    builtin = _builtin(resource)
    return builtin is None or "status" in builtin.subresources


def _matcher(
    resource: Resource, namespace: str | None, labels: str | None, fields: str | None
) -> Callable[[Obj], bool]:
    """Return a test for the selectors.

    Raises BadRequest for an invalid selector, or for a field that servers do not index.
    """
    try:
        by_labels, by_fields = parse_label_selector(labels or ""), parse_field_selector(fields or "")
    except SelectorError as error:
        raise BadRequest(error.message) from error
    builtin = _builtin(resource)
    indexed = {"metadata.name", "metadata.namespace", *(builtin.rules.field_selectors if builtin else ())}
    for part in (fields or "").split(","):
        if (field := part.partition("=")[0].rstrip("!").strip()) and field not in indexed:
            raise BadRequest(f"field label not supported: {field}")

    def matches(obj: Obj) -> bool:
        is_there = not namespace or obj["metadata"].get("namespace") == namespace
        return is_there and by_labels.matches(labels_of(obj)) and by_fields(obj)

    return matches


def _event(change: _Change, matches: Callable[[Obj], bool]) -> WatchEvent | None:
    """The event for a watcher of `matches`, to which an object that stops matching is deleted."""
    was = change.before is not None and matches(change.before)
    now = change.after is not None and matches(change.after)
    if not was and not now:
        return None
    return WatchEvent(("MODIFIED" if was else "ADDED") if now else "DELETED", _copy(change.shown))


def _given(obj: Obj) -> Obj:
    """A copy of a caller's object. Raises TypeError for a value that is not JSON."""
    copied: Obj = json.loads(json.dumps(obj))
    return copied


def _copy(obj: Obj) -> Obj:
    """A copy of a stored object, in a tenth of the time."""
    copied: Obj = msgspec.json.decode(msgspec.json.encode(obj))
    return copied
