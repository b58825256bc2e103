"""The time in which this process could run, without the time in which it was suspended.

A machine that sleeps, a virtual machine that is paused and a process that gets SIGSTOP have one thing in common:
this process did not run. It also could not receive anything, so silence of other parties proves nothing then.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta

from moorage_kube.clock import Clock

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # how often the clock is looked at
HELD_SECONDS = 5.0  # between two looks; a longer gap means that the process was stopped
REMEMBERED = 64  # sleeps remembered; older ones no longer extend tolerations


class AwakeTime:
    """Counts the time for which this process was awake, and the time for which it was suspended.

    Every method reads the clock first, so the first answer after a sleep is right, whichever timer fires first.
    `run` makes the gaps between two reads short; without it, each gap above HELD_SECONDS counts as a sleep.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall = clock.now()
        self._monotonic = clock.monotonic()
        self._seconds = 0.0
        self._sleeps: deque[tuple[datetime, timedelta]] = deque(maxlen=REMEMBERED)  # (end, length)
        self._handlers: list[Callable[[], None]] = []

    def on_wake(self, handler: Callable[[], None]) -> None:
        """Call `handler` after each time that the machine slept."""
        self._handlers.append(handler)

    async def run(self) -> None:
        """Read the clock every LOOK_SECONDS, until cancelled."""
        while True:
            self.look()
            await self._clock.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Record the time that passed since the last call.

        The longer of both clocks' gaps counts: some kernels stop the monotonic clock while the machine sleeps,
        and a paused virtual machine may get its wall clock set later.
        """
        wall, monotonic = self._clock.now(), self._clock.monotonic()
        passed = monotonic - self._monotonic
        gap = max(passed, (wall - self._wall).total_seconds())
        self._wall, self._monotonic = wall, monotonic
        if gap <= HELD_SECONDS:
            self._seconds += passed
            return
        self._seconds += LOOK_SECONDS
        slept = timedelta(seconds=gap - LOOK_SECONDS)
        self._sleeps.append((wall, slept))
        log.info(
            "the machine slept or the process was stopped", extra={"seconds": round(slept.total_seconds(), 1)}
        )
        for handler in self._handlers:
            handler()

    def seconds(self) -> float:
        """Seconds awake since the start; never decreases, and a sleep of any length adds one second."""
        self.look()
        return self._seconds

    def slept_since(self, moment: datetime) -> timedelta:
        """Return how long the machine slept between `moment` (wall clock) and now."""
        self.look()
        spans = (min(length, end - moment) for end, length in self._sleeps if end > moment)
        return sum(spans, timedelta(0))
