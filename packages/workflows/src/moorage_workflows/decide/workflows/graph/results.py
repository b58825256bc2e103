"""The values that children of a steps or DAG template pass to each other, and the order of the children."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.graph.frames import Frame
from moorage_workflows.decide.workflows.graph.scopes import Seen
from moorage_workflows.decide.workflows.graph.state import State
from moorage_workflows.decide.workflows.graph.tasks import Scope, ends_of
from moorage_workflows.decide.workflows.templates import TemplateMissing
from moorage_workflows.decide.workflows.text.depends import Depends
from moorage_workflows.model.workflow import NodeRecord, NodeType


def seen_of(state: State, frame: Frame, step: Mapping[str, Any], record: NodeRecord) -> Seen:
    """The values that a child passes to those after it."""
    try:
        template = state.library.find(step, frame.scope).template
    except (TextError, TemplateMissing):
        template = None
    pod = state.pods.seen.get(record.pod_name) if record.is_daemon else None
    return Seen(
        record,
        template=template,
        attempt=_last_attempt(state, record) if record.type is NodeType.RETRY else None,
        address=pod.address if pod is not None else "",
    )


def _last_attempt(state: State, record: NodeRecord) -> NodeRecord | None:
    """Return the last attempt of a retried step; None if there is none."""
    last, number = None, 0
    while (attempt := state.records.get(state.ids.of(f"{record.name}({number})"))) is not None:
        last, number = attempt, number + 1
    return last


def scope_among(state: State, frame: Frame, visible: Mapping[str, Seen]) -> Scope:
    """The values of tags for a child that sees these other children."""
    values = {**state.globals, **frame.inputs.scope}
    artifacts = dict(state.global_artifacts) | frame.inputs.artifact_scope
    absent: set[str] = set()
    missing = set(frame.inputs.missing)
    for name, seen in visible.items():
        prefix = f"{frame.prefix}.{name}"
        seen.add_to(values, prefix)
        for key, artifact in seen.artifacts.items():
            artifacts[f"{prefix}.{key}"] = artifact
        absent |= {f"{prefix}.{key}" for key in seen.absent}
        missing |= {f"{prefix}.{key}" for key in seen.missing_artifacts}
    return Scope(values, artifacts, frozenset(absent), frozenset(missing))


def parents_of(frame: Frame, condition: Depends) -> tuple[str, ...]:
    """Return the ids of the nodes directly before a task."""
    before = [frame.seen[name] for name in condition.tasks if name in frame.seen]
    ends = [record.id for seen in before for record in ends_of(seen)]
    return tuple(dict.fromkeys(ends)) or (frame.record.id,)
