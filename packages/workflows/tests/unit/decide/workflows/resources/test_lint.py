from __future__ import annotations

from typing import Any

import pytest

from moorage_workflows.decide.workflows.findings import Gathered, Severity
from moorage_workflows.decide.workflows.resources.lint import check_resource

CREATE = {"action": "create", "manifest": "apiVersion: v1\nkind: ConfigMap\n"}


def findings(resource: dict[str, Any], **more: Any) -> list[tuple[str, str, Severity]]:
    out = Gathered()
    check_resource(out, {"resource": resource, **more}, ("t",))
    return [(".".join(map(str, row.path)), row.message, row.severity) for row in out.items]


@pytest.mark.parametrize(
    "resource",
    [
        CREATE,
        {"action": "delete", "flags": ["configmap", "--selector", "{{inputs.parameters.selector}}"]},
        {"action": "get", "flags": ["pod", "x"], "successCondition": "status.phase in (Succeeded)"},
        {"action": "patch", "mergeStrategy": "json", "flags": ["pod", "{{pod.name}}"], "manifest": "- {op: add}"},
        {"action": "create", "manifest": "name: {{inputs.parameters.x}}"},
        {"action": "create", "manifest": "kind: {{=1", "successCondition": "{{inputs.parameters.x}} > 1"},
    ],
)
def test_what_may_be_right_has_no_finding(resource: dict[str, Any]) -> None:
    assert [row for row in findings(resource) if row[2] is Severity.ERROR] == []


@pytest.mark.parametrize(
    ("resource", "path", "message"),
    [
        ({"manifest": "a: b"}, "t.resource.action", "is required"),
        ({**CREATE, "action": "explode"}, "t.resource.action", "get, create, apply"),
        ({**CREATE, "mergeStrategy": "best"}, "t.resource.mergeStrategy", "strategic, merge"),
        ({"action": "create"}, "t.resource", "needs one of manifest and manifestFrom"),
        ({"action": "get"}, "t.resource", "needs a manifest with kind and name, or flags"),
        ({**CREATE, "manifestFrom": {"artifact": {"name": "m"}}}, "t.resource", "use one of them"),
        (
            {"action": "create", "manifestFrom": {"artifact": {"name": "m"}}},
            "t.resource.manifestFrom.artifact.name",
            "inputs.artifacts",
        ),
        ({"action": "create", "manifest": "a: ["}, "t.resource.manifest", "is not valid YAML: line 2"),
        (
            {**CREATE, "successCondition": "status.x >"},
            "t.resource.successCondition",
            "write FIELD OPERATOR VALUE",
        ),
        ({**CREATE, "failureCondition": "a === b"}, "t.resource.failureCondition", "write FIELD OPERATOR VALUE"),
        ({**CREATE, "flags": ["--kubeconfig=x"]}, "t.resource.flags", "cannot be used with create"),
        ({"action": "patch", "mergeStrategy": "json", "manifest": "[]"}, "t.resource.flags", "KIND and NAME"),
    ],
)
def test_what_cannot_be_carried_out_is_an_error(resource: dict[str, Any], path: str, message: str) -> None:
    rows = [row for row in findings(resource) if row[2] is Severity.ERROR]
    assert any(row[0] == path and message in row[1] for row in rows), rows


def test_a_manifest_without_a_kind_is_a_warning_for_it_fails_when_it_runs() -> None:
    rows = findings({"action": "create", "manifest": "metadata: {name: x}"})
    want = ("t.resource.manifest", "has no apiVersion and no kind: the step will fail", Severity.WARNING)
    assert rows == [want]


def test_a_json_path_that_cannot_be_read_is_an_error() -> None:
    outputs = {"parameters": [{"name": "a", "valueFrom": {"jsonPath": "{.a"}}]}
    rows = findings(CREATE, outputs=outputs)
    assert [row[0] for row in rows] == ["t.outputs.parameters.0.valueFrom.jsonPath"]
