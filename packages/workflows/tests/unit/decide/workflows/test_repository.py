"""Artifact repositories: which entry of a ConfigMap counts, and where artifacts go by it."""

from __future__ import annotations

import pytest

from moorage_workflows.decide.workflows.executororders import make_order
from moorage_workflows.decide.workflows.repository import (
    Reference,
    RepositoryError,
    read_repository,
    reference_of,
    with_location,
)
from moorage_workflows.model.workflow import Artifact

USUAL = Reference("artifact-repositories", "", False)
ENTRY = """
s3:
  bucket: b
  endpoint: minio:9000
  accessKeySecret: {name: cred, key: id}
"""
KEYED = {"bucket": "b", "endpoint": "minio:9000", "accessKeySecret": {"name": "cred", "key": "id"}}
USUAL_KEY = {"key": "{{workflow.name}}/{{pod.name}}"}
WORKFLOW = {"uid": "u", "name": "wf"}


def a_config(text: str = ENTRY, default: str = "") -> dict:
    annotations = {"workflows.argoproj.io/default-artifact-repository": default} if default else {}
    return {"metadata": {"annotations": annotations}, "data": {"one": text}}


@pytest.mark.parametrize(("spec", "want"), [
    ({}, USUAL),
    ({"artifactRepositoryRef": {"key": "k"}}, Reference("artifact-repositories", "k", True)),
    ({"artifactRepositoryRef": {"configMap": "c"}}, Reference("c", "", True)),
])  # fmt: skip
def test_a_workflow_means_an_entry(spec, want):
    assert reference_of(spec) == want


@pytest.mark.parametrize(("reference", "config", "want"), [
    pytest.param(USUAL, None, None, id="no ConfigMap"),
    pytest.param(USUAL, a_config(), None, id="no default: Moorage's own store"),
    pytest.param(USUAL, a_config(default="one"), {"s3": KEYED | USUAL_KEY}, id="the default"),
    pytest.param(Reference("c", "one", True), a_config(), {"s3": KEYED | USUAL_KEY}, id="named"),
    pytest.param(Reference("c", "one", True),
                 a_config("gcs: {bucket: b, keyFormat: 'my/{{workflow.name}}'}\narchiveLogs: true"),
                 {"gcs": {"bucket": "b", "key": "my/{{workflow.name}}"}, "archiveLogs": True},
                 id="a format of keys"),
])  # fmt: skip
def test_an_entry_is_the_place_of_artifacts(reference, config, want):
    assert read_repository(reference, config) == want


@pytest.mark.parametrize(("reference", "config", "words"), [
    (Reference("c", "", True), None, "ConfigMap c does not exist"),
    (Reference("c", "two", True), a_config(), "no key 'two'; its keys: one"),
    (Reference("c", "", True), a_config(), "has no default"),
    (Reference("c", "one", True), a_config("secret-text"), "is not a repository"),
    (Reference("c", "one", True), a_config("a: ["), "is not YAML"),
    (Reference("c", "one", True), a_config("azure: {container: secret-text}"), "must have one of s3, gcs"),
    (Reference("c", "one", True), a_config("s3: {endpoint: secret-text}"), "has no s3.bucket"),
])  # fmt: skip
def test_what_is_no_repository_is_refused_without_its_text(reference, config, words):
    with pytest.raises(RepositoryError, match=words) as caught:
        read_repository(reference, config)
    assert "secret-text" not in caught.value.message


def test_a_template_with_a_store_of_its_own_keeps_it():
    repository = {"s3": {"bucket": "b", "key": "k"}, "archiveLogs": True}
    own = {"archiveLocation": {"gcs": {"bucket": "own", "key": "k"}, "archiveLogs": False}}
    assert with_location(own, repository, {}) == own
    assert with_location({}, repository, {"archiveLogs": False}) == {
        "archiveLocation": {"s3": {"bucket": "b", "key": "k"}}
    }
    assert with_location({}, repository, {})["archiveLocation"] == repository


def test_artifacts_without_a_place_go_to_the_repository():
    template = {
        "archiveLocation": {"s3": KEYED | {"key": "wf/pod"}},
        "inputs": {
            "artifacts": [
                {"name": "template", "path": "/a", "s3": {"key": "given"}},
                {"name": "argument", "path": "/b"},
                {"name": "own", "path": "/c"},
            ]
        },
        "outputs": {
            "artifacts": [
                {"name": "plain", "path": "/d"},
                {"name": "none", "path": "/e", "archive": {"none": {}}},
                {"name": "keyed", "path": "/f", "s3": {"key": "given"}},
                {"name": "placed", "path": "/g", "s3": {"bucket": "other", "key": "k"}},
            ]
        },
    }
    artifacts = {
        "argument": Artifact(name="argument", key="given"),
        "own": Artifact(name="own", key="old", digest="sha256:0"),
    }
    order = make_order(
        template, artifacts, workflow=WORKFLOW, pod="p", mounts=(), wants_result=False, archives_logs=True
    ).document
    places = [entry["location"] for entry in order["inputs"]]
    assert [place.get("s3", place).get("key") for place in places] == ["given", "given", "old"]
    assert [place.get("s3", {}).get("bucket") for place in places] == ["b", "b", None]
    kept = [entry["kept"]["s3"] for entry in order["artifacts"]]
    assert [(place["bucket"], place["key"]) for place in kept] == [
        ("b", "wf/pod/plain.tgz"),
        ("b", "wf/pod/none"),
        ("b", "given"),
        ("other", "k"),
    ]
    assert order["log"]["kept"]["s3"]["key"] == "wf/pod/main-logs.txt"
