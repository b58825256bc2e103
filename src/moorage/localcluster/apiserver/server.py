"""The whole API server: storage, kinds, pipeline, HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from moorage.apimachinery.api import PatchKind
from moorage.apimachinery.resources import NAMESPACES, Obj
from moorage.clock import SYSTEM, Clock
from moorage.errors import AlreadyExists, NotFound
from moorage.localcluster.apiserver.auth import AllowAuthenticated, Authorizer, Tokens, User
from moorage.localcluster.apiserver.builtin import builtin_kinds
from moorage.localcluster.apiserver.client import InProcessClient
from moorage.localcluster.apiserver.kinds import Kind, Kinds
from moorage.localcluster.apiserver.pipeline import Call, Pipeline
from moorage.localcluster.storage import Storage

LogSource = Callable[..., AsyncIterator[bytes]]

BOOT_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


class ApiServer:
    def __init__(
        self,
        storage: Storage,
        *,
        tokens: Mapping[str, Mapping[str, Any]] | None = None,
        signing_key: bytes = b"",
        authorizer: Authorizer | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.storage = storage
        self.clock = clock
        self.tokens = Tokens(tokens or {}, signing_key)
        self.kinds = Kinds()
        for kind in builtin_kinds():
            self.kinds.add(kind)
        self.pipeline = Pipeline(storage, self.kinds, authorizer=authorizer or AllowAuthenticated(), clock=clock)
        self.log_source: LogSource | None = None

    async def start(self) -> None:
        await self.storage.start()
        api = self.client("system:apiserver")
        for name in BOOT_NAMESPACES:
            try:
                await api.create(NAMESPACES, {"metadata": {"name": name}})
            except AlreadyExists:
                continue

    async def stop(self) -> None:
        await self.storage.stop()

    def client(self, user: str | User = "system:kube-controller-manager") -> InProcessClient:
        return InProcessClient(self, user)

    async def update(
        self, call: Call, kind: Kind, obj: Obj, name: str, namespace: str | None, subresource: str | None
    ) -> Obj:
        return await self.pipeline.update(call, kind, obj, name, namespace, subresource=subresource)

    async def patch(
        self,
        call: Call,
        kind: Kind,
        name: str,
        namespace: str | None,
        body: Any,
        *,
        patch_kind: PatchKind,
        subresource: str | None,
        force: bool,
    ) -> Obj:
        return await self.pipeline.patch(
            call, kind, name, namespace, body, patch_kind=patch_kind, subresource=subresource, force=force
        )

    async def create_subresource(
        self, call: Call, kind: Kind, name: str, namespace: str | None, subresource: str, body: Obj
    ) -> Obj:
        raise NotFound("the server could not find the requested resource")
