"""The store in memory, and the mirror that the SQLite store reads from."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence

from moorage.errors import Expired
from moorage.localcluster.storage.contract import (
    HISTORY_EVENTS,
    WATCH_BACKLOG_EVENTS,
    Change,
    CompareFailed,
    Page,
    Record,
    WatchClosed,
)

_LAST = "\U0010ffff"  # sorts after every character a key may hold


class Mirror:
    """All records by key, the recent changes, and those who watch. Knows nothing of durability."""

    def __init__(self, *, history_events: int = HISTORY_EVENTS) -> None:
        self.records: dict[str, Record] = {}
        self.revision = 0
        self.compacted = 0
        self._keys: list[str] = []
        self._history: list[Change] = []
        self._history_events = history_events
        self._watches: set[MirrorWatch] = set()

    def load(self, records: Sequence[Record], revision: int) -> None:
        """Start from a stored state, whose history is not known: it counts as compacted."""
        self.records = {one.key: one for one in records}
        self._keys = sorted(self.records)
        self.revision = self.compacted = revision
        self._history = []

    def apply(self, changes: Sequence[Change]) -> None:
        """Take over changes in order of revision and tell the watches."""
        for change in changes:
            if change.after is None:
                self.records.pop(change.key, None)
                at = bisect_left(self._keys, change.key)
                if at < len(self._keys) and self._keys[at] == change.key:
                    del self._keys[at]
            else:
                if change.key not in self.records:
                    insort(self._keys, change.key)
                self.records[change.key] = change.after
            self.revision = change.revision
        self._history.extend(changes)
        if len(self._history) > self._history_events * 2:
            self.compact(self._history[-self._history_events - 1].revision)
        for watch in tuple(self._watches):
            watch.offer(changes)

    def keys(self, prefix: str, after: str | None) -> tuple[int, int]:
        start = bisect_left(self._keys, prefix)
        if after is not None:
            start = max(start, bisect_right(self._keys, after))
        return start, bisect_left(self._keys, prefix + _LAST)

    def list(self, prefix: str, after: str | None, limit: int | None, revision: int | None) -> Page:
        if revision is not None and revision < self.revision:
            return self._list_at(prefix, after, limit, revision)
        start, end = self.keys(prefix, after)
        stop = end if not limit else min(end, start + limit)
        records = self.records
        return Page([records[key] for key in self._keys[start:stop]], self.revision, max(0, end - stop))

    def _list_at(self, prefix: str, after: str | None, limit: int | None, revision: int) -> Page:
        if revision < self.compacted:
            raise too_old(revision, self.compacted)
        start, end = self.keys(prefix, after)
        found: dict[str, Record | None] = {key: self.records[key] for key in self._keys[start:end]}
        for change in reversed(self._history[self._after(revision) :]):
            if change.key.startswith(prefix) and (after is None or change.key > after):
                found[change.key] = change.before
        records = [record for key, record in sorted(found.items()) if record is not None]
        stop = limit or len(records)
        return Page(records[:stop], revision, max(0, len(records) - stop))

    def watch(self, prefix: str, after: int) -> MirrorWatch:
        if after < self.compacted:
            raise too_old(after, self.compacted)
        watch = MirrorWatch(self, prefix, after)
        watch.offer(self._history[self._after(after) :])
        self._watches.add(watch)
        return watch

    def forget(self, watch: MirrorWatch) -> None:
        self._watches.discard(watch)

    def compact(self, revision: int) -> None:
        revision = min(revision, self.revision)
        if revision <= self.compacted:
            return
        del self._history[: self._after(revision)]
        self.compacted = revision

    def close(self) -> None:
        for watch in tuple(self._watches):
            watch.close()

    def check(self, key: str, expected: int | None) -> Record | None:
        """The record that stands at `key`; raises CompareFailed when it is not the expected one."""
        current = self.records.get(key)
        if expected is not None and (current.mod_revision if current else 0) != expected:
            raise CompareFailed(key, expected, current)
        return current

    def _after(self, revision: int) -> int:
        return bisect_right(self._history, revision, key=lambda change: change.revision)


class MirrorWatch:
    """A `Watch` over a mirror."""

    def __init__(self, mirror: Mirror, prefix: str, after: int) -> None:
        self._mirror = mirror
        self._prefix = prefix
        self._after = after
        self._waiting: deque[Change] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._lost = False
        self._closed = False

    def offer(self, changes: Sequence[Change]) -> None:
        prefix, waiting = self._prefix, self._waiting
        before = len(waiting)
        for change in changes:
            if change.key.startswith(prefix) and change.revision > self._after:
                waiting.append(change)
        if len(waiting) > WATCH_BACKLOG_EVENTS:
            self._lost = True
            waiting.clear()
            self._mirror.forget(self)
        if len(waiting) != before or self._lost:
            self._rouse()

    async def next(self) -> Sequence[Change]:
        while not self._waiting:
            if self._lost:
                raise Expired("too old resource version: the watch fell too far behind")
            if self._closed:
                raise WatchClosed
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def caught_up_at(self) -> int | None:
        if self._waiting or self._lost:
            return None
        return max(self._after, self._mirror.revision)

    def close(self) -> None:
        self._closed = True
        self._mirror.forget(self)
        self._rouse()

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def too_old(revision: int, compacted: int) -> Expired:
    return Expired(f"too old resource version: {revision} ({compacted})")


class MemoryStorage:
    """A `Storage` that forgets everything with the process."""

    def __init__(self, *, history_events: int = HISTORY_EVENTS) -> None:
        self._mirror = Mirror(history_events=history_events)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        self._mirror.close()

    @property
    def revision(self) -> int:
        return self._mirror.revision

    @property
    def compacted(self) -> int:
        return self._mirror.compacted

    def get(self, key: str) -> Record | None:
        return self._mirror.records.get(key)

    def list(
        self, prefix: str, *, after: str | None = None, limit: int | None = None, revision: int | None = None
    ) -> Page:
        return self._mirror.list(prefix, after, limit, revision)

    async def put(self, key: str, value: bytes, *, expected: int | None = None) -> Record:
        before = self._mirror.check(key, expected)
        revision = self._mirror.revision + 1
        record = Record(key, value, before.create_revision if before else revision, revision)
        self._mirror.apply((Change(revision, key, before, record),))
        return record

    async def delete(self, key: str, *, expected: int | None = None) -> Change | None:
        before = self._mirror.check(key, expected)
        if before is None:
            return None
        change = Change(self._mirror.revision + 1, key, before, None)
        self._mirror.apply((change,))
        return change

    def watch(self, prefix: str, *, after: int) -> MirrorWatch:
        return self._mirror.watch(prefix, after)

    def compact(self, revision: int) -> None:
        self._mirror.compact(revision)
