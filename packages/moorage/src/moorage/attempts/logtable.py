"""The ends of pods' logs in PostgreSQL, where every server on it reads them; see `attempts.logs` for the files.

A log is a few rows of whole lines. The newest grows until it has JOIN_BYTES, then the next begins. A quarter
of the size limit is packed into one row; beyond four of those the oldest is deleted. So a log takes a bounded
number of rows, each of bounded size. Lines of an erased pod are dropped. A server with an expired term is
refused.

The column `pod_uid` has the key of a log, as `attempts.logs.log_key` makes it.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable

from moorage.attempts.logs import FULL_SEGMENTS, SEGMENT_MIN, LogEnd, LogSize, end_of, pod_of
from moorage.sql.database import Database
from moorage.sql.leases import check
from moorage.sql.migrations import Schema
from moorage.sql.opening import LateDatabase
from moorage.sql.timestamps import to_microseconds
from moorage_kube.clock import SYSTEM, Clock

SCHEMA = Schema("moorage.attempts", "logs.", folder="migrations/logs")
JOIN_BYTES = 16 * 1024  # a row that has less is added to: that rewrites it
_KEPT = "SELECT 1 FROM attempt_pods WHERE pod_uid = ?"
_TOUCH = """
INSERT INTO kept_logs (pod_uid, bytes, changed_at) VALUES (?, 0, ?)
ON CONFLICT (pod_uid) DO UPDATE SET changed_at = excluded.changed_at
"""
_FINISH = """
INSERT INTO kept_logs (pod_uid, bytes, finished, changed_at) VALUES (?, 0, 1, ?)
ON CONFLICT (pod_uid) DO UPDATE SET finished = 1
"""


class LogTable:
    """As `LogFolder`, in the database of the table of attempts, which is made first.

    Connects when it is first used.

    `term`: (task, term) under which this server writes; None: it is the only writer.
    """

    def __init__(
        self,
        url: str,
        *,
        keep_bytes: int,
        term: Callable[[], tuple[str, int] | None] = lambda: None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.keep_bytes = keep_bytes
        self._term, self._clock = term, clock
        self._segment_bytes = max(SEGMENT_MIN, keep_bytes // FULL_SEGMENTS)
        self._lock = threading.Lock()
        self._database = LateDatabase(url, SCHEMA, name="the table of stored logs")

    @property
    def _db(self) -> Database:
        return self._database.use()

    def append(self, key: str, data: bytes) -> None:
        with self._lock, self._db.transaction():
            if not self._may_write(key):
                return
            self._db.run(_TOUCH, key, self._now())
            self._add(key, data)
            rows = self._db.rows("SELECT number, bytes FROM kept_log_parts WHERE pod_uid = ? AND packed = 0", key)
            if sum(size for _, size in rows) >= self._segment_bytes:
                self._pack(key, min(number for number, _ in rows))
                self._drop_oldest(key)
            self._db.run(
                "UPDATE kept_logs SET bytes = (SELECT SUM(LENGTH(data)) FROM kept_log_parts WHERE pod_uid = ?)"
                " WHERE pod_uid = ?",
                key,
                key,
            )

    def read(self, key: str) -> LogEnd:
        with self._lock:
            rows = self._db.rows("SELECT cut FROM kept_logs WHERE pod_uid = ?", key)
            lines = self._lines(key) if rows else b""
        return end_of(lines, cut=bool(rows and rows[0][0]), keep_bytes=self.keep_bytes)

    def finish(self, key: str) -> None:
        with self._lock, self._db.transaction():
            if self._may_write(key):
                self._db.run(_FINISH, key, self._now())

    def is_finished(self, key: str) -> bool:
        with self._lock:
            return bool(self._db.rows("SELECT 1 FROM kept_logs WHERE pod_uid = ? AND finished = 1", key))

    def erase(self, key: str) -> None:
        with self._lock:
            self._db.run("DELETE FROM kept_logs WHERE pod_uid = ?", key)

    def sizes(self) -> list[LogSize]:
        with self._lock:
            rows = self._db.rows("SELECT pod_uid, bytes, changed_at FROM kept_logs ORDER BY changed_at, pod_uid")
        return [LogSize(key, size, changed / 1e6) for key, size, changed in rows]

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _may_write(self, key: str) -> bool:
        """Whether the pod has a record. Raises StorageError when another server is the writer now."""
        if (term := self._term()) is not None:
            check(self._db, *term)
        return bool(self._db.rows(_KEPT + self._db.locking(" FOR SHARE"), pod_of(key)))

    def _add(self, key: str, data: bytes) -> None:
        newest = self._db.rows(
            "SELECT number, packed, bytes FROM kept_log_parts WHERE pod_uid = ? ORDER BY number DESC LIMIT 1", key
        )
        number, packed, size = newest[0] if newest else (0, 1, 0)
        if packed or size >= JOIN_BYTES:
            self._put(key, number + 1, data, len(data), packed=False)
            return
        statement = (
            "UPDATE kept_log_parts SET data = data || ?, bytes = bytes + ? WHERE pod_uid = ? AND number = ?"
        )
        self._db.run(statement, data, len(data), key, number)

    def _pack(self, key: str, first: int) -> None:
        lines = self._lines(key, first)
        self._db.run("DELETE FROM kept_log_parts WHERE pod_uid = ? AND number >= ?", key, first)
        self._put(key, first, zlib.compress(lines, 6), len(lines), packed=True)

    def _drop_oldest(self, key: str) -> None:
        rows = self._db.rows(
            "SELECT number FROM kept_log_parts WHERE pod_uid = ? AND packed = 1 ORDER BY number", key
        )
        for (number,) in rows[:-FULL_SEGMENTS]:
            self._db.run("DELETE FROM kept_log_parts WHERE pod_uid = ? AND number = ?", key, number)
            self._db.run("UPDATE kept_logs SET cut = 1 WHERE pod_uid = ?", key)

    def _put(self, key: str, number: int, data: bytes, size: int, *, packed: bool) -> None:
        statement = "INSERT INTO kept_log_parts (pod_uid, number, packed, bytes, data) VALUES (?, ?, ?, ?, ?)"
        self._db.run(statement, key, number, int(packed), size, data)

    def _lines(self, key: str, first: int = 0) -> bytes:
        rows = self._db.rows(
            "SELECT packed, data FROM kept_log_parts WHERE pod_uid = ? AND number >= ? ORDER BY number", key, first
        )
        return b"".join(zlib.decompress(data) if packed else bytes(data) for packed, data in rows)

    def _now(self) -> int:
        return to_microseconds(self._clock.now())
