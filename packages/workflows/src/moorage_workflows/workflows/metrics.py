"""The metrics that workflows define, as rows in the database of their runs.

A value is added in the transaction that saves the end of its node or run, so each is counted exactly once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from moorage.sql.database import Database, Table
from moorage.sql.timestamps import to_microseconds
from moorage_workflows.decide.workflows.metrics import SERIES_MAX, MetricRefused, added
from moorage_workflows.model.workflow import MetricPoint, MetricSeries

METRICS = Table(
    "workflow_metrics",
    ("namespace", "name", "labels", "changed_at", "uid", "series"),
    types=("text", "text", "text", "bigint", "text", "text"),
    keys=3,
)
_SERIES = msgspec.json.Decoder(MetricSeries)


def add(db: Database, namespace: str, uid: str, points: Iterable[MetricPoint], at: datetime) -> tuple[str, ...]:
    """Add values to their metrics. Returns why some were refused. Call it inside a transaction."""
    if db.locking("FOR UPDATE"):  # others may add to the same series at this moment
        db.rows("SELECT pg_advisory_xact_lock(hashtext(?))::text", f"workflow_metrics/{namespace}")
    problems: list[str] = []
    for point in points:
        key = (namespace, point.name, _digest(point.labels))
        kept = db.by_keys(METRICS, [key], columns=("series",))
        series = _SERIES.decode(kept[0][0]) if kept else None
        try:
            if series is None and namespace:
                _check_room(db, namespace)
            changed = added(series, point, namespace=namespace, uid=uid, other=_other(db, namespace, point.name))
        except MetricRefused as error:
            problems.append(f"metric {point.name!r}: {error.message}")
            continue
        text = msgspec.json.encode(changed).decode()
        db.upsert(METRICS, [(*key, to_microseconds(at), changed.uid, text)])
    return tuple(dict.fromkeys(problems))


def count(db: Database, points: Iterable[MetricPoint], at: datetime) -> None:
    """Add values to the metrics of the whole installation. Call it inside a transaction."""
    add(db, "", "", points, at)


def all_series(db: Database) -> Sequence[MetricSeries]:
    rows = db.rows("SELECT series FROM workflow_metrics ORDER BY name, namespace, labels")
    return tuple(_SERIES.decode(row[0]) for row in rows)


def forget_run(db: Database, uid: str) -> None:
    """Delete the realtime values of a deleted run."""
    db.run("DELETE FROM workflow_metrics WHERE uid = ?", uid)


def forget(db: Database, before: datetime, namespace: str | None = None) -> None:
    """Delete series that have not changed since `before`, of one namespace or of all."""
    within, values = ("", ()) if namespace is None else (" AND namespace = ?", (namespace,))
    db.run(f"DELETE FROM workflow_metrics WHERE changed_at < ?{within}", to_microseconds(before), *values)


def _check_room(db: Database, namespace: str) -> None:
    """Raise MetricRefused if the namespace has reached its maximum number of series."""
    many = int(db.rows("SELECT count(*) FROM workflow_metrics WHERE namespace = ?", namespace)[0][0])
    if many >= SERIES_MAX:
        raise MetricRefused(
            f"the namespace {namespace} has {many} series of metrics, which is the limit: use labels with"
            " fewer values"
        )


def _other(db: Database, namespace: str, name: str) -> MetricSeries | None:
    rows = db.rows(
        "SELECT series FROM workflow_metrics WHERE namespace = ? AND name = ? ORDER BY labels LIMIT 1",
        namespace,
        name,
    )
    return _SERIES.decode(rows[0][0]) if rows else None


def _digest(labels: Mapping[str, str]) -> str:
    return hashlib.sha256(msgspec.json.encode(sorted(labels.items()))).hexdigest()
