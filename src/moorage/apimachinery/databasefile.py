"""SQLite files that may not come back with less than they acknowledged.

A file that is empty or gone, and one whose write-ahead log was cut, open as a sound database that holds less.
So each database `x.db` counts its transactions in itself (the table `high_water`), and a small file beside it,
`x.db-mark`, says how far it had come.

The mark is written after the commit (which is on the disk by then: `synchronous=FULL`) and before anybody is told
of it. So it is never ahead of the database, whatever is killed when, and gives no false alarm. After `kill -9` it
is not behind what was acknowledged; after a power cut it may be, by SYNC_EVERY transactions at most. A write
costs one `pwrite` of a line, some microseconds.

The mark is two lines in different sectors, written in turn, each with a checksum: one is always whole.

https://www.sqlite.org/pragma.html#pragma_synchronous, https://www.sqlite.org/walformat.html#recovery
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sqlite3
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from moorage.errors import StorageDamaged, StorageError, StorageFull

log = logging.getLogger(__name__)

MARK_BYTES = 512  # one sector; a line is at most half as long
SYNC_EVERY = 256  # transactions between two fsyncs of the mark
DEEP_CHECK_BYTES = 2**30  # larger files are not walked page by page at a start; 100 MB take about 0.3 s
READ_SECONDS = 5.0  # how long a check waits for a lock of another process
HINT = (
    "`moor restore` shows the copies that `moor up` keeps and brings one back (on a cluster: restore a backup"
    " of the volume); nothing was changed and no pod was stopped"
)
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS high_water ("
    "id INTEGER PRIMARY KEY CHECK (id = 1), identity TEXT NOT NULL, count INTEGER NOT NULL)"
)
_MAGIC = "moorage-mark-1"


@dataclass(frozen=True, slots=True)
class Mark:
    """Which database it was, and how many changes it had acknowledged."""

    identity: str
    count: int


def mark_path(database: Path) -> Path:
    return database.with_name(f"{database.name}-mark")


def log_files(database: Path) -> tuple[Path, ...]:
    """What SQLite keeps beside a database: its log and the log's index."""
    return tuple(database.with_name(database.name + end) for end in ("-wal", "-shm"))


def side_files(database: Path) -> tuple[Path, ...]:
    """What SQLite and we keep beside a database: its log, the log's index, our mark."""
    return (*log_files(database), mark_path(database))


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite says that a file is damaged, or that it is not a database."""
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


def storage_error(verb: str, path: Path, error: sqlite3.Error) -> StorageError:
    """What SQLite says, as one of our errors. `verb`: what could not be done."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
        return StorageFull(
            f"could not {verb} {path}: the disk is full", hint="free some space; what was written is kept"
        )
    if is_damage(error):
        return StorageDamaged(f"could not {verb} {path}: it is damaged ({error})", hint=HINT)
    return StorageError(f"could not {verb} {path}: {error}")


@contextlib.contextmanager
def storage_errors(verb: str, path: Path) -> Iterator[None]:
    """Raises StorageError for what SQLite raises."""
    try:
        yield
    except sqlite3.Error as error:
        raise storage_error(verb, path, error) from error


def read_mark(database: Path) -> Mark | None:
    """The newest whole line of the mark; None when there is none. Raises StorageError when it cannot be read."""
    try:
        content = mark_path(database).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"could not read {mark_path(database)}: {error.strerror}") from error
    lines = (_parse_line(content[at : at + MARK_BYTES]) for at in (0, MARK_BYTES))
    return max((line for line in lines if line is not None), key=lambda mark: mark.count, default=None)


def _line(mark: Mark) -> bytes:
    text = f"{_MAGIC} {mark.identity} {mark.count}"
    return f"{text} {zlib.crc32(text.encode()):08x}\n".encode()


def _parse_line(line: bytes) -> Mark | None:
    text, _, _ = line.partition(b"\n")
    words = text.decode("ascii", "replace").split(" ")
    if len(words) != 4 or words[0] != _MAGIC or not (words[2].isascii() and words[2].isdecimal()):
        return None
    mark = Mark(words[1], int(words[2]))
    return mark if _line(mark) == text + b"\n" else None


def write_mark(database: Path, mark: Mark) -> None:
    """Make the mark or replace it, on the disk when this returns. Raises OSError."""
    path = mark_path(database)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    with contextlib.suppress(FileNotFoundError):
        scratch.unlink()
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_line(mark).ljust(MARK_BYTES, b"\0") * 2)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring renames and new files in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HighWater:
    """Keeps the count in a database and the mark beside it. For one thread at a time."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._identity = ""
        self._file: int | None = None
        self._slot = 0
        self._unsynced = 0
        self._failed = False

    def attach(self, db: sqlite3.Connection, *, count: int = 0) -> int:
        """Make what is missing; return the count. `count` is where a database without one starts.

        Call `refuse_less` before the database is opened for writing. Raises sqlite3.Error, StorageError.
        """
        self._identity, counted = make_high_water(db, count=count)
        try:
            seen = read_mark(self._database)
            if seen is None or seen.identity != self._identity or seen.count < counted:
                write_mark(self._database, Mark(self._identity, counted))
            self._file = os.open(mark_path(self._database), os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"could not write {mark_path(self._database)}: {error.strerror}") from error
        return counted

    def next(self, db: sqlite3.Connection) -> int:
        """Count the transaction that is open; give the number to `acknowledge` once it is committed."""
        db.execute("UPDATE high_water SET count = count + 1")
        return int(db.execute("SELECT count FROM high_water").fetchone()[0])

    def acknowledge(self, count: int) -> None:
        """Write down that so many changes are committed. Never raises; the mark may lag behind."""
        if self._file is None:
            return
        try:
            os.pwrite(self._file, _line(Mark(self._identity, count)), self._slot * MARK_BYTES)
            self._slot = 1 - self._slot
            self._unsynced += 1
            if self._unsynced >= SYNC_EVERY:
                os.fdatasync(self._file)
                self._unsynced = 0
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.warning("a mark is not written", extra={"path": str(self._database), "error": error.strerror})
            self._failed = True

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.fdatasync(self._file)
            os.close(self._file)
            self._file = None


def make_high_water(db: sqlite3.Connection, *, count: int = 0, identity: str | None = None) -> tuple[str, int]:
    """Give a database its identity and count, unless it has them; return them. Inside or outside a transaction."""
    outer = db.in_transaction
    if not outer:
        row = _read_row(db)
        if row is not None:
            return row
        db.execute("BEGIN IMMEDIATE")
    try:
        db.execute(_SCHEMA)
        db.execute("INSERT OR IGNORE INTO high_water VALUES (1, ?, ?)", (identity or secrets.token_hex(8), count))
        row = _read_row(db)
        if not outer:
            db.execute("COMMIT")
    except BaseException:
        if not outer and db.in_transaction:
            db.execute("ROLLBACK")
        raise
    assert row is not None
    return row


def _read_row(db: sqlite3.Connection) -> tuple[str, int] | None:
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'high_water'").fetchone() is None:
        return None
    row = db.execute("SELECT identity, count FROM high_water").fetchone()
    return (str(row[0]), int(row[1])) if row else None


def make_private(path: Path) -> None:
    """Make a file, or one that is there, readable by its owner alone; SQLite gives its log the same mode.

    A file of another owner is left as it is. Raises StorageError.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            status = os.fstat(descriptor)
            if status.st_mode & 0o077 and status.st_uid == os.geteuid():
                os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
        for side in side_files(path):
            with contextlib.suppress(FileNotFoundError):
                if side.stat().st_uid == os.geteuid():
                    side.chmod(0o600)
    except OSError as error:
        raise StorageError(f"could not open {path}: {error.strerror}") from error


def refuse_less(database: Path) -> None:
    """Raise StorageDamaged when a database holds less than it acknowledged or cannot be read. Changes nothing."""
    if problem := find_problem(database, deep=False):
        raise StorageDamaged(f"{database} {problem}", hint=HINT)


def find_problem(database: Path, *, deep: bool) -> str | None:
    """What is wrong with a database file, as the end of a sentence; None when it is as it was left, or new.

    `deep` walks every page (`PRAGMA quick_check`) of files up to DEEP_CHECK_BYTES. Nothing is written to the
    database or its log. Raises StorageError when it cannot be looked at: no permission, in use.
    """
    mark = read_mark(database)  # before the database, which may grow meanwhile
    was_here = mark_path(database).exists()
    try:
        size = database.stat().st_size
    except FileNotFoundError:
        left = database.with_name(f"{database.name}-wal").exists()
        return "is gone" if was_here or left else None
    except OSError as error:
        raise StorageError(f"could not read {database}: {error.strerror}") from error
    if size == 0:
        return "is empty" if was_here else None
    try:
        with reading(database) as db:
            if deep and size <= DEEP_CHECK_BYTES:
                result = db.execute("PRAGMA quick_check(1)").fetchone()
                if result is None or result[0] != "ok":
                    return f"is damaged: {str(result[0] if result else 'no answer').replace(chr(10), ' ')}"
            row = _read_row(db)
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_ERROR):
            return f"is damaged: {error}"
        raise StorageError(f"could not read {database}: {error}") from error
    if mark is None:
        return None
    if row is None:
        return f"holds none of the {mark.count} changes that were acknowledged"
    if row[0] != mark.identity:
        return "is not the file that was used here last"
    if row[1] < mark.count:
        return (
            f"ends at change {row[1]}, but change {mark.count} was acknowledged: its write-ahead log was cut,"
            " or an older file was put in its place"
        )
    return None


@contextlib.contextmanager
def reading(database: Path, *, in_use: bool = False) -> Iterator[sqlite3.Connection]:
    """A connection that changes neither the database nor its log. Raises sqlite3.Error.

    `in_use`: another process may have it open, or open it meanwhile; SQLite may then make an empty log beside it.
    """
    address = f"file:{quote(str(database.absolute()))}?mode=ro"
    if not in_use and not database.with_name(f"{database.name}-wal").exists():
        address += "&immutable=1"  # takes no locks and sees no changes of others
    with contextlib.closing(sqlite3.connect(address, uri=True, timeout=READ_SECONDS, isolation_level=None)) as db:
        yield db
