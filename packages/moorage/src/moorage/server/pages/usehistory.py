"""Charts of GPU use over time. The history is read once for all viewers."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from moorage.decide.usage.held import held_over
from moorage.server.context import Context
from moorage.server.pages.charts import Chart, Series
from moorage.server.pages.texts import N_, say
from moorage_kube.errors import StorageError

log = logging.getLogger(__name__)


class Period(Struct, frozen=True, kw_only=True):
    """A period for which the page shows a chart of GPU use."""

    id: str
    title: str  # to be said
    length: timedelta
    step: timedelta
    fresh_seconds: float  # how long a result is shared by all users


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


class _Lines(Struct, frozen=True, kw_only=True):
    """GPUs held, and GPUs × their utilisation; None: GPUs were not measured in that window."""

    times: tuple[datetime, ...] = ()
    held: tuple[float, ...] = ()
    busy: tuple[float | None, ...] = ()


class History:
    """GPU use over each period; each is read at most once in its `fresh_seconds`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = asyncio.Lock()
        self._known: dict[str, tuple[float, _Lines]] = {}

    async def charts(self) -> tuple[Chart, ...]:
        """A chart for each period; empty if the history cannot be read or has no data yet."""
        charts = []
        total = self._context.cluster.gpus().totals.total
        async with self._lock:
            for period in PERIODS:
                lines = await self._lines(period)
                if len(lines.held) < 2 or not any(lines.held):
                    continue
                series = [Series(name=say("in use"), values=lines.held, area=True)]
                if any(busy is not None for busy in lines.busy):
                    series.append(Series(name=say("busy (GPUs × utilisation)"), values=lines.busy))
                charts.append(
                    Chart(
                        id=period.id,
                        title=say(period.title),
                        unit=say("GPUs"),
                        times=lines.times,
                        series=tuple(series),
                        most=max(total, *lines.held) or None,
                    )
                )
        return tuple(charts)

    async def _lines(self, period: Period) -> _Lines:
        at, known = self._context.clock.monotonic(), self._known.get(period.id)
        if known is not None and at - known[0] < period.fresh_seconds:
            return known[1]
        try:
            lines = await asyncio.to_thread(self._read, period, self._context.now())
        except StorageError as error:
            log.error("the page shows no use over time", extra={"error": str(error)})
            lines = _Lines()
        self._known[period.id] = (at, lines)
        return lines

    def _read(self, period: Period, now: datetime) -> _Lines:
        step = int(period.step.total_seconds())
        begin = int((now - period.length).timestamp()) // step * step  # where windows of samples begin, too
        since = datetime.fromtimestamp(begin, UTC)
        intervals = self._context.usage.overlapping(since, now)
        held = held_over(intervals, since=since, until=now, step=period.step, now=now)
        busy: dict[datetime, float] = {}
        for window in self._context.samples.sums(since, now, step):
            if window.tally.gpu_seconds and window.length == period.step:
                length = min(period.step, now - window.start).total_seconds()
                busy[window.start] = window.tally.gpu_busy_seconds / length if length > 0 else 0.0
        return _Lines(
            times=tuple(moment for moment, _ in held),
            held=tuple(mean for _, mean in held),
            busy=tuple(busy.get(moment) for moment, _ in held),
        )
