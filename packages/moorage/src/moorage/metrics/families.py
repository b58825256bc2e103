"""A family of metrics: its name, its meaning, its labels, and its largest number of series.

Names follow Prometheus' conventions: base units, `_total` for counters, `_seconds` for times.
https://prometheus.io/docs/practices/naming/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

OTHER = "other"  # the label value for all values above a bound
SERIES_MAX = 10_000  # of a family whose labels are names of the cluster's objects
REQUEST_BOUNDS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)  # seconds; those of Prometheus' clients
STATEMENT_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0, 10.0)  # seconds of an SQL statement


class Family(Struct, frozen=True, kw_only=True):
    """`kind`: gauge, counter or histogram. `series_max`: label sets at most; further ones are summed as OTHER."""

    name: str  # of a counter: with `_total`
    help: str
    kind: str = "gauge"
    labels: tuple[str, ...] = ()
    series_max: int = SERIES_MAX
    bounds: tuple[float, ...] = REQUEST_BOUNDS  # of a histogram's buckets, without the infinite


class Spread(Struct, frozen=True):
    """A histogram of one label set: `counts` by bucket, the infinite one last, not cumulative."""

    counts: tuple[int, ...]
    total: float


class Measured(Struct, frozen=True, kw_only=True):
    """A family with its values, by label values in the order of the labels."""

    family: Family
    values: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    spreads: Mapping[tuple[str, ...], Spread] = field(default_factory=dict)  # of a histogram


def measured(family: Family, values: Iterable[tuple[tuple[str, ...], float]]) -> Measured:
    """Add up the values of each label set; label sets beyond the family's bound are added to one series."""
    sums: dict[tuple[str, ...], float] = {}
    for labels, value in values:
        key = labels if labels in sums or len(sums) < family.series_max else (OTHER,) * len(family.labels)
        sums[key] = sums.get(key, 0.0) + value
    return Measured(family=family, values=sums)
