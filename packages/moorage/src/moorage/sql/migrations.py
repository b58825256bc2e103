"""Migrations of database schemas.

A schema change consists of two migrations. The new release applies the first at startup; old code still works
with it. The second removes the old parts, one release later. The first line of a file is `-- readable by: N`:
the oldest code (the number of its newest migration) that works on the schema after it. Older code refuses to
open the schema.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib import resources
from typing import Protocol

from msgspec import Struct

from moorage_kube.errors import StorageError

_FILE = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_READABLE = re.compile(r"-- readable by: (\d+)")


class Migration(Struct, frozen=True):
    number: int
    sql: str
    readable_by: int


class Schema(Struct, frozen=True):
    """The schema of one store: several may share a database, each with its own migrations."""

    package: str  # its folder {folder}/{dialect} holds the migrations
    prefix: str = ""  # before the keys in the table `meta`
    folder: str = "migrations"

    @property
    def subject(self) -> str:
        """The content of its tables, in one word."""
        return self.prefix.rstrip(".") or self.package.rpartition(".")[2]


class Version(Struct, frozen=True):
    """The version recorded in a database: zeros before its first migration."""

    number: int = 0
    readable_by: int = 0


class Ledger(Protocol):
    """A database that stores its schema version."""

    @property
    def name(self) -> str: ...

    def version(self) -> Version:
        """Reads only."""
        ...

    def migrating(self) -> AbstractContextManager[None]:
        """A transaction during which no other process migrates."""
        ...

    def apply(self, step: Migration) -> None:
        """Execute the statements of a step and store its number."""
        ...


def migrations(dialect: str, schema: Schema) -> list[Migration]:
    """The migration files of a dialect, in order. Raises StorageError unless their numbers are 1, 2, …"""
    steps = []
    for file in resources.files(schema.package).joinpath(schema.folder).joinpath(dialect).iterdir():
        if named := _FILE.fullmatch(file.name):
            sql = file.read_text(encoding="utf-8")
            readable = _READABLE.match(sql)
            if readable is None:
                raise StorageError(f"migration {file.name} does not name the versions that can read the schema")
            steps.append(Migration(int(named[1]), sql, int(readable[1])))
    steps.sort(key=lambda step: step.number)
    if [step.number for step in steps] != list(range(1, len(steps) + 1)):
        raise StorageError(f"migrations are not numbered 1 to {len(steps)}")
    return steps


def migrate(database: Ledger, steps: Sequence[Migration]) -> None:
    """Migrate a database to the newest schema, one transaction per step. Several processes may do this at once.

    A failed step leaves the previous schema. Raises StorageError for a schema that this code cannot use.
    """
    version = database.version()
    check_readable(database.name, version, known=len(steps))
    while version.number < len(steps):
        with database.migrating():
            version = database.version()  # another process may have been quicker
            if version.number < len(steps):
                step = steps[version.number]
                database.apply(step)
                version = Version(step.number, step.readable_by)


def check_readable(name: str, version: Version, *, known: int) -> None:
    """Raise StorageError when the schema is newer than this code, of migration `known`, can use."""
    if version.number > known and version.readable_by > known:
        raise StorageError(
            f"{name} has schema version {version.number}; this Moorage knows versions up to {known}",
            hint="use the Moorage that wrote it, or a newer one",
        )
