"""The two conditions of a CronWorkflow: `when`, checked at each slot, and `stopStrategy`, checked after each run.

https://argo-workflows.readthedocs.io/en/latest/variables/#cronworkflow
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from moorage_kube.meta import annotations_of, labels_of
from moorage_kube.moments import rfc3339

_EXPRESSION_TAG = re.compile(r"\{\{=(.*?)\}\}", re.DOTALL)


def cron_scope(
    obj: Mapping[str, Any], *, last_scheduled: datetime | None, succeeded: int, failed: int
) -> dict[str, Any]:
    """The variables `cronworkflow.…` of expressions. `annotations` are annotations; Argo 4.1 has the labels
    there.
    """
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
    """Whether a slot must run: tags in `when` are replaced, then it is a condition as in a step.

    Raises TextError.
    """
    if not when:
        return True
    from moorage_workflows.decide.workflows.text.expressions import evaluate, expression_text
    from moorage_workflows.decide.workflows.text.tags import substitute_text
    from moorage_workflows.decide.workflows.text.when import holds

    def replaced(tag: re.Match[str]) -> str:
        return expression_text(evaluate(tag.group(1), scope, now=now))

    texts = {key: _text(value) for key, value in scope.items()}
    closed = when.rfind("}}") + 2 if "}}" in when else 0  # an opening after the last end of a tag is not a tag
    written = _EXPRESSION_TAG.sub(replaced, when[:closed]) + when[closed:]
    return holds(substitute_text(written, texts, allow_unresolved=False))


def is_to_stop(expression: str, scope: Mapping[str, Any], now: datetime) -> bool:
    """Whether the stop expression of a schedule is true. Raises TextError."""
    if not expression:
        return False
    from moorage_workflows.decide.workflows.text.expressions import evaluate

    return evaluate(expression, scope, now=now) is True


def _text(value: Any) -> str:
    if value is None:
        return ""
    return rfc3339(value) if isinstance(value, datetime) else str(value)
