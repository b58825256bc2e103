"""The queue in one SQLite file: write-ahead log, one writer.

`synchronous = FULL`: a commit is on the disk before anybody is told. With NORMAL a power cut could take back
answers that workers have been thanked for; a transaction carries the requests of a hundred workers, so the one
fdatasync costs each next to nothing (0.2 ms here).

Many rows go into one statement (`VALUES (…), (…), …`): sqlite3 lets the event loop's thread in between at every
step of a statement, and a statement for each row would be thousands of such hand-overs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from moorage.apimachinery.databasefile import HINT, HighWater, is_damage, make_private, refuse_less
from moorage.errors import StorageDamaged, StorageError, StorageFull
from moorage.queue.database import QUEUE, Row, Schema, Table, check_readable, migrations

BUSY_SECONDS = 10.0  # how long a write waits for another process's; a backup holds it for less
_CHUNKS = (256, 32, 1)  # rows per statement; few sizes, so that statements stay prepared
_CACHE_KB = 32 * 1024


class SqliteDatabase:
    """Opening raises StorageError for a file that is no database or that a newer Moorage has written.

    StorageDamaged for one that holds less than was acknowledged: see `apimachinery.databasefile`.
    """

    def __init__(self, path: Path | str, schema: Schema = QUEUE) -> None:
        self._path = Path(path)
        self._schema = schema
        self._high_water = HighWater(self._path)
        refuse_less(self._path)
        make_private(self._path)
        with self._errors("open"):
            self._db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            with self._errors("open"):
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = FULL")
                self._db.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
                self._high_water.attach(self._db)
                self._migrate()
        except StorageError:
            self.close()
            raise

    @property
    def name(self) -> str:
        return str(self._path)

    def close(self) -> None:
        self._high_water.close()
        self._db.close()

    def locking(self, clause: str) -> str:  # noqa: ARG002  (there is one writer)
        return ""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction that changes no row is not counted, so it writes nothing to the disk."""
        with self._errors("write"):
            self._db.execute("BEGIN IMMEDIATE")
        changes, count = self._db.total_changes, None
        try:
            yield
            with self._errors("write"):
                if self._db.total_changes != changes:
                    count = self._high_water.next(self._db)
                self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        if count is not None:
            self._high_water.acknowledge(count)

    def rows(self, statement: str, *values: Any) -> list[Row]:
        with self._errors("read"):
            return self._db.execute(statement, values).fetchall()

    def run(self, statement: str, *values: Any) -> int:
        if not self._db.in_transaction:
            with self.transaction():
                return self.run(statement, *values)
        with self._errors("write"):
            return self._db.execute(statement, values).rowcount

    def by_keys(
        self,
        table: Table,
        keys: Sequence[Row],
        *,
        columns: Sequence[str] = (),
        lock: bool = False,  # noqa: ARG002  (there is one writer)
    ) -> list[Row]:
        names = table.columns[: table.keys]
        chosen = ", ".join(f"t.{one}" for one in columns or table.columns)
        same = " AND ".join(f"t.{one} = k.column{at}" for at, one in enumerate(names, 1))
        found: list[Row] = []
        for part in _parts(keys):
            marks = _marks(len(part), table.keys)
            statement = f"SELECT {chosen} FROM (VALUES {marks}) AS k CROSS JOIN {table.name} AS t ON {same}"
            with self._errors("read"):
                found += self._db.execute(statement, list(chain.from_iterable(part))).fetchall()
        return found

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        self._put(table, rows, "")

    def upsert(self, table: Table, rows: Sequence[Row]) -> None:
        changed = ", ".join(f"{one} = excluded.{one}" for one in table.columns[table.keys :])
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

    def _migrate(self) -> None:
        steps = migrations("sqlite", self._schema)
        done, readable_by = self._version()
        check_readable(self.name, schema=done, readable_by=readable_by, known=len(steps))
        for one in steps[done:]:
            with self.transaction():
                if self._version()[0] >= one.number:
                    continue  # another process was quicker
                for statement in _statements(one.sql):
                    self._db.execute(statement)
                for key, value in (("schema", one.number), ("readable_by", one.readable_by)):
                    named = self._schema.prefix + key
                    self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (named, str(value)))

    def _version(self) -> tuple[int, int]:
        self._db.execute("CREATE TABLE IF NOT EXISTS meta (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        names = [self._schema.prefix + one for one in ("schema", "readable_by")]
        found = dict(self._db.execute("SELECT name, value FROM meta WHERE name IN (?, ?)", names))
        return int(found.get(names[0], 0)), int(found.get(names[1], 0))

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            if getattr(exc, "sqlite_errorname", "") == "SQLITE_FULL":
                raise StorageFull(
                    f"could not {verb} {self.name}: the disk is full",
                    hint="free some space; what was written is kept",
                ) from exc
            if is_damage(exc):
                raise StorageDamaged(f"could not {verb} {self.name}: it is damaged ({exc})", hint=HINT) from exc
            raise StorageError(f"could not {verb} {self.name}: {exc}") from exc


def _parts(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    at, left = 0, len(rows)
    for size in _CHUNKS:
        while left >= size:
            yield rows[at : at + size]
            at, left = at + size, left - size


def _marks(rows: int, columns: int) -> str:
    one = f"({', '.join('?' * columns)})"
    return ", ".join([one] * rows)


def _statements(sql: str) -> Iterator[str]:
    begun = ""
    for part in sql.split(";"):
        begun += part + ";"
        if sqlite3.complete_statement(begun):
            yield begun
            begun = ""
