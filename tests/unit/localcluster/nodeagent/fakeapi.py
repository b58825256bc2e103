"""A small `Api` in memory (optionally on disk), with what a kubelet meets: graceful deletion, status, versions.

Loaded by path (tests are no packages). Run as a script it is a whole control plane with one node agent, to be
killed: `python fakeapi.py FOLDER`.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from moorage.apimachinery.api import ObjList, WatchEvent
from moorage.apimachinery.resources import PODS, Obj, Resource
from moorage.apimachinery.selectors import parse_field_selector
from moorage.clock import SYSTEM, rfc3339
from moorage.errors import AlreadyExists, Conflict, NotFound


def merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    out = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            out.pop(name, None)
        else:
            out[name] = merge(out.get(name), value)
    return out


class FakeApi:
    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._version = 0
        self._objects: dict[str, dict[str, Obj]] = {}
        self._watches: list[tuple[Resource, asyncio.Queue[WatchEvent]]] = []
        self.log: list[tuple[str, str, str]] = []  # verb, resource, name
        if path is not None and path.exists():
            found = json.loads(path.read_text())
            self._version, self._objects = found["version"], found["objects"]

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        return copy.deepcopy(self._find(resource, name, namespace))

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
        matches = parse_field_selector(field_selector or "")
        found = [copy.deepcopy(one) for one in self._objects.get(str(resource), {}).values() if matches(one)]
        return ObjList(found, str(self._version))

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> AsyncIterator[WatchEvent]:
        matches = parse_field_selector(field_selector or "")
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        entry = (resource, queue)
        for one in self._objects.get(str(resource), {}).values():
            if int(one["metadata"]["resourceVersion"]) > int(resource_version):
                queue.put_nowait(WatchEvent("MODIFIED", copy.deepcopy(one)))
        self._watches.append(entry)
        try:
            while True:
                event = await queue.get()
                if matches(event.object):
                    yield event
        finally:
            self._watches.remove(entry)

    async def create(
        self, resource: Resource, obj: Obj, namespace: str | None = None, *, dry_run: bool = False
    ) -> Obj:
        obj = copy.deepcopy(obj)
        meta = obj["metadata"]
        if resource.namespaced:
            meta["namespace"] = namespace or meta.get("namespace") or "default"
        if self._key(meta["name"], meta.get("namespace")) in self._objects.get(str(resource), {}):
            raise AlreadyExists(f"{resource} {meta['name']!r} already exists")
        obj |= {"apiVersion": resource.api_version, "kind": resource.kind}
        meta.setdefault("uid", str(uuid.uuid4()))
        meta["creationTimestamp"] = rfc3339(SYSTEM.now())
        if resource is PODS or resource == PODS:
            obj.setdefault("status", {"phase": "Pending"})
        return self._store("create", resource, obj)

    async def update(self, resource: Resource, obj: Obj, *, subresource: str | None = None) -> Obj:
        meta = obj["metadata"]
        old = self._find(resource, meta["name"], meta.get("namespace"))
        if meta.get("resourceVersion") not in (None, old["metadata"]["resourceVersion"]):
            raise Conflict(f"{resource} {meta['name']!r} changed")
        if meta.get("uid") not in (None, old["metadata"]["uid"]):
            raise Conflict(f"{resource} {meta['name']!r} is another one")
        new = copy.deepcopy(old)
        if subresource == "status":
            new["status"] = copy.deepcopy(obj["status"])
        else:
            new = copy.deepcopy(obj)
        return self._store(f"update {subresource or ''}".strip(), resource, new)

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
        assert kind == "merge"
        old = self._find(resource, name, namespace)
        return self._store("patch", resource, merge(old, copy.deepcopy(patch)))

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
        old = copy.deepcopy(self._find(resource, name, namespace))
        meta = old["metadata"]
        if uid is not None and meta["uid"] != uid:
            raise Conflict(f"{resource} {name!r} is another one")
        grace = grace_period_seconds
        if grace is None:
            grace = (old.get("spec") or {}).get("terminationGracePeriodSeconds", 30)
        if resource == PODS and grace > 0 and (old.get("spec") or {}).get("nodeName"):
            meta.setdefault("deletionTimestamp", rfc3339(SYSTEM.now()))
            meta["deletionGracePeriodSeconds"] = min(grace, meta.get("deletionGracePeriodSeconds", grace))
            self._store("delete", resource, old)
            return
        del self._objects[str(resource)][self._key(name, meta.get("namespace"))]
        self._tell("delete", "DELETED", resource, old)

    async def create_subresource(
        self, resource: Resource, name: str, subresource: str, body: Obj, namespace: str | None = None
    ) -> Obj:
        self.log.append((subresource, str(resource), name))
        return body | {"status": {"token": f"token-of-{name}-{len(self.log)}"}}

    def _find(self, resource: Resource, name: str, namespace: str | None) -> Obj:
        key = self._key(name, namespace if resource.namespaced else None)
        try:
            return self._objects[str(resource)][key]
        except KeyError:
            raise NotFound(f'{resource} "{name}" not found') from None

    def _key(self, name: str, namespace: str | None) -> str:
        return f"{namespace or ''}/{name}"

    def _store(self, verb: str, resource: Resource, obj: Obj) -> Obj:
        known = self._objects.setdefault(str(resource), {})
        key = self._key(obj["metadata"]["name"], obj["metadata"].get("namespace"))
        event = "MODIFIED" if key in known else "ADDED"
        known[key] = obj
        self._tell(verb, event, resource, obj)
        return copy.deepcopy(obj)

    def _tell(self, verb: str, event: str, resource: Resource, obj: Obj) -> None:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        self.log.append((verb, str(resource), obj["metadata"]["name"]))
        if self._path is not None:
            temporary = self._path.with_suffix(".new")
            temporary.write_text(json.dumps({"version": self._version, "objects": self._objects}))
            os.replace(temporary, self._path)
        for wanted, queue in self._watches:
            if wanted == resource:
                queue.put_nowait(WatchEvent(event, copy.deepcopy(obj)))


async def be_killed(folder: Path) -> None:
    """A control plane with its state in `folder`; new pods and deletions come as files in `folder/in`."""
    from moorage.localcluster.nodeagent.agent import NodeAgent, NodeSpec

    api = FakeApi(folder / "api.json")
    agent = NodeAgent(
        api,
        NodeSpec(name="n1", cpu_milli=64000, memory_bytes=1 << 36, gpus=8),
        folder / "pods",
        poll_seconds=0.1,
    )
    running = asyncio.create_task(agent.run())
    await agent.ready.wait()
    (folder / "ready").write_text(str(os.getpid()))
    inbox = folder / "in"
    while not running.done():
        for file in sorted(inbox.glob("*.json")):
            try:
                await api.create(PODS, json.loads(file.read_text()), "default")
            except AlreadyExists:
                pass
            file.unlink()
        await asyncio.sleep(0.02)
    running.result()


if __name__ == "__main__":
    asyncio.run(be_killed(Path(sys.argv[1])))
