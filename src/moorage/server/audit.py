"""Who did what, when, from where, and how it ended: a line in the log at once, and a row for a while.

The gate notes every request that is no mere look, whatever route answers it; no route can forget.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import timedelta

from moorage.clock import SYSTEM, Clock, rfc3339
from moorage.errors import StorageError
from moorage.server.sessions import AuditEntry, SessionDesk

log = logging.getLogger("moorage.audit")

WRITE_SECONDS = 1.0
WAITING_MAX = 10_000  # rows that wait for a database that is away; the log has them all
FORGET_SECONDS = 3600.0
PATH_MAX = 300


class AuditLog:
    """`run` writes what was noted; what is left when it is cancelled is written then."""

    def __init__(self, desk: SessionDesk, *, days: int, clock: Clock = SYSTEM) -> None:
        self._desk, self._days, self._clock = desk, days, clock
        self._waiting: deque[AuditEntry] = deque(maxlen=WAITING_MAX)

    def note(self, *, person: str, method: str, path: str, what: str, address: str, status: int) -> None:
        entry = AuditEntry(
            at=self._clock.now(),
            person=person[:253],
            method=method,
            path=path[:PATH_MAX],
            what=what[:PATH_MAX],
            address=address[:64],
            status=status,
        )
        log.info(
            "audit",
            extra={
                "at": rfc3339(entry.at),
                "person": entry.person,
                "method": entry.method,
                "path": entry.path,
                "what": entry.what,
                "address": entry.address,
                "status": entry.status,
            },
        )
        self._waiting.append(entry)

    async def run(self) -> None:
        forgotten = -FORGET_SECONDS
        try:
            while True:
                await self._clock.sleep(WRITE_SECONDS)
                await self.flush()
                if self._clock.monotonic() - forgotten >= FORGET_SECONDS:
                    forgotten = self._clock.monotonic()
                    await self._forget()
        finally:
            await asyncio.shield(self.flush())

    async def flush(self) -> None:
        """Write what waits; it waits on where it cannot be written."""
        entries = list(self._waiting)
        if not entries:
            return
        self._waiting.clear()
        try:
            await self._desk.do(lambda store: store.note(entries))
        except StorageError as error:
            self._waiting.extendleft(reversed(entries))
            log.warning("audit rows wait to be written", extra={"rows": len(entries), "error": error.message})

    async def _forget(self) -> None:
        older = self._clock.now() - timedelta(days=self._days)
        try:
            await self._desk.do(lambda store: store.forget_audit(older))
        except StorageError as error:
            log.warning("old audit rows stay for now", extra={"error": error.message})
