"""A queue of keys for one control loop.

A key that is added many times before a worker takes it is taken once. A key that is added during its pass is
queued again after the pass, so two workers never have the same key. The design is client-go's:
https://pkg.go.dev/k8s.io/client-go/util/workqueue
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from moorage_kube.backoff import DoublingDelay

K = TypeVar("K", bound=Hashable)

RETRIES = DoublingDelay(0.05, 60.0)


class WorkQueue(Generic[K]):
    """A queue for use in a single event loop. `get` raises QueueClosed after `close`."""

    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._dirty: set[K] = set()
        self._working: set[K] = set()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def failing(self) -> int:
        """Return the number of keys that failed and have not succeeded since."""
        return len(self._failures)

    def is_waiting(self, key: K) -> bool:
        """Whether a pass over `key` was requested and has not begun."""
        return key in self._dirty

    def add(self, key: K) -> None:
        """Request one pass over `key`, soon."""
        if self._closed or key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._working:
            self._ready.append(key)
            self._wake()

    def add_after(self, key: K, seconds: float) -> None:
        """Request a pass after `seconds`; of several such requests the earliest counts."""
        if self._closed:
            return
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        waiting = self._timers.get(key)
        if waiting is not None:
            if waiting.when() <= when:
                return
            waiting.cancel()
        self._timers[key] = loop.call_at(when, self._fire, key)

    def fire_all(self) -> None:
        """Request a pass now for every key that waits for a later one.

        Call it after a sleep: timers count the time awake, but keys may be due by the wall clock.
        """
        for key, timer in list(self._timers.items()):
            timer.cancel()
            self._fire(key)

    def retry(self, key: K) -> float:
        """Request another pass after a delay that doubles with each failure; return the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = RETRIES.after(failures + 1)
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """Record that the key succeeded: after its next failure the delay is the shortest again."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """Wait for a key; always call `done` with it afterwards, also after an error."""
        while not self._ready:
            if self._closed:
                raise QueueClosed
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()  # pass the wake-up on to the next waiter
                raise
        key = self._ready.popleft()
        self._dirty.discard(key)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        self._working.discard(key)
        if key in self._dirty:
            self._ready.append(key)
            self._wake()

    def close(self) -> None:
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        while self._waiters:
            self._wake()

    def _fire(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


class QueueClosed(Exception):
    """The queue was closed; the worker should end."""
