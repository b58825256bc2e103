"""What the items of maps have printed, kept when their pods are gone: one SQLite file, bounded for each map.

Best effort beside the queue's promises: a crash of the machine may cost the last seconds (`synchronous = NORMAL`),
and beyond its bound a map's oldest output goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from moorage.sql.migrations import Schema
from moorage.sql.sqlite import SqliteDatabase
from moorage.sql.thread import StoreThread

MAP_BYTES = 256 * 1024 * 1024  # of output kept for one map
ROW_BYTES = 64  # counted for each part beside its output
FREED_AT_ONCE = 8  # one part in so many of the bound goes at a time
PAGE_BYTES = 1024 * 1024

SCHEMA = Schema("moorage.queue", "outputs.", folder="migrations/outputs")
_PAGE = "SELECT id, item, lease, at, pod, output FROM outputs WHERE map = ?1 AND id > ?2"


@dataclass(frozen=True, slots=True)
class Part:
    """Something that was printed. `at` is ms since 1970; the item is -1 for a note of the worker's own."""

    id: int
    item: int
    lease: int
    at: int
    pod: str
    output: bytes


class Outputs:
    """All calls may be made from one event loop; the file is read and written in a thread."""

    def __init__(self, path: Path, *, map_bytes: int = MAP_BYTES) -> None:
        self._map_bytes = map_bytes
        self._file = StoreThread("outputs", lambda: SqliteDatabase(path, SCHEMA, durable=False))
        self._sizes: dict[int, int] = {}
        self._news: dict[int, asyncio.Event] = {}

    async def add(self, of: int, pod: str, parts: Sequence[tuple[int, int, int, bytes]]) -> None:
        """Keep (item, lease, at, output) of a pod. Raises StorageError."""
        await self._file.do(lambda db: self._add(db, of, pod, parts))
        if (news := self._news.pop(of, None)) is not None:
            news.set()

    async def page(self, of: int, *, item: int | None = None, after: int = 0) -> list[Part]:
        """The next parts in the order in which they came, up to about 1 MiB of them; none: that is all so far."""
        return await self._file.do(lambda db: _page(db, of, item, after))

    async def news(self, of: int) -> None:
        """Wait until something is added."""
        await self._news.setdefault(of, asyncio.Event()).wait()

    async def keep_only(self, maps: Iterable[int]) -> None:
        """Forget the output of all other maps."""
        known = set(maps)
        await self._file.do(lambda db: self._forget(db, known))
        for of in self._news.keys() - known:  # a follower that went away left its event
            self._news.pop(of).set()

    async def bound(self, groups: Iterable[Sequence[int]], most: int) -> None:
        """Of each group of maps, the oldest maps' output goes first until at most so many bytes are left."""
        wanted = [sorted(group) for group in groups]
        await self._file.do(lambda db: self._bound(db, wanted, most))

    def close(self) -> None:
        self._file.close()

    def _add(self, db: SqliteDatabase, of: int, pod: str, parts: Sequence[tuple[int, int, int, bytes]]) -> None:
        if of not in self._sizes:
            ((size,),) = db.rows("SELECT SUM(LENGTH(output) + ?) FROM outputs WHERE map = ?", ROW_BYTES, of)
            self._sizes[of] = size or 0
        with db.transaction():
            db.run_each(
                "INSERT INTO outputs (map, item, lease, at, pod, output) VALUES (?, ?, ?, ?, ?, ?)",
                [(of, item, lease, at, pod, output) for item, lease, at, output in parts],
            )
            self._sizes[of] += sum(len(part[3]) + ROW_BYTES for part in parts)
            if self._sizes[of] > self._map_bytes:
                self._free(db, of)

    def _free(self, db: SqliteDatabase, of: int) -> None:
        wanted = self._map_bytes - self._map_bytes // FREED_AT_ONCE
        last, size = 0, self._sizes[of]
        for at, length in db.each("SELECT id, LENGTH(output) FROM outputs WHERE map = ? ORDER BY id", of):
            if size <= wanted:
                break
            last, size = at, size - length - ROW_BYTES
        db.run("DELETE FROM outputs WHERE map = ? AND id <= ?", of, last)
        self._sizes[of] = size

    def _forget(self, db: SqliteDatabase, known: set[int]) -> None:
        with db.transaction():
            for (of,) in db.rows("SELECT DISTINCT map FROM outputs"):
                if of not in known:
                    db.run("DELETE FROM outputs WHERE map = ?", of)
        for of in self._sizes.keys() - known:
            del self._sizes[of]

    def _bound(self, db: SqliteDatabase, groups: list[list[int]], most: int) -> None:
        rows = db.rows("SELECT map, SUM(LENGTH(output) + ?) FROM outputs GROUP BY map", ROW_BYTES)
        sizes: dict[int, int] = {of: size for of, size in rows}
        with db.transaction():
            for group in groups:
                whole = sum(sizes.get(of, 0) for of in group)
                for of in group:
                    if whole <= most:
                        break
                    whole -= sizes.get(of, 0)
                    db.run("DELETE FROM outputs WHERE map = ?", of)
                    self._sizes.pop(of, None)


def _page(db: SqliteDatabase, of: int, item: int | None, after: int) -> list[Part]:
    if item is None:
        rows = db.each(f"{_PAGE} ORDER BY id", of, after)
    else:
        rows = db.each(f"{_PAGE} AND item = ?3 ORDER BY id", of, after, item)
    parts: list[Part] = []
    size = 0
    for row in rows:
        parts.append(Part(*row))
        size += len(parts[-1].output) + ROW_BYTES
        if size >= PAGE_BYTES:
            break
    return parts
