"""What tags in `metrics` stand for: the node that begins or ends, beside the values of its workflow.

https://argo-workflows.readthedocs.io/en/latest/variables/#metrics
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from moorage.apimachinery.moments import moment
from moorage.decide.workflows.metrics import resources_texts
from moorage.model.workflow import NodeRecord


def uses_result(template: Mapping[str, Any]) -> bool:
    """Whether a metric of the template reads what the step prints."""
    return "outputs.result" in str(template.get("metrics") or "")


def uses_resources(metrics: Any) -> bool:
    return "resourcesDuration" in str(metrics or "")


def scope_of(
    record: NodeRecord | None, inputs: Mapping[str, str], *, now: datetime, retries: int | None
) -> dict[str, str]:
    """The names of a node itself. `record` None: the run ended before its first node."""
    scope = {**inputs, "duration": "0.000000", "status": "Pending", **resources_texts(())}
    if retries is not None:
        scope["retries"] = str(retries)
    if record is None:
        return scope
    started = moment(record.started_at) or now
    finished = moment(record.finished_at) or now
    scope["duration"] = f"{max((finished - started).total_seconds(), 0.0):.6f}"
    scope["status"] = str(record.phase)
    for name, value in ((record.inputs or {}).get("parameters") or {}).items():
        scope[f"inputs.parameters.{name}"] = str(value)
    outputs = record.outputs
    if outputs is not None:
        scope |= {f"outputs.parameters.{name}": value for name, value in outputs.parameters.items()}
        scope |= {"outputs.result": outputs.result} if outputs.result is not None else {}
        scope |= {"exitCode": outputs.exit_code} if outputs.exit_code is not None else {}
    return scope


def resources_below(record: NodeRecord | None, records: Iterable[NodeRecord]) -> dict[str, str]:
    """`resourcesDuration.*` of all pods of a node, and of those below it; None: of all."""
    inside = ("", ".", "[", "(")
    return resources_texts(
        [
            other.resources_seconds
            for other in records
            if other.pod_name
            and (
                record is None
                or (other.name.startswith(record.name) and other.name[len(record.name) :][:1] in inside)
            )
        ]
    )
