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
    """A table that rows go to by the hundred. The first `keys` columns are its primary key."""

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
        """Where it is, for messages; no passwords."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """One write transaction: committed, and on the disk, at the end; rolled back on an exception."""
        ...

    def rows(self, statement: str, *values: Any) -> list[Row]: ...

    def run(self, statement: str, *values: Any) -> int:
        """Execute; the number of rows touched."""
        ...

    def run_each(self, statement: str, rows: Iterable[Row]) -> None:
        """Execute once for each row of values, inside `transaction`."""
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

    def joined(self, expression: str) -> str:
        """The expression that joins the values of a group to one text, with commas in between, in no order."""
        ...

    def close(self) -> None: ...
