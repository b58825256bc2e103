"""The one control loop: changes become keys, keys become passes, failures are tried again later.

A pass is told which object to look at, never what happened to it: a lost, doubled or merged event changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from moorage.apimachinery.informer import Informer, wait_synced
from moorage.apimachinery.meta import Key
from moorage.apimachinery.resources import Obj
from moorage.apimachinery.workqueue import QueueClosed, WorkQueue
from moorage.clock import Clock
from moorage.errors import ApiError, Conflict

log = logging.getLogger(__name__)

WORKERS = 4

Reconcile = Callable[[Key], Awaitable[timedelta | None]]
"""Bring one object a step closer to its spec; return when to look again, None to wait for the next change."""

ToKeys = Callable[[Obj], Iterable[Key]]
"""Which objects a change of this one concerns."""


class LoopMetrics(Protocol):
    """What a loop tells whoever counts."""

    def passed(self, controller: str, outcome: str, seconds: float) -> None:
        """A pass ended; `outcome` is done, conflict, refused (the API said no) or failed (a defect)."""
        ...


@dataclass
class Counters:
    """Passes and seconds by (controller, outcome)."""

    passes: dict[tuple[str, str], int] = field(default_factory=dict)
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)

    def passed(self, controller: str, outcome: str, seconds: float) -> None:
        key = (controller, outcome)
        self.passes[key] = self.passes.get(key, 0) + 1
        self.seconds[key] = self.seconds.get(key, 0.0) + seconds


class Loop:
    """One controller's queue and workers. The informers it hears from are run by whoever made them."""

    def __init__(
        self,
        name: str,
        reconcile: Reconcile,
        *,
        clock: Clock,
        workers: int = WORKERS,
        metrics: LoopMetrics | None = None,
    ) -> None:
        self.name = name
        self.queue: WorkQueue[Key] = WorkQueue()
        self._reconcile = reconcile
        self._clock = clock
        self._workers = workers
        self._metrics = metrics
        self._informers: list[Informer] = []

    def hear(self, informer: Informer, to_keys: ToKeys) -> None:
        """Look at `to_keys` of every object that appears, changes or goes; of both states when it changes."""
        self._informers.append(informer)

        def changed(before: Obj | None, after: Obj | None) -> None:
            for obj in (before, after):
                if obj is not None:
                    for key in to_keys(obj):
                        self.queue.add(key)

        informer.on_change(changed)

    async def run(self) -> None:
        """Work until cancelled; nothing is looked at before every informer has synced."""
        await wait_synced(*self._informers)
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._workers):
                    tasks.create_task(self._work(), name=f"{self.name}-{number}")
        finally:
            self.queue.close()

    async def _work(self) -> None:
        while True:
            try:
                key = await self.queue.get()
            except QueueClosed:
                return
            try:
                await self._pass(key)
            finally:
                self.queue.done(key)

    async def _pass(self, key: Key) -> None:
        started = self._clock.monotonic()
        again: timedelta | None = None
        try:
            again = await self._reconcile(key)
            outcome = "done"
        except Conflict as error:
            outcome = "conflict"  # the copy was stale; the next pass reads again
            log.debug("the object changed meanwhile", extra=self._fields(key, error))
        except ApiError as error:
            outcome = "refused"
            log.warning("a pass failed", extra=self._fields(key, error))
        except Exception as error:  # a defect in one controller must not stop the others
            outcome = "failed"
            log.exception("a pass broke", extra=self._fields(key, error))
        if outcome == "done":
            self.queue.forget(key)
            if again is not None:
                self.queue.add_after(key, again.total_seconds())
        else:
            self.queue.retry(key)
        if self._metrics is not None:
            self._metrics.passed(self.name, outcome, self._clock.monotonic() - started)

    def _fields(self, key: Key, error: Exception) -> dict[str, str]:
        return {"controller": self.name, "key": str(key), "error": str(error)}
