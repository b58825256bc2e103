"""What `Idempotency-Key` does to a request that comes twice."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from moorage.actions.objects import create_once
from moorage.model.names import REQUEST_ANNOTATION
from moorage.server.idempotency import request_mark
from moorage.server.problems import Problem
from moorage.server.rest.volumes import NewVolume
from moorage_kube.errors import AlreadyExists, UsageError
from moorage_kube.meta import annotations_of
from moorage_kube.resources import PVCS
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio


def mark(key, size="1Gi", person="ada"):
    request = SimpleNamespace(
        headers={"idempotency-key": key} if key else {}, state=SimpleNamespace(user=SimpleNamespace(name=person))
    )
    return request_mark(request, NewVolume(name="data", namespace="lab", size=size))


def a_claim():
    return {"metadata": {"name": "data", "namespace": "lab"}}


async def test_the_same_request_gives_what_it_made():
    api = FakeApi()
    first = await create_once(api, PVCS, a_claim(), "lab", mark("k1"))
    again = await create_once(api, PVCS, a_claim(), "lab", mark("k1"))
    assert again["metadata"]["uid"] == first["metadata"]["uid"]
    assert "k1" not in annotations_of(first)[REQUEST_ANNOTATION]


@pytest.mark.parametrize("other", ["", mark(""), mark("k2"), mark("k1", person="ben")])
async def test_another_request_finds_the_name_taken(other):
    api = FakeApi()
    await create_once(api, PVCS, a_claim(), "lab", mark("k1"))
    with pytest.raises(AlreadyExists):
        await create_once(api, PVCS, a_claim(), "lab", other)


async def test_a_key_with_another_body_is_refused():
    api = FakeApi()
    await create_once(api, PVCS, a_claim(), "lab", mark("k1"))
    with pytest.raises(UsageError) as caught:
        await create_once(api, PVCS, a_claim(), "lab", mark("k1", size="2Gi"))
    assert caught.value.code == "key_reused"


async def test_a_trial_leaves_no_key_and_finds_the_name_taken():
    api = FakeApi()
    await create_once(api, PVCS, a_claim(), "lab", mark("k1"))
    with pytest.raises(AlreadyExists):
        await create_once(api, PVCS, a_claim(), "lab", mark("k1"), dry_run=True)


async def test_a_key_has_its_limits():
    with pytest.raises(Problem):
        mark("k" * 256)
