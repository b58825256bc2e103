"""The storage contract, in the manner of etcd 3.

Keys are text, values JSON bytes. Every successful write takes the next number of one global
revision, which never decreases, not even over a restart. A write may name the revision it
expects the key to have (0: no such key), and is refused with `CompareFailed` otherwise.

Reads are synchronous and see exactly the acknowledged writes: a value appears in `get`,
`list` and `watch` only after it is durable. Writes are awaited; when `put` or `delete`
returns, the change survives `kill -9` of the process (of the SQLite store; the memory store
promises everything but that).

https://etcd.io/docs/v3.5/learning/api/
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from moorage_kube.errors import StorageError

HISTORY_EVENTS = 50_000  # changes stored at most for late watches
HISTORY_BYTES = 32 * 2**20  # of keys and values, before and after; about 3,000 changes of pods
HISTORY_SECONDS = 300.0  # as long as a real API server keeps them: `--etcd-compaction-interval`, 5 minutes
TAKE_BYTES = 2**20  # returned by a watch at once, and so the most that a stopped watcher holds
HOT_EVENTS = 256  # newest changes whose earlier state stays decoded; live watchers read only these


class CompareFailed(StorageError):
    """The key does not have the expected revision; `current` is its record, None if it has none."""

    def __init__(self, key: str, expected: int, current: Record | None) -> None:
        seen = current.mod_revision if current else 0
        super().__init__(f"{key} is at revision {seen}, not at {expected}")
        self.key = key
        self.expected = expected
        self.current = current


KEPT_BYTES = 64 * 1024  # of a value whose decoded object is cached


class Record:
    """One key after one write. Never changes."""

    __slots__ = ("_cold", "_obj", "create_revision", "key", "mod_revision", "value")

    def __init__(self, key: str, value: bytes, create_revision: int, mod_revision: int) -> None:
        self.key = key
        self.value = value
        self.create_revision = create_revision
        self.mod_revision = mod_revision
        self._obj: dict[str, Any] | None = None
        self._cold = False

    @property
    def obj(self) -> dict[str, Any]:
        """The value decoded, with `metadata.resourceVersion` set to `mod_revision`.

        Decoded once and shared by all callers: never change it, take `copy` for that. A large one is not cached.
        """
        if self._cold or len(self.value) > KEPT_BYTES:
            return self.copy()
        if self._obj is None:
            self._obj = self.copy()
        return self._obj

    def cool(self) -> None:
        """From now on store only the JSON value: a decoded object needs about seven times as much memory."""
        self._cold, self._obj = True, None

    def copy(self) -> dict[str, Any]:
        """Like `obj`, but as a copy that the caller may change."""
        obj: dict[str, Any] = msgspec.json.decode(self.value)
        meta = obj.get("metadata")
        if isinstance(meta, dict):
            meta["resourceVersion"] = str(self.mod_revision)
        return obj

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (self.key, self.value, self.create_revision, self.mod_revision) == (
            other.key,
            other.value,
            other.create_revision,
            other.mod_revision,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Record({self.key!r}, {self.value!r}, {self.create_revision}, {self.mod_revision})"


@dataclass(frozen=True, slots=True)
class Change:
    """One write. `before` is None for a new key, `after` is None for a deleted key."""

    revision: int
    key: str
    before: Record | None
    after: Record | None


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list, by key: the records under the prefix at `revision`; `remaining` keys come after it."""

    records: list[Record]
    revision: int
    remaining: int = 0


class Watch(Protocol):
    """Yields all changes in the order in which they were made. Close it at the end."""

    async def next(self) -> Sequence[Change]:
        """Wait for changes and return the oldest, about TAKE_BYTES at most (never empty).

        Raises Expired if the history has lost a change that was not returned yet. Raises `WatchClosed` if the
        store or the watch was closed.
        """
        ...

    def caught_up_at(self) -> int | None:
        """Return the revision up to which all changes were returned; None while changes wait."""
        ...

    def close(self) -> None: ...


class WatchClosed(Exception):
    """The watch or its store was closed."""


class Storage(Protocol):
    """The store of objects. Use it in one event loop; call `start` first and `stop` last."""

    async def start(self) -> None:
        """Open the store and read its content. Raises StorageError."""
        ...

    async def stop(self) -> None:
        """Finish running writes, end all watches and close the store. It is safe to call this twice."""
        ...

    @property
    def revision(self) -> int:
        """The revision of the newest acknowledged write; 0 before the first write."""
        ...

    @property
    def compacted(self) -> int:
        """The lowest revision at which watches and lists can start."""
        ...

    def get(self, key: str) -> Record | None: ...

    def list(
        self, prefix: str, *, after: str | None = None, limit: int | None = None, revision: int | None = None
    ) -> Page:
        """The records under a prefix, ordered by key; `after` skips keys up to and including it.

        `revision` asks for the state at an earlier moment: raises Expired when it is compacted.
        """
        ...

    async def put(self, key: str, value: bytes, *, expected: int | None = None) -> Record:
        """Write a value. With `expected`, only if the key has that mod_revision (0: does not exist).

        Raises CompareFailed, StorageFull or StorageError; then nothing has changed.
        """
        ...

    async def delete(self, key: str, *, expected: int | None = None) -> Change | None:
        """Delete a key. Return None if it did not exist (and `expected` was None or 0).

        Raises the same errors as `put`.
        """
        ...

    def watch(self, prefix: str, *, after: int) -> Watch:
        """Return a watch of all changes of the prefix after the revision `after`.

        Raises Expired if that is compacted.
        """
        ...

    def compact(self, revision: int) -> None:
        """Remove the history up to and including `revision`."""
        ...
