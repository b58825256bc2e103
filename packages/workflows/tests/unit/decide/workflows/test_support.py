from __future__ import annotations

import pytest

from moorage_workflows.decide.workflows.findings import Severity
from moorage_workflows.decide.workflows.support import ANYWHERE, OF_SPECS, OF_TEMPLATES, unsupported


def fields(document):
    return [(finding.field, finding.severity.value) for finding in unsupported(document)]


def a_spec(**spec):
    return {"kind": "Workflow", "spec": spec}


@pytest.mark.parametrize("row", OF_TEMPLATES, ids=lambda row: row.field)
@pytest.mark.parametrize(("place", "wrap"), [
    pytest.param("spec.templates[0]", lambda template: {"templates": [template]}, id="of the workflow"),
    pytest.param("spec.templateDefaults", lambda template: {"templateDefaults": template}, id="as a default"),
    pytest.param("spec.templates[0].steps[0][0].inline",
                 lambda template: {"templates": [{"steps": [[{"name": "a", "inline": template}]]}]}, id="inline"),
])  # fmt: skip
def test_what_templates_cannot_have_is_refused_where_it_stands(row, place, wrap):
    assert fields(a_spec(**wrap({row.field: {"strategy": "OnWorkflowDeletion"}}))) == [
        (f"{place}.{row.field}", row.severity.value)
    ]


@pytest.mark.parametrize("row", OF_SPECS, ids=lambda row: row.field)
def test_what_workflows_cannot_have_is_refused(row):
    assert fields(a_spec(**{row.field: {"strategy": "OnWorkflowDeletion"}})) == [
        (f"spec.{row.field}", row.severity.value)
    ]
    cron = {"kind": "CronWorkflow", "spec": {"workflowSpec": {row.field: {"strategy": "OnWorkflowDeletion"}}}}
    assert fields(cron) == [(f"spec.workflowSpec.{row.field}", row.severity.value)]


@pytest.mark.parametrize("row", ANYWHERE, ids=lambda row: row.field)
def test_what_is_refused_anywhere_is_refused_deep_inside(row):
    value = {"strategy": "OnWorkflowDeletion"}
    for name in reversed(row.names):
        value = [value] if name == "*" else {name: value}
    assert fields(a_spec(templates=[{"container": value}])) == [
        ("spec.templates[0].container." + row.field.replace(".*", "[0]"), "error")
    ]


def test_fields_of_the_same_name_elsewhere_are_run():
    spec = {
        "arguments": {"parameters": [{"name": "data", "value": "http"}]},
        "artifactGC": {"strategy": "OnWorkflowDeletion"},
        "artifactRepositoryRef": {"key": "k"},
        "podMetadata": {"labels": {"metrics": "x", "daemon": "y"}},
        "templates": [{
            "name": "a", "daemon": False,
            "inputs": {"artifacts": [{"name": "x", "http": {"url": "u"}}, {"name": "y", "s3": {"key": "k"}}]},
            "container": {"image": "i", "resources": {"limits": {"cpu": "1"}}},
            "synchronization": {"mutexes": [{"name": "m"}]},
        }],
    }  # fmt: skip
    assert unsupported(a_spec(**spec)) == ()


def test_every_row_gives_a_reason():
    for row in (*OF_TEMPLATES, *OF_SPECS, *ANYWHERE):
        assert row.reason
        assert row.severity in Severity


@pytest.mark.parametrize("document", [{}, {"spec": None}, {"spec": []}, {"spec": {"templates": [None, 3, []]}}])
def test_documents_of_any_shape_are_read(document):
    assert unsupported(document) == ()


def test_a_strategy_that_does_not_exist_is_refused():
    artifacts = [{"name": "a", "path": "/a", "artifactGC": {"strategy": "Later"}}]
    spec = {"artifactGC": {"strategy": "Soon"}, "templates": [{"name": "t", "outputs": {"artifacts": artifacts}}]}
    wanted = ["spec.artifactGC.strategy", "spec.templates[0].outputs.artifacts[0].artifactGC.strategy"]
    findings = [str(finding) for finding in unsupported(a_spec(**spec))]
    assert len(findings) == 2
    for finding, path in zip(findings, wanted, strict=True):
        assert path in finding
        assert "must be one of OnWorkflowCompletion" in finding
