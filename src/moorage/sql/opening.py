"""Open a database by where it is."""

from __future__ import annotations

from pathlib import Path

from moorage.sql.database import Database
from moorage.sql.migrations import Schema

POSTGRES = ("postgresql://", "postgres://")


def is_postgres(where: Path | str) -> bool:
    """Whether it is the address of a PostgreSQL, and so may be shared by servers; else it is a file."""
    return isinstance(where, str) and where.startswith(POSTGRES)


def open_database(where: Path | str, schema: Schema, *, durable: bool = True) -> Database:
    """A file, made readable by its owner only, or a `postgresql://` address. Raises StorageError.

    Without `durable` a file may lose its last seconds with the machine; see `SqliteDatabase`.
    """
    if is_postgres(where):
        from moorage.sql.postgres import PostgresDatabase

        return PostgresDatabase(str(where), schema)
    from moorage.sql.sqlite import SqliteDatabase

    return SqliteDatabase(where, schema, durable=durable)
