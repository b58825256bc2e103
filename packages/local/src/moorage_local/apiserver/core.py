"""The parts that one API server shares: the store, the kinds, the pipeline and the authentication."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from moorage_kube.clock import Clock
from moorage_kube.errors import NotFound
from moorage_kube.resources import Obj, Resource
from moorage_local.apiserver.auth.rbac import RbacAuthorizer
from moorage_local.apiserver.auth.users import Tokens
from moorage_local.apiserver.kinds.builtin import builtin_kinds
from moorage_local.apiserver.kinds.kind import Kind, Kinds
from moorage_local.apiserver.pipeline.pipeline import Pipeline
from moorage_local.apiserver.shares import Shares
from moorage_local.storage import Storage

LogSource = Callable[..., AsyncIterator[bytes]]
"""Called as source(pod, container, follow=, tail_lines=, since_seconds=, timestamps=, previous=, limit_bytes=).

Numbers may be None. It yields bytes, and may raise ApiError before the first.
"""

StatsSource = Callable[[str], Awaitable[Obj]]
"""The statistics of the volumes of a node's pods, by the name of the node."""


class Running(Protocol):
    """A running command in a container (the node agent's `Command`)."""

    def output(self) -> AsyncGenerator[tuple[int, bytes], None]: ...
    async def write(self, data: bytes) -> None: ...
    async def close_input(self) -> None: ...
    def resize(self, width: int, height: int) -> None: ...
    async def exit_code(self) -> int: ...
    async def close(self) -> None: ...


class ExecSource(Protocol):
    """Starts a command in a container of a pod. Raises ApiError, OSError."""

    async def __call__(
        self, pod: Obj, container: str, command: Sequence[str], *, stdin: bool, tty: bool
    ) -> Running: ...


class PortSource(Protocol):
    """Connects to a port of a pod. Raises ApiError, OSError."""

    async def __call__(self, pod: Obj, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]: ...


class Core:
    """The shared parts of one API server.

    `log_source`, `stats_source`, `exec_source` and `port_source` are set by the code that runs the node agents;
    they stay None without node agents.
    """

    def __init__(self, storage: Storage, tokens: Tokens, clock: Clock) -> None:
        self.storage = storage
        self.tokens = tokens
        self.clock = clock
        self.kinds = Kinds()
        for kind in builtin_kinds():
            self.kinds.add(kind)
        self.shares = Shares()
        self.authorizer = RbacAuthorizer()
        self.pipeline = Pipeline(storage, self.kinds, authorizer=self.authorizer, clock=clock)
        self.log_source: LogSource | None = None
        self.stats_source: StatsSource | None = None
        self.exec_source: ExecSource | None = None
        self.copy_source: Callable[[], Awaitable[str]] | None = None  # makes a copy of the data folder; its name
        self.port_source: PortSource | None = None

    def kind_of(self, resource: Resource) -> Kind:
        """Return the kind of a resource. Raises NotFound if the server does not serve it."""
        kind = self.kinds.of(resource)
        if kind is None:
            raise NotFound("the server could not find the requested resource", details={"kind": resource.plural})
        return kind

    def exists(self, kind: Kind, name: str, namespace: str | None) -> bool:
        return self.storage.get(kind.key(name, namespace)) is not None
