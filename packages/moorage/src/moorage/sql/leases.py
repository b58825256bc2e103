"""The leader of each task among several servers on one database: a row for each task, renewed by its holder.

Wall clocks are not compared. A server takes a task over once it has itself watched the row unchanged for
LEASE_SECONDS. A holder stops its work RENEW_DEADLINE_SECONDS after it *sent* the last renewal that succeeded.
Writes that two servers must never both make name their term: `check` refuses a term that is over, in the same
transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from msgspec import Struct

from moorage.sql.database import Database
from moorage.sql.migrations import Schema
from moorage.sql.thread import StoreThread
from moorage_kube.clock import Clock
from moorage_kube.errors import StorageError
from moorage_kube.tasks import end_task

log = logging.getLogger(__name__)

SCHEMA = Schema("moorage.sql", "leases.", folder="schemas/leases")
LEASE_SECONDS = 5.0  # five missed renewals: a server that died is replaced after this and RETRY_SECONDS
RENEW_DEADLINE_SECONDS = 3.5  # LEASE_SECONDS by a clock that runs 1.4 times as fast
RETRY_SECONDS = 1.0
WATCHED = timedelta(minutes=2)  # how long a server stores changes while another one records
DIRTY_MOST = 10_000  # changes that such a server remembers


class Lease(Struct, frozen=True):
    """A row of the table. `term` grows with each new holder, `beat` with each write."""

    name: str
    holder: str
    term: int
    beat: int


class Seen(Struct, frozen=True):
    """A row as last read (None: it does not exist), and since when it is unchanged, by our monotonic clock."""

    lease: Lease | None
    since: float


def observe(before: Seen | None, lease: Lease | None, *, now: float) -> Seen:
    """The effect of a reading: an unchanged row keeps the time of its first reading."""
    return before if before is not None and before.lease == lease else Seen(lease, now)


def may_take(me: str, seen: Seen, *, now: float) -> bool:
    """Whether `me` may write its name, if the row is still unchanged. `now`: our monotonic clock."""
    if seen.lease is None or seen.lease.holder in ("", me):
        return True
    return now - seen.since >= LEASE_SECONDS


class LeaseTable:
    """The table of leases. Use it from one thread at a time. Every method raises StorageError."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def close(self) -> None:
        self._db.close()

    def read(self, name: str) -> Lease | None:
        rows = self._db.rows("SELECT name, holder, term, beat FROM server_leases WHERE name = ?", name)
        return Lease(*rows[0]) if rows else None

    def take(self, name: str, holder: str, before: Lease | None) -> Lease | None:
        """Write a new holder if the row is still `before`. None if another process was faster."""
        if before is None:
            statement = (
                "INSERT INTO server_leases (name, holder, term, beat) VALUES (?, ?, 1, 1) ON CONFLICT DO NOTHING"
            )
            return Lease(name, holder, 1, 1) if self._db.run(statement, name, holder) else None
        statement = (
            "UPDATE server_leases SET holder = ?, term = term + 1, beat = beat + 1"
            " WHERE name = ? AND term = ? AND beat = ?"
        )
        taken = self._db.run(statement, holder, name, before.term, before.beat)
        return Lease(name, holder, before.term + 1, before.beat + 1) if taken else None

    def renew(self, lease: Lease) -> bool:
        """Renew the lease. Returns whether it is still ours; others then wait for LEASE_SECONDS more."""
        statement = "UPDATE server_leases SET beat = beat + 1 WHERE name = ? AND term = ? AND holder = ?"
        return self._db.run(statement, lease.name, lease.term, lease.holder) > 0

    def release(self, name: str, holder: str) -> None:
        """Release it, unless another server holds it now."""
        statement = "UPDATE server_leases SET holder = '', beat = beat + 1 WHERE name = ? AND holder = ?"
        self._db.run(statement, name, holder)


def check(database: Database, name: str, term: int) -> None:
    """Check inside a transaction that the term is current, and lock it until the end.

    Raises StorageError if it is not.
    """
    lock = database.locking(" FOR SHARE")
    rows = database.rows(f"SELECT term FROM server_leases WHERE name = ?{lock}", name)
    if not rows or rows[0][0] != term:
        raise StorageError(f"another server has taken over {name!r}: this one no longer writes")


def leave_to_another(deleted: dict[str, tuple[Any, datetime]], dirty: set[Any], *, now: datetime) -> None:
    """Forget deletions that the leading server has seen long ago. A new leader reads everything first.

    `deleted`: deleted objects, and the times, the oldest first; `dirty`: changed ones.
    """
    while deleted and now - deleted[oldest := next(iter(deleted))][1] > WATCHED:
        del deleted[oldest]
    if len(dirty) > DIRTY_MOST:
        dirty.clear()


class Leader:
    """Campaigns for one task. `holder` differs between processes, also over restarts.

    `table` None: the database is not shared, and the task is always ours.
    """

    def __init__(self, table: StoreThread[LeaseTable] | None, name: str, *, holder: str, clock: Clock) -> None:
        self._table, self._name, self._holder, self._clock = table, name, holder, clock
        self._seen: Seen | None = None
        self.leading = False
        self.term: int | None = None  # for `check`; None: not leading, or the database is not shared

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `lead` whenever, and as long as, the task is ours; until cancelled, or `lead` returns or raises.

        `lead` is cancelled when the database cannot be reached in time, and starts again when the task is
        ours again.
        """
        if self._table is None:
            self.leading = True
            await lead()
            return
        while True:
            try:
                lease, sent = await self._acquire(self._table)
                if await self._lead(self._table, lead, lease, sent):
                    return
            finally:  # a cancelled caller may have the lease without knowing it
                with contextlib.suppress(StorageError):
                    await self._table.do(partial(LeaseTable.release, name=self._name, holder=self._holder))

    async def _lead(
        self,
        table: StoreThread[LeaseTable],
        lead: Callable[[], Coroutine[Any, Any, None]],
        lease: Lease,
        sent: float,
    ) -> bool:
        """Run `lead` while we hold the task. True if `lead` has returned, False if the task is no longer ours."""
        log.info("leading", extra={"task": self._name, "term": lease.term})
        self.leading, self.term = True, lease.term
        work = asyncio.create_task(lead())
        renewing = asyncio.create_task(self._renew_until_late(table, lease, sent))
        try:
            await asyncio.wait({work, renewing}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
                return True
            log.warning("no longer leading", extra={"task": self._name, "term": lease.term})
            return False
        finally:
            await end_task(work, StorageError)  # it is renewed until the last line is written
            await end_task(renewing, StorageError)
            self.leading, self.term = False, None

    async def _acquire(self, table: StoreThread[LeaseTable]) -> tuple[Lease, float]:
        """Wait until the task is ours. Returns the row, and when the successful write was sent."""
        failing = False
        while True:
            try:
                row = await table.do(lambda table: table.read(self._name))
                now = self._clock.monotonic()
                self._seen = observe(self._seen, row, now=now)
                if may_take(self._holder, self._seen, now=now):
                    lease = await table.do(
                        partial(LeaseTable.take, name=self._name, holder=self._holder, before=row)
                    )
                    if lease is not None and self._clock.monotonic() - now < RENEW_DEADLINE_SECONDS:
                        return lease, now
                failing = False
            except StorageError as error:
                if not failing:
                    log.warning("cannot campaign", extra={"task": self._name, "error": error.message})
                failing = True
            await self._clock.sleep(RETRY_SECONDS)

    async def _renew_until_late(self, table: StoreThread[LeaseTable], lease: Lease, sent: float) -> None:
        """Renew every RETRY_SECONDS. Returns as soon as the task may no longer be ours."""
        while True:
            left = sent + RENEW_DEADLINE_SECONDS - self._clock.monotonic()
            if left <= 0:
                return
            await self._clock.sleep(min(RETRY_SECONDS, left))
            started = self._clock.monotonic()
            renewing = asyncio.ensure_future(table.do(lambda table: table.renew(lease)))
            timer = asyncio.ensure_future(self._clock.sleep(max(0.0, sent + RENEW_DEADLINE_SECONDS - started)))
            try:
                await asyncio.wait({renewing, timer}, return_when=asyncio.FIRST_COMPLETED)
                if not renewing.done() or not renewing.result():
                    return
                sent = started
            except StorageError as error:
                log.warning("cannot renew", extra={"task": self._name, "error": error.message})
            finally:
                renewing.cancel()
                timer.cancel()
