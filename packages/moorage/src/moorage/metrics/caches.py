"""Metrics of a process's copies of cluster objects, such as their age."""

from __future__ import annotations

from collections.abc import Iterable

from moorage.metrics.families import Family, Measured, measured
from moorage_kube.informer import Informer

COPIES_MAX = 200  # collections that a process follows

OBJECTS = Family(
    name="moorage_informer_objects", help="Objects in the copy of a collection", labels=("resource",),
    series_max=COPIES_MAX,
)  # fmt: skip
BEHIND = Family(
    name="moorage_informer_behind_seconds",
    help="For how long the copy of a collection has had no watch: 0 while it is followed",
    labels=("resource",),
    series_max=COPIES_MAX,
)
BREAKS = Family(
    name="moorage_informer_breaks_total",
    help="Lists and watches of a collection that failed",
    kind="counter",
    labels=("resource",),
    series_max=COPIES_MAX,
)
FAMILIES = (OBJECTS, BEHIND, BREAKS)


def measure_caches(informers: Iterable[Informer]) -> list[Measured]:
    """The copies of one process. Of two copies of parts of one collection, the one further behind counts."""
    known = [(str(informer.resource), informer) for informer in set(informers)]
    behind: dict[tuple[str, ...], float] = {}
    for name, informer in known:
        behind[name,] = max(behind.get((name,), 0.0), informer.behind_seconds())
    return [
        measured(OBJECTS, (((name,), len(informer)) for name, informer in known)),
        measured(BEHIND, behind.items()),
        measured(BREAKS, (((name,), informer.breaks) for name, informer in known)),
    ]
