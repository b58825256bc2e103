"""The two conditions of a CronWorkflow: `when`, asked at each slot, and `stopStrategy`, asked at each end of a run.

https://argo-workflows.readthedocs.io/en/latest/variables/#cronworkflow
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from moorage.apimachinery.meta import annotations_of, labels_of
from moorage.apimachinery.moments import rfc3339


def cron_scope(
    obj: Mapping[str, Any], *, last_scheduled: datetime | None, succeeded: int, failed: int
) -> dict[str, Any]:
    """What `cronworkflow.…` is in expressions. `annotations` are annotations; Argo 4.1 has the labels there."""
    meta = obj["metadata"]
    labels, annotations = dict(labels_of(obj)), dict(annotations_of(obj))
    scope: dict[str, Any] = {
        "cronworkflow.name": meta["name"],
        "cronworkflow.namespace": meta.get("namespace") or "",
        "cronworkflow.labels.json": json.dumps(labels, sort_keys=True, separators=(",", ":")),
        "cronworkflow.annotations.json": json.dumps(annotations, sort_keys=True, separators=(",", ":")),
        "cronworkflow.lastScheduledTime": last_scheduled,
        "cronworkflow.succeeded": succeeded,
        "cronworkflow.failed": failed,
    }
    scope |= {f"cronworkflow.labels.{key}": value for key, value in labels.items()}
    return scope | {f"cronworkflow.annotations.{key}": value for key, value in annotations.items()}


def is_wanted(when: str, scope: Mapping[str, Any], now: datetime) -> bool:
    """Whether a slot is to run. Raises TextError."""
    if not when:
        return True
    from moorage.decide.workflows.text.tags import substitute_text
    from moorage.decide.workflows.text.when import holds

    texts = {key: value for key, value in scope.items()}
    return holds(substitute_text(when, texts, now=now))


def is_to_stop(expression: str, scope: Mapping[str, Any], now: datetime) -> bool:
    """Whether the schedule has done its work. Raises TextError."""
    if not expression:
        return False
    from moorage.decide.workflows.text.expressions import evaluate

    return evaluate(expression, scope, now=now) is True
