"""Times that coroutines wait for."""

from __future__ import annotations

import heapq
from datetime import datetime

from moorage_workflows.decide.workflows.graph.coroutines import Future, Scheduler


class Timers:
    """Timers, the earliest first; of one time, the one that was set first."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._heap: list[tuple[datetime, int, Future[None]]] = []
        self._number = 0

    @property
    def next_at(self) -> datetime | None:
        """The time of the first timer; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def at(self, moment: datetime) -> Future[None]:
        """A future that is done at this time."""
        future: Future[None] = self._scheduler.future()
        self._number += 1
        heapq.heappush(self._heap, (moment, self._number, future))
        return future

    def fire(self, now: datetime) -> bool:
        """Set the futures that are due. Returns whether any was due."""
        fired = False
        while self._heap and self._heap[0][0] <= now:
            heapq.heappop(self._heap)[2].set(None)
            fired = True
        return fired
