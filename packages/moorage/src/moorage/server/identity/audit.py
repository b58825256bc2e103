"""The audit log: each action with its user, time, address and outcome, in the log and as a row of a
table.

The gate notes every request that is not read-only, whichever route answers it, so a route cannot
forget.

Strangers may be refused any number of times, and each row takes disk space for months. So at most
STRANGERS of their requests become rows, and the log has all of them. A row each hour counts those
that are only in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import datetime, timedelta

from moorage.decide.rates import Bucket, Rate, take
from moorage.server.identity.sessions import AuditEntry, Sessions
from moorage_kube.clock import SYSTEM, Clock, rfc3339
from moorage_kube.errors import StorageError

log = logging.getLogger("moorage.audit")

WRITE_SECONDS = 1.0
WAITING_MAX = 10_000  # rows that wait for a database that is away; the log has them all
FORGET_SECONDS = 3600.0
PATH_MAX = 300
STRANGERS = Rate(per_second=0.1, burst=1000)  # rows; in 90 days 780,000 at most, some 150 bytes each


class AuditLog:
    """Collects entries; `run` writes them, and writes the rest when it is cancelled."""

    def __init__(self, sessions: Sessions, *, days: int, clock: Clock = SYSTEM) -> None:
        self._sessions, self._days, self._clock = sessions, days, clock
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
        """Add an entry. `is_stranger`: a refused request of an unknown user; the name in it is not verified.

        `at`: the time of the action, if not now. `only_log`: adds no row; an hourly row counts such entries.
        """
        # clients choose these texts: their length is bounded
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
        # the log has every entry
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
        # rows are for changes by people; those of programs and excess ones of strangers are only counted
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
                await asyncio.shield(self.flush())  # entries that wait for the store are not lost at the end
                if self._clock.monotonic() - forgotten >= FORGET_SECONDS:
                    forgotten = self._clock.monotonic()
                    self.sum_up()
                    await self._forget()
        finally:
            await asyncio.shield(self.flush())

    def sum_up(self) -> None:
        """Note the number of requests that since the last call were only written to the server's log, if any."""
        count, self._left_out = self._left_out, 0
        if count:
            what = f"{count} more requests of strangers were refused; the server's log has them"
            self.note(person="", method="", path="", what=what, address="", status=0)
        count, self._programs_left_out = self._programs_left_out, 0
        if count:
            what = f"{count} more changes by programs were made; the server's log has them"
            self.note(person="", method="", path="", what=what, address="", status=0)

    async def flush(self) -> None:
        """Write the waiting entries; they stay in the queue if the write fails."""
        entries = list(self._waiting)
        if not entries:
            return
        self._waiting.clear()
        try:
            await self._sessions.do(lambda store: store.note(entries))
        except StorageError as error:
            self._waiting.extendleft(reversed(entries))
            log.warning("audit rows wait to be written", extra={"rows": len(entries), "error": error.message})

    async def _forget(self) -> None:
        older = self._clock.now() - timedelta(days=self._days)
        try:
            await self._sessions.do(lambda store: store.forget_audit(older))
        except StorageError as error:
            log.warning("old audit rows stay for now", extra={"error": error.message})
