"""A database in one SQLite file: write-ahead log, one writer.

`synchronous = FULL`: a commit is on the disk before the answer is sent. With NORMAL a power cut could revert
answers that workers have seen; a transaction carries the requests of a hundred workers, so the one
fdatasync costs each almost nothing (0.2 ms here).

Many rows are one statement (`VALUES (…), (…), …`): sqlite3 releases the event loop's thread at every
step of a statement, and a statement for each row would do so thousands of times.
"""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from moorage.sql.database import Row, Table
from moorage.sql.migrations import Migration, Schema, Version, migrate, migrations
from moorage.sql.times import timed
from moorage_kube.databasefile import (
    HighWater,
    close_database,
    find_problem,
    make_private,
    refuse_less,
    storage_errors,
)
from moorage_kube.errors import StorageError
from moorage_kube.folderlease import check_lease

log = logging.getLogger(__name__)

BUSY_SECONDS = 10.0  # how long a write waits for another process's; a backup holds it for less
_CHUNKS = (256, 32, 1)  # rows per statement; few sizes, so that statements stay prepared
_CACHE_KB = 2 * 1024  # of each of some ten databases; with 32 MiB a queue of 100,000 items saves 3 % of CPU


class SqliteDatabase:
    """Opening raises StorageError for a file that is no database or that a newer Moorage has written.

    StorageDamaged for one that holds less than was acknowledged: see `moorage_kube.databasefile`. The file is
    readable by its owner only. Without `durable` the last seconds may be lost with the machine, its transactions
    are not counted, and missing ones are logged, not refused.
    """

    def __init__(self, path: Path | str, schema: Schema, *, durable: bool = True) -> None:
        self._path = Path(path)
        self._schema = schema
        self._high_water = HighWater(self._path)
        self._folder = self._path.parent.absolute()
        self._counts = durable
        if durable:
            refuse_less(self._path)
        elif problem := find_problem(self._path, deep=False):
            log.warning("a database has lost its data", extra={"path": str(self._path), "problem": problem})
        make_private(self._path)
        self._high_water.begin()
        with self._errors("open"):
            self._db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            with self._errors("open"):
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._db.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
                self._high_water.attach(self._db)
                migrate(self, migrations("sqlite", schema))
        except StorageError:
            self.close()
            raise

    @property
    def name(self) -> str:
        return str(self._path)

    def close(self) -> None:
        self._high_water.close()
        close_database(self._db)

    def locking(self, clause: str) -> str:  # noqa: ARG002  (there is one writer)
        return ""

    def joined(self, expression: str) -> str:
        return f"GROUP_CONCAT({expression})"

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction without a changed row is not counted, so it writes nothing to the disk."""
        with self._errors("write"):
            self._db.execute("BEGIN IMMEDIATE")
        changes, count = self._db.total_changes, None
        try:
            yield
            with self._errors("write"):
                if self._counts and self._db.total_changes != changes:
                    count = self._high_water.next(self._db)
                check_lease(self._folder)
                self._db.execute("COMMIT")
            check_lease(self._folder)  # the commit may have taken long; then it is not acknowledged
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        if count is not None:
            self._high_water.acknowledge(count)

    def rows(self, statement: str, *values: Any) -> list[Row]:
        with self._errors("read"):
            return self._db.execute(statement, values).fetchall()

    def each(self, statement: str, *values: Any) -> Iterator[Row]:
        """Rows one by one, for callers that may stop early."""
        with self._errors("read"):
            yield from self._db.execute(statement, values)

    def run(self, statement: str, *values: Any) -> int:
        if not self._db.in_transaction:
            with self.transaction():
                return self.run(statement, *values)
        with self._errors("write"):
            return self._db.execute(statement, values).rowcount

    def run_each(self, statement: str, rows: Iterable[Row]) -> None:
        with self._errors("write"):
            self._db.executemany(statement, rows)

    def by_keys(
        self,
        table: Table,
        keys: Sequence[Row],
        *,
        columns: Sequence[str] = (),
        lock: bool = False,  # noqa: ARG002  (there is one writer)
    ) -> list[Row]:
        names = table.columns[: table.keys]
        chosen = ", ".join(f"t.{column}" for column in columns or table.columns)
        same = " AND ".join(f"t.{name} = k.column{at}" for at, name in enumerate(names, 1))
        rows: list[Row] = []
        for part in _parts(keys):
            marks = _marks(len(part), table.keys)
            statement = f"SELECT {chosen} FROM (VALUES {marks}) AS k CROSS JOIN {table.name} AS t ON {same}"
            with self._errors("read"):
                rows += self._db.execute(statement, list(chain.from_iterable(part))).fetchall()
        return rows

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        self._put(table, rows, "")

    def upsert(self, table: Table, rows: Sequence[Row]) -> None:
        changed = ", ".join(f"{column} = excluded.{column}" for column in table.columns[table.keys :])
        keys = ", ".join(table.columns[: table.keys])
        self._put(table, rows, f" ON CONFLICT ({keys}) DO UPDATE SET {changed}")

    def update(self, table: Table, rows: Sequence[Row]) -> None:
        self.upsert(table, rows)

    def _put(self, table: Table, rows: Sequence[Row], conflict: str) -> None:
        start = f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES "
        for part in _parts(rows):
            statement = start + _marks(len(part), len(table.columns)) + conflict
            with self._errors("write"):
                self._db.execute(statement, list(chain.from_iterable(part)))

    def version(self) -> Version:
        if not self._db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'meta'").fetchall():
            return Version()
        keys = (self._schema.prefix + "schema", self._schema.prefix + "readable_by")
        values = dict(self._db.execute("SELECT name, value FROM meta WHERE name IN (?, ?)", keys).fetchall())
        return Version(int(values.get(keys[0], 0)), int(values.get(keys[1], 0)))

    def migrating(self) -> AbstractContextManager[None]:
        return self.transaction()

    def apply(self, step: Migration) -> None:
        for statement in statements(step.sql):
            self._db.execute(statement)
        self._db.execute("CREATE TABLE IF NOT EXISTS meta (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        for key, value in (("schema", step.number), ("readable_by", step.readable_by)):
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (self._schema.prefix + key, str(value)))

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        with timed(self._schema.subject, verb), storage_errors(verb, self._path):
            yield


def _parts(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    at, left = 0, len(rows)
    for size in _CHUNKS:
        while left >= size:
            yield rows[at : at + size]
            at, left = at + size, left - size


def _marks(rows: int, columns: int) -> str:
    text = f"({', '.join('?' * columns)})"
    return ", ".join([text] * rows)


def statements(sql: str) -> Iterator[str]:
    """Split a script into statements. A semicolon inside a trigger or a text does not end a statement."""
    begun = ""
    for part in re.split(r"(?<=;)", sql):
        begun += part
        if sqlite3.complete_statement(begun):
            yield begun
            begun = ""
    if begun.strip():
        yield begun
