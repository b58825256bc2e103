"""Images that a local cluster does not run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moorage.model.names import HOST_ENV_ANNOTATION, IMAGES_ANNOTATION
from moorage_workflows.decide.workflows.images import unrunnable_images

HOST_ENV = {"annotations": {HOST_ENV_ANNOTATION: "true"}}


def a_node(runtime: str = "process://1", *images: str) -> Any:
    rules = json.dumps([{"image": image} for image in images])
    return {
        "metadata": {"name": "n1", "annotations": {IMAGES_ANNOTATION: rules}},
        "status": {"nodeInfo": {"containerRuntimeVersion": runtime}},
    }


def a_workflow(*templates: Any, kind: str = "Workflow", **spec: Any) -> Any:
    return {"kind": kind, "spec": {"templates": list(templates), **spec}}


BUSYBOX = {"name": "main", "container": {"image": "busybox"}}


@pytest.mark.parametrize(
    ("workflow", "nodes"),
    [
        pytest.param(a_workflow(BUSYBOX), [], id="the nodes are not known"),
        pytest.param(a_workflow(BUSYBOX), [a_node("containerd://2")], id="nodes that pull images"),
        pytest.param(a_workflow(BUSYBOX), [a_node(), a_node("containerd://2")], id="one node pulls images"),
        pytest.param(a_workflow(BUSYBOX), [a_node("process://1", "busybox")], id="the table of images has it"),
        pytest.param(a_workflow(BUSYBOX, podMetadata=HOST_ENV), [a_node()], id="the run is of this machine"),
        pytest.param(a_workflow(BUSYBOX | {"metadata": HOST_ENV}), [a_node()], id="the step is of this machine"),
        pytest.param(a_workflow(BUSYBOX | {"podSpecPatch": "{}"}), [a_node()], id="a patch may set another image"),
        pytest.param(a_workflow({"container": {"image": "{{inputs.parameters.i}}"}}), [a_node()], id="a tag"),
        pytest.param(a_workflow({"container": {"image": "localhost/host:1"}}), [a_node()], id="this machine"),
        pytest.param(a_workflow(BUSYBOX, kind="WorkflowTemplate"), [a_node()], id="a template"),
        pytest.param(a_workflow("nonsense", {"container": [1], "sidecars": {}}), [a_node()], id="nonsense"),
    ],
)
def test_a_workflow_whose_images_run_is_accepted(workflow: Any, nodes: Any) -> None:
    assert unrunnable_images(workflow, nodes) == []


def test_each_image_that_does_not_run_is_an_error_with_its_path() -> None:
    workflow = a_workflow(
        BUSYBOX | {"initContainers": [{"image": "a:1"}], "sidecars": [{"image": "busybox"}, {"image": "b"}]},
        {"name": "set", "containerSet": {"containers": [{"image": "c"}, {"image": "busybox:2"}]}},
        {"name": "say", "script": {"image": "d", "source": "x"}},
    )
    findings = unrunnable_images(workflow, [a_node("process://1", "busybox")])
    assert [(finding.field, finding.value) for finding in findings] == [
        ("spec.templates[0].initContainers[0].image", "a:1"),
        ("spec.templates[0].sidecars[1].image", "b"),
        ("spec.templates[1].containerSet.containers[0].image", "c"),
        ("spec.templates[2].script.image", "d"),
    ]
    assert all(finding.is_error for finding in findings)
