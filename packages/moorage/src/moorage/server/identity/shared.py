"""Short-lived values that all servers on one database share, by kind and name. Each value expires.

One row per value. Each kind has a maximum number of values; beyond it those that expire first are deleted. Expiry
is wall-clock time, so the clocks of servers on one database must differ by less than the shortest life (seconds).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from msgspec import Struct

from moorage.sql.database import Database, Table
from moorage.sql.timestamps import to_microseconds

TRIM_EVERY = 100  # changes of a kind by one server; a kind is above its bound by at most these
TABLE = Table("shared_values", ("kind", "name", "body", "expires_at"), ("text", "text", "bytea", "bigint"), keys=2)
_LIVING = "SELECT body FROM shared_values WHERE kind = ? AND name = ? AND expires_at > ?"
_NEVER = 0  # the end of a row that only holds a lock

T = TypeVar("T")


class Kind(Struct, frozen=True):
    """A kind of values. `most`: the bound on their number."""

    name: str
    most: int


class Key(Struct, frozen=True):
    """The name of one value. `text` may be anything: only its SHA-256 is stored."""

    kind: Kind
    text: str

    @property
    def name(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


class Value(Struct, frozen=True):
    """The body of a value, and its end."""

    body: bytes
    end: datetime


class SharedValues:
    """The table of shared values. Use it from one thread at a time. Every method raises StorageError."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._changes: dict[str, int] = {}  # since the last trim, by kind

    def get(self, key: Key, now: datetime) -> bytes | None:
        """A value; None if it is missing or has expired."""
        rows = self._db.rows(_LIVING, key.kind.name, key.name, to_microseconds(now))
        return bytes(rows[0][0]) if rows else None

    def put(self, key: Key, value: Value, now: datetime) -> None:
        """Write a value that only this server changes."""
        self._db.run(
            "INSERT INTO shared_values (kind, name, body, expires_at) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body, expires_at = excluded.expires_at",
            key.kind.name,
            key.name,
            value.body,
            to_microseconds(value.end),
        )
        self._count(key.kind, now)

    def claim(self, key: Key, holder: str, end: datetime, now: datetime) -> bool:
        """Take the key until `end`, and return whether `holder` has it; another holder may. `release` frees it."""

        def work(bodies: list[bytes | None]) -> tuple[list[Value | None], bool]:
            free = bodies[0] is None or bodies[0] == holder.encode()
            return [Value(holder.encode() if free else bodies[0] or b"", end)], free

        return self.change([key], work, now)

    def release(self, key: Key, holder: str) -> None:
        """Release a claimed key; do nothing if another holder has claimed it meanwhile."""
        statement = "DELETE FROM shared_values WHERE kind = ? AND name = ? AND body = ?"
        self._db.run(statement, key.kind.name, key.name, holder.encode())

    def extend(self, key: Key, end: datetime) -> bool:
        """Move the end of a value; return False if it was deleted."""
        statement = "UPDATE shared_values SET expires_at = ? WHERE kind = ? AND name = ?"
        return self._db.run(statement, to_microseconds(end), key.kind.name, key.name) > 0

    def drop(self, key: Key) -> bool:
        """Delete a value; return whether it existed."""
        statement = "DELETE FROM shared_values WHERE kind = ? AND name = ?"
        return self._db.run(statement, key.kind.name, key.name) > 0

    def change(
        self,
        keys: Sequence[Key],
        work: Callable[[list[bytes | None]], tuple[Sequence[Value | None], T]],
        now: datetime,
    ) -> T:
        """Read and replace values in one atomic step.

        `work` gets the bodies (None if a value is missing) and returns the new values (None to delete one) and an
        outcome. An unchanged body is not written.
        """
        order = sorted(range(len(keys)), key=lambda at: (keys[at].kind.name, keys[at].name))
        with self._db.transaction():
            bodies: list[bytes | None] = [None] * len(keys)
            for at in order:  # every server locks in this order
                bodies[at] = self._locked(keys[at], now)
            values, outcome = work(bodies)
            for key, body, value in zip(keys, bodies, values, strict=True):
                self._replace(key, body, value)
        for kind in {key.kind for key in keys}:
            self._count(kind, now)
        return outcome

    def _locked(self, key: Key, now: datetime) -> bytes | None:
        lock = self._db.locking(" FOR UPDATE")
        if lock:  # a row that is not there cannot be locked
            self._db.run(
                "INSERT INTO shared_values (kind, name, body, expires_at) VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                key.kind.name,
                key.name,
                b"",
                _NEVER,
            )
        rows = self._db.rows(_LIVING + lock, key.kind.name, key.name, to_microseconds(now))
        return bytes(rows[0][0]) if rows else None

    def _replace(self, key: Key, body: bytes | None, value: Value | None) -> None:
        if value is None:
            if body is not None or self._db.locking("lock"):
                self.drop(key)
        elif value.body != body:
            self._db.upsert(TABLE, [(key.kind.name, key.name, value.body, to_microseconds(value.end))])

    def _count(self, kind: Kind, now: datetime) -> None:
        changes = self._changes.get(kind.name, 0) + 1
        if changes >= min(TRIM_EVERY, kind.most):
            self.trim(kind, now)
            changes = 0
        self._changes[kind.name] = changes

    def trim(self, kind: Kind, now: datetime) -> None:
        """Delete the values that have ended or exceed the bound. Values that another server changes now stay."""
        skip = self._db.locking(" FOR UPDATE SKIP LOCKED")
        self._db.run(
            "DELETE FROM shared_values WHERE kind = ? AND name IN"
            f" (SELECT name FROM shared_values WHERE kind = ? AND expires_at <= ?{skip})",
            kind.name,
            kind.name,
            to_microseconds(now),
        )
        self._db.run(
            "DELETE FROM shared_values WHERE kind = ? AND name IN (SELECT name FROM shared_values WHERE kind = ?"
            f" ORDER BY expires_at DESC LIMIT 1000000 OFFSET ?{skip})",
            kind.name,
            kind.name,
            kind.most,
        )
