"""What `FakeApi` does not do it refuses; what it does is in tests/contract/test_api.py."""

from __future__ import annotations

from typing import Any

import pytest

from moorage_kube.errors import MethodNotAllowed
from moorage_kube.resources import PODS, SERVICEACCOUNTS, Resource
from moorage_local.testing.fakeapi import FakeApi

WIDGETS = Resource("example.com", "v1", "widgets", "Widget")

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("kind", ["strategic", "apply"])
async def test_a_patch_that_needs_schemas_is_refused(kind: Any) -> None:
    api = FakeApi()
    api.put(WIDGETS, {"metadata": {"name": "m", "namespace": "lab"}})
    with pytest.raises(MethodNotAllowed, match=f"no {kind} patch"):
        await api.patch(WIDGETS, "m", {"spec": {}}, "lab", kind=kind)


async def test_a_subresource_that_has_no_rules_here_is_refused() -> None:
    api = FakeApi()
    pod = api.put(PODS, {"metadata": {"name": "p", "namespace": "lab"}, "spec": {}})
    with pytest.raises(MethodNotAllowed, match="no subresource resize"):
        await api.patch(PODS, "p", {"spec": {}}, "lab", subresource="resize")
    with pytest.raises(MethodNotAllowed, match="no subresource resize"):
        await api.update(PODS, pod, subresource="resize")
    with pytest.raises(MethodNotAllowed, match="no subresource token"):
        await api.create_subresource(SERVICEACCOUNTS, "robot", "token", {}, "lab")
