"""What the store asks of a database, and how its schema is brought up to date.

Statements are written once, for both dialects, with `?` for values; what differs hides behind `Database`.

A schema change is two migrations: one that old code can live with, applied by the new release when it starts, and
one that takes the old away, a release later. The first line of a file says so: `-- readable by: N` is the oldest
code (by the number of its newest migration) that works on the schema after it. Older code refuses to open it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol

from moorage.errors import StorageError

Row = tuple[Any, ...]

_FILE = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_READABLE = re.compile(r"-- readable by: (\d+)")


@dataclass(frozen=True, slots=True)
class Table:
    """A table that rows go to by the hundred. The first `keys` columns are its primary key."""

    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]  # PostgreSQL's names
    keys: int = 2


_INTS = "bigint"
ITEMS = Table(
    "items",
    (
        "map",
        "seq",
        "state",
        "rank",
        "fence",
        "holder",
        "twin",
        "settled",
        "tries",
        "losses",
        "memory_bytes",
        "ready_at",
    ),
    (_INTS,) * 12,
)
INPUTS = Table("inputs", ("map", "seq", "key", "value"), (_INTS, _INTS, "text", "bytea"))
SESSIONS = Table(
    "sessions", ("map", "name", "expires_at", "request", "leases"), (_INTS, "text", _INTS, _INTS, "bytea")
)
RESULTS = Table(
    "results",
    ("map", "seq", "lease", "at", "seconds", "memory", "value", "path"),
    (_INTS, _INTS, _INTS, _INTS, "double precision", _INTS, "bytea", "text"),
)
FAILURES = Table(
    "failures",
    ("map", "seq", "lease", "at", "cause", "message", "exit", "output", "tries"),
    (_INTS, _INTS, _INTS, _INTS, "text", "text", _INTS, "bytea", _INTS),
)


class Database(Protocol):
    """One connection, for one thread at a time. Every method raises StorageError, StorageFull when the disk is.

    Outside `transaction` each statement stands alone. `run` and `rows` take `?` for values.
    """

    @property
    def name(self) -> str:
        """Where it is, for messages; no passwords."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """One write transaction: committed, and on the disk, at the end; rolled back on an exception."""
        ...

    def rows(self, statement: str, *values: Any) -> list[Row]: ...

    def run(self, statement: str, *values: Any) -> int:
        """Execute; the number of rows touched."""
        ...

    def by_keys(
        self, table: Table, keys: Sequence[Row], *, columns: Sequence[str] = (), lock: bool = False
    ) -> list[Row]:
        """The rows with these keys, all columns or some. With `lock`, held until the end of the transaction."""
        ...

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        """Insert; StorageError when one is there already."""
        ...

    def upsert(self, table: Table, rows: Sequence[Row]) -> None:
        """Insert or replace."""
        ...

    def update(self, table: Table, rows: Sequence[Row]) -> None:
        """Replace rows that are there."""
        ...

    def locking(self, clause: str) -> str:
        """`clause` (FOR UPDATE …) where writers run at the same time, else nothing."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    sql: str
    readable_by: int


@dataclass(frozen=True, slots=True)
class Schema:
    """Whose tables are meant: several may stand in one database, each with migrations of its own."""

    package: str = "moorage.queue"  # its folder migrations/{dialect}
    prefix: str = ""  # before the keys in the table `meta`


QUEUE = Schema()


def migrations(dialect: str, schema: Schema = QUEUE) -> list[Migration]:
    """The files of `migrations/{dialect}`, in order. Raises StorageError unless they are numbered 1, 2, …"""
    found = []
    for file in resources.files(schema.package).joinpath("migrations", dialect).iterdir():
        if named := _FILE.fullmatch(file.name):
            sql = file.read_text(encoding="utf-8")
            readable = _READABLE.match(sql)
            if readable is None:
                raise StorageError(f"migration {file.name} does not say by whom the schema stays readable")
            found.append(Migration(int(named[1]), sql, int(readable[1])))
    found.sort(key=lambda one: one.number)
    if [one.number for one in found] != list(range(1, len(found) + 1)):
        raise StorageError(f"migrations are not numbered 1 to {len(found)}")
    return found


def check_readable(name: str, *, schema: int, readable_by: int, known: int) -> None:
    """Raise StorageError when the schema has moved on beyond what this code, of migration `known`, can use."""
    if schema > known and readable_by > known:
        raise StorageError(
            f"{name} has schema version {schema}; this Moorage knows versions up to {known}",
            hint="use the Moorage that wrote it, or a newer one",
        )
