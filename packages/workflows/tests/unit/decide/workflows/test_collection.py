"""`artifactGC`: what is deleted when, and the pods that do it."""

from __future__ import annotations

import json

import pytest

from moorage_workflows.decide.workflows.collection import (
    POD_ARTIFACTS,
    Deletion,
    collects,
    deleters,
    deletion_of,
    doomed,
    left,
    make_deleter_pod,
    with_collection,
)
from moorage_workflows.model.workflow import Artifact, ArtifactName, NodePhase, NodeRecord, NodeType, Outputs

COMPLETION, DELETION = "OnWorkflowCompletion", "OnWorkflowDeletion"
S3 = {"s3": {"bucket": "b", "key": "k", "accessKeySecret": {"name": "cred", "key": "id"}}}


def an_artifact(name: str, strategy: str = COMPLETION, **more: object) -> Artifact:
    own = {key: more.pop(key) for key in ("serviceAccountName", "podMetadata") if key in more}
    return Artifact(name=name, collection={"strategy": strategy, **own} if strategy else {}, **more)


def a_node(identity: str, *artifacts: Artifact, **more: object) -> NodeRecord:
    fields = {"type": NodeType.POD, "phase": NodePhase.SUCCEEDED, **more}
    outputs = Outputs(artifacts=artifacts)
    return NodeRecord(id=identity, name=identity, display_name=identity, outputs=outputs, **fields)


@pytest.mark.parametrize(("workflow", "own", "want"), [
    ("", "", ""),
    ("", COMPLETION, COMPLETION),
    (DELETION, "", DELETION),
    (DELETION, COMPLETION, COMPLETION),
    (DELETION, "Never", ""),
    ("Never", DELETION, DELETION),
])  # fmt: skip
def test_the_artifacts_own_strategy_wins(workflow, own, want):
    entry = {"name": "a", "path": "/a"} | ({"artifactGC": {"strategy": own}} if own else {})
    template = {"name": "t", "outputs": {"artifacts": [entry]}, "container": {"image": "i"}}
    spec = {"templates": [template]} | ({"artifactGC": {"strategy": workflow}} if workflow else {})
    forged = Outputs(
        artifacts=(Artifact(name="a", collection={"strategy": COMPLETION, "serviceAccountName": "x"}),)
    )
    (artifact,) = with_collection(template, spec, forged).artifacts
    assert artifact.collection == ({"strategy": want} if want else {})
    assert collects({"spec": spec}) is bool(want)


def test_inline_and_stored_templates_are_looked_at():
    entry = {"name": "a", "path": "/a", "artifactGC": {"strategy": DELETION}}
    inline = {"steps": [[{"name": "s", "inline": {"outputs": {"artifacts": [entry]}}}]]}
    assert collects({"spec": {"templates": [inline]}})
    assert collects({"spec": {}, "moorageTemplates": {"x": [{"outputs": {"artifacts": [entry]}}]}})
    assert collects({"spec": {"artifactGC": {"strategy": DELETION}, "archiveLogs": True, "templates": []}})
    assert not collects({"spec": {"artifactGC": {"strategy": DELETION}, "templates": [{"name": "x"}]}})


def test_only_what_pods_of_this_run_left_is_deleted():
    nodes = [
        a_node("b", an_artifact("now"), an_artifact("later", DELETION), an_artifact("never", "")),
        a_node("a", an_artifact("gone", is_deleted=True), an_artifact("first")),
        a_node("memo", an_artifact("of another run"), is_memoized=True),
        a_node("steps", an_artifact("passed on"), type=NodeType.STEPS),
    ]
    names = [(each.node, each.artifact.name) for each in doomed(nodes, is_deleting=False)]
    assert names == [("a", "first"), ("b", "now")]
    names = [(each.node, each.artifact.name) for each in doomed(nodes, is_deleting=True)]
    assert names == [("a", "first"), ("b", "now"), ("b", "later")]
    assert len(left(nodes)) == 3


def test_a_pod_has_one_strategy_account_and_metadata():
    metadata = {"annotations": {"role": "r"}}
    spec = {"artifactGC": {"serviceAccountName": "usual", "podMetadata": {"labels": {"l": "1"}}}}
    nodes = [
        a_node(
            "a",
            an_artifact("one", location=S3),
            an_artifact("two", location=S3),
            an_artifact("other", location=S3, serviceAccountName="own", podMetadata=metadata),
            an_artifact("later", DELETION, location=S3),
        )
    ]
    made = deleters(spec, "wf", left(nodes))
    assert sorted((len(each.doomed), each.service_account) for each in made) == [
        (1, "own"),
        (1, "usual"),
        (2, "usual"),
    ]
    assert {each.name.rsplit("-", 1)[0] for each in made} == {"wf-artgc-wfcomp", "wf-artgc-wfdel"}
    assert made == deleters(spec, "wf", left(nodes))
    own = next(each for each in made if each.service_account == "own")
    assert own.metadata == {"labels": {"l": "1"}, "annotations": {"role": "r"}}
    many = [a_node(f"n{number:04}", an_artifact("x", location=S3)) for number in range(2 * POD_ARTIFACTS + 1)]
    batches = deleters({}, "wf", left(many))
    assert [len(each.doomed) for each in batches] == [POD_ARTIFACTS, POD_ARTIFACTS, 1]
    assert len({each.name for each in batches}) == 3


def a_pod(*names: str) -> dict:
    nodes = [a_node("a", *(an_artifact(name, location=S3, version="v1") for name in names))]
    meta = {"name": "wf", "namespace": "lab", "uid": "u", "annotations": {}, "labels": {}}
    spec = {"artifactGC": {"podSpecPatch": '{"nodeSelector": {"a": "b"}}'}}
    (deleter,) = deleters(spec, "wf", left(nodes))
    document = {"metadata": meta, "spec": spec}
    return make_deleter_pod(deleter, document, image="i", python="python", on_processes=False)


def test_the_pod_has_the_users_secrets_and_no_token_of_ours():
    pod = a_pod("x")
    (container,) = pod["spec"]["containers"]
    values = {entry["name"]: entry.get("valueFrom") for entry in container["env"]}
    assert values["MOORAGE_SECRET_0"] == {"secretKeyRef": {"name": "cred", "key": "id"}}
    assert "MOORAGE_STEP_TOKEN" not in values
    assert pod["spec"]["nodeSelector"] == {"a": "b"}
    (entry,) = json.loads(pod["metadata"]["annotations"]["moorage.dev/workflow-order"])["delete"]
    assert entry["location"]["s3"]["accessKeySecret"] == {"secret": 0}
    assert (entry["node"], entry["name"], entry["version"]) == ("a", "x", "v1")


def ended(phase: str, message: str = "") -> dict:
    state = {"terminated": {"exitCode": int(phase == "Failed"), "message": message}}
    return {"phase": phase, "containerStatuses": [{"name": "main", "state": state}]}


X, Y = ArtifactName(node="a", name="x"), ArtifactName(node="a", name="y")


@pytest.mark.parametrize(("status", "deleted", "words"), [
    (ended("Succeeded"), (X, Y), ""),
    (ended("Failed", "moorage: artifact 'y': no\nleft=1 artifact 'y': no"), (X,), "artifact 'y': no"),
    (ended("Failed", "left=0,1 away"), (), "away"),
    (ended("Failed", "killed"), (), "killed"),
    ({"phase": "Failed"}, (), "it failed"),
])  # fmt: skip
def test_the_end_of_a_pod_says_what_is_left(status, deleted, words):
    deletion = deletion_of(a_pod("x", "y") | {"status": status})
    assert deletion.deleted == deleted
    assert words in deletion.failure
    assert bool(deletion.failure) is bool(words)


def test_a_pod_that_runs_has_no_result_and_one_without_its_order_deleted_nothing():
    pod = a_pod("x")
    assert deletion_of(pod | {"status": {"phase": "Running"}}) is None
    pod["metadata"]["annotations"] = {}
    assert isinstance(deletion := deletion_of(pod | {"status": ended("Succeeded")}), Deletion)
    assert deletion.deleted == ()
