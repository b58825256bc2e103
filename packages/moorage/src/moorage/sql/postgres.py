"""A database in PostgreSQL 14 or newer, by psycopg 3: for many servers on one database.

Writers run at the same time. They lock in one order: maps and limits (only where tokens are counted), sessions,
items by number; free items are taken with SKIP LOCKED; sums of a map are increments, and last: its counts, then
its size, by the map's number. A deadlock despite that, and a broken connection, end the transaction with
StorageError: the client asks again, and the numbers of requests and leases make that harmless.

Rows are passed as arrays, one statement for all (`unnest`). A server that vanishes while it holds locks is cut
off by `idle_in_transaction_session_timeout`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import errors

from moorage.sql.database import Row, Table
from moorage.sql.migrations import Migration, Schema, Version, migrate, migrations
from moorage.sql.times import timed
from moorage_kube.errors import StorageError, StorageFull

CONNECT_SECONDS = 10
IDLE_SECONDS = 30  # in a transaction: a server that is not there any more
_PLANS = " ".join(  # every statement is a look-up by index; without statistics the planner scans and sorts instead
    f"-c {setting}=off"
    for setting in ("jit", "enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin")
)
_MIGRATION_LOCK = 0x6D6F6F72  # "moor": one server migrates at a time


class PostgresDatabase:
    """A PostgreSQL database. It connects at the first use, and again after a lost connection.

    `url`: `postgresql://…`.

    Raises StorageError if the database cannot be reached or was written by a newer Moorage.
    """

    def __init__(self, url: str, schema: Schema) -> None:
        self._url = url
        self._schema = schema
        self._db: psycopg.Connection[Row] | None = None
        try:
            with self._errors("open"):
                migrate(self, migrations("postgres", schema))
        except StorageError:
            self.close()
            raise

    @property
    def name(self) -> str:
        parts = urlsplit(self._url)
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def locking(self, clause: str) -> str:
        return clause

    def joined(self, expression: str) -> str:
        return f"STRING_AGG(CAST({expression} AS TEXT), ',')"

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._errors("write"), self._connect().transaction():
            yield

    def rows(self, statement: str, *values: Any) -> list[Row]:
        with self._errors("read"):
            return self._connect().execute(_translated(statement), values).fetchall()

    def run(self, statement: str, *values: Any) -> int:
        with self._errors("write"):
            return self._connect().execute(_translated(statement), values).rowcount

    def run_each(self, statement: str, rows: Iterable[Row]) -> None:
        with self._errors("write"), self._connect().cursor() as cursor:
            cursor.executemany(_translated(statement), rows)

    def by_keys(
        self, table: Table, keys: Sequence[Row], *, columns: Sequence[str] = (), lock: bool = False
    ) -> list[Row]:
        if not keys:
            return []
        names = table.columns[: table.keys]
        chosen = ", ".join(f"t.{column}" for column in columns or table.columns)
        given = ", ".join(f"%b::{kind}[]" for kind in table.types[: table.keys])
        same = " AND ".join(f"t.{name} = k.{name}" for name in names)
        order = ", ".join(f"t.{name}" for name in names)
        statement = (
            f"SELECT {chosen} FROM unnest({given}) AS k({', '.join(names)}) JOIN {table.name} AS t ON {same}"
            f" ORDER BY {order}{' FOR UPDATE OF t' if lock else ''}"
        )
        with self._errors("read"):
            return self._connect().execute(statement, _columns(keys)).fetchall()

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        self._put(rows, f"INSERT INTO {table.name} ({', '.join(table.columns)}) SELECT * FROM {_given(table)}")

    def upsert(self, table: Table, rows: Sequence[Row]) -> None:
        changed = ", ".join(f"{column} = excluded.{column}" for column in table.columns[table.keys :])
        keys = ", ".join(table.columns[: table.keys])
        self._put(
            rows,
            f"INSERT INTO {table.name} ({', '.join(table.columns)}) SELECT * FROM {_given(table)}"
            f" ON CONFLICT ({keys}) DO UPDATE SET {changed}",
        )

    def update(self, table: Table, rows: Sequence[Row]) -> None:
        changed = ", ".join(f"{column} = k.{column}" for column in table.columns[table.keys :])
        same = " AND ".join(f"t.{column} = k.{column}" for column in table.columns[: table.keys])
        self._put(rows, f"UPDATE {table.name} AS t SET {changed} FROM {_given(table)} WHERE {same}")

    def _put(self, rows: Sequence[Row], statement: str) -> None:
        if rows:
            with self._errors("write"):
                self._connect().execute(statement, _columns(rows))

    def _connect(self) -> psycopg.Connection[Row]:
        if self._db is None or self._db.closed:
            self._db = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=CONNECT_SECONDS,
                application_name="moorage queue",
                keepalives_idle=IDLE_SECONDS,
                options=f"-c idle_in_transaction_session_timeout={IDLE_SECONDS}s {_PLANS}",
            )
            self._db.prepare_threshold = 3
        return self._db

    def version(self) -> Version:
        db = self._connect()
        # not to_regclass: it may answer from before the wait for another server's migration
        tables = "SELECT 1 FROM pg_catalog.pg_tables WHERE tablename = 'meta' AND schemaname = current_schema()"
        if not db.execute(tables).fetchall():
            return Version()
        keys = (self._schema.prefix + "schema", self._schema.prefix + "readable_by")
        rows = db.execute("SELECT name, value FROM meta WHERE name IN (%s, %s)", keys).fetchall()
        values = {str(name): int(value) for name, value in rows}
        return Version(values.get(keys[0], 0), values.get(keys[1], 0))

    @contextmanager
    def migrating(self) -> Iterator[None]:
        with self._connect().transaction():
            self._connect().execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
            yield

    def apply(self, step: Migration) -> None:
        db = self._connect()
        db.execute(step.sql.encode())
        db.execute("CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        for key, value in (("schema", step.number), ("readable_by", step.readable_by)):
            db.execute(
                "INSERT INTO meta VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (self._schema.prefix + key, str(value)),
            )

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        with timed(self._schema.subject, verb), self._raised(verb):
            yield

    @contextmanager
    def _raised(self, verb: str) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as exc:
            if self._db is not None and self._db.broken:
                with contextlib.suppress(psycopg.Error):
                    self._db.close()
                self._db = None
            if isinstance(exc, errors.DiskFull):
                raise StorageFull(
                    f"could not {verb} {self.name}: its disk is full",
                    hint="free some space; the data written so far is safe",
                ) from exc
            raise StorageError(f"could not {verb} {self.name}: {exc}") from exc


@lru_cache(maxsize=1024)
def _translated(statement: str) -> str:
    return statement.replace("%", "%%").replace("?", "%s")


def _given(table: Table) -> str:
    arrays = ", ".join(f"%b::{kind}[]" for kind in table.types)
    return f"unnest({arrays}) AS k({', '.join(table.columns)})"


def _columns(rows: Sequence[Row]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]
