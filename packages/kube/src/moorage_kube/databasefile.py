"""SQLite files whose loss of acknowledged changes is detected.

An empty or missing file, and one whose write-ahead log was cut, open as a sound database that holds less.
So each database counts its transactions in itself (the table `high_water`), and the folder has one manifest,
`databases.manifest`: it lists the databases, the identity of each, and the last count of each.

A database is entered before it is made. Its count is written after the commit (which is on the disk by then:
`synchronous=FULL`) and before the change is acknowledged. So the entry is never ahead of the database, at any
moment of a kill, and gives no false alarm. After `kill -9` it is not behind the acknowledged changes; after a
power cut it may be, by SYNC_EVERY transactions at most. A write costs one `pwrite` of a line, some microseconds.

An entry is two lines in different sectors, written in turn, each with a checksum: one is always whole. Entries
never move, so that processes write theirs at the same time; the file is locked while one is added. A damaged
manifest is completed from the sound databases.

Without a manifest a database is taken as it is, unless it lacks its write-ahead log: a closed database is no
longer in log mode, and a killed process leaves the log.

https://www.sqlite.org/pragma.html#pragma_synchronous, https://www.sqlite.org/walformat.html#recovery
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import shutil
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from moorage_kube.errors import StorageDamaged, StorageError, StorageFull

log = logging.getLogger(__name__)

MANIFEST = "databases.manifest"
LINE_BYTES = 512  # one sector
ENTRY_BYTES = 2 * LINE_BYTES
BEGUN = -1  # the count of a database that is being made: it has acknowledged nothing
REMOVED = -2  # the count of one that was taken away on purpose
SYNC_EVERY = 256  # transactions between two fsyncs of the manifest
ROOM_BYTES = 64 << 10  # with less free, an I/O error means a full disk: the index of a log takes 32 KiB
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room, a quota, the limit of a file's size
DEEP_CHECK_BYTES = 2**30  # larger files are not walked page by page at a start; 100 MB take about 0.3 s
READ_SECONDS = 5.0  # how long a check waits for a lock of another process
HINT = (
    "`moor restore` lists the copies that `moor up` saves and restores one (on a cluster: restore a backup"
    " of the volume); nothing was changed and all pods still run"
)
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS high_water ("
    "id INTEGER PRIMARY KEY CHECK (id = 1), identity TEXT NOT NULL, count INTEGER NOT NULL)"
)
_MAGIC = "moorage-database-1"
_WAL_MODE = b"\x02\x02"  # bytes 18 and 19 of a database: it is written with a log


_END = b"moorage-databases-end\n".ljust(LINE_BYTES, b"\0")  # after the last entry: a file that was cut lacks it


@dataclass(frozen=True, slots=True)
class Mark:
    """Identity of a database, and the number of changes that it has acknowledged."""

    identity: str
    count: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a folder's manifest. `is_whole`: the file exists, and every entry can be read."""

    marks: dict[str, Mark] = field(default_factory=dict)
    is_whole: bool = False

    def names(self) -> set[str]:
        """Return the databases that have acknowledged changes and were not removed on purpose."""
        return {name for name, mark in self.marks.items() if mark.count >= 0}


def log_files(database: Path) -> tuple[Path, ...]:
    """The files that SQLite adds to a database: its log and the log's index."""
    return tuple(database.with_name(database.name + end) for end in ("-wal", "-shm"))


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the SQLite error means that a file is damaged or is not a database."""
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


def is_full(error: sqlite3.Error, path: Path) -> bool:
    """Whether SQLite failed for lack of room.

    It reports an I/O error if it cannot create or extend a log of `path`.
    """
    name = getattr(error, "sqlite_errorname", "")
    if name in ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"):  # the index of the log could not be extended
        return True
    if not name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN")):
        return False
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < ROOM_BYTES or (disk.f_files > 0 and disk.f_favail == 0)


def disk_full(verb: str, path: Path) -> StorageFull:
    """`verb`: the action that failed."""
    return StorageFull(
        f"could not {verb} {path}: the disk is full", hint="free some space; data written before is not lost"
    )


def storage_error(verb: str, path: Path, error: sqlite3.Error) -> StorageError:
    """Return an error of SQLite as one of our errors. `verb`: the action that failed."""
    if is_full(error, path):
        return disk_full(verb, path)
    if is_damage(error):
        return StorageDamaged(f"could not {verb} {path}: it is damaged ({error})", hint=HINT)
    return StorageError(f"could not {verb} {path}: {error}")


@contextlib.contextmanager
def storage_errors(verb: str, path: Path) -> Iterator[None]:
    """Raises StorageError in place of sqlite3.Error."""
    try:
        yield
    except sqlite3.Error as error:
        raise storage_error(verb, path, error) from error


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raises StorageFull when a write to `path`, or into that folder, fails for lack of room."""
    try:
        yield
    except OSError as error:
        of_copytree = isinstance(error, shutil.Error)  # it has the texts of its files' errors
        if error.errno not in FULL and not (of_copytree and os.strerror(errno.ENOSPC) in str(error)):
            raise
        raise disk_full("write", path) from error


def read_manifest(folder: Path) -> Manifest:
    """Read a folder's manifest, without its damaged entries; empty if the file is missing.

    Raises StorageError for a file that cannot be read.
    """
    try:
        return _parse((folder / MANIFEST).read_bytes())
    except (FileNotFoundError, IsADirectoryError):
        return Manifest()
    except OSError as error:
        raise unreadable(folder / MANIFEST, error) from error


def _parse(content: bytes) -> Manifest:
    body = content.removesuffix(_END)
    entries = [_parse_entry(body[at : at + ENTRY_BYTES]) for at in range(0, len(body), ENTRY_BYTES)]
    marks = dict(entry for entry in entries if entry is not None)
    return Manifest(marks, is_whole=body != content and None not in entries)


def read_mark(database: Path) -> Mark | None:
    """Return the manifest's entry of a database, or None. Raises StorageError when the manifest cannot be read."""
    mark = read_manifest(database.parent).marks.get(database.name)
    return mark if mark is not None and mark.count > REMOVED else None


def unreadable(path: Path, error: OSError) -> StorageError:
    """Return the error for a file that exists but cannot be read."""
    hint = None
    if isinstance(error, PermissionError):
        hint = f"give the user of this process the right to it: chown or chmod {path}"
    elif isinstance(error, IsADirectoryError):
        hint = "put it elsewhere: a file belongs in its place"
    return StorageError(f"could not read {path}: {error.strerror}", hint=hint)


def _line(name: str, mark: Mark) -> bytes:
    text = f"{_MAGIC} {name} {mark.identity} {mark.count}"
    return f"{text} {zlib.crc32(text.encode()):08x}\n".encode().ljust(LINE_BYTES, b"\0")


def _parse_line(line: bytes) -> list[str] | None:
    """Return the words between the first word and the checksum; None if the line is damaged."""
    text, _, _ = line.partition(b"\n")
    content, _, checksum = text.rpartition(b" ")
    words = content.decode("utf-8", "replace").split(" ")
    if words[0] != _MAGIC or checksum != b"%08x" % zlib.crc32(content):
        return None
    return words[1:]


def _mark_of(identity: str, count: str) -> Mark | None:
    try:
        return Mark(identity, int(count))
    except ValueError:
        return None


def _parse_entry(entry: bytes) -> tuple[str, Mark] | None:
    """Return the name and the mark of an entry, from its newer intact line; None if both lines are damaged."""
    marks = []
    for at in (0, LINE_BYTES):
        words = _parse_line(entry[at : at + LINE_BYTES])
        if words is not None and len(words) == 3 and (mark := _mark_of(*words[1:])) is not None:
            marks.append((words[0], mark))
    return max(marks, key=lambda pair: pair[1].count, default=None)


def write_mark(database: Path, mark: Mark) -> int:
    """Add or replace the entry of a database, and sync it to the disk. Returns the offset of the entry.

    Raises OSError.
    """
    path = database.with_name(MANIFEST)
    is_new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # where the volume has no locks, one process enters databases
            import fcntl  # here: clients on Windows import this module, and have no fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX)
        manifest = _parse(_content(descriptor))
        if not manifest.is_whole:
            for name, known in list(_counted(path.parent)):
                if name not in manifest.marks:
                    _enter(descriptor, name, known)
        at = _enter(descriptor, database.name, mark)
        spare = 0
        while not _parse(_content(descriptor)).is_whole:  # other damaged entries belong to deleted databases
            spare += 1
            _enter(descriptor, f"-{spare}", Mark("-", REMOVED))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if is_new:
        sync_folder(path.parent)
    return at


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _enter(descriptor: int, name: str, mark: Mark) -> int:
    content = _content(descriptor)
    body = content.removesuffix(_END)
    at = _place(body, name)
    os.pwrite(descriptor, _line(name, mark) * 2, at)
    if body == content or at >= len(body):
        os.pwrite(descriptor, _END, max(_rounded_up(len(body)), at + ENTRY_BYTES))
    return at


def _counted(folder: Path) -> Iterator[tuple[str, Mark]]:
    """The sound databases of a folder whose manifest is damaged or missing."""
    for database in sorted(folder.glob("[!.]*.db")):
        with contextlib.suppress(StorageError, sqlite3.Error):
            if find_problem(database, deep=False) is None and (mark := read_mark(database) or _own_mark(database)):
                yield database.name, mark


def _own_mark(database: Path) -> Mark | None:
    """Read identity and count from the database itself. Raises sqlite3.Error."""
    with reading(database) as db:
        row = _read_row(db)
    return None if row is None else Mark(*row)


def _place(body: bytes, name: str) -> int:
    """Return the offset of a database's entry; for a new entry, the offset of a damaged entry, or the end."""
    damaged = None
    for at in range(0, len(body), ENTRY_BYTES):
        entry = _parse_entry(body[at : at + ENTRY_BYTES])
        if entry is None:
            damaged = at if damaged is None else damaged
        elif entry[0] == name:
            return at
    return damaged if damaged is not None else _rounded_up(len(body))


def _rounded_up(size: int) -> int:
    return -(-size // ENTRY_BYTES) * ENTRY_BYTES


def forget(database: Path) -> None:
    """Record that a database was removed on purpose. Raises StorageError."""
    try:
        if database.name in read_manifest(database.parent).marks:
            write_mark(database, Mark("-", REMOVED))
    except OSError as error:
        raise StorageError(f"could not write {database.with_name(MANIFEST)}: {error.strerror}") from error


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that its renames and new files are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HighWater:
    """Writes the count of changes to a database and to the manifest. Only one thread at a time may use it."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._identity = ""
        self._file: int | None = None
        self._at = 0
        self._second = False  # which of the two lines is written next
        self._unsynced = 0
        self._failed = False

    def begin(self) -> None:
        """Add a database to the manifest before the file is created, if the manifest lacks it.

        Raises StorageError.

        Call `refuse_less` first.
        """
        if read_mark(self._database) is None:
            self._write(Mark(secrets.token_hex(8), BEGUN))

    def attach(self, db: sqlite3.Connection, *, count: int = 0) -> int:
        """Create the missing parts of the table; return the count. `count` is the start of a database without one.

        Call `refuse_less` and `begin` before. Raises sqlite3.Error, StorageError.
        """
        seen = read_mark(self._database)
        self._identity, counted = make_high_water(db, count=count)
        if seen is None or seen.identity != self._identity or seen.count < counted:
            seen = Mark(self._identity, counted)
        self._at = self._write(seen)
        try:
            self._file = os.open(self._database.with_name(MANIFEST), os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._error(error) from error
        return counted

    def _write(self, mark: Mark) -> int:
        try:
            return write_mark(self._database, mark)
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> StorageError:
        kind = StorageFull if error.errno in FULL else StorageError
        return kind(f"could not write {self._database.with_name(MANIFEST)}: {error.strerror}")

    def next(self, db: sqlite3.Connection) -> int:
        """Count the open transaction; pass the number to `acknowledge` after the commit."""
        db.execute("UPDATE high_water SET count = count + 1")
        return int(db.execute("SELECT count FROM high_water").fetchone()[0])

    def acknowledge(self, count: int) -> None:
        """Write the count of committed changes to the manifest. Never raises; the manifest may lag behind."""
        if self._file is None:
            return
        try:
            line = _line(self._database.name, Mark(self._identity, count))
            os.pwrite(self._file, line, self._at + self._second * LINE_BYTES)
            self._second = not self._second
            self._unsynced += 1
            if self._unsynced >= SYNC_EVERY:
                os.fdatasync(self._file)
                self._unsynced = 0
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.warning(
                    "the manifest is not written", extra={"path": str(self._database), "error": error.strerror}
                )
            self._failed = True

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.fdatasync(self._file)
            os.close(self._file)
            self._file = None


def close_database(db: sqlite3.Connection) -> None:
    """Close a connection; the last one to close switches the database from WAL mode to a rollback journal.

    So if a database in WAL mode has no log file, the log was lost.
    """
    with contextlib.suppress(sqlite3.Error):  # another has it open, or the disk is full: its log stays, too
        db.execute("PRAGMA busy_timeout = 0")
        db.execute("PRAGMA journal_mode = DELETE")
    db.close()


def make_high_water(db: sqlite3.Connection, *, count: int = 0, identity: str | None = None) -> tuple[str, int]:
    """Return the identity and count of a database; store them first if they are missing.

    Works inside and outside a transaction.
    """
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
    """Create a file, or change an existing file, so that only its owner can read it.

    SQLite gives its log the same mode.

    Does not change a file of another owner. Raises StorageError.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            status = os.fstat(descriptor)
            if status.st_mode & 0o077 and status.st_uid == os.geteuid():
                os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
        for side in log_files(path):
            with contextlib.suppress(FileNotFoundError):
                if side.stat().st_uid == os.geteuid():
                    side.chmod(0o600)
    except OSError as error:
        raise StorageError(f"could not open {path}: {error.strerror}") from error


def refuse_less(database: Path) -> None:
    """Raise StorageDamaged if a database cannot be read or lacks changes that it acknowledged. Changes nothing."""
    if problem := find_problem(database, deep=False):
        raise StorageDamaged(f"{database} {problem}", hint=HINT)


def find_problem(database: Path, *, deep: bool) -> str | None:
    """Return the problem of a database file, as the end of a sentence; None if it is unchanged or new.

    `deep` walks every page (`PRAGMA quick_check`) of files up to DEEP_CHECK_BYTES. Nothing is written to the
    database or its log. Raises StorageError if the file cannot be read: no permission, in use, a full disk.
    """
    # the mark is read before the database, which may grow meanwhile
    mark = read_mark(database)
    was_here = mark is not None and mark.count > BEGUN
    wal, _ = log_files(database)
    # an empty or missing file would open as a new database: check the file itself first
    try:
        if database.is_dir():
            return "is a folder, not a file"
        size = database.stat().st_size
        has_log = wal.exists() and wal.stat().st_size > 0
        if size == 0:
            return "is empty" if was_here or has_log else None
        with database.open("rb") as file:
            header = file.read(20)
    except FileNotFoundError:
        return "is missing" if was_here or wal.exists() else None
    except OSError as error:
        raise unreadable(database, error) from error
    # SQLite itself finds damaged pages
    try:
        with reading(database) as db:
            if deep and size <= DEEP_CHECK_BYTES:
                result = db.execute("PRAGMA quick_check(1)").fetchone()
                if result is None or result[0] != "ok":
                    return f"is damaged: {str(result[0] if result else 'no answer').replace(chr(10), ' ')}"
            row = _read_row(db)
            is_bare = db.execute("SELECT 1 FROM sqlite_master").fetchone() is None
    except sqlite3.Error as error:
        # only these errors come from the file's content; others, such as a lock, say nothing about it
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if not is_full(error, database) and code in (
            sqlite3.SQLITE_CORRUPT,
            sqlite3.SQLITE_NOTADB,
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_ERROR,
        ):
            return f"is damaged: {error}"
        raise storage_error("read", database, error) from error
    # without a mark the count cannot be compared; a lost log and a file from another folder still show
    if mark is None:
        if (row is not None or is_bare) and header[18:20] == _WAL_MODE and not wal.exists():
            return f"lacks its write-ahead log, and {MANIFEST} does not know it"
        manifest = read_manifest(database.parent)
        if row is not None and manifest.is_whole and database.name not in manifest.marks:
            return f"is not a database of this folder: {MANIFEST} does not know it"
        return None
    return _less(mark, None if row is None else Mark(*row))


def _less(mark: Mark, own: Mark | None) -> str | None:
    """Return the changes of a mark that a database lacks, in the words of `find_problem`; None if it has all."""
    if mark.count == BEGUN or not mark.identity:
        return None
    if own is None:
        return f"holds none of the {mark.count} changes that were acknowledged"
    if own.identity != mark.identity:
        return "is not the file that was used here last"
    if own.count < mark.count:
        return (
            f"ends at change {own.count}, but change {mark.count} was acknowledged: its write-ahead log was cut,"
            " or an older file was put in its place"
        )
    return None


def is_counted(database: Path) -> bool:
    """Whether a database can be read and counts its transactions; all databases of a manifest count them."""
    try:
        return database.stat().st_size > 0 and _own_mark(database) is not None
    except (OSError, sqlite3.Error):
        return False


def less_than(database: Path, copy: Path) -> str | None:
    """Return the changes that a database lacks but its copy has, in the words of `find_problem`.

    None if it has all.

    Raises StorageError when one of them cannot be read.
    """
    try:
        mark, own = _own_mark(copy), _own_mark(database)
    except sqlite3.Error as error:
        raise StorageError(f"could not compare {database} with {copy}: {error}") from error
    return None if mark is None else _less(mark, own)


@contextlib.contextmanager
def reading(database: Path, *, in_use: bool = False) -> Iterator[sqlite3.Connection]:
    """Open a connection that changes neither the database nor its log. Raises sqlite3.Error.

    `in_use`: another process may have it open, or open it meanwhile; SQLite may then create an empty log file.
    """
    address = f"file:{quote(str(database.absolute()))}?mode=ro"
    if not in_use and not database.with_name(f"{database.name}-wal").exists():
        address += "&immutable=1"  # takes no locks and sees no changes of others
    with contextlib.closing(sqlite3.connect(address, uri=True, timeout=READ_SECONDS, isolation_level=None)) as db:
        yield db
