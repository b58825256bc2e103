"""Counters and histograms that a service updates while it works: cheap, bounded, thread-safe."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from threading import Lock

from moorage.metrics.families import OTHER, Family, Measured, Spread


class Tally:
    """A counter."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._values: dict[tuple[str, ...], float] = {}
        self._lock = Lock()

    def add(self, *labels: str, by: float = 1.0) -> None:
        with self._lock:
            key = _bounded(self.family, labels, self._values)
            self._values[key] = self._values.get(key, 0.0) + by

    def read(self) -> Measured:
        with self._lock:
            return Measured(family=self.family, values=dict(self._values))


class Histogram:
    """Times by buckets."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._totals: dict[tuple[str, ...], float] = {}
        self._lock = Lock()

    def observe(self, seconds: float, *labels: str) -> None:
        at = bisect_left(self.family.bounds, seconds)
        with self._lock:
            key = _bounded(self.family, labels, self._counts)
            counts = self._counts.get(key)
            if counts is None:
                counts = self._counts[key] = [0] * (len(self.family.bounds) + 1)
            counts[at] += 1
            self._totals[key] = self._totals.get(key, 0.0) + seconds

    def read(self) -> Measured:
        with self._lock:
            spreads = {key: Spread(tuple(counts), self._totals[key]) for key, counts in self._counts.items()}
        return Measured(family=self.family, spreads=spreads)


def _bounded(family: Family, labels: tuple[str, ...], known: Mapping[tuple[str, ...], object]) -> tuple[str, ...]:
    if labels in known or len(known) < family.series_max:
        return labels
    return (OTHER,) * len(family.labels)
