"""The owner and the users of a volume."""

from __future__ import annotations

import pytest

from moorage.actions.volumes import get_volume, list_volumes, users_by_claim
from moorage_kube.resources import PODS, PVCS
from moorage_kube.testing.builders import a_pod, an_object, an_owner
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.builders import keyed

pytestmark = pytest.mark.anyio

ROBOT = "system:serviceaccount:databases:operator"


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
async def test_a_volume_made_by_a_controller_has_the_owner_of_its_pods(claim, pods, want):
    api = FakeApi()
    api.put(PVCS, an_object(PVCS, "data-db-0", annotations=keyed(owner=claim)))
    for name, owner in pods:
        api.put(PODS, a_pod(name, claims=["data-db-0"], annotations=keyed(owner=owner), phase="Running"))
    [listed] = (await list_volumes(api, "lab", {}))[0]
    assert (listed.owner, (await get_volume(api, "lab", "data-db-0")).owner) == (want, want)


def test_a_bare_pod_that_is_being_deleted_uses_no_volume_any_more():
    """`moor volume delete` after `moor volume cp` was refused while the pod of the copy ended."""
    bare = a_pod("volume-cp-1", claims=["data"], deleting=True, phase="Running")
    made_again = a_pod(
        "train-1", claims=["data"], deleting=True, phase="Running", owner=an_owner() | {"controller": False}
    )
    assert users_by_claim([bare, made_again]) == {("lab", "data"): ["train-1"]}
