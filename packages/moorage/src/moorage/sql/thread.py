"""Use a blocking store from an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> None: ...


S = TypeVar("S", bound=Closable)
T = TypeVar("T")


class StoreThread(Generic[S]):
    """One thread with one store. The store is opened at its first use; a failed opening is tried again."""

    def __init__(self, name: str, open_store: Callable[[], S]) -> None:
        self._open_store = open_store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._store: S | None = None

    async def do(self, work: Callable[[S], T]) -> T:
        """Raises the errors of `open_store` and `work`: StorageError."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, work)

    def close(self) -> None:
        """Close the store after the current work. It cannot be used afterwards."""
        self._thread.submit(self._close)
        self._thread.shutdown(wait=True)

    def _do(self, work: Callable[[S], T]) -> T:
        if self._store is None:
            self._store = self._open_store()
        return work(self._store)

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
