"""The metrics page in Prometheus' text format.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from moorage.metrics.families import Family, Measured
from moorage.metrics.text import braced, escaped_help, labels_text

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATH = "/metrics"

BUILD = Family(name="moorage_build_info", help="1, with the version that runs", labels=("version",), series_max=1)


def exposition(rows: Iterable[Measured], *, process: bool = False) -> bytes:
    """The metrics page. `process`: include processor time, memory and open files of this process.

    The lines are written here, since `prometheus_client` takes four times as long: a page has 10,000 lines.
    It is imported late, since its import takes 40 ms, which would slow every command.
    """
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    page = "".join(line for row in rows for line in _lines(row)).encode()
    if not process:
        return page
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return page + bytes(generate_latest(registry))


def _lines(row: Measured) -> Iterator[str]:
    family = row.family
    yield f"# HELP {family.name} {escaped_help(family.help)}\n# TYPE {family.name} {family.kind}\n"
    for values, value in sorted(row.values.items()):
        yield f"{family.name}{braced(_labels(family, values))} {float(value)!r}\n"
    bounds = [*map(str, family.bounds), "+Inf"]
    for values, spread in sorted(row.spreads.items()):
        labels = _labels(family, values)
        before = f"{labels}," if labels else ""
        for bound, count in zip(bounds, accumulate(spread.counts), strict=True):
            yield f'{family.name}_bucket{{{before}le="{bound}"}} {float(count)!r}\n'
        yield f"{family.name}_count{braced(labels)} {float(sum(spread.counts))!r}\n"
        yield f"{family.name}_sum{braced(labels)} {float(spread.total)!r}\n"


def _labels(family: Family, values: tuple[str, ...]) -> str:
    return labels_text(sorted(zip(family.labels, values, strict=True)))
