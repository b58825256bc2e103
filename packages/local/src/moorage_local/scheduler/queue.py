"""The order in which pods are tried: kube-scheduler's three queues.

    ready          to be tried, by priority and then age
    backing off    failed a short time ago; the wait is 1 s, doubled with each failure up to 10 s
    unschedulable  fit on no node; waits until something changes that could help, or for five minutes

When nothing is ready, unschedulable pods that back off are tried before their time; pods that back off after an
error are not.
https://github.com/kubernetes/kubernetes/blob/master/pkg/scheduler/backend/queue/scheduling_queue.go

Unschedulable pods of one shape wait as a group: when one of them does not fit, the others do not fit either.
After a change the first of the group is tried for all of them. The next one follows when it got a node, but not
when it fits on no node. So a change costs one try for each shape, not one for each pod.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from moorage_kube.backoff import DoublingDelay
from moorage_kube.meta import Key

BACKOFF = DoublingDelay(1.0, 10.0)
FLUSH_SECONDS = 300.0  # a pod that waits for a change is tried again after this without one


@dataclass(slots=True, kw_only=True)
class Queued:
    """One waiting pod. Times are seconds of a monotonic clock."""

    key: Key
    priority: int
    created: float  # creation time, seconds since the epoch: the older is first
    serial: int  # of arrival, the last tie-break
    attempts: int = 0
    not_before: float = 0.0
    failed_at: float = 0.0
    after_error: bool = False
    woken: bool = False  # something that could help changed while it was being tried
    shape: Hashable | None = None  # of the group in which it rests, or for which it is tried

    @property
    def order(self) -> tuple[int, float, int]:
        return (-self.priority, self.created, self.serial)


@dataclass(slots=True)
class _Group:
    """Waiting pods of one shape. After a change, the scheduler tries one of them, `first`, for the whole group."""

    members: set[Key] = field(default_factory=set)
    by_order: list[tuple[tuple[int, float, int], Key]] = field(default_factory=list)
    tried_at: float = 0.0
    first: Key | None = None


class SchedulingQueue:
    """A queue of waiting pods. It reads no clock and never waits.

    The heaps may have stale entries; the sets are correct.
    """

    def __init__(self) -> None:
        self._now = 0.0  # the latest time that was given
        self._groups: dict[Hashable, _Group] = {}
        self._alone: set[Key] = set()  # unschedulable, and of no group
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
        """Return the number of pods in each state."""
        return {
            "ready": len(self._is_ready),
            "backoff": len(self._backing_off),
            "unschedulable": len(self._unschedulable),
            "trying": len(self._trying),
        }

    def add(self, key: Key, *, priority: int, created: float) -> None:
        """Add a new pod, or a pod whose change means that it must be tried now."""
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
        if key in self._unschedulable:
            self._leave(item)
        self._make_ready(item)

    def remove(self, key: Key) -> None:
        item = self._all.pop(key, None)
        self._trying.pop(key, None)
        for keys in (self._is_ready, self._backing_off, self._unschedulable, self._alone):
            keys.discard(key)
        if item is not None:
            self._leave(item)

    def pop(self, now: float) -> Queued | None:
        """The next pod to try, or None; the caller must then call `fail` or `remove` for it."""
        self._now = now
        while self._timers and self._timers[0][0] <= now:
            _, key = heapq.heappop(self._timers)
            self._due(key, now)
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
        """Take out a known pod out of turn: it was tried `attempts` times already."""
        item = self._all[key]
        for keys in (self._is_ready, self._backing_off, self._unschedulable, self._alone):
            keys.discard(key)
        self._leave(item)
        item.attempts = max(0, attempts - 1)
        return self._taken(item)

    def fail(self, item: Queued, now: float, *, error: bool, shape: Hashable | None = None) -> None:
        """Record a failed try.

        After an error, the pod is tried again after its delay. Otherwise it waits until something changes,
        unless something changed during the try. `shape`: all pods with this key also fit on no node. None:
        the failure does not apply to other pods.
        """
        if self._trying.pop(item.key, None) is not item:
            return  # taken out meanwhile
        self._now = now
        if error or shape != item.shape:
            self._leave(item)
        wait = BACKOFF.after(item.attempts)
        item.not_before = now + wait
        item.failed_at = now
        item.after_error = error
        if error or item.woken:
            self._back_off(item)
        else:
            self._rest(item, shape)
            heapq.heappush(self._timers, (now + FLUSH_SECONDS, item.key))

    def wake(self, now: float, which: Callable[[Key], bool] | None = None) -> None:
        """Record a change that may help waiting pods.

        All of them, or with `which` only those without a shape that it selects.
        """
        self._now = now
        for key, item in self._trying.items():
            if which is None or which(key):
                item.woken = True
        for key in [key for key in self._alone if which is None or which(key)]:
            self._rouse(self._all[key])
        if which is None:
            for shape in list(self._groups):
                self._rouse_first(shape)

    def next_due(self) -> float | None:
        """Return when `pop` may next have something new, or None. The time may be too early but never too late."""
        return self._timers[0][0] if self._timers else None

    def _due(self, key: Key, now: float) -> None:
        """Handle a timer of the pod: if its wait is over, it is ready."""
        item = self._all.get(key)
        if item is None:
            return
        if key in self._backing_off:
            if item.not_before <= now:
                self._make_ready(item)
        elif key in self._alone:
            if item.failed_at + FLUSH_SECONDS <= now:
                self._make_ready(item)
        elif key in self._unschedulable:
            group = self._groups[item.shape]
            again = group.tried_at + FLUSH_SECONDS
            if again <= now:
                again = now + FLUSH_SECONDS
                self._rouse_first(item.shape)
            if key in self._unschedulable:
                heapq.heappush(self._timers, (again, key))

    def _rest(self, item: Queued, shape: Hashable | None) -> None:
        self._unschedulable.add(item.key)
        if shape is None:
            self._alone.add(item.key)
            return
        item.shape = shape
        group = self._groups.setdefault(shape, _Group())
        group.members.add(item.key)
        heapq.heappush(group.by_order, (item.order, item.key))
        group.tried_at = item.failed_at
        if group.first == item.key:
            group.first = None

    def _leave(self, item: Queued) -> None:
        """Remove a pod from its group. If it was tried for the group, the next pod of the group is tried."""
        shape, item.shape = item.shape, None
        if shape is None:
            return
        group = self._groups[shape]
        group.members.discard(item.key)
        if group.first == item.key:
            group.first = None
            self._rouse_first(shape)
        elif not group.members and group.first is None:
            del self._groups[shape]

    def _rouse_first(self, shape: Hashable) -> None:
        """Queue the first pod of a group for a try, unless a pod of the group is already queued or being tried."""
        group = self._groups[shape]
        if group.first is not None:
            return
        while group.by_order:
            order, key = heapq.heappop(group.by_order)
            if key in group.members and self._all[key].order == order:
                group.members.discard(key)
                group.first = key
                self._rouse(self._all[key])
                return
        del self._groups[shape]

    def _rouse(self, item: Queued) -> None:
        if item.not_before > self._now:
            self._unschedulable.discard(item.key)
            self._alone.discard(item.key)
            self._back_off(item)
        else:
            self._make_ready(item)

    def _back_off(self, item: Queued) -> None:
        self._backing_off.add(item.key)
        heapq.heappush(self._timers, (item.not_before, item.key))
        if not item.after_error:
            heapq.heappush(self._early, (item.not_before, item.order, item.key))

    def _make_ready(self, item: Queued) -> None:
        for keys in (self._backing_off, self._unschedulable, self._alone):
            keys.discard(item.key)
        if item.key not in self._is_ready:
            self._is_ready.add(item.key)
            heapq.heappush(self._ready, (item.order, item.key))

    def _taken(self, item: Queued) -> Queued:
        item.attempts += 1
        item.woken = False
        self._trying[item.key] = item
        return item
