"""What is asked of the API server to learn what one may do."""

from __future__ import annotations

from typing import Any, cast

import pytest

from moorage_kube.access import EVERYTHING, Right, may
from moorage_kube.api import Api
from moorage_kube.errors import BadRequest
from moorage_kube.resources import CONFIGMAPS, Obj, Resource

pytestmark = pytest.mark.anyio


class Judge:
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self, status: Any) -> None:
        self.status, self.asked = status, list[Obj]()

    async def create(self, _resource: Resource, obj: Obj) -> Obj:
        self.asked.append(obj)
        return {"status": self.status}


@pytest.mark.parametrize(
    ("status", "want"), [({"allowed": True}, True), ({"allowed": False, "reason": "no"}, False), (None, False)]
)
async def test_only_a_yes_allows(status: Any, want: bool) -> None:
    judge = Judge(status)
    assert await may(cast("Api", judge), Right("patch", "apps", "deployments", "a")) is want
    asked = {"verb": "patch", "group": "apps", "resource": "deployments", "namespace": "a"}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    assert judge.asked == [review | {"spec": {"resourceAttributes": asked}}]


async def test_a_right_of_no_namespace_names_none() -> None:
    judge = Judge({"allowed": True})
    assert await may(cast("Api", judge), EVERYTHING)
    assert judge.asked[0]["spec"]["resourceAttributes"] == {"verb": "*", "group": "*", "resource": "*"}


@pytest.mark.parametrize(
    ("right", "text"),
    [
        (Right("patch", "apps", "deployments", "a"), "patch deployments.apps in namespace a"),
        (Right("create", "", "namespaces"), "create namespaces"),
    ],
)
def test_a_right_is_said_in_words(right: Right, text: str) -> None:
    assert str(right) == text


@pytest.mark.parametrize(("namespace", "name"), [("lab", ".."), ("..", "limits"), (".", "limits"), ("lab", ".")])
def test_a_name_that_leads_to_another_object_has_no_path(namespace: str, name: str) -> None:
    with pytest.raises(BadRequest, match="invalid name"):
        CONFIGMAPS.path(namespace=namespace, name=name)
