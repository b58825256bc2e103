"""Parts in SQLite files: read while they are in use, and restored into new files in the same folder."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from moorage.server.backup.parts import MAPS, PARTS, Part
from moorage.server.backup.rows import META, RELEASE, batches, read_lines
from moorage.sql.migrations import migrations
from moorage.sql.sqlite import SqliteDatabase, statements
from moorage_kube.databasefile import Mark, read_mark, reading, storage_errors, sync_folder, write_mark

DIALECT = "sqlite"
STAGED = ".restored"  # the folder of new files
JOURNAL = ".restored.json"  # there: they are whole, and are to be put into place


class SqliteSource:
    """A snapshot of each file of a folder, taken at `open`. Other processes can write to the files meanwhile."""

    dialect = DIALECT

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, sqlite3.Connection] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> SqliteSource:
        """Open a snapshot of every file. Raises StorageError for a file that cannot be read."""
        for part in PARTS:
            path = self._folder / part.file
            if not part.file or not path.exists() or not path.stat().st_size:
                continue
            self._stack.enter_context(storage_errors("back up", path))
            db = self._stack.enter_context(reading(path, in_use=True))
            db.execute("BEGIN")
            db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()  # the moment of this transaction
            self._open[part.name] = db
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def version(self, part: Part) -> int:
        db = self._open.get(part.name)
        if db is None:
            return 0
        row = db.execute("SELECT value FROM meta WHERE name = ?", (part.schema.prefix + "schema",)).fetchone()
        return int(row[0]) if row else 0

    def columns(self, part: Part, table: str) -> list[str]:
        return [row[1] for row in self._open[part.name].execute(f"PRAGMA table_info({table})")]

    def rows(self, part: Part, table: str, columns: Sequence[str]) -> Iterator[Sequence[Any]]:
        return iter(self._open[part.name].execute(f"SELECT {', '.join(columns)} FROM {table}"))


def stage(part: Part, folder: Path, version: int, target: Path) -> None:
    """Create the file of a part from lines: the archived schema and rows, then the newer migrations.

    Raises StorageError; the file is incomplete then.
    """
    with storage_errors("restore", target):
        with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as db:
            db.execute("BEGIN")
            for step in migrations(DIALECT, part.schema)[:version]:
                for statement in statements(step.sql):
                    db.execute(statement)
                _write_version(db, part, step.number, step.readable_by)
            for table in (*part.tables(DIALECT, version), META):
                path = folder / f"{table}.jsonl"
                if not path.exists():
                    continue
                columns, rows = read_lines(path)
                db.execute(f"DELETE FROM {table}") if table != META else None
                marks = ", ".join("?" * len(columns))
                insert = f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({marks})"
                for batch in batches(rows):
                    db.executemany(insert, batch)
            if part.name == MAPS:
                for statement in RELEASE:
                    db.execute(statement)
            db.execute("COMMIT")
    is_durable = part.name != "outputs"
    SqliteDatabase(target, part.schema, durable=is_durable).close()  # the migrations since


def _write_version(db: sqlite3.Connection, part: Part, number: int, readable_by: int) -> None:
    db.execute("CREATE TABLE IF NOT EXISTS meta (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    for key, value in (("schema", number), ("readable_by", readable_by)):
        db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (part.schema.prefix + key, str(value)))


def commit(folder: Path) -> None:
    """Mark the files in STAGED as complete; from here on the next server that starts finishes the restore."""
    path = folder / JOURNAL
    scratch = folder / f"{JOURNAL}.new"
    scratch.write_text(json.dumps({"staged": sorted(path.name for path in (folder / STAGED).iterdir())}))
    with scratch.open("rb") as file:
        os.fsync(file.fileno())
    scratch.replace(path)
    sync_folder(folder)


def put_into_place(folder: Path) -> list[str]:
    """Copy every staged file over the file in use, each in one transaction; return the parts' names. Idempotent.

    Other connections see the new rows from their next statement on. Call it again after a StorageError.
    """
    names = []
    for part in PARTS:
        staged, target = folder / STAGED / part.file, folder / part.file
        if part.file and staged.exists():
            with storage_errors("restore", target):
                _replace_content(staged, target)
            names.append(part.name)
    return names


def _replace_content(staged: Path, target: Path) -> None:
    """Copy the new file over the old one by SQLite's backup API. The count of changes continues from the
    old one.
    """
    mark = read_mark(target)
    with contextlib.closing(sqlite3.connect(staged, isolation_level=None)) as source:
        if mark is not None and source.execute("SELECT 1 FROM sqlite_master WHERE name = 'high_water'").fetchone():
            source.execute(
                "UPDATE high_water SET identity = ?, count = MAX(count, ?)", (mark.identity, mark.count + 1)
            )
            source.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        row = None
        if source.execute("SELECT 1 FROM sqlite_master WHERE name = 'high_water'").fetchone():
            row = source.execute("SELECT identity, count FROM high_water").fetchone()
        with contextlib.closing(sqlite3.connect(target, timeout=30, isolation_level=None)) as live:
            live.execute("PRAGMA journal_mode = WAL")
            live.execute("PRAGMA synchronous = FULL")
            source.backup(live)
        target.chmod(0o600)
    if row is not None:
        write_mark(target, Mark(str(row[0]), int(row[1])))


def release(path: Path) -> None:
    """Release all leases in a database file that was copied by hand; see RELEASE. Raises StorageError."""
    with storage_errors("restore", path), contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        for statement in RELEASE:
            db.execute(statement)
        db.execute("COMMIT")
        db.execute("PRAGMA journal_mode = DELETE")  # without a log file, since it is renamed
