"""The API client of the local cluster's components: it uses the same pipeline, without HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec

from moorage_kube.api import ObjList, PatchKind, WatchEvent
from moorage_kube.resources import Obj, Resource
from moorage_local.apiserver.auth.users import User, service_user
from moorage_local.apiserver.operations import Operations
from moorage_local.apiserver.pipeline.bodies import meta_of
from moorage_local.apiserver.pipeline.calls import Call, DeleteOptions, ListOptions


class InProcessClient:
    """Implements `moorage_kube.api.Api` on a server of the same event loop.

    Objects of `list` and `watch` are the server's own copies, shared by all clients: never change one.
    """

    def __init__(self, server: Operations, user: str | User = "system:masters-client") -> None:
        """`user`: a name, which has all rights, or a `User` with the rights that the server grants it."""
        self._server = server
        self._user = service_user(user) if isinstance(user, str) else user

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        return await self._server.pipeline.get(self._call(), self._server.kind_of(resource), name, namespace)

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
        listed = await self._server.pipeline.list(
            self._call(),
            self._server.kind_of(resource),
            namespace,
            ListOptions(label_selector=label_selector, field_selector=field_selector, limit=limit, cont=cont),
        )
        return ObjList(listed.items, listed.resource_version, listed.cont)

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> AsyncIterator[WatchEvent]:
        batches = self._server.pipeline.watch(
            self._call(),
            self._server.kind_of(resource),
            namespace,
            resource_version=resource_version,
            label_selector=label_selector,
            field_selector=field_selector,
            bookmarks=True,
        )
        try:
            async for batch in batches:
                for event in batch:
                    yield WatchEvent(event.type, event.obj)
        finally:
            await batches.aclose()

    async def create(
        self, resource: Resource, obj: Obj, namespace: str | None = None, *, dry_run: bool = False
    ) -> Obj:
        namespace = namespace or meta_of(obj).get("namespace")
        return await self._server.create(
            self._call(dry_run=dry_run), self._server.kind_of(resource), _copy(obj), namespace
        )

    async def update(self, resource: Resource, obj: Obj, *, subresource: str | None = None) -> Obj:
        meta = obj["metadata"]
        return await self._server.update(
            self._call(),
            self._server.kind_of(resource),
            _copy(obj),
            meta["name"],
            meta.get("namespace"),
            subresource,
        )

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        namespace: str | None = None,
        *,
        kind: PatchKind = "merge",
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,  # noqa: ARG002  there are no conflicts yet, see `Pipeline.patch`
    ) -> Obj:
        return await self._server.patch(
            self._call(field_manager=field_manager or ""),
            self._server.kind_of(resource),
            name,
            namespace,
            _copy(patch),
            patch_kind=kind,
            subresource=subresource,
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        grace_period_seconds: int | None = None,
        uid: str | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] | None = None,
    ) -> None:
        await self._server.pipeline.delete(
            self._call(),
            self._server.kind_of(resource),
            name,
            namespace,
            DeleteOptions(grace_period_seconds=grace_period_seconds, uid=uid, propagation=propagation),
        )

    async def create_subresource(
        self, resource: Resource, name: str, subresource: str, body: Obj, namespace: str | None = None
    ) -> Obj:
        return await self._server.create_subresource(
            self._call(), self._server.kind_of(resource), name, namespace, subresource, _copy(body)
        )

    def _call(self, *, dry_run: bool = False, field_manager: str = "") -> Call:
        return Call(user=self._user, dry_run=dry_run, field_manager=field_manager)


def _copy(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))
