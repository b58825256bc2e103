"""The durations of past runs, for all answers that estimate an end."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta

from moorage.decide.runs.forecast import History, history_of
from moorage.decide.usage.intervals import stay_of
from moorage.usage.store import UsageStore
from moorage_kube.clock import Clock
from moorage_kube.errors import StorageError

WINDOW = timedelta(days=60)  # older stays are a poor estimate for current runs
ROWS = 20_000  # the newest of them
CACHE_SECONDS = 60.0  # how long a result is used before the next read

log = logging.getLogger(__name__)


class PastRuns:
    """How long past runs held GPUs, read at most once in CACHE_SECONDS."""

    def __init__(self, usage: UsageStore, *, clock: Clock) -> None:
        self._usage = usage
        self._clock = clock
        self._history = History()
        self._read_at: float | None = None

    async def history(self) -> History:
        """Durations of past runs, grouped by similarity; empty while the store cannot be read."""
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at >= CACHE_SECONDS:
            try:
                self._history = await asyncio.to_thread(self._read, self._clock.now() - WINDOW)
            except StorageError as error:
                log.error("past runs cannot be read", extra={"error": str(error)})
                self._history = History()
            self._read_at = now
        return self._history

    def _read(self, since: datetime) -> History:
        rows = self._usage.ended(since, limit=ROWS)
        return history_of(stay for row in rows if (stay := stay_of(row)) is not None)
