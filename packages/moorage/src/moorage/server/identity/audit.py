"""Who did what, when, from where, and how it ended: a line in the log at once, and a row for a while.

The gate notes every request that is no mere look, whatever route answers it; no route can forget.

Strangers may be refused as often as they like, and each row is disk that is kept for months: of their requests
STRANGERS become rows, the log has all of them, and a row each hour tells how many are in the log alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import datetime, timedelta

from moorage.decide.rates import Bucket, Rate, take
from moorage.server.identity.sessions import AuditEntry, SessionDesk
from moorage_kube.clock import SYSTEM, Clock, rfc3339
from moorage_kube.errors import StorageError

log = logging.getLogger("moorage.audit")

WRITE_SECONDS = 1.0
WAITING_MAX = 10_000  # rows that wait for a database that is away; the log has them all
FORGET_SECONDS = 3600.0
PATH_MAX = 300
STRANGERS = Rate(per_second=0.1, burst=1000)  # rows; in 90 days 780,000 at most, some 150 bytes each


class AuditLog:
    """`run` writes what was noted; what is left when it is cancelled is written then."""

    def __init__(self, desk: SessionDesk, *, days: int, clock: Clock = SYSTEM) -> None:
        self._desk, self._days, self._clock = desk, days, clock
        self._waiting: deque[AuditEntry] = deque(maxlen=WAITING_MAX)
        self._strangers: Bucket | None = None
        self._left_out = 0  # requests of strangers that are in the log alone
        self._programs_left_out = 0  # changes by programs likewise

    def note(
        self,
        *,
        person: str,
        method: str,
        path: str,
        what: str,
        address: str,
        status: int,
        is_stranger: bool = False,
        client: str = "",
        at: datetime | None = None,
        only_log: bool = False,
    ) -> None:
        """`is_stranger`: it was refused, and nobody knows whose it was, whatever name it gave.

        `at`: when it was, if not now. `only_log`: it becomes no row; how many there are is told each hour.
        """
        entry = AuditEntry(
            at=at or self._clock.now(),
            person=person[:253],
            method=method,
            path=path[:PATH_MAX],
            what=what[:PATH_MAX],
            address=address[:64],
            status=status,
            client=client[:64],
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
                "client": entry.client,
            },
        )
        if only_log:
            self._programs_left_out += 1
            return
        if is_stranger:
            self._strangers, wait = take(self._strangers, STRANGERS, self._clock.monotonic())
            if wait:
                self._left_out += 1
                return
        self._waiting.append(entry)

    async def run(self) -> None:
        forgotten = -FORGET_SECONDS
        try:
            while True:
                await self._clock.sleep(WRITE_SECONDS)
                await asyncio.shield(self.flush())  # what waits for the store is not lost at the end
                if self._clock.monotonic() - forgotten >= FORGET_SECONDS:
                    forgotten = self._clock.monotonic()
                    self.sum_up()
                    await self._forget()
        finally:
            await asyncio.shield(self.flush())

    def sum_up(self) -> None:
        """Note how many requests are in the log alone since the last time, if there are any."""
        count, self._left_out = self._left_out, 0
        if count:
            what = f"{count} more requests of strangers were refused; the server's log has them"
            self.note(person="", method="", path="", what=what, address="", status=0)
        count, self._programs_left_out = self._programs_left_out, 0
        if count:
            what = f"{count} more changes by programs were made; the server's log has them"
            self.note(person="", method="", path="", what=what, address="", status=0)

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
