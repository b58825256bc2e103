"""The CPU and memory usage of this machine's pods, by their processes, as kubelets report it.

A kubelet counts by cgroups. Here a pod's processes are those with its mark. The counter of CPU time never
decreases: the time of a process that ended unseen between two reads is lost, at most one interval's worth.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from moorage_kube.clock import Clock
from moorage_local.nodeagent.leftovers import marked_processes
from moorage_local.nodeagent.shim.memory import proportional

LOOK_SECONDS = 5.0  # so long a look serves all who ask
RATE_SECONDS = 8.0  # over at least so long a rate is made, unless a pod is younger
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStat:
    """The use of one pod at one moment."""

    at: datetime
    cpu_nanoseconds: int  # since it was first seen
    nano_cores: int | None  # over the last interval; None: read once
    memory_bytes: int


@dataclass(slots=True)
class _Counter:
    """CPU time of a pod. `last`: of the processes alive at the last check; `total`: of all processes so far."""

    last: int
    total: int
    since: float  # monotonic: the look from which the next rate is made
    total_then: int
    rate: int | None = None

    def move(self, now: int, monotonic: float) -> None:
        self.total += max(0, now - self.last)
        self.last = now
        seconds = monotonic - self.since
        if seconds >= RATE_SECONDS or (self.rate is None and seconds > 0):
            self.rate = round((self.total - self.total_then) / seconds)
            self.since, self.total_then = monotonic, self.total


class PodStats:
    """The use of pods, measured at most once in LOOK_SECONDS."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counters: dict[str, _Counter] = {}
        self._stats: dict[str, PodStat] = {}
        self._looked_at: float | None = None
        self._looking = asyncio.Lock()

    async def look(self, uids: Iterable[str]) -> dict[str, PodStat]:
        """Return the use of all pods of this machine; `uids` must be all of their uids."""
        async with self._looking:
            now = self._clock.monotonic()
            if self._looked_at is None or now - self._looked_at >= LOOK_SECONDS:
                use = await asyncio.to_thread(use_of_processes, frozenset(uids))
                self._take(use, now)
                self._looked_at = now
            return self._stats

    def _take(self, use: dict[str, tuple[int, int]], now: float) -> None:
        self._counters = {uid: counter for uid, counter in self._counters.items() if uid in use}
        for uid, (nanoseconds, _) in use.items():
            counter = self._counters.get(uid)
            if counter is None:
                self._counters[uid] = _Counter(nanoseconds, nanoseconds, now, nanoseconds)
            else:
                counter.move(nanoseconds, now)
        at = self._clock.now()
        self._stats = {
            uid: PodStat(
                at=at,
                cpu_nanoseconds=self._counters[uid].total,
                nano_cores=self._counters[uid].rate,
                memory_bytes=memory,
            )
            for uid, (_, memory) in use.items()
        }


def use_of_processes(uids: frozenset[str]) -> dict[str, tuple[int, int]]:
    """Return, by the uid of a pod, the CPU time in ns and the memory in bytes.

    The CPU time is that of its live processes and of the children that they waited for.
    """
    use: dict[str, tuple[int, int]] = dict.fromkeys(uids, (0, 0))
    for pid, uid in marked_processes(uids).items():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        ticks = sum(
            int(field) for field in fields[11:15]
        )  # utime, stime, and those of children that were waited for
        before = use[uid]
        use[uid] = (before[0] + ticks * 1_000_000_000 // _TICKS, before[1] + (proportional(pid) or 0))
    return use
