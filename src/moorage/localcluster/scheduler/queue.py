"""Whose turn it is: kube-scheduler's three queues.

    ready          to be tried, by priority and then age
    backing off    failed lately; the wait is 1 s, doubled with each failure up to 10 s
    unschedulable  fit nowhere; waits until something changes that could help, or for five minutes

When nothing is ready, pods that back off after fitting nowhere are tried before their time; pods that back off
after an error are not.
https://github.com/kubernetes/kubernetes/blob/master/pkg/scheduler/backend/queue/scheduling_queue.go
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from moorage.apimachinery.backoff import DoublingDelay
from moorage.apimachinery.meta import Key

BACKOFF = DoublingDelay(1.0, 10.0)
FLUSH_SECONDS = 300.0  # a pod that waits for a change is tried again after this without one


@dataclass(slots=True, kw_only=True)
class Queued:
    """One waiting pod. Times are seconds of a monotonic clock."""

    key: Key
    priority: int
    created: float  # creation time, seconds since the epoch: the older goes first
    serial: int  # of arrival, the last tie-break
    attempts: int = 0
    not_before: float = 0.0
    failed_at: float = 0.0
    after_error: bool = False
    woken: bool = False  # something that could help changed while it was being tried

    @property
    def order(self) -> tuple[int, float, int]:
        return (-self.priority, self.created, self.serial)


class SchedulingQueue:
    """Plain data: reads no clock, waits for nothing. The heaps may hold stale entries; the sets are right."""

    def __init__(self) -> None:
        self._all: dict[Key, Queued] = {}
        self._is_ready: set[Key] = set()
        self._backing_off: set[Key] = set()
        self._unschedulable: set[Key] = set()
        self._trying: dict[Key, Queued] = {}
        self._ready: list[tuple[tuple[int, float, int], Key]] = []
        self._early: list[tuple[float, tuple[int, float, int], Key]] = []
        self._timers: list[tuple[float, Key]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._all)

    def counts(self) -> dict[str, int]:
        """How many pods are in each state."""
        return {
            "ready": len(self._is_ready),
            "backoff": len(self._backing_off),
            "unschedulable": len(self._unschedulable),
            "trying": len(self._trying),
        }

    def add(self, key: Key, *, priority: int, created: float) -> None:
        """A new pod, or one that changed so that it must be tried now."""
        item = self._all.get(key)
        if item is None:
            self._serial += 1
            item = Queued(key=key, priority=priority, created=created, serial=self._serial)
            self._all[key] = item
        item.priority, item.created = priority, created
        if key in self._trying:
            item.woken = True
            return
        self._is_ready.discard(key)  # its order may have changed
        self._make_ready(item)

    def remove(self, key: Key) -> None:
        self._all.pop(key, None)
        self._trying.pop(key, None)
        for keys in (self._is_ready, self._backing_off, self._unschedulable):
            keys.discard(key)

    def pop(self, now: float) -> Queued | None:
        """The next pod to try, or None; the caller gives it back by `fail`, or takes it out by `remove`."""
        while self._timers and self._timers[0][0] <= now:
            _, key = heapq.heappop(self._timers)
            if self._due(key, now):
                self._make_ready(self._all[key])
        while self._ready:
            order, key = heapq.heappop(self._ready)
            if key in self._is_ready and self._all[key].order == order:
                self._is_ready.discard(key)
                return self._taken(self._all[key])
        while self._early:
            not_before, _, key = heapq.heappop(self._early)
            if key in self._backing_off and self._all[key].not_before == not_before:
                self._backing_off.discard(key)
                return self._taken(self._all[key])
        return None

    def take(self, key: Key, attempts: int) -> Queued:
        """Take out a known pod whatever its turn: it was tried `attempts` times already."""
        item = self._all[key]
        for keys in (self._is_ready, self._backing_off, self._unschedulable):
            keys.discard(key)
        item.attempts = max(0, attempts - 1)
        return self._taken(item)

    def fail(self, item: Queued, now: float, *, error: bool) -> None:
        """The try failed. After an error it is tried again when its wait is over; else it rests until something
        changes, unless something did while it was being tried."""
        if self._trying.pop(item.key, None) is not item:
            return  # taken out meanwhile
        wait = BACKOFF.after(item.attempts)
        item.not_before = now + wait
        item.failed_at = now
        item.after_error = error
        if error or item.woken:
            self._back_off(item)
        else:
            self._unschedulable.add(item.key)
            heapq.heappush(self._timers, (now + FLUSH_SECONDS, item.key))

    def wake(self, now: float, which: Callable[[Key], bool] | None = None) -> None:
        """Something changed that could help those that rest: all, or the chosen ones."""
        for key, item in self._trying.items():
            if which is None or which(key):
                item.woken = True
        for key in [key for key in self._unschedulable if which is None or which(key)]:
            item = self._all[key]
            if item.not_before > now:
                self._unschedulable.discard(key)
                self._back_off(item)
            else:
                self._make_ready(item)

    def next_due(self) -> float | None:
        """When `pop` may have something that it has not now, or None. May be too early, never too late."""
        return self._timers[0][0] if self._timers else None

    def _due(self, key: Key, now: float) -> bool:
        item = self._all.get(key)
        if item is None:
            return False
        if key in self._backing_off:
            return item.not_before <= now
        return key in self._unschedulable and item.failed_at + FLUSH_SECONDS <= now

    def _back_off(self, item: Queued) -> None:
        self._backing_off.add(item.key)
        heapq.heappush(self._timers, (item.not_before, item.key))
        if not item.after_error:
            heapq.heappush(self._early, (item.not_before, item.order, item.key))

    def _make_ready(self, item: Queued) -> None:
        self._backing_off.discard(item.key)
        self._unschedulable.discard(item.key)
        if item.key not in self._is_ready:
            self._is_ready.add(item.key)
            heapq.heappush(self._ready, (item.order, item.key))

    def _taken(self, item: Queued) -> Queued:
        item.attempts += 1
        item.woken = False
        self._trying[item.key] = item
        return item
