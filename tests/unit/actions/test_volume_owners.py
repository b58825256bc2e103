"""Whose a volume is."""

from __future__ import annotations

import pytest

from moorage.actions.volumes import get_volume, list_volumes
from moorage.apimachinery.resources import PODS, PVCS, Obj
from moorage.testing.fakeapi import FakeApi

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
