"""What the items of maps have printed, kept when their pods are gone: one SQLite file, bounded for each map.

Best effort beside the queue's promises: a crash of the machine may cost the last seconds (`synchronous = NORMAL`),
and beyond its bound a map's oldest output goes.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from moorage.apimachinery.databasefile import make_private
from moorage.errors import StorageError

MAP_BYTES = 256 * 1024 * 1024  # of output kept for one map
ROW_BYTES = 64  # counted for each part beside its output
FREED_AT_ONCE = 8  # one part in so many of the bound goes at a time
PAGE_BYTES = 1024 * 1024

T = TypeVar("T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS outputs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, map INTEGER NOT NULL, item INTEGER NOT NULL, lease INTEGER NOT NULL,
    at INTEGER NOT NULL, pod TEXT NOT NULL, output BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS outputs_by_map ON outputs (map, id);
CREATE INDEX IF NOT EXISTS outputs_by_item ON outputs (map, item, id);
"""
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
        self._path = path
        self._map_bytes = map_bytes
        self._thread = ThreadPoolExecutor(1, "outputs")
        self._db: sqlite3.Connection | None = None
        self._sizes: dict[int, int] = {}
        self._news: dict[int, asyncio.Event] = {}

    async def add(self, of: int, pod: str, parts: Sequence[tuple[int, int, int, bytes]]) -> None:
        """Keep (item, lease, at, output) of a pod. Raises StorageError."""
        await self._do(lambda db: self._add(db, of, pod, parts))
        if (news := self._news.pop(of, None)) is not None:
            news.set()

    async def page(self, of: int, *, item: int | None = None, after: int = 0) -> list[Part]:
        """The next parts in the order in which they came, up to about 1 MiB of them; none: that is all so far."""
        return await self._do(lambda db: _page(db, of, item, after))

    async def news(self, of: int) -> None:
        """Wait until something is added."""
        await self._news.setdefault(of, asyncio.Event()).wait()

    async def keep_only(self, maps: Iterable[int]) -> None:
        """Forget the output of all other maps."""
        known = set(maps)
        await self._do(lambda db: self._forget(db, known))
        for of in self._news.keys() - known:  # a follower that went away left its event
            self._news.pop(of).set()

    async def bound(self, groups: Iterable[Sequence[int]], most: int) -> None:
        """Of each group of maps, the oldest maps' output goes first until at most so many bytes are left."""
        wanted = [sorted(group) for group in groups]
        await self._do(lambda db: self._bound(db, wanted, most))

    def close(self) -> None:
        self._thread.submit(self._close)
        self._thread.shutdown(wait=True)

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def use() -> T:
            try:
                if self._db is None:
                    self._db = _open(self._path)
                return work(self._db)
            except sqlite3.Error as error:
                raise StorageError(f"cannot use {self._path}: {error}", hint="is the disk full?") from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, use)

    def _add(
        self, db: sqlite3.Connection, of: int, pod: str, parts: Sequence[tuple[int, int, int, bytes]]
    ) -> None:
        if of not in self._sizes:
            found = db.execute("SELECT SUM(LENGTH(output) + ?) FROM outputs WHERE map = ?", (ROW_BYTES, of))
            self._sizes[of] = found.fetchone()[0] or 0
        with db:
            db.executemany(
                "INSERT INTO outputs (map, item, lease, at, pod, output) VALUES (?, ?, ?, ?, ?, ?)",
                [(of, item, lease, at, pod, output) for item, lease, at, output in parts],
            )
            self._sizes[of] += sum(len(part[3]) + ROW_BYTES for part in parts)
            if self._sizes[of] > self._map_bytes:
                self._free(db, of)

    def _free(self, db: sqlite3.Connection, of: int) -> None:
        wanted = self._map_bytes - self._map_bytes // FREED_AT_ONCE
        last, size = 0, self._sizes[of]
        for at, length in db.execute("SELECT id, LENGTH(output) FROM outputs WHERE map = ? ORDER BY id", (of,)):
            if size <= wanted:
                break
            last, size = at, size - length - ROW_BYTES
        db.execute("DELETE FROM outputs WHERE map = ? AND id <= ?", (of, last))
        self._sizes[of] = size

    def _forget(self, db: sqlite3.Connection, known: set[int]) -> None:
        with db:
            for (of,) in db.execute("SELECT DISTINCT map FROM outputs").fetchall():
                if of not in known:
                    db.execute("DELETE FROM outputs WHERE map = ?", (of,))
        for of in self._sizes.keys() - known:
            del self._sizes[of]

    def _bound(self, db: sqlite3.Connection, groups: list[list[int]], most: int) -> None:
        sizes = dict(
            db.execute("SELECT map, SUM(LENGTH(output) + ?) FROM outputs GROUP BY map", (ROW_BYTES,)).fetchall()
        )
        with db:
            for group in groups:
                whole = sum(sizes.get(of, 0) for of in group)
                for of in group:
                    if whole <= most:
                        break
                    whole -= sizes.get(of, 0)
                    db.execute("DELETE FROM outputs WHERE map = ?", (of,))
                    self._sizes.pop(of, None)

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def _open(path: Path) -> sqlite3.Connection:
    make_private(path)
    db = sqlite3.connect(path, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.executescript(_SCHEMA)
    return db


def _page(db: sqlite3.Connection, of: int, item: int | None, after: int) -> list[Part]:
    if item is None:
        rows = db.execute(f"{_PAGE} ORDER BY id", (of, after))
    else:
        rows = db.execute(f"{_PAGE} AND item = ?3 ORDER BY id", (of, after, item))
    found: list[Part] = []
    size = 0
    for row in rows:
        found.append(Part(*row))
        size += len(found[-1].output) + ROW_BYTES
        if size >= PAGE_BYTES:
            break
    return found
