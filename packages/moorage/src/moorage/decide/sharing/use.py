"""Recent use of owners: GPU-time that counts half as much after each half-life."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from datetime import datetime, timedelta
from math import exp, log
from typing import TypeVar

from moorage.decide.usage.intervals import Interval

HALF_LIVES = 10  # older use counts for less than a thousandth, and is not read

K = TypeVar("K", bound=Hashable)


def faded_seconds(gpus: float, start: datetime, end: datetime, *, now: datetime, half_life: timedelta) -> float:
    """GPU-seconds of a period, faded to `now`: the integral of gpus × 2^(-age / half-life)."""
    rate = log(2) / half_life.total_seconds()
    young = max(0.0, (now - min(end, now)).total_seconds())
    old = max(young, (now - start).total_seconds())
    return gpus * (exp(-rate * young) - exp(-rate * old)) / rate


def faded_use(
    intervals: Iterable[Interval], key: Callable[[Interval], K], *, now: datetime, half_life: timedelta
) -> dict[K, float]:
    """GPU-seconds, faded to `now`, by owner, run or another key."""
    sums: dict[K, float] = {}
    for interval in intervals:
        seconds = faded_seconds(
            interval.gpus, interval.started_at, interval.ended_at or now, now=now, half_life=half_life
        )
        sums[key(interval)] = sums.get(key(interval), 0.0) + seconds
    return sums
