"""Charts as values: `templates/chart.html` shows them as a table, `static/charts.js` draws them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from moorage_kube.moments import rfc3339

ROWS = 24  # of the table next to a chart
_PAGE_DIGITS = 2  # after the point, of drawn values


class Series(Struct, frozen=True, kw_only=True):
    """One line. `values` are at the chart's times; None: not measured then, which leaves a gap."""

    name: str
    values: tuple[float | None, ...]
    area: bool = False  # filled down to the axis


class Chart(Struct, frozen=True, kw_only=True):
    """A chart of lines over time. `times` ascend; each series has one value for each time.

    `least` and `most` limit the vertical axis. If `most` is None, the highest value is the limit.
    """

    id: str  # unique on its page
    title: str
    unit: str
    times: tuple[datetime, ...]
    series: tuple[Series, ...]
    least: float = 0.0
    most: float | None = None
    is_daily: bool = False  # times are the starts of days

    @property
    def data(self) -> dict[str, Any]:
        """The data for `charts.js`: the template makes JSON of it."""
        times = [moment.replace(tzinfo=UTC) for moment in self.times] if self.is_daily else self.times
        return {
            "times": [int(moment.timestamp()) for moment in times],
            "unit": self.unit,
            "least": self.least,
            "most": self.most,
            "daily": self.is_daily,
            "series": [
                {
                    "name": line.name,
                    "values": [None if value is None else round(value, _PAGE_DIGITS) for value in line.values],
                    "area": line.area,
                }
                for line in self.series
            ],
        }

    @property
    def readings(self) -> list[tuple[str, str]]:
        """The only value of each series, if none has two: a number says more than an empty plot."""
        known = [(line.name, [value for value in line.values if value is not None]) for line in self.series]
        if any(len(values) > 1 for _, values in known):
            return []
        return [(name, shown(values[0], self.unit)) for name, values in known if values]

    @property
    def rows(self) -> list[tuple[str, list[str]]]:
        """The table of the chart, newest first, at most ROWS rows: a time (RFC 3339) or day, and the mean of each
        series.

        The mean covers the time since the next older row.
        """
        step = max(1, -(-len(self.times) // ROWS))
        rows = []
        for end in range(len(self.times), 0, -step):
            begin = max(0, end - step)
            cells = [self._cell(line.values[begin:end]) for line in self.series]
            at = self.times[end - 1]
            rows.append((at.date().isoformat() if self.is_daily else rfc3339(at), cells))
        return rows

    def _cell(self, values: Sequence[float | None]) -> str:
        known = [value for value in values if value is not None]
        return shown(sum(known) / len(known), self.unit) if known else ""


def shown(value: float, unit: str) -> str:
    """Format a value for people: "87 %", "1,234.5 GPU-hours"."""
    digits = 2 if abs(value) < 1 else 1 if abs(value) < 100 else 0
    text = f"{value:,.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{text} {unit}".strip()
