"""Intervals of pods and lives of nodes in SQL: `usage.db`, or PostgreSQL, where servers share them.

Every write is one transaction, and every row has the uid of its pod or node as its key: a process killed at any
moment leaves the history before or after a whole step, and a repeated step changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, assert_never

from moorage.decide.usage.devices import counts_text, read_counts
from moorage.decide.usage.intervals import Close, Interval, Open, Reopen, Step
from moorage.decide.usage.nodelives import NodeLife, NodeStep
from moorage.sql.database import Database, Row, Table
from moorage.sql.migrations import Schema
from moorage.sql.opening import LateDatabase, is_postgres
from moorage.sql.timestamps import from_microseconds, to_microseconds
from moorage.usage import nodetable

SCHEMA = Schema("moorage.usage", "usage.")
_TEXT, _NUMBER = "text", "bigint"
INTERVALS = Table(
    "intervals",
    (
        "pod_uid",
        "namespace",
        "pod",
        "run",
        "attempt",
        "owner",
        "node",
        "gpu_type",
        "gpus",
        "cpu_milli",
        "memory_bytes",
        "started_at",
        "ended_at",
        "last_seen_at",
        "devices",
        "work",
        "workflow",
        "gpu_counts",
        "storage_bytes",
        "reserved_for",
        "part_of",
    ),
    types=(*(_TEXT,) * 4, _NUMBER, *(_TEXT,) * 3, *(_NUMBER,) * 6, *(_TEXT,) * 4, _NUMBER, *(_TEXT,) * 2),
    keys=1,
)

_SELECT = f"SELECT {', '.join(INTERVALS.columns)} FROM intervals"
_INSERT = (
    f"INSERT INTO intervals ({', '.join(INTERVALS.columns)}) VALUES ({', '.join('?' * len(INTERVALS.columns))})"
    " ON CONFLICT (pod_uid) DO NOTHING"
)
_CLOSE = """
UPDATE intervals SET ended_at = CASE WHEN started_at > ? THEN started_at ELSE ? END,
    last_seen_at = CASE WHEN last_seen_at > ? THEN last_seen_at ELSE ? END
WHERE pod_uid = ? AND ended_at IS NULL
"""
_REOPEN = "UPDATE intervals SET ended_at = NULL WHERE pod_uid = ?"
_TOUCH = "UPDATE intervals SET last_seen_at = ? WHERE pod_uid = ? AND ended_at IS NULL AND last_seen_at < ?"
_FORGET = "DELETE FROM intervals WHERE ended_at < ?"
_OPEN = "WHERE ended_at IS NULL"
_COUNTED = "(gpus > 0 OR run <> '' OR workflow <> '')"  # `Interval.is_counted`
_ENDED = f"WHERE ended_at > ? AND {_COUNTED} ORDER BY ended_at DESC LIMIT ?"
_OVERLAPPING = "WHERE started_at < ? AND (ended_at IS NULL OR ended_at > ?)"


class UsageStore:
    """The tables of intervals and of nodes. Methods block for a disk write: call them off the event loop.

    Safe for threads. PostgreSQL is connected at the first use, so its outage does not stop a server. Opening
    a file raises StorageError if it is not a database or was written by a newer Moorage, StorageDamaged if
    acknowledged data is missing. Every method raises StorageError, and StorageFull if the disk is full.
    """

    def __init__(self, where: Path | str) -> None:
        self._lock = threading.Lock()
        self._database = LateDatabase(where, SCHEMA, name="the history of GPU use")
        if not is_postgres(where):
            self._database.use()

    @property
    def _db(self) -> Database:
        return self._database.use()

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def apply(self, steps: Iterable[Step], *, seen: Iterable[str] = (), now: datetime | None = None) -> None:
        """Execute all steps, and mark the open intervals of the pods `seen` as seen at `now`.

        On an error, nothing changes.
        """
        with self._lock, self._db.transaction():
            for step in steps:
                match step:
                    case Open(interval):
                        self._db.run(_INSERT, *_row(interval))
                    case Close(uid, ended_at):
                        at = to_microseconds(ended_at)
                        self._db.run(_CLOSE, at, at, at, at, uid)
                    case Reopen(uid):
                        self._db.run(_REOPEN, uid)
                    case _:
                        assert_never(step)
            if now is not None:
                at = to_microseconds(now)
                self._db.run_each(_TOUCH, ((at, uid, at) for uid in seen))

    def apply_nodes(self, steps: Iterable[NodeStep], *, seen: Iterable[str] = (), now: datetime) -> None:
        """Execute all steps, and mark the open lives of the nodes `seen` as seen at `now`.

        On an error, nothing changes.
        """
        with self._lock, self._db.transaction():
            for step in steps:
                nodetable.carry_out(self._db, step)
            at = to_microseconds(now)
            self._db.run_each(nodetable.TOUCH, ((at, uid, at) for uid in seen))

    def forget(self, older: datetime) -> int:
        """Delete intervals and lives of nodes that ended before a moment. Returns the number of intervals."""
        at = to_microseconds(older)
        with self._lock, self._db.transaction():
            self._db.run(nodetable.FORGET, at)
            return self._db.run(_FORGET, at)

    def open_lives(self) -> list[NodeLife]:
        """The lives of the nodes that exist."""
        return self._read_lives(nodetable.OPEN)

    def every_life(self) -> list[NodeLife]:
        return self._read_lives("ORDER BY started_at, node_uid")

    def lives_of(self, uids: Iterable[str]) -> list[NodeLife]:
        """All lives of these nodes."""
        return [life for uid in sorted(set(uids)) for life in self._read_lives(nodetable.OF_NODE, uid)]

    def lives(self, since: datetime, until: datetime) -> list[NodeLife]:
        """The lives of nodes that overlap [since, until), oldest first."""
        return self._read_lives(nodetable.OVERLAPPING, to_microseconds(until), to_microseconds(since))

    def nodes_recorded_since(self) -> datetime | None:
        """When the first node was recorded; the nodes before that time are unknown."""
        with self._lock:
            ((began,),) = self._db.rows(nodetable.BEGAN)
        return None if began is None else from_microseconds(began)

    def _read_lives(self, where: str, *values: Any) -> list[NodeLife]:
        with self._lock:
            rows = self._db.rows(f"{nodetable.SELECT} {where}", *values)
        return [nodetable.life_in(row) for row in rows]

    def everything(self) -> list[Interval]:
        """All intervals, oldest first."""
        return self._read("ORDER BY started_at, pod_uid")

    def open_intervals(self) -> list[Interval]:
        return self._read(_OPEN)

    def open_uids(self) -> set[str]:
        """The uids of the pods with an open interval."""
        with self._lock:
            return {uid for (uid,) in self._db.rows(f"SELECT pod_uid FROM intervals {_OPEN}")}

    def known(self, uids: Iterable[str]) -> list[Interval]:
        """The intervals of these pods; pods without one are left out."""
        with self._lock:
            return [_interval(row) for row in self._db.by_keys(INTERVALS, [(uid,) for uid in sorted(set(uids))])]

    def overlapping(self, since: datetime, until: datetime, *, every_pod: bool = False) -> list[Interval]:
        """The intervals that overlap [since, until). Only counted ones, unless `every_pod`."""
        where = _OVERLAPPING if every_pod else f"{_OVERLAPPING} AND {_COUNTED}"
        return self._read(where, to_microseconds(until), to_microseconds(since))

    def ended(self, since: datetime, *, limit: int) -> list[Interval]:
        """Counted intervals that ended after `since`, newest first, at most `limit`."""
        return self._read(_ENDED, to_microseconds(since), limit)

    def _read(self, where: str, *values: Any) -> list[Interval]:
        with self._lock:
            return [_interval(row) for row in self._db.rows(f"{_SELECT} {where}", *values)]


def _row(interval: Interval) -> Row:
    return (
        interval.pod_uid,
        interval.namespace,
        interval.pod,
        interval.run,
        interval.attempt,
        interval.owner,
        interval.node,
        interval.gpu_type,
        interval.gpus,
        interval.cpu_milli,
        interval.memory_bytes,
        to_microseconds(interval.started_at),
        None if interval.ended_at is None else to_microseconds(interval.ended_at),
        to_microseconds(interval.last_seen_at),
        ",".join(interval.devices),
        interval.work,
        interval.workflow,
        counts_text(interval.gpu_counts),
        interval.storage_bytes,
        interval.reserved_for,
        interval.part_of,
    )


def _interval(row: Row) -> Interval:
    fields: dict[str, Any] = dict(zip(INTERVALS.columns, row, strict=True))
    fields["started_at"] = from_microseconds(fields["started_at"])
    fields["ended_at"] = None if fields["ended_at"] is None else from_microseconds(fields["ended_at"])
    fields["last_seen_at"] = from_microseconds(fields["last_seen_at"])
    fields["devices"] = tuple(fields["devices"].split(",")) if fields["devices"] else ()
    fields["gpu_counts"] = read_counts(fields["gpu_counts"])[0]
    return Interval(**fields)
