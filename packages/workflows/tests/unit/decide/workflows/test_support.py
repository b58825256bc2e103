"""The table of Argo's fields, and what is reported about a document by it."""

from __future__ import annotations

import pytest

from moorage_workflows.actions.workflowcheck import _alternatives, _arguments
from moorage_workflows.decide.workflows.support import FIELDS, REASONS, WITHOUT_EFFECT, unsupported

# fields and types of Argo v4.1 that hera's classes do not have, and a type of Kubernetes
NEWER = {
    "WorkflowSpec": {"executorPlugins", "podResources", "resourceClaims"},
    "Template": {"pendingTimeout", "podResources", "resourceClaims"},
    "HTTPArtifact": {"saveStreamViaFile"},
    "S3Artifact": {"addressingStyle"},
    **dict.fromkeys(("Container", "ContainerNode", "ScriptTemplate", "UserContainer"), {"restartPolicyRules"}),
}


def fields(document):
    return [(finding.field, finding.severity.value) for finding in unsupported(document)]


def a_spec(**spec):
    return {"kind": "Workflow", "spec": spec}


def types_below(annotation):
    for shape in _alternatives(annotation):
        inner = [*_arguments(shape, list), *_arguments(shape, dict)[-1:]]
        yield from (found for argument in inner for found in types_below(argument))
        if hasattr(shape, "model_fields"):
            yield shape


def test_the_table_has_all_fields_of_argos_types():
    """hera's classes are generated from Argo's schema. A field of theirs that the table lacks fails here."""
    from hera.workflows import models

    waiting = [models.WorkflowSpec, models.CronWorkflowSpec]
    seen = set()
    while waiting:
        model = waiting.pop()
        seen.add(kind := model.__name__)
        table = dict(word.partition(":")[::2] for word in FIELDS[kind].split())
        annotations = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
        assert set(table) == set(annotations) | NEWER.get(kind, set()), kind
        for name, annotation in annotations.items():
            typed = table[name].lstrip("*")
            of_argo = [found for found in types_below(annotation) if "io.k8s" not in found.__module__]
            if typed != "Container" and f"{kind}.{name}" not in REASONS:
                assert [found.__name__ for found in of_argo] == ([typed] if typed else []), f"{kind}.{name}"
                waiting += [found for found in of_argo if found.__name__ not in seen]
    assert seen | {"Container"} == set(FIELDS)


def test_every_type_that_is_named_has_a_row_and_every_reason_a_field():
    named = {word.partition(":")[2].lstrip("*") for words in FIELDS.values() for word in words.split()} - {""}
    assert named | {"WorkflowSpec", "CronWorkflowSpec"} == set(FIELDS)
    for path, reason in {**REASONS, **WITHOUT_EFFECT}.items():
        kind, _, field = path.partition(".")
        assert field in {word.partition(":")[0] for word in FIELDS[kind].split()}
        assert reason


@pytest.mark.parametrize(("place", "wrap"), [
    pytest.param("spec.templates[0]", lambda template: {"templates": [template]}, id="of the workflow"),
    pytest.param("spec.templateDefaults", lambda template: {"templateDefaults": template}, id="as a default"),
    pytest.param("spec.templates[0].steps[0][0].inline",
                 lambda template: {"templates": [{"steps": [[{"name": "a", "inline": template}]]}]}, id="inline"),
])  # fmt: skip
def test_fields_are_checked_in_each_template(place, wrap):
    template = {"plugin": {"x": {}}, "tiemout": "1m", "annotations": {"a": "b"}, "daemon": False}
    assert fields(a_spec(**wrap(template))) == [
        (f"{place}.plugin", "error"), (f"{place}.tiemout", "error"), (f"{place}.annotations", "warning")
    ]  # fmt: skip


@pytest.mark.parametrize(("spec", "path"), [
    ({"executorPlugins": [{}]}, "executorPlugins"),
    ({"arguments": {"artifacts": [{"name": "a", "azure": {}}]}}, "arguments.artifacts[0].azure"),
    ({"arguments": {"parameters": [{"name": "a", "valueFrom": {"event": "x"}}]}},
     "arguments.parameters[0].valueFrom.event"),
    ({"templates": [{"archiveLocation": {"oss": {"key": "k"}}}]}, "templates[0].archiveLocation.oss"),
    ({"templates": [{"outputs": {"artifacts": [{"s3": {"encryptionOptions": {
        "serverSideCustomerKeySecret": {}}}}]}}]},
     "templates[0].outputs.artifacts[0].s3.encryptionOptions.serverSideCustomerKeySecret"),
    ({"hooks": {"exit": {"templtae": "x"}}}, "hooks.exit.templtae"),
    ({"templates": [{"container": {"imagePullSecrets": []}}]}, "templates[0].container.imagePullSecrets"),
])  # fmt: skip
def test_a_field_that_does_not_run_is_refused_with_its_path(spec, path):
    assert fields(a_spec(**spec)) == [(f"spec.{path}", "error")]
    cron = {"kind": "CronWorkflow", "spec": {"schedules": ["@daily"], "workflowSpec": spec}}
    assert fields(cron) == [(f"spec.workflowSpec.{path}", "error")]


def test_an_unknown_field_names_the_most_similar():
    (finding,) = unsupported(a_spec(active_deadline_seconds=3))
    assert finding.message == "unknown field; did you mean activeDeadlineSeconds?"


def test_fields_of_the_same_name_elsewhere_are_run():
    spec = {
        "arguments": {"parameters": [{"name": "data", "value": "http"}]},
        "artifactGC": {"strategy": "OnWorkflowDeletion"},
        "artifactRepositoryRef": {"key": "k"},
        "podMetadata": {"labels": {"plugin": "x", "executorPlugins": "y"}},
        "workflowMetadata": {"labels": {"plugin": "x"}, "labelsFrom": {"plugin": {"expression": "workflow.name"}}},
        "templates": [{
            "name": "a", "daemon": False,
            "inputs": {"artifacts": [{"name": "x", "http": {"url": "u"}}, {"name": "y", "s3": {"key": "k"}}]},
            "container": {"image": "i", "resources": {"limits": {"cpu": "1"}}},
            "synchronization": {"mutexes": [{"name": "m"}]},
        }, {"name": "b", "dag": {"tasks": [{"name": "t", "withItems": [{"plugin": 1}], "template": "a"}]}}],
    }  # fmt: skip
    assert unsupported(a_spec(**spec)) == ()


@pytest.mark.parametrize("document", [{}, {"spec": None}, {"spec": []}, {"spec": {"templates": [None, 3, []]}}])
def test_documents_of_any_shape_are_read(document):
    assert unsupported(document) == ()


def test_a_strategy_that_does_not_exist_is_refused():
    artifacts = [
        {"name": name, "path": "/a", "artifactGC": {"strategy": strategy}}
        for name, strategy in (("a", "Later"), ("b", "{{workflow.parameters.keep}}"))
    ]
    spec = {"artifactGC": {"strategy": "Soon"}, "templates": [{"name": "t", "outputs": {"artifacts": artifacts}}]}
    wanted = ["spec.artifactGC.strategy", "spec.templates[0].outputs.artifacts[0].artifactGC.strategy"]
    findings = [str(finding) for finding in unsupported(a_spec(**spec))]
    assert len(findings) == 2
    for finding, path in zip(findings, wanted, strict=True):
        assert path in finding
        assert "must be one of OnWorkflowCompletion" in finding
