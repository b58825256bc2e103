"""Quiet hours: no notices and no suspensions; waiting times do not include them.

Local times of a zone: a span of 20:00 to 08:00 has an hour less, or more, in the night in which the clocks change.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta

from moorage.model.idle import QuietTimes

DAY = timedelta(days=1)


def quiet_until(quiet: QuietTimes | None, at: datetime) -> datetime | None:
    """The end (in UTC) of the quiet hours that contain `at`. None if `at` is not in quiet hours."""
    if quiet is None:
        return None
    end: datetime | None = None
    moment = at
    for _ in range(2 * 7 * 24):  # spans that touch or overlap are one; two weeks of them are enough
        ends = [stop for start, stop in _spans_near(quiet, moment) if start <= moment < stop]
        if not ends:
            return end
        end = moment = max(ends)
    return end


def add_loud(quiet: QuietTimes | None, start: datetime, span: timedelta) -> datetime:
    """The moment (in UTC) when `span` has passed since `start`, not counting quiet hours.

    It is never in quiet hours.
    """
    at, left = start.astimezone(UTC), span
    if quiet is None:
        return at + left
    while True:
        if (end := quiet_until(quiet, at)) is not None:
            at = end
        begin = _next_start(quiet, at)
        if begin is None or at + left < begin:
            return at + left
        left -= begin - at
        at = begin


def _next_start(quiet: QuietTimes, at: datetime) -> datetime | None:
    """The first start of quiet hours after `at`."""
    starts = [
        start for days in range(-1, 9) for start, stop in _spans_of(quiet, at, days) if start > at and stop > start
    ]
    return min(starts, default=None)


def _spans_near(quiet: QuietTimes, at: datetime) -> Iterator[tuple[datetime, datetime]]:
    for days in (-2, -1, 0, 1):
        yield from _spans_of(quiet, at, days)


def _spans_of(quiet: QuietTimes, at: datetime, days: int) -> Iterator[tuple[datetime, datetime]]:
    """The spans (in UTC) that start `days` days after the day of `at`."""
    day = at.astimezone(quiet.zone).date() + timedelta(days=days)
    for weekdays, start, end in quiet.spans:
        if day.weekday() in weekdays:
            stop_day = day + DAY if end <= start else day
            yield _moment(quiet, day, start), _moment(quiet, stop_day, end)


def _moment(quiet: QuietTimes, day: date, clock: time) -> datetime:
    return datetime.combine(day, clock, tzinfo=quiet.zone).astimezone(UTC)
