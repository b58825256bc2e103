"""Artifacts in arguments, outputs of steps and DAG templates, and outputs with a global name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.graph.frames import Frame
from moorage_workflows.decide.workflows.graph.inputs import artifact_of
from moorage_workflows.decide.workflows.graph.results import scope_among
from moorage_workflows.decide.workflows.graph.state import State
from moorage_workflows.decide.workflows.graph.tasks import Scope, asked_for, output_value
from moorage_workflows.model.workflow import Artifact, NodeRecord, Outputs


def given_artifacts(state: State, arguments: Mapping[str, Any], scope: Scope | None = None) -> dict[str, Artifact]:
    """Return the artifacts of arguments, from `from` or from their location. Raises TextError."""
    known = scope or Scope(state.globals, state.global_artifacts, frozenset())
    return {value.name: value for _, value in _found(arguments, known) if value is not None}


def outputs_of(state: State, frame: Frame) -> Outputs | None:
    """Return the outputs of a steps or DAG template whose children have ended. Raises TextError."""
    declared = frame.template.get("outputs") or {}
    if not declared.get("parameters") and not declared.get("artifacts"):
        return None
    scope = scope_among(state, frame, frame.seen)
    parameters: dict[str, str] = {}
    for parameter in declared.get("parameters") or ():
        source = parameter.get("valueFrom") or {}
        name = str(parameter.get("name"))
        value = output_value(parameter, source, scope)
        if value is None:
            value = source.get("default")
        if value is None:
            raise TextError(f"output parameter {name} has no value: {asked_for(source)} was not made")
        parameters[name] = str(value)
    artifacts: list[Artifact] = []
    for artifact, left in _found(declared, scope):
        if left is not None:
            artifacts.append(left)
        elif not artifact.get("optional"):
            raise TextError(f"output artifact {artifact.get('name')} has no source")
    return Outputs(parameters=parameters, artifacts=tuple(artifacts))


def export_outputs(state: State, template: Mapping[str, Any], record: NodeRecord) -> None:
    """Record outputs with a global name. The workflow's record includes them from the next save of the node."""
    if record.outputs is None:
        return
    declared = template.get("outputs") or {}
    for parameter in declared.get("parameters") or ():
        name, value = parameter.get("globalName"), record.outputs.parameters.get(parameter.get("name"))
        if name and value is not None:
            state.parameters[name] = value
            state.globals[f"workflow.outputs.parameters.{name}"] = value
    left = {artifact.name: artifact for artifact in record.outputs.artifacts}
    for artifact in declared.get("artifacts") or ():
        name = artifact.get("globalName")
        if name and artifact.get("name") in left:
            exported = msgspec.structs.replace(left[artifact["name"]], name=name)
            state.global_artifacts[f"workflow.outputs.artifacts.{name}"] = exported


def _found(declared: Mapping[str, Any], scope: Scope) -> Iterator[tuple[Mapping[str, Any], Artifact | None]]:
    """Each declared artifact with the value of its source, under its name; None without a value. Raises
    TextError.

    An optional artifact with an unreadable source is left out.
    """
    for artifact in declared.get("artifacts") or ():
        try:
            value = artifact_of(artifact, scope.with_absent, scope.artifacts, scope.missing)
        except TextError:
            if artifact.get("optional"):
                continue
            raise
        name = str(artifact.get("name"))
        yield artifact, None if value is None else msgspec.structs.replace(value, name=name)
