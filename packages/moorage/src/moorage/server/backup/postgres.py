"""Parts in PostgreSQL: one transaction reads all parts, and one transaction restores them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg

from moorage.server.backup.parts import MAPS, PARTS, Part
from moorage.server.backup.rows import META, RELEASE, batches, is_kept, read_lines
from moorage.sql.migrations import migrations
from moorage.sql.opening import open_database
from moorage_kube.errors import StorageError

DIALECT = "postgres"
_IDENTITY = (
    "SELECT column_name FROM information_schema.columns"
    " WHERE table_schema = current_schema() AND table_name = %s AND is_identity = 'YES'"
)
_LOCK = 0x6D6F6F72  # of migrations: none runs during a restore


class PostgresSource:
    """A snapshot of all parts in PostgreSQL."""

    dialect = DIALECT

    def __init__(self, url: str) -> None:
        self._url = url
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> PostgresSource:
        """Raises StorageError."""
        self._stack.enter_context(_errors("back up"))
        self._db = self._stack.enter_context(psycopg.connect(self._url, application_name="moorage backup"))
        self._db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._db.read_only = True
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def version(self, part: Part) -> int:
        if not self._db.execute("SELECT to_regclass('meta')").fetchone()[0]:  # type: ignore[index]
            return 0
        key = part.schema.prefix + "schema"
        row = self._db.execute("SELECT value FROM meta WHERE name = %s", (key,)).fetchone()
        return int(row[0]) if row else 0

    def columns(self, part: Part, table: str) -> list[str]:  # noqa: ARG002
        columns = self._db.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema()"
            " AND table_name = %s ORDER BY ordinal_position",
            (table,),
        )
        return [str(row[0]) for row in columns]

    def rows(self, part: Part, table: str, columns: Sequence[str]) -> Iterator[Sequence[Any]]:  # noqa: ARG002
        with self._db.cursor(name="backup") as cursor:  # on the server, so that tables are not read into memory
            cursor.itersize = 2000
            cursor.execute(f"SELECT {', '.join(columns)} FROM {table}".encode())
            yield from cursor


def restore(url: str, parts: Sequence[tuple[Part, Path, int]]) -> None:
    """Replace the stored rows by parts, their lines and versions: in one transaction, so all of it or
    nothing.

    Raises StorageError; nothing has changed then. Servers on the database wait meanwhile.
    """
    with _errors("restore"), psycopg.connect(url, application_name="moorage restore") as db:
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        db.execute("CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        for part in PARTS:
            for table in reversed(part.tables(DIALECT)):
                db.execute(f"DROP TABLE IF EXISTS {table}".encode())
            _forget_meta(db, part)
        for part, folder, version in parts:
            _restore_part(db, part, folder, version)
    for part in PARTS:  # the migrations since, and those that the backup lacks
        open_database(url, part.schema).close()


def _forget_meta(db: psycopg.Connection[Any], part: Part) -> None:
    for name in [str(row[0]) for row in db.execute("SELECT name FROM meta")]:
        own = name.removeprefix(part.schema.prefix)
        if is_kept(part, name) or (name.startswith(part.schema.prefix) and own in ("schema", "readable_by")):
            db.execute("DELETE FROM meta WHERE name = %s", (name,))


def _restore_part(db: psycopg.Connection[Any], part: Part, folder: Path, version: int) -> None:
    for step in migrations(DIALECT, part.schema)[:version]:
        db.execute(step.sql.encode())
        for key, value in (("schema", step.number), ("readable_by", step.readable_by)):
            db.execute(
                "INSERT INTO meta VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (part.schema.prefix + key, str(value)),
            )
    for table in (*part.tables(DIALECT, version), META):
        path = folder / f"{table}.jsonl"
        if not path.exists():
            continue
        columns, rows = read_lines(path)
        if table != META:
            db.execute(f"DELETE FROM {table}".encode())
        marks = ", ".join(["%s"] * len(columns))
        again = " ON CONFLICT (name) DO UPDATE SET value = excluded.value" if table == META else ""
        insert = f"INSERT INTO {table} ({', '.join(columns)}) OVERRIDING SYSTEM VALUE VALUES ({marks}){again}"
        with db.cursor() as cursor:
            for batch in batches(rows):
                cursor.executemany(insert.encode(), batch)
        for (column,) in db.execute(_IDENTITY, (table,)).fetchall():
            db.execute(
                f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'),"
                f" (SELECT COALESCE(MAX({column}), 0) + 1 FROM {table}), false)".encode()
            )
    if part.name == MAPS:
        for statement in RELEASE:
            db.execute(statement.encode())


@contextlib.contextmanager
def _errors(verb: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise StorageError(f"could not {verb} the database: {error}") from error
