"""GPU intervals in SQLite.

Every write is one transaction, and every row stands under its pod's uid: a process killed at any moment leaves
the history as it was before or after a whole step, and doing a step again changes nothing.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any, assert_never

from moorage.apimachinery.databasefile import HINT, HighWater, is_damage, make_private, refuse_less
from moorage.decide.usage.intervals import Close, Interval, Open, Reopen, Step
from moorage.errors import StorageDamaged, StorageError, StorageFull

BUSY_SECONDS = 10.0  # how long a write waits for another process's; a backup or `sqlite3` shell holds it for less
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MIGRATION = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")

_INSERT = """
INSERT INTO intervals (pod_uid, namespace, pod, run, attempt, owner, node, gpu_type, gpus, cpu_milli, memory_bytes,
                       started_at, ended_at, last_seen_at, devices, work)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (pod_uid) DO NOTHING
"""
_CLOSE = """
UPDATE intervals SET ended_at = max(started_at, ?2), last_seen_at = max(last_seen_at, ?2)
WHERE pod_uid = ?1 AND ended_at IS NULL
"""
_REOPEN = "UPDATE intervals SET ended_at = NULL WHERE pod_uid = ?1"
_TOUCH = "UPDATE intervals SET last_seen_at = max(last_seen_at, ?2) WHERE pod_uid = ?1 AND ended_at IS NULL"
_FORGET = "DELETE FROM intervals WHERE ended_at < ?1"
_OPEN = "SELECT * FROM intervals WHERE ended_at IS NULL"
_ENDED = "SELECT * FROM intervals WHERE ended_at > ?1 ORDER BY ended_at DESC LIMIT ?2"
_OVERLAPPING = "SELECT * FROM intervals WHERE started_at < ?2 AND (ended_at IS NULL OR ended_at > ?1)"


class UsageStore:
    """The file of intervals. Methods block for a disk write: call them off the event loop. Safe for threads.

    Opening raises StorageError for a file that is no database or that a newer Moorage has written,
    StorageDamaged for one that holds less than was acknowledged.
    Every method raises StorageError, StorageFull when the disk is.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._high_water = HighWater(self.path)
        refuse_less(self.path)
        make_private(self.path)
        with self._errors("open"):
            self._db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            with self._errors("open"):
                self._db.row_factory = sqlite3.Row
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = FULL")
                self._high_water.attach(self._db)
                migrate(self._db, migrations(), name=str(path))
        except StorageError:
            self._high_water.close()
            self._db.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._high_water.close()
            self._db.close()

    def apply(self, steps: Iterable[Step], *, seen: Iterable[str] = (), now: datetime | None = None) -> None:
        """Do all steps, and mark the open intervals of `seen` as seen at `now`, or do nothing (on an error)."""
        with self._writing("write"):
            for step in steps:
                match step:
                    case Open(interval):
                        self._db.execute(_INSERT, _row(interval))
                    case Close(uid, ended_at):
                        self._db.execute(_CLOSE, (uid, _us(ended_at)))
                    case Reopen(uid):
                        self._db.execute(_REOPEN, (uid,))
                    case _:
                        assert_never(step)
            if now is not None:
                at = _us(now)
                self._db.executemany(_TOUCH, ((uid, at) for uid in seen))

    def forget(self, older: datetime) -> int:
        """Drop intervals that ended before a moment; returns how many."""
        with self._writing("write"):
            return self._db.execute(_FORGET, (_us(older),)).rowcount

    def open_intervals(self) -> list[Interval]:
        return self._read(_OPEN)

    def known(self, uids: Iterable[str]) -> list[Interval]:
        """The intervals of those pods that have one."""
        found: list[Interval] = []
        wanted = list(uids)
        for at in range(0, len(wanted), 500):  # SQLite's oldest limit on parameters is 999
            part = wanted[at : at + 500]
            marks = ",".join("?" * len(part))
            found += self._read(f"SELECT * FROM intervals WHERE pod_uid IN ({marks})", *part)
        return found

    def overlapping(self, since: datetime, until: datetime) -> list[Interval]:
        """Intervals of which some part lies in [since, until)."""
        return self._read(_OVERLAPPING, _us(since), _us(until))

    def ended(self, since: datetime, *, limit: int) -> list[Interval]:
        """Intervals that ended after `since`, the newest first, at most so many."""
        return self._read(_ENDED, _us(since), limit)

    def _read(self, statement: str, *values: Any) -> list[Interval]:
        with self._lock, self._errors("read"):
            return [_interval(row) for row in self._db.execute(statement, values)]

    @contextmanager
    def _writing(self, verb: str) -> Iterator[None]:
        with self._lock, self._errors(verb):
            with transaction(self._db):
                yield
                count = self._high_water.next(self._db)
            self._high_water.acknowledge(count)

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            if getattr(exc, "sqlite_errorname", "") == "SQLITE_FULL":
                raise StorageFull(
                    f"could not {verb} {self.path}: the disk is full",
                    hint="free some space; what was written is kept",
                ) from exc
            if is_damage(exc):
                raise StorageDamaged(f"could not {verb} {self.path}: it is damaged ({exc})", hint=HINT) from exc
            raise StorageError(f"could not {verb} {self.path}: {exc}") from exc


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """One write transaction: committed at the end, rolled back on an exception."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def migrations() -> dict[int, str]:
    """Number → SQL of each file in `migrations/`. Numbers are 1, 2, … without a gap."""
    found = {}
    for file in resources.files(__package__).joinpath("migrations").iterdir():
        if named := _MIGRATION.fullmatch(file.name):
            found[int(named[1])] = file.read_text(encoding="utf-8")
    if sorted(found) != list(range(1, len(found) + 1)):
        raise StorageError(f"migrations are not numbered 1 to {len(found)}: {sorted(found)}")
    return found


def migrate(db: sqlite3.Connection, steps: Mapping[int, str], *, name: str) -> None:
    """Bring a database to the newest schema, one transaction a step; `PRAGMA user_version` holds the number.

    Two processes may do it at once. Raises StorageError when the file is newer than the steps known.
    """
    newest = max(steps, default=0)
    done = _version(db)
    if done > newest:
        raise StorageError(
            f"{name} has schema version {done}; this Moorage knows versions up to {newest}",
            hint="use the Moorage that wrote it, or a newer one",
        )
    for number in range(done + 1, newest + 1):
        with transaction(db):
            if _version(db) >= number:
                continue  # somebody else was quicker
            for statement in statements(steps[number]):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {number}")


def statements(sql: str) -> Iterator[str]:
    """The statements of a script, each whole (a semicolon inside a trigger or a text does not end one)."""
    begun = ""
    for part in re.split(r"(?<=;)", sql):
        begun += part
        if sqlite3.complete_statement(begun):
            yield begun
            begun = ""
    if begun.strip():
        yield begun


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _us(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _moment(us: int) -> datetime:
    return _EPOCH + us * _MICROSECOND


def _row(one: Interval) -> tuple[Any, ...]:
    return (
        one.pod_uid,
        one.namespace,
        one.pod,
        one.run,
        one.attempt,
        one.owner,
        one.node,
        one.gpu_type,
        one.gpus,
        one.cpu_milli,
        one.memory_bytes,
        _us(one.started_at),
        None if one.ended_at is None else _us(one.ended_at),
        _us(one.last_seen_at),
        ",".join(one.devices),
        one.work,
    )


def _interval(row: sqlite3.Row) -> Interval:
    fields: dict[str, Any] = dict(row)
    read: Callable[[str], datetime] = lambda name: _moment(fields[name])  # noqa: E731
    ended = None if fields["ended_at"] is None else read("ended_at")
    times = {"started_at": read("started_at"), "ended_at": ended, "last_seen_at": read("last_seen_at")}
    devices = tuple(fields["devices"].split(",")) if fields["devices"] else ()
    return Interval(**(fields | times | {"devices": devices}))
