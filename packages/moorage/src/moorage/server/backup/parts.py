"""The databases in a backup, and the tables of each part by version."""

from __future__ import annotations

import re
from importlib import resources

from msgspec import Struct

from moorage.server.databases import databases
from moorage.sql.migrations import Schema, migrations

_TABLE = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)")


class Part(Struct, frozen=True, kw_only=True):
    """The tables of one schema. `file`: the SQLite file that holds them; "" if they exist only in PostgreSQL.

    Backups do not contain the rows of `passing` tables.
    """

    name: str
    schema: Schema
    file: str = ""
    passing: tuple[str, ...] = ()

    def tables(self, dialect: str, until: int | None = None) -> tuple[str, ...]:
        """The tables of this part after the first `until` migrations, in the order in which they can be filled."""
        return tuple(
            table for step in migrations(dialect, self.schema)[:until] for table in _TABLE.findall(step.sql)
        )

    def version(self, dialect: str) -> int:
        """The newest schema version that this code knows; 0 if the part has no schema in this dialect."""
        folder = resources.files(self.schema.package).joinpath(self.schema.folder).joinpath(dialect)
        return len(migrations(dialect, self.schema)) if folder.is_dir() else 0


_NOT_KEPT = ("leases",)  # which server records now
PARTS = tuple(
    Part(name=database.name, schema=database.schema, file=database.file, passing=database.passing)
    for database in databases()
    if database.name not in _NOT_KEPT
)
MAPS = "maps"  # the part with the queue
COUNTED = tuple(table for database in databases() for table in database.counted)
CONTENT = tuple(table for database in databases() for table in database.content)
