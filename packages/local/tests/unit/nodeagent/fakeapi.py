"""`FakeApi` with what a kubelet meets: graceful deletion, tokens, and a store on disk that survives a kill.

Loaded by path (tests are no packages). Run as a script it is a whole control plane with one node agent, to be
killed: `python fakeapi.py FOLDER`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

from moorage_kube.clock import SYSTEM, rfc3339
from moorage_kube.errors import AlreadyExists, Conflict
from moorage_kube.resources import PODS, Obj, Resource
from moorage_local.testing.fakeapi import FakeApi


class NodeApi(FakeApi):
    """`log` has what was written: verb, resource and name. With a `path`, objects are kept in that file."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()
        self._path: Path | None = None
        self.log: list[tuple[str, str, str]] = []
        if path is not None and path.exists():
            for resource, obj in json.loads(path.read_text())["stored"]:
                self.put(Resource(**resource), obj)
        self._path = path

    def put(self, resource: Resource, obj: Obj) -> Obj:
        stored = super().put(resource, obj)
        self._save()
        return stored

    def remove(self, resource: Resource, name: str, namespace: str = "") -> None:
        super().remove(resource, name, namespace)
        self._save()

    def _save(self) -> None:
        if self._path is None:
            return
        fields = ("group", "version", "plural", "kind", "namespaced")
        kept = [
            ({field: getattr(resource, field) for field in fields}, obj)
            for resource, objects in self._objects.items()
            for obj in objects.values()
        ]
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps({"stored": kept}))
        os.replace(temporary, self._path)

    async def create(
        self, resource: Resource, obj: Obj, namespace: str | None = None, *, dry_run: bool = False
    ) -> Obj:
        more = {"status": {"phase": "Pending"}} if resource == PODS else {}
        obj = more | obj | {"metadata": {"uid": str(uuid.uuid4())} | obj["metadata"]}
        made = await super().create(resource, obj, namespace, dry_run=dry_run)
        self.log.append(("create", str(resource), made["metadata"]["name"]))
        return made

    async def update(self, resource: Resource, obj: Obj, *, subresource: str | None = None) -> Obj:
        written = await super().update(resource, obj, subresource=subresource)
        self.log.append((f"update {subresource or ''}".strip(), str(resource), obj["metadata"]["name"]))
        return written

    async def patch(self, resource: Resource, name: str, *arguments: Any, **options: Any) -> Obj:
        written = await super().patch(resource, name, *arguments, **options)
        self.log.append(("patch", str(resource), name))
        return written

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        grace_period_seconds: int | None = None,
        uid: str | None = None,
        **options: Any,
    ) -> None:
        stored = await self.get(resource, name, namespace)
        meta, spec = stored["metadata"], stored.get("spec") or {}
        if uid not in (None, meta["uid"]):
            raise Conflict(f"{resource} {name!r} has uid {meta['uid']}, not {uid}")
        grace = grace_period_seconds
        if grace is None:
            grace = spec.get("terminationGracePeriodSeconds", 30)
        if resource == PODS and grace > 0 and spec.get("nodeName"):
            meta.setdefault("deletionTimestamp", rfc3339(SYSTEM.now()))
            meta["deletionGracePeriodSeconds"] = min(grace, meta.get("deletionGracePeriodSeconds", grace))
            self.put(resource, stored)
        else:
            await super().delete(resource, name, namespace, **options)
        self.log.append(("delete", str(resource), name))

    async def create_subresource(
        self, resource: Resource, name: str, subresource: str, body: Obj, namespace: str | None = None
    ) -> Obj:
        if subresource != "token":
            return await super().create_subresource(resource, name, subresource, body, namespace)
        self.log.append((subresource, str(resource), name))
        return body | {"status": {"token": f"token-of-{name}-{len(self.log)}"}}


async def be_killed(folder: Path) -> None:
    """A control plane with its state in `folder`; new pods come as files in `folder/in`."""
    from moorage_local.nodeagent.agent import NodeAgent, NodeSpec

    api = NodeApi(folder / "api.json")
    agent = NodeAgent(
        api,
        NodeSpec(name="n1", cpu_milli=64000, memory_bytes=1 << 36, gpus=8),
        folder / "pods",
        poll_seconds=0.1,
    )
    running = asyncio.create_task(agent.run())
    await agent.ready.wait()
    (folder / "ready").write_text(str(os.getpid()))
    for file in sorted((folder / "in").glob("*.json")):
        try:
            await api.create(PODS, json.loads(file.read_text()), "default")
        except AlreadyExists:
            pass
        file.unlink()
    await running


if __name__ == "__main__":
    asyncio.run(be_killed(Path(sys.argv[1])))
