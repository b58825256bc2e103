"""The page that Prometheus reads, in its text format.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from moorage.metrics.families import Family, Measured

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATH = "/metrics"

BUILD = Family(name="moorage_build_info", help="1, with the version that runs", labels=("version",), series_max=1)


def exposition(rows: Iterable[Measured], *, process: bool = False) -> bytes:
    """The page. `process`: with the processor, memory and open files of this process.

    `prometheus_client` is imported late: it costs 40 ms, which no command should pay.
    """
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    from prometheus_client.registry import Collector

    class Read(Collector):
        def collect(self) -> Iterator[Metric]:
            return map(_metric, rows)

        def describe(self) -> list[Metric]:  # so that nothing is read before it is asked for
            return []

    registry = CollectorRegistry()
    registry.register(Read())
    if process:
        ProcessCollector(registry=registry)
    return bytes(generate_latest(registry))


def _metric(row: Measured) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    family = row.family
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        bounds = [*map(str, family.bounds), "+Inf"]
        for labels, spread in sorted(row.spreads.items()):
            buckets = list(zip(bounds, map(float, accumulate(spread.counts)), strict=True))
            histogram.add_metric(labels, buckets, spread.total)
        return histogram
    made = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = made(family.name.removesuffix("_total") if family.kind == "counter" else family.name, family.help,
                  labels=family.labels)  # fmt: skip
    for labels, value in sorted(row.values.items()):
        metric.add_metric(labels, value)
    return metric
