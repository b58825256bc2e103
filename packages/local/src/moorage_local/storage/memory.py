"""The store in memory, and the copy in memory from which the SQLite store reads."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import Expired
from moorage_local.storage.contract import (
    HISTORY_BYTES,
    HISTORY_EVENTS,
    HISTORY_SECONDS,
    HOT_EVENTS,
    TAKE_BYTES,
    Change,
    CompareFailed,
    Page,
    Record,
    WatchClosed,
)

_LAST = "\U0010ffff"  # sorts after every character a key may hold


CHANGE_BYTES = 600  # of a change in addition to its key and values: the objects that hold them
TIMES_SECONDS = 1.0  # how exactly the age of changes is known


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """The length of the history for late watches; the limit reached first counts."""

    events: int = HISTORY_EVENTS
    bytes: int = HISTORY_BYTES
    seconds: float = HISTORY_SECONDS


HISTORY_LIMITS = HistoryLimits()


def weight(change: Change) -> int:
    """Return the size of a change in bytes; a state that several changes share counts for each of them."""
    before, after = change.before, change.after
    size = (len(before.value) if before else 0) + (len(after.value) if after else 0)
    return CHANGE_BYTES + len(change.key) + size


class Mirror:
    """All records by key, the recent changes, and the open watches. It does not make writes durable.

    A watch only stores its position in the history, so only the history needs memory for the past.
    """

    def __init__(self, *, limits: HistoryLimits = HISTORY_LIMITS, clock: Clock = SYSTEM) -> None:
        self.records: dict[str, Record] = {}
        self.revision = 0
        self.compacted = 0
        self.history_bytes = 0  # the size of the history, as `weight` counts
        self._keys: list[str] = []
        self._history: list[Change] = []
        self._cooled = 0  # changes at the start of the history with the earlier state only as JSON
        self._times: deque[tuple[float, int]] = deque()  # (when, newest revision then), some TIMES_SECONDS apart
        self._limits = limits
        self._clock = clock
        self._watches: set[MirrorWatch] = set()

    def load(self, records: Sequence[Record], revision: int) -> None:
        """Start from a stored state. Its history is not known: it counts as compacted."""
        self.records = {record.key: record for record in records}
        self._keys = sorted(self.records)
        self.revision = self.compacted = revision
        self._history = []
        self._times.clear()
        self.history_bytes = self._cooled = 0

    def apply(self, changes: Sequence[Change]) -> None:
        """Apply changes in order of revision and notify the watches."""
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
        self.history_bytes += sum(weight(change) for change in changes)
        for watch in tuple(self._watches):
            watch.offer(changes)
        self._cool()
        self._trim()

    def _cool(self) -> None:
        until = max(self._cooled, len(self._history) - HOT_EVENTS)
        for change in self._history[self._cooled : until]:
            if change.before is not None:
                change.before.cool()
        self._cooled = until

    def _trim(self) -> None:
        """Drop history above the limits; an eighth more than needed, so that not every write has to trim."""
        now, limits = self._clock.monotonic(), self._limits
        if not self._times or now - self._times[-1][0] >= TIMES_SECONDS:
            self._times.append((now, self.revision))
        else:
            self._times[-1] = (self._times[-1][0], self.revision)
        past = 0
        while self._times and now - self._times[0][0] > limits.seconds + TIMES_SECONDS:
            past = self._times.popleft()[1]
        if past:
            self.compact(past)
        if len(self._history) <= limits.events and self.history_bytes <= limits.bytes:
            return
        events, size = len(self._history), self.history_bytes
        for change in self._history:
            if events <= limits.events * 7 // 8 and size <= limits.bytes * 7 // 8:
                break
            events, size, past = events - 1, size - weight(change), change.revision
        self.compact(past)

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
        states: dict[str, Record | None] = {key: self.records[key] for key in self._keys[start:end]}
        for change in reversed(self._history[self._after(revision) :]):
            if change.key.startswith(prefix) and (after is None or change.key > after):
                states[change.key] = change.before
        records = [record for key, record in sorted(states.items()) if record is not None]
        stop = limit or len(records)
        return Page(records[:stop], revision, max(0, len(records) - stop))

    def watch(self, prefix: str, after: int) -> MirrorWatch:
        if after < self.compacted:
            raise too_old(after, self.compacted)
        watch = MirrorWatch(self, prefix, after)
        watch.offer(self.since(after))
        self._watches.add(watch)
        return watch

    def since(self, revision: int) -> Sequence[Change]:
        """Return the changes after a revision that is not compacted."""
        return self._history[self._after(revision) :]

    def forget(self, watch: MirrorWatch) -> None:
        self._watches.discard(watch)

    def compact(self, revision: int) -> None:
        revision = min(revision, self.revision)
        if revision <= self.compacted:
            return
        count = self._after(revision)
        self.history_bytes -= sum(weight(change) for change in islice(self._history, count))
        del self._history[:count]
        self._cooled = max(0, self._cooled - count)
        self.compacted = revision
        for watch in tuple(self._watches):
            watch.on_compacted(revision)

    def close(self) -> None:
        for watch in tuple(self._watches):
            watch.close()

    def check(self, key: str, expected: int | None) -> Record | None:
        """The record at `key`; raises CompareFailed when it is not the expected one."""
        current = self.records.get(key)
        if expected is not None and (current.mod_revision if current else 0) != expected:
            raise CompareFailed(key, expected, current)
        return current

    def _after(self, revision: int) -> int:
        return bisect_right(self._history, revision, key=lambda change: change.revision)


class MirrorWatch:
    """A `Watch` on a mirror. All changes of its prefix up to `_seen` were returned."""

    def __init__(self, mirror: Mirror, prefix: str, after: int) -> None:
        self._mirror = mirror
        self._prefix = prefix
        self._seen = after
        self._first: int | None = None  # revision of the oldest change that waits to be taken
        self._wake: asyncio.Future[None] | None = None
        self._lost = False
        self._closed = False

    def offer(self, changes: Sequence[Change]) -> None:
        """Receive new changes, or those since the start of the watch."""
        if self._first is not None or self._lost or not changes:
            return
        prefix = self._prefix
        for change in changes:
            if change.revision > self._seen and change.key.startswith(prefix):
                self._first = change.revision
                self._rouse()
                return
        self._seen = max(self._seen, changes[-1].revision)

    def on_compacted(self, revision: int) -> None:
        if self._first is not None and self._first <= revision:
            self._lost, self._first = True, None
            self._mirror.forget(self)
            self._rouse()

    async def next(self) -> Sequence[Change]:
        while self._first is None:
            if self._lost:
                raise Expired("too old resource version: the watch fell too far behind")
            if self._closed:
                raise WatchClosed
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        return self._take(self._first)

    def _take(self, first: int) -> list[Change]:
        taken: list[Change] = []
        size = 0
        prefix = self._prefix
        for change in self._mirror.since(first - 1):
            if not change.key.startswith(prefix):
                continue
            if size > TAKE_BYTES:
                self._first = change.revision
                return taken
            taken.append(change)
            size += weight(change)
            self._seen = change.revision
        self._first, self._seen = None, self._mirror.revision
        return taken

    def caught_up_at(self) -> int | None:
        if self._first is not None or self._lost:
            return None
        return max(self._seen, self._mirror.revision)

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
    """A `Storage` in memory: its data is lost when the process ends."""

    def __init__(self, *, limits: HistoryLimits = HISTORY_LIMITS, clock: Clock = SYSTEM) -> None:
        self._mirror = Mirror(limits=limits, clock=clock)

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
