"""The output of the items of maps, stored for longer than their pods exist, with a bound for each map.

It is in one SQLite file, or in PostgreSQL, where every server reads and adds the same. Best effort, unlike the
queue: a crash of the machine may cost a file its last seconds (`synchronous = NORMAL`), and beyond its
bound a map's oldest output is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from moorage.sql.database import Database, Row
from moorage.sql.migrations import Schema
from moorage.sql.opening import is_postgres, open_database
from moorage.sql.thread import StoreThread

MAP_BYTES = 256 * 1024 * 1024  # of output stored for one map
ROW_BYTES = 64  # counted for each part in addition to its output
FREED_AT_ONCE = 8  # this share of the bound is deleted at a time
PAGE_BYTES = 1024 * 1024
ROWS_FIRST, ROWS_MOST = 16, 1024  # read by one statement; a part may have 2 MiB
SHARED_SECONDS = 1.0  # between two reads of parts that another server added

SCHEMA = Schema("moorage.queue", "outputs.", folder="migrations/outputs")
_PAGE = "SELECT id, item, lease, at, pod, output FROM outputs WHERE map = ? AND id > ?"
_GROW = """
INSERT INTO output_sizes (map, bytes) VALUES (?, ?)
ON CONFLICT (map) DO UPDATE SET bytes = output_sizes.bytes + excluded.bytes
"""


class Part(Struct, frozen=True):
    """A part of the output. `at`: milliseconds since 1970; item -1 means a note of the worker itself."""

    id: int
    item: int
    lease: int
    at: int
    pod: str
    output: bytes


class Outputs:
    """The output of maps. Call the methods from one event loop; a thread reads and writes the database."""

    def __init__(self, where: Path | str, *, map_bytes: int = MAP_BYTES) -> None:
        self._map_bytes = map_bytes
        self._shared = is_postgres(where)
        self._file = StoreThread("outputs", lambda: open_database(where, SCHEMA, durable=False))
        self._news: dict[int, asyncio.Event] = {}

    async def add(self, of: int, pod: str, parts: Sequence[tuple[int, int, int, bytes]]) -> None:
        """Store the output of a pod: (item, lease, at, output). Raises StorageError."""
        await self._file.do(lambda db: self._add(db, of, pod, parts))
        if (news := self._news.pop(of, None)) is not None:
            news.set()

    async def page(self, of: int, *, item: int | None = None, after: int = 0) -> list[Part]:
        """The next parts in the order of arrival, about 1 MiB at most. Empty if there are no more yet."""
        return await self._file.do(lambda db: _page(db, of, item, after))

    async def news(self, of: int, *, after: int = 0) -> None:
        """Wait until output after the part `after` is added, by this or another server."""
        event = self._news.setdefault(of, asyncio.Event())
        if not self._shared:
            await event.wait()
            return
        look = "SELECT 1 FROM outputs WHERE map = ? AND id > ? LIMIT 1"
        while not await self._file.do(lambda db: db.rows(look, of, after)):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), SHARED_SECONDS)
                return

    async def keep_only(self, maps: Iterable[int]) -> None:
        """Delete the output of all other maps."""
        known = set(maps)
        await self._file.do(lambda db: _forget(db, known))
        for of in self._news.keys() - known:  # a follower that has ended left its event
            self._news.pop(of).set()

    async def bound(self, groups: Iterable[Sequence[int]], most: int) -> None:
        """Of each group of maps, delete the oldest maps' output until at most so many bytes remain."""
        wanted = [sorted(group) for group in groups]
        await self._file.do(lambda db: _bound(db, wanted, most))

    def close(self) -> None:
        self._file.close()

    def _add(self, db: Database, of: int, pod: str, parts: Sequence[tuple[int, int, int, bytes]]) -> None:
        with db.transaction():
            db.run(_GROW, of, sum(len(part[3]) + ROW_BYTES for part in parts))  # the row is locked from here
            db.run_each(
                "INSERT INTO outputs (map, item, lease, at, pod, output) VALUES (?, ?, ?, ?, ?, ?)",
                [(of, item, lease, at, pod, output) for item, lease, at, output in parts],
            )
            ((size,),) = db.rows("SELECT bytes FROM output_sizes WHERE map = ?", of)
            if size > self._map_bytes:
                _free(db, of, size, self._map_bytes - self._map_bytes // FREED_AT_ONCE)


def _free(db: Database, of: int, size: int, wanted: int) -> None:
    """Delete the oldest parts of a map until it has at most `wanted` bytes."""
    last = 0
    while size > wanted:
        statement = "SELECT id, LENGTH(output) FROM outputs WHERE map = ? AND id > ? ORDER BY id LIMIT ?"
        rows = db.rows(statement, of, last, ROWS_MOST)
        for id_, length in rows:
            last, size = id_, size - length - ROW_BYTES
            if size <= wanted:
                break
        if not rows:
            break
    db.run("DELETE FROM outputs WHERE map = ? AND id <= ?", of, last)
    db.run("UPDATE output_sizes SET bytes = ? WHERE map = ?", size, of)


def _forget(db: Database, known: set[int]) -> None:
    for (of,) in db.rows("SELECT map FROM output_sizes"):
        if of not in known:
            _delete(db, of)


def _delete(db: Database, of: int) -> None:
    with db.transaction():
        db.run("DELETE FROM output_sizes WHERE map = ?", of)  # locks it, so that no process adds meanwhile
        db.run("DELETE FROM outputs WHERE map = ?", of)


def _bound(db: Database, groups: list[list[int]], most: int) -> None:
    sizes: dict[int, int] = dict(db.rows("SELECT map, bytes FROM output_sizes"))
    for group in groups:
        whole = sum(sizes.get(of, 0) for of in group)
        for of in group:
            if whole <= most:
                break
            whole -= sizes.get(of, 0)
            _delete(db, of)


def _part(row: Row) -> Part:
    id_, item, lease, at, pod, output = row
    return Part(id_, item, lease, at, pod, bytes(output))


def _page(db: Database, of: int, item: int | None, after: int) -> list[Part]:
    parts: list[Part] = []
    size, limit = 0, ROWS_FIRST
    while size < PAGE_BYTES:
        if item is None:
            rows = db.rows(f"{_PAGE} ORDER BY id LIMIT ?", of, after, limit)
        else:
            rows = db.rows(f"{_PAGE} AND item = ? ORDER BY id LIMIT ?", of, after, item, limit)
        for row in rows:
            parts.append(_part(row))
            after, size = parts[-1].id, size + len(parts[-1].output) + ROW_BYTES
            if size >= PAGE_BYTES:
                break
        if len(rows) < limit:
            break
        mean = size // len(parts)
        limit = max(ROWS_FIRST, min(ROWS_MOST, (PAGE_BYTES - size) // mean + 1))
    return parts
