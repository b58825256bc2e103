"""The control loop of all controllers: keys from a queue, one pass over each, a delay after a failed pass."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from moorage_kube.cache import BoundedCache
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import ApiError, Conflict, MoorageError
from moorage_kube.hangs import HANG_RECORD
from moorage_kube.meta import Key
from moorage_kube.resources import Obj, Resource
from moorage_kube.workqueue import QueueClosed, WorkQueue

log = logging.getLogger(__name__)

COMPLAINTS_KEPT = 10_000  # so that an error that repeats is logged once

K = TypeVar("K", bound=Hashable)

Reconcile = Callable[[K], Coroutine[Any, Any, timedelta | None]]
"""One pass over one key; returns when to look again, or None to wait for the next change."""


class Objects(Protocol):
    """The objects of the keys; an `Informer` implements this."""

    @property
    def resource(self) -> Resource: ...

    def get(self, name: str, namespace: str = "") -> Obj | None: ...


class ControlLoop(Generic[K]):
    """Runs `reconcile` for each queued key, at most one pass of a key at a time.

    A pass that raises is repeated after a delay that doubles from 50 ms to one minute. The error is logged once
    until the key succeeds or fails in another way. A conflict with another write is not logged.
    `passed` is called after every pass with its outcome and its seconds. Outcomes are done, conflict, refused (an
    error raised on purpose, mostly by the API) and failed (a defect). `of`: the resource that the keys name. An
    object is skipped after the process hung twice in its pass (`hangs`).
    """

    def __init__(
        self,
        name: str,
        reconcile: Reconcile[K],
        *,
        workers: int = 2,
        clock: Clock = SYSTEM,
        passed: Callable[[str, float], None] | None = None,
        of: Objects | None = None,
    ) -> None:
        self.name = name
        self.queue: WorkQueue[K] = WorkQueue()
        self._reconcile = reconcile
        self._workers = workers
        self._clock = clock
        self._passed = passed
        self.of = of
        self._complaints: BoundedCache[K, str] = BoundedCache(COMPLAINTS_KEPT)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    group.create_task(self._work(), name=f"{self.name} {number}")
        finally:
            self.queue.close()

    async def _work(self) -> None:
        while True:
            try:
                key = await self.queue.get()
            except QueueClosed:
                return
            try:
                await self.once(key)
            finally:
                self.queue.done(key)
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError  # lost in an error of the pass, as `asyncio.gather` may lose it

    async def once(self, key: K) -> None:
        """Make one pass over a key.

        Then queue the next pass if needed: later after a success, or a retry after an error.

        Errors are logged.
        """
        started = self._clock.monotonic()
        outcome = "done"
        try:
            look_again = await self._pass(key)
        except Conflict:
            outcome = "conflict"  # the copy was stale; the next pass reads again
            self.queue.retry(key)
        except (MoorageError, OSError) as error:
            outcome = "refused"
            delay = self.queue.retry(key)
            self._complain(key, error, delay)
        except Exception as error:  # a defect in one controller must not stop the others
            outcome = "failed"
            delay = self.queue.retry(key)
            self._complain(key, error, delay, unexpected=True)
        else:
            self.queue.forget(key)
            self._complaints.drop(key)
            if look_again is not None:
                self.queue.add_after(key, look_again.total_seconds())
        if self._passed is not None:
            self._passed(outcome, self._clock.monotonic() - started)

    async def _pass(self, key: K) -> timedelta | None:
        """Reconcile a key, unless the process hung on it before; record the key while its pass runs."""
        hang_record = HANG_RECORD.get()
        if hang_record is None or self.of is None or not isinstance(key, Key):
            return await self._reconcile(key)
        name = f"{self.name} {key}"
        if await hang_record.skips(name, self.of.resource, self.of.get(key.name, key.namespace)):
            return None
        return await hang_record.noting(name, self._reconcile(key))

    def _complain(self, key: K, error: Exception, delay: float, *, unexpected: bool = False) -> None:
        text = f"{type(error).__name__}: {error}"
        if self._complaints.get(key) == text:
            return
        self._complaints.put(key, text)
        extra = {"controller": self.name, "key": str(key), "error": text, "retry_seconds": delay}
        if isinstance(error, ApiError):
            extra["status"] = error.status
        log.warning("a pass failed and will be repeated", extra=extra, exc_info=error if unexpected else None)
