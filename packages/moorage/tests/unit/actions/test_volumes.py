"""Whose a volume is, and who uses it."""

from __future__ import annotations

import pytest

from moorage.actions.volumes import get_volume, list_volumes, users_by_claim
from moorage_kube.resources import PODS, PVCS, Obj
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio

ROBOT = "system:serviceaccount:databases:operator"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def owned(name: str, owner: str) -> Obj:
    notes = {"annotations": {"moorage.dev/owner": owner}} if owner else {}
    return {"metadata": {"name": name, "namespace": "lab", **notes}}


def a_pod(name: str, owner: str, phase: str = "Running") -> Obj:
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "data-db-0"}}
    return owned(name, owner) | {"spec": {"volumes": [volume], "containers": []}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("claim", "pods", "want"),
    [
        pytest.param("", [("db-0", "ada")], "ada", id="of a StatefulSet: of who made that"),
        pytest.param(ROBOT, [("db-0", "ada")], "ada", id="of an operator that works for her"),
        pytest.param(ROBOT, [], ROBOT, id="of an operator, and nobody mounts it"),
        pytest.param("bob", [("db-0", "ada")], "bob", id="of who made it"),
        pytest.param("", [("db-0", "ada"), ("db-1", "bob")], "", id="of nobody in particular"),
        pytest.param(ROBOT, [("db-0", "ada"), ("db-1", "bob")], ROBOT, id="several persons mount an operator's"),
        pytest.param("", [("db-0", "")], "", id="the pod is nobody's either"),
        pytest.param(ROBOT, [("db-0", "")], ROBOT, id="nobody's pod mounts an operator's"),
    ],
)
async def test_a_volume_that_a_controller_made_is_of_whom_it_works_for(
    claim: str, pods: list[tuple[str, str]], want: str
) -> None:
    api = FakeApi()
    api.put(PVCS, owned("data-db-0", claim) | {"spec": {}, "status": {}})
    for name, owner in pods:
        api.put(PODS, a_pod(name, owner))
    [listed] = (await list_volumes(api, "lab", {}))[0]
    assert (listed.owner, (await get_volume(api, "lab", "data-db-0")).owner) == (want, want)


def test_a_bare_pod_that_is_being_deleted_uses_no_volume_any_more():
    """`moor volume delete` after `moor volume cp` was refused while the pod of the copy ended."""
    claim = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    pod = {
        "metadata": {"name": "volume-cp-1", "namespace": "lab", "deletionTimestamp": "2026-03-01T12:00:00Z"},
        "spec": {"containers": [], "volumes": [claim]},
        "status": {"phase": "Running"},
    }
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "1"}
    made_again = {**pod, "metadata": {**pod["metadata"], "name": "train-1", "ownerReferences": [owner]}}
    assert users_by_claim([pod, made_again]) == {("lab", "data"): ["train-1"]}
