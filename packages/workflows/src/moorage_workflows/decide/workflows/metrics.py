"""Metrics that workflows define for Prometheus: values from ended nodes, and their sums. Pure.

https://argo-workflows.readthedocs.io/en/latest/metrics/
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import bisect
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any

import msgspec
from msgspec import Struct

from moorage.decide.evaluation import TextError
from moorage.metrics.text import braced, escaped_help, labels_text
from moorage_kube.errors import MoorageError
from moorage_kube.moments import moment
from moorage_workflows.decide.workflows.text.tags import substitute, substitute_text
from moorage_workflows.decide.workflows.text.when import holds
from moorage_workflows.model.workflow import MetricPoint, MetricSeries

PREFIX = "argo_workflows_"  # as Argo's controller has it, so that dashboards and rules stay as they are
NAMESPACE_LABEL = "workflow_namespace"  # on every series: the namespace of its workflows
NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
KINDS = ("counter", "gauge", "histogram")
OPERATIONS = ("Set", "Add", "Sub")
SERIES_MAX = 500  # of a namespace: a label with a value per run would fill the database and Prometheus
LABELS_MAX = 20  # of a series
BUCKETS_MAX = 30  # of a histogram
TEXT_MAX = 1000  # characters of a help, or of a label's value
_LIVE = re.compile(r"\{\{\s*(workflow\.duration|duration)\s*\}\}")


class BuiltIn(Struct, frozen=True):
    """A metric of Argo's controller that Moorage also has."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


BUILT_IN = (
    BuiltIn("gauge", "gauge", ("phase",), "Workflows that are there now, by phase"),
    BuiltIn("total_count", "counter", ("phase", "namespace"), "Workflows that have entered a phase"),
    BuiltIn("pods_gauge", "gauge", ("phase",), "Pods of steps that are there now, by phase"),
    BuiltIn(
        "cronworkflows_triggered_total",
        "counter",
        ("name", "namespace"),
        "Workflows that a CronWorkflow has started, also by hand and for the past",
    ),
)
_BUILT_IN = {row.name: row for row in BUILT_IN}
WORKFLOW_PHASES = ("Pending", "Running", "Succeeded", "Failed", "Error")
POD_PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")


def counted(metric: str, **labels: str) -> MetricPoint:
    """Return a point that adds 1 to a counter of Argo's controller."""
    row = _BUILT_IN[metric]
    return MetricPoint(name=metric, help=row.help, kind=row.kind, value=1.0, operation="Add", labels=labels)


def gauges(workflows: Mapping[str, int], pods: Iterable[str]) -> list[MetricSeries]:
    """Return the gauges of Argo's controller.

    `workflows`: their number by phase; `pods`: the phase of each pod.
    """
    many = Counter(pods)
    rows = [("gauge", phase, workflows.get(phase, 0)) for phase in WORKFLOW_PHASES]
    rows += [("pods_gauge", phase, many[phase]) for phase in POD_PHASES]
    return [
        MetricSeries(
            namespace="",
            name=name,
            help=_BUILT_IN[name].help,
            kind=_BUILT_IN[name].kind,
            labels={"phase": phase},
            value=float(value),
        )
        for name, phase, value in rows
    ]


class MetricRefused(MoorageError):
    """The value of a metric is invalid. The message is the reason."""


def reserved(label: str, kind: str) -> str:
    """Return why a label cannot have this name; "" if it can."""
    if label == NAMESPACE_LABEL:
        return "is set by Moorage: it is the namespace of the workflow"
    if label.startswith("__"):
        return "begins with '__', which Prometheus keeps for itself"
    if label == "le" and kind == "histogram":
        return "is the bound of a histogram's bucket"
    return ""


def points_of(
    metrics: Any, scope: Mapping[str, str], *, node: str, since: str = ""
) -> tuple[list[MetricPoint], list[str]]:
    """The values of `metrics` of a template or a workflow, and the errors in others.

    `since`: the node begins, so only metrics in real time have a value: the time that passes from then on.
    """
    points, errors = [], []
    for metric in (metrics or {}).get("prometheus") or ():
        kind = next((kind for kind in KINDS if metric.get(kind) is not None), "")
        is_live = kind == "gauge" and metric[kind].get("realtime") is True
        if since and not is_live:
            continue
        try:
            point = _point(metric, kind, scope, node, since if is_live else "", is_live=is_live)
        except (TextError, MetricRefused) as error:
            errors.append(f"metric {metric.get('name')!r}: {error.message}")
        else:
            points += [point] if point is not None else []
    return points, errors


def _point(
    metric: Mapping[str, Any], kind: str, scope: Mapping[str, str], node: str, since: str, *, is_live: bool
) -> MetricPoint | None:
    """Return the value of a metric; None if its `when` is false. Raises TextError and MetricRefused."""
    plain = {key: metric.get(key) for key in ("name", "help", "labels", "when") if metric.get(key)}
    plain = substitute(plain, dict(scope), allow_unresolved=False)
    if plain.get("when") and not holds(str(plain["when"])):
        return None
    settings = metric.get(kind) or {}
    text = str(settings.get("value", ""))
    if is_live and not _LIVE.fullmatch(text.strip()):
        raise MetricRefused(
            f"has the value {text!r}: in real time only {{{{duration}}}} and {{{{workflow.duration}}}} are known"
        )
    value = 0.0 if since else _number(substitute_text(text, dict(scope), allow_unresolved=False))
    labels = {str(label.get("key")): str(label.get("value", "")) for label in plain.get("labels") or ()}
    point = MetricPoint(
        name=str(plain.get("name") or ""),
        help=str(plain.get("help") or ""),
        kind=kind,
        value=value,
        operation="Add" if kind == "counter" else str(settings.get("operation") or "Set"),
        labels=labels,
        buckets=tuple(sorted({_number(str(bound)) for bound in settings.get("buckets") or ()})),
        node=node,
        since=since,
    )
    _check(point)
    return point


def _number(text: str) -> float:
    try:
        value = float(text.strip())
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise MetricRefused(f"has the value {text[:100]!r}: use a number")
    return value


def _check(point: MetricPoint) -> None:
    """Raises MetricRefused for an invalid point."""
    if not NAME.fullmatch(point.name):
        raise MetricRefused("has an invalid name: use only letters, digits and '_'")
    if point.name in _BUILT_IN:
        raise MetricRefused("has the name of a metric of every installation: use another name")
    if not point.help:
        raise MetricRefused("has no help")
    if point.kind == "counter" and point.value < 0:
        raise MetricRefused(f"has the value {point.value:g}: a counter never decreases")
    if point.operation not in OPERATIONS:
        raise MetricRefused(f"has the operation {point.operation!r}: use one of {', '.join(OPERATIONS)}")
    if len(point.labels) > LABELS_MAX:
        raise MetricRefused(f"has {len(point.labels)} labels; at most {LABELS_MAX} are allowed")
    if len(point.buckets) > BUCKETS_MAX:
        raise MetricRefused(f"has {len(point.buckets)} buckets; at most {BUCKETS_MAX} are allowed")
    for text in (point.name, point.help, *point.labels.values()):
        if len(text) > TEXT_MAX:
            raise MetricRefused(f"has a string of {len(text)} characters; at most {TEXT_MAX} are allowed")
    for label in point.labels:
        if not NAME.fullmatch(label):
            raise MetricRefused(f"has the label {label[:100]!r}: use letters, digits and '_'")
        if why := reserved(label, point.kind):
            raise MetricRefused(f"has the label {label!r}, which {why}")


def added(
    series: MetricSeries | None, point: MetricPoint, *, namespace: str, uid: str, other: MetricSeries | None
) -> MetricSeries:
    """Add a point to a series. `series` None: start a new one; `other`: any series with the same name.

    `namespace` "": a built-in metric. Raises MetricRefused if the name has another kind or help text already.
    """
    # one name has one kind and one help in a namespace
    if namespace:
        _check(point)
    if other is not None and (other.kind, other.help) != (point.kind, point.help):
        field = "kind" if other.kind != point.kind else "help"
        raise MetricRefused(
            f"the {field} of metric {point.name} is {getattr(other, field)!r} in the namespace {namespace}, and"
            f" {getattr(point, field)!r} here: use another name"
        )
    # other buckets begin a new series
    begins = series is None or series.buckets != point.buckets
    before = MetricSeries(
        namespace=namespace,
        name=point.name,
        help=point.help,
        kind=point.kind,
        labels=point.labels,
        buckets=point.buckets,
        counts=(0,) * (len(point.buckets) + 1) if point.kind == "histogram" else (),
    )
    if series is not None and not begins:
        before = series
    # a value in real time is computed at each read
    if point.since:
        return msgspec.structs.replace(before, since=point.since, uid=uid)
    # histograms count, all others have one value
    if point.kind == "histogram":
        counts = list(before.counts)
        counts[bisect.bisect_left(point.buckets, point.value)] += 1
        return msgspec.structs.replace(before, counts=tuple(counts), value=before.value + point.value)
    match point.operation:
        case "Add":
            value = before.value + point.value
        case "Sub":
            value = before.value - point.value
        case _:
            value = point.value
    return msgspec.structs.replace(before, value=value, since="", uid=uid if before.since else "")


def exposition(series: Iterable[MetricSeries], now: datetime) -> str:
    """Return the series in Prometheus' text format. A name with different kinds in two namespaces gets no kind."""
    families: dict[str, list[MetricSeries]] = {}
    for row in series:
        families.setdefault(row.name, []).append(row)
    lines = []
    for name, rows in sorted(families.items()):
        kinds = sorted({row.kind for row in rows})
        lines.append(f"# HELP {PREFIX}{name} {escaped_help(rows[0].help)}")
        lines.append(f"# TYPE {PREFIX}{name} {kinds[0] if len(kinds) == 1 else 'untyped'}")
        for row in rows:
            lines += _samples(row, now)
    return "".join(f"{line}\n" for line in lines)


def _samples(row: MetricSeries, now: datetime) -> list[str]:
    labels = {**row.labels, **({NAMESPACE_LABEL: row.namespace} if row.namespace else {})}
    name = f"{PREFIX}{row.name}"
    if row.kind != "histogram":
        began = moment(row.since) if row.since else None
        value = row.value if began is None else max((now - began).total_seconds(), 0.0)
        return [f"{name}{_labels(labels)} {value!r}"]
    sums = list(accumulate(row.counts))
    bounds = [*(repr(bound) for bound in row.buckets), "+Inf"]
    buckets = [
        f"{name}_bucket{_labels(labels | {'le': bound})} {many}" for bound, many in zip(bounds, sums, strict=True)
    ]
    return [*buckets, f"{name}_sum{_labels(labels)} {row.value!r}", f"{name}_count{_labels(labels)} {sums[-1]}"]


def _labels(labels: Mapping[str, str]) -> str:
    return braced(labels_text(sorted(labels.items())))


def resources_texts(seconds: Sequence[Mapping[str, int]]) -> dict[str, str]:
    """`resourcesDuration.*` for the requests of these pods together."""
    total: dict[str, int] = {"cpu": 0, "memory": 0}
    for row in seconds:
        for name, amount in row.items():
            total[name] = total.get(name, 0) + amount
    return {f"resourcesDuration.{name}": str(amount) for name, amount in total.items()}
