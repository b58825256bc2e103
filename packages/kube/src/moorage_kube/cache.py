"""A cache with a limit on the age and on the number of its values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar, overload

from moorage_kube.clock import SYSTEM, Clock

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class BoundedCache(Generic[K, V]):
    """At most `most` values by key.

    The value written longest ago is dropped first; a read does not extend its life.

    A value expires `keep_seconds` after it was put. None: it stays until its place is needed. Expired values are
    removed from memory when others are put.
    """

    __slots__ = ("_clock", "_entries", "_keep_seconds", "_most")

    def __init__(self, most: int, *, keep_seconds: float | None = None, clock: Clock = SYSTEM) -> None:
        if most < 1:
            raise ValueError(f"a cache of {most} entries: use 1 or more")
        self._most = most
        self._keep_seconds = keep_seconds
        self._clock = clock
        self._entries: OrderedDict[K, tuple[V, float | None]] = OrderedDict()  # with the end, monotonic

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: D) -> V | D: ...

    def get(self, key: K, default: D | None = None) -> V | D | None:
        entry = self._entries.get(key)
        if entry is None:
            return default
        value, end = entry
        if end is not None and end <= self._clock.monotonic():
            del self._entries[key]
            return default
        return value

    def __contains__(self, key: K) -> bool:
        missing = object()
        return self.get(key, missing) is not missing

    def __len__(self) -> int:
        """Return the number of entries in memory; some of them may have expired."""
        return len(self._entries)

    def put(self, key: K, value: V, *, keep_seconds: float | None = None) -> None:
        """Store a value as the newest entry. `keep_seconds`: its lifetime; None for the default of the cache."""
        keep = self._keep_seconds if keep_seconds is None else keep_seconds
        now = self._clock.monotonic() if keep is not None else 0.0
        self._entries[key] = (value, now + keep if keep is not None else None)
        self._entries.move_to_end(key)
        while len(self._entries) > self._most or self._is_first_over(now):
            self._entries.popitem(last=False)

    def _is_first_over(self, now: float) -> bool:
        _, end = next(iter(self._entries.values()), (None, None))
        return end is not None and end <= now

    def change(self, key: K, value: V) -> None:
        """Replace the value of a stored key; its expiry and its position stay.

        Does nothing if the key is not stored.
        """
        entry = self._entries.get(key)
        if entry is not None:
            self._entries[key] = (value, entry[1])

    def drop(self, key: K) -> V | None:
        """Remove a key and return its value; None if the key is not stored or has expired."""
        value = self.get(key)
        self._entries.pop(key, None)
        return value

    def drop_where(self, is_meant: Callable[[V], bool]) -> None:
        for key in [key for key, (value, _) in self._entries.items() if is_meant(value)]:
            del self._entries[key]

    def values(self) -> Iterator[V]:
        """Yield the values that have not expired, the oldest write first."""
        now = None
        for value, end in self._entries.values():
            if end is not None:
                now = self._clock.monotonic() if now is None else now
                if end <= now:
                    continue
            yield value
