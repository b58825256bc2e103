"""A clock that moves only when a test moves it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class FakeClock:
    """Implements `moorage_kube.clock.Clock`. `sleep` returns once `advance` has passed its end."""

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
        """Sleep as a machine whose kernel stops the monotonic clock meanwhile; timers have as long to go."""
        self._now += span

    def advance(self, span: timedelta | float) -> None:
        """Move forward by a span (or seconds) and wake those whose time has come."""
        seconds = span.total_seconds() if isinstance(span, timedelta) else span
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds
        due = [sleeper for sleeper in self._sleepers if sleeper[0] <= self._monotonic]
        self._sleepers = [sleeper for sleeper in self._sleepers if sleeper[0] > self._monotonic]
        for _, woken in due:
            if not woken.done():
                woken.set_result(None)
