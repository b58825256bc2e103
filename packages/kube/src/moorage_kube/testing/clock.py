"""A clock that moves only when a test moves it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class FakeClock:
    """A `moorage_kube.clock.Clock` for tests. `sleep` returns after `advance` has passed its end."""

    def __init__(self, start: datetime = NOON) -> None:
        self._now = start
        self._monotonic = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._monotonic + seconds, woken))
        await woken

    def suspend(self, span: timedelta) -> None:
        """Act like a machine that sleeps.

        The monotonic clock stops, so the remaining time of timers does not change.
        """
        self._now += span

    def advance(self, span: timedelta | float) -> None:
        """Move the clock forward by a timedelta or seconds, and wake the sleepers whose time has come."""
        seconds = span.total_seconds() if isinstance(span, timedelta) else span
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds
        due = [sleeper for sleeper in self._sleepers if sleeper[0] <= self._monotonic]
        self._sleepers = [sleeper for sleeper in self._sleepers if sleeper[0] > self._monotonic]
        for _, woken in due:
            if not woken.done():
                woken.set_result(None)


class QuickClock(FakeClock):
    """A `FakeClock` on which `sleep` moves the time itself and returns at once."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
