"""Small readings of metadata, conditions and paths."""

from __future__ import annotations

import pytest

from moorage_kube.meta import (
    Key,
    annotations_of,
    condition,
    controller_ref,
    is_condition_true,
    is_deleting,
    key_of,
    labels_of,
    names,
    owner_reference,
    with_condition,
)
from moorage_kube.resources import CRDS, JOBS, NODES, PODS


def test_keys_name_the_namespace_only_where_there_is_one():
    assert str(key_of({"metadata": {"name": "a", "namespace": "lab"}})) == "lab/a"
    assert str(key_of({"metadata": {"name": "n1"}})) == "n1"
    assert key_of({"metadata": {"name": "n1", "namespace": None}}) == Key("", "n1")


def test_what_is_not_there_reads_as_empty():
    bare = {"metadata": {"name": "a", "labels": None}}
    assert (labels_of(bare), annotations_of(bare), controller_ref(bare), condition(bare, "Ready")) == (
        {},
        {},
        None,
        None,
    )
    assert not is_deleting(bare)
    assert not is_condition_true(bare, "Ready")
    assert names([bare]) == ["a"]


def test_the_controller_is_the_one_reference_that_says_so():
    owner = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "uid": "1"}}
    other = owner_reference({**owner, "metadata": {"name": "k", "uid": "2"}}, controller=False)
    child = {"metadata": {"name": "p", "ownerReferences": [other, owner_reference(owner)]}}
    assert controller_ref(child)["uid"] == "1"
    assert other["blockOwnerDeletion"] is False


def test_a_conditions_time_moves_only_with_its_status():
    first = with_condition([{"type": "Other", "status": "True"}], "Ready", "True", now="t1", reason="A")
    again = with_condition(first, "Ready", "True", now="t2", reason="B", message="m", observedGeneration=3)
    changed = with_condition(again, "Ready", "False", now="t3")
    assert [one["type"] for one in changed] == ["Other", "Ready"]
    assert [one[1]["lastTransitionTime"] for one in (first, again, changed)] == ["t1", "t1", "t3"]
    assert again[1] == {
        "type": "Ready",
        "status": "True",
        "lastTransitionTime": "t1",
        "reason": "B",
        "message": "m",
        "observedGeneration": 3,
    }
    assert first[1]["reason"] == "A"  # the list given was not changed


@pytest.mark.parametrize(
    ("resource", "options", "want"),
    [
        (PODS, {}, "/api/v1/pods"),
        (PODS, {"namespace": "lab"}, "/api/v1/namespaces/lab/pods"),
        (PODS, {"namespace": "lab", "name": "a", "subresource": "log"}, "/api/v1/namespaces/lab/pods/a/log"),
        (JOBS, {"namespace": "lab", "name": "a"}, "/apis/batch/v1/namespaces/lab/jobs/a"),
        (NODES, {"name": "n1", "namespace": "ignored"}, "/api/v1/nodes/n1"),
        (NODES, {"name": "../x"}, "/api/v1/nodes/..%2Fx"),
        (CRDS, {}, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
    ],
)
def test_paths_follow_the_conventions(resource, options, want):
    assert resource.path(**options) == want


def test_a_resource_is_written_with_its_group():
    assert (str(PODS), str(JOBS), PODS.api_version, JOBS.api_version) == ("pods", "jobs.batch", "v1", "batch/v1")


def test_a_condition_may_be_asked_for_with_its_status():
    obj = {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}}
    assert condition(obj, "PodScheduled", status="False") == obj["status"]["conditions"][0]
    assert condition(obj, "PodScheduled", status="True") is None
    assert condition({}, "PodScheduled", status="False") is None
