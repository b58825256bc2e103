"""The labels and annotations that a run gives to its Workflow."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.metadata import reserved_keys, with_metadata, written


def a_document(**fields: Any) -> dict[str, Any]:
    parameters = [{"name": "team", "value": "vision"}]
    return {
        "metadata": {"name": "wf", "namespace": "lab", "labels": {"a": "1", "kept": "yes"}},
        "spec": {"arguments": {"parameters": parameters}, "workflowMetadata": fields},
    }


def test_labels_annotations_and_computed_labels_are_set() -> None:
    document = a_document(
        labels={"a": "2", "team": "{{workflow.parameters.team}}"},
        annotations={"note": "run of {{workflow.name}}"},
        labelsFrom={"both": {"expression": "workflow.parameters.team + '-' + workflow.labels.a"}},
    )
    made = with_metadata(document)
    assert made["metadata"] == {
        "name": "wf",
        "namespace": "lab",
        "labels": {"a": "2", "kept": "yes", "team": "vision", "both": "vision-2"},
        "annotations": {"note": "run of wf"},
    }
    assert written(made) == {
        "labels": {"a": "2", "team": "vision", "both": "vision-2"},
        "annotations": {"note": "run of wf"},
    }


def test_what_the_services_write_is_not_set() -> None:
    owner, phase, beat = "moorage.dev/owner", "workflows.argoproj.io/phase", "moorage.dev/monitor-url"
    document = a_document(
        labels={owner: "eve", phase: "Succeeded"},
        annotations={owner: "eve", beat: "x"},
        labelsFrom={owner: {"expression": "'eve'"}},
    )
    made = with_metadata(document)
    assert made["metadata"]["labels"] == {"a": "1", "kept": "yes"}
    assert owner not in made["metadata"].get("annotations", {})
    assert owner not in written(made).get("annotations", {})
    assert list(reserved_keys(document["spec"]))[:2] == [
        ("workflowMetadata", "labels", owner),
        ("workflowMetadata", "labels", phase),
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"labels": {"a": "two words"}}, "a='two words' is not a label", id="no label value"),
        pytest.param({"labelsFrom": {"n": {"expression": "1 + 1"}}}, "must return a string, not 2", id="a number"),
        pytest.param({"labelsFrom": {"n": {"expression": "workflow.parameters.x"}}}, "x", id="an unknown name"),
    ],
)
def test_a_label_that_cannot_be_set_ends_the_run(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TextError, match=message):
        with_metadata(a_document(**fields))
