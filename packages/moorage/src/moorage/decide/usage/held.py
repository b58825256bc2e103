"""Held GPUs over time, computed from intervals. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from moorage.decide.usage.intervals import Interval


def held_over(
    intervals: Iterable[Interval], *, since: datetime, until: datetime, step: timedelta, now: datetime
) -> tuple[tuple[datetime, float], ...]:
    """The mean number of GPUs held in each window of `step` from `since` on, by the start of the window.

    The last window ends with `until`, or with `now` where that is earlier: later windows do not exist. An open
    interval lasts to `now`. Sums are exact: windows times their means are the GPU-hours of the whole.
    """
    end = min(until, now)
    if end <= since or step <= timedelta():
        return ()
    windows = -(-(end - since) // step)
    rises: dict[datetime, int] = {}
    for interval in intervals:
        begin = max(since, interval.started_at)
        last = end if interval.ended_at is None else min(end, interval.ended_at)
        if last > begin and interval.gpus:
            rises[begin] = rises.get(begin, 0) + interval.gpus
            rises[last] = rises.get(last, 0) - interval.gpus
    held_time = [timedelta()] * windows
    held, at = 0, since
    for moment in [*sorted(rises), end]:
        while held and at < moment:
            window = (at - since) // step
            until_edge = min(moment, since + (window + 1) * step)
            held_time[window] += held * (until_edge - at)
            at = until_edge
        at = max(at, moment)
        held += rises.get(moment, 0)
    means = []
    for window, total in enumerate(held_time):
        begin = since + window * step
        means.append((begin, total / (min(end, begin + step) - begin)))
    return tuple(means)
