"""Values of metrics, as nodes and the workflow begin and end, and the values of tags in `metrics`.

https://argo-workflows.readthedocs.io/en/latest/variables/#metrics
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from moorage_kube.moments import moment
from moorage_workflows.decide.workflows.graph.inputs import Inputs
from moorage_workflows.decide.workflows.graph.state import State
from moorage_workflows.decide.workflows.graph.tasks import stamp
from moorage_workflows.decide.workflows.metrics import points_of, resources_texts
from moorage_workflows.model.workflow import MetricPoint, NodeRecord

METRICS_ERROR_MAX = 500  # characters


def measure_run(state: State, root: NodeRecord | None, *, since: str = "") -> None:
    """Record the values of the workflow's own metrics. `since`: set at the start of the run, "" at its end."""
    metrics = state.spec.get("metrics")
    if not metrics:
        return
    scope = {
        "workflow.status": "Running",
        **state.globals,
        **scope_of(root, {}, now=state.now, retries=None),
        "workflow.duration": f"{state.seconds():.6f}",
    }
    if uses_resources(metrics):
        scope |= resources_below(None, state.records.values())
    _note_points(state, *points_of(metrics, scope, node="", since=since))


def measure_node(
    state: State,
    template: Mapping[str, Any],
    record: NodeRecord,
    inputs: Inputs,
    *,
    retries: int | None = None,
    begins: bool = False,
) -> None:
    """Record the values of a template's metrics when a node starts (`begins`) or ends."""
    metrics = template.get("metrics")
    if not metrics or record.phase.is_fulfilled is begins:
        return
    scope = {
        "workflow.status": "Running",
        "workflow.duration": f"{state.seconds():.6f}",
        **state.globals,
        **scope_of(record, inputs.scope, now=state.now, retries=retries),
    }
    if uses_resources(metrics):
        scope |= resources_below(record, state.records.values())
    since = (record.started_at or stamp(state.now)) if begins else ""
    _note_points(state, *points_of(metrics, scope, node=record.id, since=since))


def measure_end(state: State, template: Mapping[str, Any], record: NodeRecord, inputs: Inputs) -> None:
    """Record the metric values of a node that has ended; for a daemon, do it when its pod ends."""
    if record.is_daemon and not record.phase.is_fulfilled:
        state.pods.daemon_metrics[record.pod_name] = lambda final: measure_node(state, template, final, inputs)
    else:
        measure_node(state, template, record, inputs)


def _note_points(state: State, points: Sequence[MetricPoint], problems: Sequence[str]) -> None:
    state.draft.metrics += points
    note_problems(state, problems)


def note_problems(state: State, problems: Sequence[str]) -> None:
    """Record why values of metrics were refused: the run continues."""
    if problems:
        state.workflow = msgspec.structs.replace(state.workflow, metrics_error=problems[-1][:METRICS_ERROR_MAX])


def uses_result(template: Mapping[str, Any]) -> bool:
    """Whether a metric of the template reads the output of the step."""
    return "outputs.result" in str(template.get("metrics") or "")


def uses_resources(metrics: Any) -> bool:
    return "resourcesDuration" in str(metrics or "")


def scope_of(
    record: NodeRecord | None, inputs: Mapping[str, str], *, now: datetime, retries: int | None
) -> dict[str, str]:
    """Return the tag values about the node itself. `record` None: the run ended before its first node."""
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
    """Return `resourcesDuration.*` of all pods of a node and of the nodes below it; None: of all pods."""
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
