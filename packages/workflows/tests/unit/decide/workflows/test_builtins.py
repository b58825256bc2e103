"""Templates without an image of the user's: what their pod is, and what its executor is told."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from tests.workflowrecords import a_node_record

from moorage_kube.podsecurity import violations
from moorage_workflows.decide.workflows.pods import PodError, PodRequest, StepRuntime, make_pod, needs_executor
from moorage_workflows.model.workflow import NodeType

RUNTIME = StepRuntime(image="registry.example.org/moorage:1", server_url="http://moorage:8080")
META = {"name": "wf", "namespace": "lab", "uid": "7c1e"}


def a_pod(template: Mapping[str, Any], *, spec: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    record = a_node_record("wf", NodeType.HTTP, id="wf-1", template="call", pod_name="wf-call-1")
    workflow = {"metadata": META, "spec": spec or {}}
    request = PodRequest(record=record, workflow=workflow, template=template, secret="wf-token", **more)
    return make_pod(request, RUNTIME)


def order_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    order: dict[str, Any] = json.loads(pod["metadata"]["annotations"]["moorage.dev/workflow-order"])
    return order


HTTP = {
    "name": "call",
    "http": {
        "url": "https://api.example.org/v1",
        "method": "POST",
        "headers": [
            {"name": "Accept", "value": "text/plain"},
            {"name": "Authorization", "valueFrom": {"secretKeyRef": {"name": "api", "key": "token"}}},
        ],
        "body": '{"a": 1}',
        "timeoutSeconds": 5,
        "successCondition": "response.statusCode == 201",
        "insecureSkipVerify": True,
    },
}


def test_a_request_is_sent_by_the_executor_in_a_pod_of_the_workflows_account() -> None:
    pod = a_pod(HTTP, spec={"serviceAccountName": "batch", "archiveLogs": True}, wants_result=True)
    assert order_of(pod)["http"] == {
        "method": "POST",
        "url": "https://api.example.org/v1",
        "headers": [{"name": "Accept", "value": "text/plain"}, {"name": "Authorization", "value": {"secret": 0}}],
        "body": base64.b64encode(b'{"a": 1}').decode(),
        "isBytes": False,
        "seconds": 5,
        "condition": "response.statusCode == 201",
        "insecure": True,
        "result": True,
    }
    (main,) = pod["spec"]["containers"]
    assert "initContainers" not in pod["spec"]
    assert pod["spec"]["serviceAccountName"] == "batch"
    assert (main["name"], main["image"]) == ("main", RUNTIME.image)
    assert main["command"] == ["python", "-m", "moorage_workflows.executor", "http"]
    # a Secret that is missing is an error of the executor's, not a pod that waits for ever
    assert {
        "name": "MOORAGE_SECRET_0",
        "valueFrom": {"secretKeyRef": {"name": "api", "key": "token", "optional": True}},
    } in main["env"]
    assert pod["metadata"]["annotations"]["moorage.dev/workflow-reports"] == "true"
    assert violations("restricted", {}, pod["spec"]) == []
    assert needs_executor({"spec": {}}, HTTP, wants_result=False)


def test_the_least_that_a_request_needs_is_an_address() -> None:
    assert order_of(a_pod({"name": "call", "http": {"url": "http://x/"}}))["http"] == {
        "method": "GET", "url": "http://x/", "headers": [], "body": "", "isBytes": False, "seconds": 30,
        "condition": "", "insecure": False, "result": False,
    }  # fmt: skip


@pytest.mark.parametrize(("http", "want"), [
    pytest.param({"url": "file:///etc/passwd"}, "http.url is 'file:///etc/passwd': it must begin", id="no URL"),
    pytest.param({"bodyFrom": {"bytes": "no base64"}}, "http.bodyFrom.bytes is not base64", id="no base64"),
    pytest.param({"body": "x" * 204_801}, "http.body has 204801 bytes, and at most 204800", id="a long body"),
    pytest.param({"timeoutSeconds": 0}, "http.timeoutSeconds is 0: use a whole number", id="no time"),
    pytest.param({"headers": [{"value": "x"}]}, "http.headers[0].name is missing", id="a header without a name"),
])  # fmt: skip
def test_a_request_that_cannot_be_is_refused_with_its_field(http: dict[str, Any], want: str) -> None:
    with pytest.raises(PodError) as refused:
        a_pod({"name": "call", "http": {"url": "http://x/", **http}})
    assert refused.value.message.startswith(f"template 'call': {want}")


def data_of(**source: Any) -> dict[str, Any]:
    paths = {"name": "logs", **source}
    return {
        "name": "list",
        "data": {"source": {"artifactPaths": paths}, "transformation": [{"expression": "data"}]},
    }


KEYS = {"accessKeySecret": {"name": "s", "key": "a"}, "secretKeySecret": {"name": "s", "key": "b"}}


@pytest.mark.parametrize(("source", "location"), [
    pytest.param({}, {}, id="all of our own store"),
    pytest.param({"s3": {"key": "logs/"}}, {"key": "logs"}, id="a key of our own store"),
    pytest.param({"s3": {"bucket": "b"}}, {}, id="a bucket without endpoint and keys, as in Argo"),
    pytest.param({"s3": {"bucket": "b", "endpoint": "minio:9000", **KEYS}}, {"s3": {
        "bucket": "b", "endpoint": "minio:9000",
        "accessKeySecret": {"secret": 0}, "secretKeySecret": {"secret": 1},
    }}, id="a whole bucket"),
    pytest.param({"gcs": {"bucket": "b", "key": "x"}}, {"gcs": {"bucket": "b", "key": "x"}}, id="a key in GCS"),
])  # fmt: skip
def test_a_list_comes_from_a_bucket_or_from_our_own_store(source: Any, location: Any) -> None:
    pod = a_pod(data_of(**source))
    assert order_of(pod)["data"] == {"location": location, "expressions": ["data"]}
    (main,) = pod["spec"]["containers"]
    assert main["command"] == ["python", "-m", "moorage_workflows.executor", "data"]
    assert needs_executor({"spec": {}}, data_of(), wants_result=False)


@pytest.mark.parametrize(("source", "want"), [
    pytest.param({"git": {"repo": "x"}}, "data.source.artifactPaths.git cannot be listed", id="git"),
    pytest.param({"s3": {"endpoint": "x"}}, "data.source.artifactPaths.s3.bucket is missing", id="no bucket"),
    pytest.param({"s3": {"bucket": "b", "endpoint": "x",
                         "encryptionOptions": {"serverSideCustomerKeySecret": {"name": "s", "key": "k"}}}},
                 "data.source.artifactPaths.s3.encryptionOptions.serverSideCustomerKeySecret is not",
                 id="a field that is not supported"),
])  # fmt: skip
def test_a_source_that_cannot_be_listed_is_refused_with_its_field(source: Any, want: str) -> None:
    with pytest.raises(PodError) as refused:
        a_pod(data_of(**source))
    assert refused.value.message.startswith(f"template 'call': {want}")
