"""The clients that follow the output of a pod now, at any server on the people's database."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import msgspec

from moorage.server.identity.sessions import Sessions
from moorage.server.identity.shared import Key, Kind, Value
from moorage_kube.clock import Clock
from moorage_kube.errors import StorageError

log = logging.getLogger(__name__)

FOLLOWED = Kind("followed pod", 10_000)
KEPT = timedelta(days=7)  # a server that died follows no longer; until then a removal waits its ten seconds


class Followers:
    """The number of followers of a pod's output at this server, by the pod's uid; and the servers that have
    some.
    """

    def __init__(self, sessions: Sessions, *, clock: Clock) -> None:
        self._sessions, self._clock = sessions, clock
        self._name = secrets.token_hex(8)  # of this server
        self._counts: dict[str, int] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    async def has(self, uid: str) -> bool:
        """Whether a client follows a pod; only clients of this server count while the database is down."""
        if uid in self._counts:
            return True
        now = self._clock.now()
        try:
            return await self._sessions.do(lambda store: store.shared.get(_key(uid), now)) is not None
        except StorageError:
            return False

    @asynccontextmanager
    async def following(self, uid: str) -> AsyncIterator[None]:
        self._counts[uid] = self._counts.get(uid, 0) + 1
        try:
            if self._counts[uid] == 1:
                await self._write(uid, lambda servers: servers | {self._name})
            yield
        finally:
            self._counts[uid] -= 1
            if not self._counts[uid]:
                del self._counts[uid]
                leaving = asyncio.create_task(self._write(uid, lambda servers: servers - {self._name}))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)
                await asyncio.shield(leaving)  # it is written also where the request is cancelled

    async def _write(self, uid: str, change: Callable[[frozenset[str]], frozenset[str]]) -> None:
        now = self._clock.now()

        def work(bodies: list[bytes | None]) -> tuple[list[Value | None], None]:
            servers = change(frozenset(msgspec.json.decode(bodies[0], type=list[str]) if bodies[0] else ()))
            return [Value(msgspec.json.encode(sorted(servers)), now + KEPT) if servers else None], None

        try:
            await self._sessions.do(lambda store: store.shared.change([_key(uid)], work, now))
        except (StorageError, RuntimeError) as error:  # RuntimeError: this server stops
            log.warning(
                "followers of a pod are not shared with other servers", extra={"uid": uid, "error": str(error)}
            )


def _key(uid: str) -> Key:
    return Key(FOLLOWED, uid)
