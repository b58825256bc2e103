"""The interface of a database for a store.

Statements are written once, for both dialects, with `?` for values; `Database` hides the differences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from msgspec import Struct

Row = tuple[Any, ...]


class Table(Struct, frozen=True):
    """A table with bulk writes. The first `keys` columns are its primary key."""

    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]  # PostgreSQL's names
    keys: int = 2


class Database(Protocol):
    """One connection, for one thread at a time. Every method raises StorageError, StorageFull when the disk is.

    Outside `transaction` each statement is a transaction. `run` and `rows` take `?` for values.
    """

    @property
    def name(self) -> str:
        """The location of the database for messages, without passwords."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Start a write transaction. It is committed to disk at the end, or rolled back on an exception."""
        ...

    def rows(self, statement: str, *values: Any) -> list[Row]: ...

    def run(self, statement: str, *values: Any) -> int:
        """Execute a statement. Returns the number of changed rows."""
        ...

    def run_each(self, statement: str, rows: Iterable[Row]) -> None:
        """Execute a statement once for each row of values, inside `transaction`."""
        ...

    def by_keys(
        self, table: Table, keys: Sequence[Row], *, columns: Sequence[str] = (), lock: bool = False
    ) -> list[Row]:
        """The rows with these keys, with all or some columns.

        `lock` locks them until the end of the transaction.
        """
        ...

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        """Insert rows. Raises StorageError if one exists."""
        ...

    def upsert(self, table: Table, rows: Sequence[Row]) -> None:
        """Insert or replace."""
        ...

    def update(self, table: Table, rows: Sequence[Row]) -> None:
        """Replace existing rows."""
        ...

    def locking(self, clause: str) -> str:
        """`clause` (FOR UPDATE …) if several writers can run at the same time, else ""."""
        ...

    def joined(self, expression: str) -> str:
        """The expression that joins the values of a group to one text, with commas in between, in no order."""
        ...

    def close(self) -> None: ...
