"""Charts of the use of GPUs over time: read from the history once for all who look."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from moorage.decide.usage.held import held_over
from moorage.errors import StorageError
from moorage.server.context import Context
from moorage.server.pages.charts import Chart, Series
from moorage.server.pages.texts import N_, say

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A chart of the use of GPUs."""

    id: str
    title: str  # to be said
    length: timedelta
    step: timedelta
    fresh_seconds: float  # so long what was read serves everybody


PERIODS = (
    Period(
        id="use-day", title=N_("GPUs in use, last 24 hours"), length=timedelta(days=1), step=timedelta(minutes=15),
        fresh_seconds=60.0,
    ),
    Period(
        id="use-month", title=N_("GPUs in use, last 30 days"), length=timedelta(days=30), step=timedelta(hours=6),
        fresh_seconds=600.0,
    ),
)  # fmt: skip


class History:
    """The use of GPUs over each period, read at most once in its `fresh_seconds`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = asyncio.Lock()
        self._known: dict[str, tuple[float, tuple[tuple[datetime, float], ...]]] = {}

    async def charts(self) -> tuple[Chart, ...]:
        """A chart for each period; none where the history cannot be read, or holds nothing yet."""
        charts = []
        total = self._context.cluster.gpus().totals.total
        async with self._lock:
            for period in PERIODS:
                means = await self._means(period)
                if len(means) < 2 or not any(mean for _, mean in means):
                    continue
                line = Series(name=say("in use"), values=tuple(mean for _, mean in means), area=True)
                charts.append(
                    Chart(
                        id=period.id,
                        title=say(period.title),
                        unit=say("GPUs"),
                        times=tuple(moment for moment, _ in means),
                        series=(line,),
                        most=max(total, *(mean for _, mean in means)) or None,
                    )
                )
        return tuple(charts)

    async def _means(self, period: Period) -> tuple[tuple[datetime, float], ...]:
        at, known = self._context.clock.monotonic(), self._known.get(period.id)
        if known is not None and at - known[0] < period.fresh_seconds:
            return known[1]
        now = self._context.now()
        since = now - period.length
        try:
            means = await asyncio.to_thread(self._read, since, now, period.step)
        except StorageError as error:
            log.error("the page shows no use over time", extra={"error": str(error)})
            means = ()
        self._known[period.id] = (at, means)
        return means

    def _read(self, since: datetime, now: datetime, step: timedelta) -> tuple[tuple[datetime, float], ...]:
        intervals = self._context.usage.overlapping(since, now)
        return held_over(intervals, since=since, until=now, step=step, now=now)
