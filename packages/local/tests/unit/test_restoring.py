"""What a store holds after it was brought back from a copy that is older than the pods beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.testing import builders
from moorage_local.nodeagent.podfolder import Admission, PodFolder
from moorage_local.restoring import ADOPTED_ANNOTATION, BUMP, OWNER_ANNOTATION, Restored, pods_on_disk, restore
from moorage_local.storage import Record


def a_record(key: str, uid: str, revision: int = 1) -> Record:
    return Record(key, json.dumps({"metadata": {"uid": uid}}).encode(), revision, revision)


def a_pod(name: str, uid: str, *, namespace: str = "default", owners: tuple[str, ...] = ()) -> dict[str, Any]:
    owned = {"ownerReferences": [{"kind": "Job", "name": f"job-{owner}", "uid": owner} for owner in owners]}
    return builders.a_pod(
        name, namespace=namespace, uid=uid, created="2026-11-21T12:00:00Z", resource_version=77, node="node-1",
        phase="Pending", metadata=owned,
    )  # fmt: skip


COPY = [
    a_record("core/namespaces/default", "ns"),
    a_record("batch/jobs/default/known", "job-1"),
    a_record("core/pods/default/old", "pod-old", 5),
]


def brought_back(*pods: dict[str, Any], past: int = 0) -> Restored:
    return restore(COPY, revision=10, past=past, pods=pods, copied="20261121T120000Z")


def objects(restored: Restored) -> dict[str, Any]:
    return {record.key: msgspec.json.decode(record.value) for record in restored.records}


def test_all_that_the_copy_knows_is_there_as_it_was() -> None:
    restored = brought_back(a_pod("old", "pod-old"), a_pod("new", "pod-new"))
    assert [record for record in restored.records if record.key in {one.key for one in COPY}] == COPY
    assert restored.adopted == ("default/new",)


def test_revisions_go_on_beyond_all_that_was_ever_acknowledged() -> None:
    assert brought_back().revision == 10 + BUMP
    assert brought_back(past=5000).revision == 5000 + BUMP


def test_a_younger_pod_keeps_the_owner_that_the_copy_knows() -> None:
    pod = objects(brought_back(a_pod("new", "pod-new", owners=("job-1",))))["core/pods/default/new"]
    assert [owner["uid"] for owner in pod["metadata"]["ownerReferences"]] == ["job-1"]
    assert pod["metadata"]["annotations"] == {ADOPTED_ANNOTATION: "20261121T120000Z"}
    assert "resourceVersion" not in pod["metadata"]


def test_a_younger_pod_of_an_owner_that_is_lost_goes_on_alone_and_says_so() -> None:
    pod = objects(brought_back(a_pod("new", "pod-new", owners=("job-9",))))["core/pods/default/new"]
    assert "ownerReferences" not in pod["metadata"]
    assert pod["metadata"]["annotations"][OWNER_ANNOTATION] == "Job/job-job-9"


def test_a_younger_pod_takes_the_name_of_one_that_has_ended() -> None:
    restored = brought_back(a_pod("old", "pod-second"))
    assert objects(restored)["core/pods/default/old"]["metadata"]["uid"] == "pod-second"
    assert restored.adopted == ("default/old",)


def test_a_namespace_that_is_younger_than_the_copy_is_made_again() -> None:
    restored = brought_back(a_pod("a", "u1", namespace="lab"), a_pod("b", "u2", namespace="lab"))
    found = objects(restored)
    assert found["core/namespaces/lab"]["status"] == {"phase": "Active"}
    assert restored.adopted == ("lab/a", "lab/b")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=12))
def test_no_pod_that_is_on_this_machine_is_unknown_afterwards(pods: list[tuple[str, int]]) -> None:
    given_pods = [a_pod(f"{name}-{number}", f"uid-{name}-{number}") for name, number in pods]
    restored = brought_back(*given_pods)
    uids = {one["metadata"]["uid"] for one in objects(restored).values()}
    assert {pod["metadata"]["uid"] for pod in given_pods} <= uids
    revisions = [record.mod_revision for record in restored.records]
    assert len(set(revisions)) == len(revisions) - 1  # two of the copy share the first one
    assert max(revisions) <= restored.revision


def test_pods_are_read_from_the_folders_and_damaged_ones_passed_over(tmp_path: Path) -> None:
    admission = Admission(uid="u1", namespace="default", name="a", at="2026-11-21T12:00:00Z")
    pod = a_pod("a", "u1")
    PodFolder(tmp_path / "node-1" / "u1").write_admission(admission, pod)
    PodFolder(tmp_path / "node-1" / "u1").write_admission(admission)  # as a refusal does, later
    PodFolder(tmp_path / "node-1" / "u2").write_admission(admission)  # of an older version
    for uid, text in (("u3", ""), ("u4", "{}"), ("u5", '{"pod": []}'), ("u6", json.dumps({"pod": pod}))):
        (tmp_path / "node-1" / uid).mkdir()
        (tmp_path / "node-1" / uid / "admission.json").write_text(text)
        assert PodFolder(tmp_path / "node-1" / uid).admission() is None
    (tmp_path / "node-1" / "agent.sock").touch()
    assert pods_on_disk(tmp_path) == [pod]


@pytest.mark.parametrize(
    "change",
    [
        {"namespace": "kube-system"},
        {"name": "another"},
        {"namespace": "../../secrets"},
        {"labels": 5},
        {"annotations": {"a": {}}},
        {"ownerReferences": [5]},
    ],
    ids=str,
)
def test_an_object_that_is_not_of_the_pod_that_was_admitted_is_not_brought_back(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    admission = Admission(uid="u1", namespace="default", name="a", at="2026-11-21T12:00:00Z")
    pod = a_pod("a", "u1")
    pod["metadata"] |= change
    PodFolder(tmp_path / "node-1" / "u1").write_admission(admission, pod)
    assert pods_on_disk(tmp_path) == []
