"""Open a database by where it is."""

from __future__ import annotations

from pathlib import Path

from moorage.sql.database import Database
from moorage.sql.migrations import Schema

POSTGRES = ("postgresql://", "postgres://")


def open_database(where: Path | str, schema: Schema) -> Database:
    """A file, made readable by its owner only, or a `postgresql://` address. Raises StorageError."""
    if isinstance(where, str) and where.startswith(POSTGRES):
        from moorage.sql.postgres import PostgresDatabase

        return PostgresDatabase(where, schema)
    from moorage.sql.sqlite import SqliteDatabase

    return SqliteDatabase(where, schema)
