"""The only module that reads the clock.

All code that depends on time takes a `Clock`, so that a test can use a clock that stops.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """The source of time for the rest of the program."""

    def now(self) -> datetime:
        """Wall-clock time, always in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start.

        Never decreases, and counts while the machine sleeps, if the system can.
        """
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait `seconds`; with zero or less only let other tasks run."""
        ...


_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux stops CLOCK_MONOTONIC while the machine is suspended: a lease, a token or a cached answer would outlive
its time by as much, and a leader that woke would believe that it still leads."""


SLICE_SECONDS = 30.0  # the longest wait at a time: asyncio's timers stop while the machine sleeps


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.clock_gettime(_ELAPSED)

    async def sleep(self, seconds: float) -> None:
        import asyncio  # slow to import, and a command that asks once does not wait

        end = self.monotonic() + seconds
        while True:
            left = end - self.monotonic()
            await asyncio.sleep(min(max(0.0, left), SLICE_SECONDS))
            if left <= SLICE_SECONDS:
                return


SYSTEM: Clock = SystemClock()


def rfc3339(moment: datetime) -> str:
    """Write a moment as `metav1.Time` does: UTC, whole seconds, `Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(moment: datetime) -> str:
    """Write a moment as `metav1.MicroTime` does: UTC, six decimals, `Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_rfc3339(text: str) -> datetime:
    """Read a `metav1.Time` or `MicroTime`. Raises ValueError naming the text."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r} is before the year 1 or after 9999 in UTC") from error


def format_duration(span: timedelta) -> str:
    """Format a duration like the ages of `kubectl`: 45s, 12m, 3h5m, 4d2h. Negative durations count as zero."""
    seconds = max(0, int(span.total_seconds()))
    if seconds < 120:
        return f"{seconds}s"
    minutes = seconds // 60
    if minutes < 120:
        rest = seconds % 60
        return f"{minutes}m{rest}s" if rest and minutes < 10 else f"{minutes}m"
    hours = minutes // 60
    if hours < 48:
        rest = minutes % 60
        return f"{hours}h{rest}m" if rest and hours < 8 else f"{hours}h"
    days = hours // 24
    rest = hours % 24
    return f"{days}d{rest}h" if rest and days < 8 else f"{days}d"
