"""Open a database by its location."""

from __future__ import annotations

from pathlib import Path

from moorage.sql.database import Database
from moorage.sql.migrations import Schema
from moorage_kube.errors import StorageError

POSTGRES = ("postgresql://", "postgres://")


def is_postgres(where: Path | str) -> bool:
    """Whether the location is a PostgreSQL address, which servers can share. Otherwise it is a file."""
    return isinstance(where, str) and where.startswith(POSTGRES)


def open_database(where: Path | str, schema: Schema, *, durable: bool = True) -> Database:
    """Open a file, readable by its owner only, or a `postgresql://` address. Raises StorageError.

    Without `durable`, a file may lose its last seconds if the machine fails; see `SqliteDatabase`.
    """
    if is_postgres(where):
        from moorage.sql.postgres import PostgresDatabase

        return PostgresDatabase(str(where), schema)
    from moorage.sql.sqlite import SqliteDatabase

    return SqliteDatabase(where, schema, durable=durable)


class LateDatabase:
    """A database that connects at its first use, so its outage does not stop a server.

    For one thread at a time.
    """

    def __init__(self, where: Path | str, schema: Schema, *, name: str) -> None:
        """`name`: its content, for messages."""
        self._where, self._schema, self._name = where, schema, name
        self._closed = False
        self._database: Database | None = None

    def use(self) -> Database:
        """The database; connects if needed. Raises StorageError."""
        if self._closed:  # a thread was slower than the end of the server
            raise StorageError(f"{self._name} is closed")
        if self._database is None:
            self._database = open_database(self._where, self._schema)
        return self._database

    def close(self) -> None:
        self._closed = True
        if self._database is not None:
            self._database.close()
            self._database = None
