"""The store in one SQLite file.

One thread writes. It takes all writes that wait, puts them into one transaction
(WAL, synchronous=FULL: the commit is on the disk when it returns) and only then are they
seen and acknowledged, so a `kill -9` loses no acknowledged write. Reads come from
a mirror in memory.

Writes to one key wait for each other; writes to different keys share a commit. A transaction
that fails (no room, a broken disk) fails the writes in it, each with StorageFull or
StorageError, and leaves file and mirror as they were; the next write tries again.

On a full disk only new objects are refused, until the reserved space is reserved again. Updates and deletes use
that space, so that users can stop and delete work until there is room again.

The history of changes is not stored: after a restart every revision before the last one
counts as compacted, and a watch from there gets Expired and lists again, as it would on etcd after
a compaction. A watch that was up to date continues.

A start refuses a file that holds less than was acknowledged (`moorage_kube.databasefile`) and one with a row
that does not match its checksum. It changes nothing then.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.databasefile import (
    HINT,
    HighWater,
    close_database,
    disk_full,
    make_high_water,
    make_private,
    reading,
    refuse_less,
    storage_error,
)
from moorage_kube.errors import StorageDamaged, StorageError, StorageFull
from moorage_kube.reserve import Reserve
from moorage_local.storage.contract import Change, Page, Record
from moorage_local.storage.memory import HISTORY_LIMITS, HistoryLimits, Mirror, MirrorWatch

log = logging.getLogger(__name__)

SCHEMA_VERSION = 2
BATCH = 512  # writes in one transaction at most; 88 were seen on average under full load
LOG_BYTES = 64 * 2**20  # the write-ahead log is cut to this size after a larger transaction
_RECORDS = """
CREATE TABLE IF NOT EXISTS records (
    key TEXT PRIMARY KEY,
    value BLOB NOT NULL,
    create_revision INTEGER NOT NULL,
    mod_revision INTEGER NOT NULL,
    checksum INTEGER
) WITHOUT ROWID
"""
_PUT = (
    "INSERT INTO records (key, value, create_revision, mod_revision, checksum) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (key) DO UPDATE SET value = excluded.value, create_revision = excluded.create_revision,"
    " mod_revision = excluded.mod_revision, checksum = excluded.checksum"
)
_ROWS = "SELECT CAST(key AS BLOB), value, create_revision, mod_revision, checksum FROM records"


@dataclass(slots=True)
class _Write:
    change: Change
    done: asyncio.Future[None]


class SqliteStorage:
    """A `Storage` in the file `path`; its folder must exist. Only one process at a time may use it."""

    def __init__(
        self,
        path: Path,
        *,
        limits: HistoryLimits = HISTORY_LIMITS,
        clock: Clock = SYSTEM,
        max_pages: int | None = None,
    ) -> None:
        """`max_pages`: the limit of the file size in pages of 4 KiB, to test a full disk."""
        self._path = path
        self._max_pages = max_pages
        self._mirror = Mirror(limits=limits, clock=clock)
        self._high_water = HighWater(path)
        self._reserve = Reserve(path.parent)
        self._next_revision = 1
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._under_way: dict[str, asyncio.Future[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        if self._thread is not None:
            return
        self._loop = asyncio.get_running_loop()
        database = self._open()
        self._thread = threading.Thread(
            target=self._write_for_ever, args=(database,), name="storage-writer", daemon=True
        )
        self._thread.start()

    async def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._queue.put(None)
        await asyncio.to_thread(thread.join)
        if self._under_way:  # the thread has posted their results; let them land
            await asyncio.wait(set(self._under_way.values()))
        self._mirror.close()

    @property
    def revision(self) -> int:
        return self._mirror.revision

    @property
    def compacted(self) -> int:
        return self._mirror.compacted

    def get(self, key: str) -> Record | None:
        return self._mirror.records.get(key)

    def list(
        self, prefix: str, *, after: str | None = None, limit: int | None = None, revision: int | None = None
    ) -> Page:
        return self._mirror.list(prefix, after, limit, revision)

    async def put(self, key: str, value: bytes, *, expected: int | None = None) -> Record:
        await self._turn(key)
        before = self._mirror.check(key, expected)
        revision = self._take_revision()
        record = Record(key, value, before.create_revision if before else revision, revision)
        await self._submit(Change(revision, key, before, record))
        return record

    async def delete(self, key: str, *, expected: int | None = None) -> Change | None:
        await self._turn(key)
        before = self._mirror.check(key, expected)
        if before is None:
            return None
        change = Change(self._take_revision(), key, before, None)
        await self._submit(change)
        return change

    def watch(self, prefix: str, *, after: int) -> MirrorWatch:
        return self._mirror.watch(prefix, after)

    def compact(self, revision: int) -> None:
        self._mirror.compact(revision)

    def _take_revision(self) -> int:
        revision = self._next_revision
        self._next_revision += 1
        return revision

    async def _turn(self, key: str) -> None:
        """Wait until no other write to the key is running.

        There is no await between the end of this and `_submit`.
        """
        while (other := self._under_way.get(key)) is not None:
            await asyncio.wait({other})
        if self._thread is None:
            raise StorageError(f"the store {self._path} is closed")

    async def _submit(self, change: Change) -> None:
        assert self._loop is not None
        done: asyncio.Future[None] = self._loop.create_future()
        self._under_way[change.key] = done
        self._queue.put(_Write(change, done))
        # A cancelled caller stops waiting; the write continues, and its key stays locked until it has ended.
        await asyncio.shield(done)

    def _landed(self, batch: Sequence[_Write], error: StorageError | None) -> None:
        """In the event loop, make a finished transaction visible, or report why it failed."""
        if error is None:
            self._mirror.apply([write.change for write in batch])
        for write in batch:
            self._under_way.pop(write.change.key, None)
            if write.done.cancelled():
                continue
            if error is None:
                write.done.set_result(None)
            else:
                write.done.set_exception(type(error)(error.message, hint=error.hint))
                write.done.exception()  # a caller that was cancelled will not ask for it

    def _open(self) -> sqlite3.Connection:
        refuse_less(self._path)
        make_private(self._path)
        self._high_water.begin()
        database: sqlite3.Connection | None = None
        try:
            database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=5.0)
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version not in range(SCHEMA_VERSION + 1):
                raise StorageError(
                    f"{self._path} has layout {version}; this program reads layout {SCHEMA_VERSION}",
                    hint="use the version of moorage that wrote it, or another data folder",
                )
            rows = _read_rows(database, version, self._path)  # all of it, before anything is changed
            database.execute("PRAGMA journal_mode=WAL")
            database.execute(f"PRAGMA journal_size_limit={LOG_BYTES}")
            database.execute("PRAGMA synchronous=FULL")
            database.execute("PRAGMA locking_mode=EXCLUSIVE")
            if self._max_pages is not None:
                database.execute(f"PRAGMA max_page_count={int(self._max_pages)}")
            if version < SCHEMA_VERSION:
                _migrate(database, version)
            revision = self._high_water.attach(database)
        except sqlite3.Error as error:
            if database is not None:
                database.close()
            raise storage_error("open", self._path, error) from error
        except StorageError:
            if database is not None:
                database.close()
            raise
        self._mirror.load(rows, revision)
        self._next_revision = revision + 1
        return database

    def _write_for_ever(self, database: sqlite3.Connection) -> None:
        assert self._loop is not None
        closing = False
        while not closing:
            first = self._queue.get()
            if first is None:
                break
            batch = [first]
            while len(batch) < BATCH:
                try:
                    more = self._queue.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    closing = True
                    break
                batch.append(more)
            self._reserve.fill()
            error = disk_full("write", self._path) if self._reserve.is_in_use() else self._commit(database, batch)
            if isinstance(error, StorageFull):
                creates = [write for write in batch if write.change.before is None]
                self._loop.call_soon_threadsafe(self._landed, creates, error)
                batch = [write for write in batch if write.change.before is not None]
                error = self._commit(database, batch)
                while isinstance(error, StorageFull) and self._reserve.take():
                    error = self._commit(database, batch)
            self._loop.call_soon_threadsafe(self._landed, batch, error)
        try:
            close_database(database)
            self._high_water.close()
        except sqlite3.Error as problem:
            log.warning("closing the store failed", extra={"path": str(self._path), "error": str(problem)})

    def _commit(self, database: sqlite3.Connection, batch: Sequence[_Write]) -> StorageError | None:
        if not batch:
            return None
        try:
            database.execute("BEGIN IMMEDIATE")
            for write in batch:
                after = write.change.after
                if after is None:
                    database.execute("DELETE FROM records WHERE key = ?", (write.change.key,))
                else:
                    database.execute(
                        _PUT,
                        (after.key, after.value, after.create_revision, after.mod_revision, checksum(after)),
                    )
            revision = batch[-1].change.revision
            database.execute("UPDATE high_water SET count = ?", (revision,))
            database.execute("COMMIT")
            self._high_water.acknowledge(revision)
        except sqlite3.Error as problem:
            error = storage_error("write", self._path, problem)
            try:
                if database.in_transaction:
                    database.execute("ROLLBACK")
            except sqlite3.Error as second:
                log.warning("rollback failed", extra={"path": str(self._path), "error": str(second)})
            return error
        return None


def checksum(record: Record) -> int:
    """The checksum of a stored row: CRC-32 of its value, key and revisions."""
    rest = f"{record.key} {record.create_revision} {record.mod_revision}"
    return zlib.crc32(rest.encode(), zlib.crc32(record.value))


def read_records(path: Path) -> list[Record]:
    """All records of a file that is not in use. Raises StorageDamaged, StorageError; changes nothing."""
    try:
        with reading(path) as database:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            return _read_rows(database, version, path)
    except sqlite3.Error as error:
        raise storage_error("read", path, error) from error


def write_records(path: Path, records: Iterable[Record], revision: int, *, identity: str | None = None) -> None:
    """Create a file with these records. It is safe on the disk only after the file and its folder are synced.

    Raises StorageError.
    """
    try:
        database = sqlite3.connect(path, isolation_level=None)
        try:
            database.execute("BEGIN IMMEDIATE")
            database.execute(_RECORDS)
            rows = (
                (record.key, record.value, record.create_revision, record.mod_revision, checksum(record))
                for record in sorted(records, key=lambda record: record.key)
            )
            database.executemany(_PUT, rows)
            make_high_water(database, count=revision, identity=identity)
            database.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            database.execute("COMMIT")
        finally:
            database.close()
    except sqlite3.Error as error:
        raise storage_error("write", path, error) from error


def _read_rows(database: sqlite3.Connection, version: int, path: Path) -> list[Record]:
    """Read all rows. Raises StorageDamaged for a row that does not match its checksum."""
    if version == 0:
        if database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]:
            raise StorageDamaged(f"{path} is a database of something else", hint=HINT)
        return []
    with_checksum = version > 1
    records = []
    for row in database.execute(_ROWS if with_checksum else _ROWS.replace(", checksum", ", NULL")):
        key, value, created, modified, expected = row
        try:
            record = Record(key.decode(), value, int(created), int(modified))
            whole = isinstance(value, bytes) and (expected is None or checksum(record) == expected)
        except (AttributeError, TypeError, ValueError):  # not even a value of the column's type
            whole = False
        if not whole:
            raise StorageDamaged(f"{path} is damaged: {key!r:.200} does not match its checksum", hint=HINT)
        records.append(record)
    return records


def _migrate(database: sqlite3.Connection, version: int) -> None:
    """Layout 1 has the revision in a separate table, and no checksums: rows get one when they are written."""
    database.execute("BEGIN IMMEDIATE")
    revision = 0
    if version == 1:
        revision = int(database.execute("SELECT revision FROM state").fetchone()[0])
        database.execute("DROP TABLE state")
        database.execute("ALTER TABLE records ADD COLUMN checksum INTEGER")
    database.execute(_RECORDS)
    make_high_water(database, count=revision)
    database.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    database.execute("COMMIT")
