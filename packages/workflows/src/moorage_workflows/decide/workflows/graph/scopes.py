"""The values of tags: of the whole workflow, and of nodes that have ended.

https://argo-workflows.readthedocs.io/en/latest/variables/
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from moorage.decide.evaluation import TextError
from moorage.model.argo import SCHEDULED_ANNOTATION
from moorage_kube.moments import moment
from moorage_workflows.model.workflow import Artifact, NodePhase, NodeRecord, Outputs, WorkflowRecord

_STRFTIME = "aAbBcCdDeFHIjklmMnprRStTuUVwWxXyYzZ"  # letters that `{{workflow.creationTimestamp.X}}` may end with


def compact(value: Any) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def globals_of(workflow: WorkflowRecord) -> dict[str, str]:
    """`workflow.*` at the start of a run. The run adds values that change later (outputs, status)."""
    document = workflow.document
    meta, spec = document.get("metadata") or {}, document.get("spec") or {}
    scope = {
        "workflow.name": workflow.name,
        "workflow.namespace": workflow.namespace,
        "workflow.uid": workflow.uid,
        "workflow.mainEntrypoint": str(spec.get("entrypoint") or ""),
        "workflow.serviceAccountName": str(spec.get("serviceAccountName") or "default"),
    }
    if spec.get("priority") is not None:
        scope["workflow.priority"] = str(spec["priority"])
    created = moment(workflow.created_at) or datetime.fromtimestamp(0, UTC)
    scope["workflow.creationTimestamp"] = created.strftime("%Y-%m-%d %H:%M:%S +0000 UTC")
    scope["workflow.creationTimestamp.RFC3339"] = created.strftime("%Y-%m-%dT%H:%M:%SZ")
    scope["workflow.creationTimestamp.s"] = str(int(created.timestamp()))
    for letter in _STRFTIME:
        scope[f"workflow.creationTimestamp.{letter}"] = created.strftime(f"%{letter}")
    for word in ("labels", "annotations"):
        values = {str(key): str(value) for key, value in (meta.get(word) or {}).items()}
        scope |= {f"workflow.{word}.{key}": value for key, value in values.items()}
        scope[f"workflow.{word}"] = scope[f"workflow.{word}.json"] = compact(dict(sorted(values.items())))
    if scheduled := (meta.get("annotations") or {}).get(SCHEDULED_ANNOTATION):
        scope["workflow.scheduledTime"] = str(scheduled)
    parameters = [
        {"name": str(parameter.get("name")), "value": str(parameter["value"])}
        for parameter in (spec.get("arguments") or {}).get("parameters") or ()
        if parameter.get("value") is not None
    ]
    scope |= {f"workflow.parameters.{parameter['name']}": parameter["value"] for parameter in parameters}
    scope["workflow.parameters"] = scope["workflow.parameters.json"] = compact(parameters)
    return scope


def inputs_scope(parameters: Mapping[str, str], artifacts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the tag values `inputs.*` of a template."""
    scope = {f"inputs.parameters.{name}": value for name, value in parameters.items()}
    scope["inputs.parameters"] = compact([{"name": name, "value": value} for name, value in parameters.items()])
    for artifact in artifacts:
        if artifact.get("path"):
            scope[f"inputs.artifacts.{artifact.get('name')}.path"] = str(artifact["path"])
    return scope


def outputs_paths(template: Mapping[str, Any]) -> dict[str, str]:
    """Return the tag values `outputs.*.path` of a template."""
    outputs = template.get("outputs") or {}
    scope = {
        f"outputs.parameters.{parameter['name']}.path": str(parameter["valueFrom"]["path"])
        for parameter in outputs.get("parameters") or ()
        if (parameter.get("valueFrom") or {}).get("path")
    }
    return scope | {
        f"outputs.artifacts.{artifact['name']}.path": str(artifact["path"])
        for artifact in outputs.get("artifacts") or ()
        if artifact.get("path")
    }


class Seen:
    """The values that one node, or one loop of nodes, passes to those after it.

    `absent`: output parameters that it declares and did not write, because it was skipped. `attempt`: the
    last one of a node that is tried again, which others see in its place. `missing_artifacts`: output
    artifacts that were not made and need not be: of a skipped node, or optional ones.
    """

    __slots__ = ("absent", "artifacts", "children", "is_loop", "missing_artifacts", "record", "values")

    def __init__(
        self,
        record: NodeRecord,
        *,
        template: Mapping[str, Any] | None = None,
        attempt: NodeRecord | None = None,
        children: Sequence[NodeRecord] = (),
        is_loop: bool = False,
        address: str = "",
    ) -> None:
        # values of the node itself, or of the attempt that others see in its place
        self.record, self.children, self.is_loop = record, tuple(children), is_loop
        shown = attempt or record
        self.values: dict[str, str] = {
            "id": shown.id,
            "status": str(shown.phase),
            "startedAt": shown.started_at,
            "finishedAt": shown.finished_at,
        }
        if shown.host:
            self.values["hostNodeName"] = shown.host
        if address:
            self.values["ip"] = address
        # a skipped node has defaults, and absent outputs
        self.artifacts: dict[str, Artifact] = {}
        outputs = record.outputs
        parameters = dict(outputs.parameters) if outputs is not None else {}
        self.absent: frozenset[str] = frozenset()
        self.missing_artifacts: frozenset[str] = frozenset()
        if not record.phase.is_completed and record.phase.is_fulfilled and template is not None:
            defaults, absent = _undone(template)
            parameters = defaults | parameters
            self.absent = frozenset(f"outputs.parameters.{name}" for name in absent)
            self.missing_artifacts = frozenset(
                f"outputs.artifacts.{artifact.get('name')}"
                for artifact in (template.get("outputs") or {}).get("artifacts") or ()
            )
        elif template is not None:
            self.missing_artifacts = _not_made(template, outputs)
        # outputs by their names in tags
        self.values |= {f"outputs.parameters.{name}": value for name, value in parameters.items()}
        if outputs is not None:
            self.artifacts = {f"outputs.artifacts.{artifact.name}": artifact for artifact in outputs.artifacts}
            if outputs.result is not None:
                self.values["outputs.result"] = outputs.result
            if outputs.exit_code is not None:
                self.values["exitCode"] = outputs.exit_code

    def add_to(self, scope: dict[str, str], prefix: str) -> None:
        for key, value in self.values.items():
            scope[f"{prefix}.{key}"] = value


def _not_made(template: Mapping[str, Any], outputs: Outputs | None) -> frozenset[str]:
    """Return the optional output artifacts that a template's run did not create."""
    declared = (template.get("outputs") or {}).get("artifacts") or ()
    if not declared:
        return frozenset()
    made = {artifact.name for artifact in outputs.artifacts} if outputs is not None else set()
    return frozenset(
        f"outputs.artifacts.{artifact.get('name')}"
        for artifact in declared
        if artifact.get("optional") and str(artifact.get("name")) not in made
    )


def _undone(template: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Return the output parameters of a template that did not run: defaults, and the names without a default."""
    defaults: dict[str, str] = {}
    absent = []
    for parameter in (template.get("outputs") or {}).get("parameters") or ():
        default = (parameter.get("valueFrom") or {}).get("default")
        if default is None:
            absent.append(str(parameter.get("name")))
        else:
            defaults[str(parameter.get("name"))] = str(default)
    return defaults, absent


def aggregated(children: Sequence[NodeRecord]) -> Outputs:
    """Return the outputs of a loop: those of its successful nodes, in the order of the items.

    `outputs.parameters.x` is a JSON list of strings, unless every value is a JSON list or object. Raises TextError
    for a result that is not JSON.
    """
    rows = [
        child.outputs for child in children if child.phase is NodePhase.SUCCEEDED and child.outputs is not None
    ]
    parameters: dict[str, list[str]] = {}
    for row in rows:
        for name, value in row.parameters.items():
            parameters.setdefault(name, []).append(value)
    texts = {name: _joined(values) for name, values in parameters.items()}
    results = [row.result for row in rows if row.result is not None]
    result = None
    if results:
        result = compact([_as_json(text) for text in results])
    return Outputs(parameters=texts, result=result)


def all_parameters(children: Sequence[NodeRecord]) -> str:
    """Return `outputs.parameters` of a loop: a JSON list with an object for each successful node."""
    return compact(
        [
            {name: value for name, value in sorted((child.outputs or Outputs()).parameters.items())}
            for child in children
            if child.phase is NodePhase.SUCCEEDED
        ]
    )


def _joined(values: Sequence[str]) -> str:
    parsed = [_structure(value) for value in values]
    return compact(list(values) if any(value is None for value in parsed) else parsed)


def _structure(text: str) -> Any:
    if not text.lstrip().startswith(("[", "{")):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def _as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise TextError(
            f"a result of the loop is not JSON: {text[:100]!r}. Print JSON: a number, or a string in double quotes"
        ) from None


def failures_of(nodes: Iterable[NodeRecord]) -> str:
    """Return `workflow.failures` as in Argo: JSON inside a JSON string."""
    rows = [
        {
            "displayName": node.display_name,
            "message": node.message,
            "templateName": node.template,
            "phase": str(node.phase),
            "podName": node.pod_name or node.id,
            "finishedAt": node.finished_at,
        }
        for node in nodes
        if node.type.has_pod and node.phase in (NodePhase.FAILED, NodePhase.ERROR)
    ]
    return json.dumps(compact(rows), ensure_ascii=False)


def as_document(artifact: Artifact) -> dict[str, Any]:
    return dict(msgspec.to_builtins(artifact))
