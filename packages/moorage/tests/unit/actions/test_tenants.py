"""Tenants made, changed and deleted; over a fake API."""

from __future__ import annotations

import pytest

from moorage.actions import tenants
from moorage.model.tenant import TENANTS
from moorage_kube.errors import AlreadyExists, Conflict, NotFound, UsageError
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio


@pytest.fixture
async def api():
    made = FakeApi()
    await tenants.create_tenant(made, tenants.plan_tenant("vision", {"members": {"people": ["ada"]}}))
    return made


async def members(api):
    return (await tenants.get_tenant(api, "vision"))["spec"]["members"]


async def test_a_tenant_has_the_namespace_of_its_name_unless_told_otherwise(api):
    assert (await tenants.get_tenant(api, "vision"))["spec"]["namespace"] == "vision"
    assert tenants.plan_tenant("vision", {"namespace": "v"})["spec"] == {"namespace": "v"}


async def test_a_name_is_given_once(api):
    with pytest.raises(AlreadyExists) as caught:
        await tenants.create_tenant(api, tenants.plan_tenant("vision", {}))
    assert (caught.value.code, caught.value.field) == ("exists", "name")


async def test_people_and_groups_are_added_once_and_removed(api):
    await tenants.add_to_tenant(api, "vision", "member", {"people": ["ben", "ada"], "groups": ["ml"]})
    assert await members(api) == {"people": ["ada", "ben"], "groups": ["ml"]}
    await tenants.remove_from_tenant(api, "vision", "member", {"people": ["ada"], "groups": []})
    assert await members(api) == {"people": ["ben"], "groups": ["ml"]}


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"people": ["eve"], "groups": []}, "person 'eve' does not have the role member in tenant 'vision'"),
        ({"people": [], "groups": ["ops"]}, "group 'ops' does not have the role member in tenant 'vision'"),
        ({"people": [], "groups": []}, "no user or group is given"),
    ],
)
async def test_who_has_no_role_cannot_lose_it(api, names, says):
    with pytest.raises(UsageError, match=says):
        await tenants.remove_from_tenant(api, "vision", "member", names)
    assert await members(api) == {"people": ["ada"]}


async def test_only_the_tenant_that_was_looked_at_is_deleted(api):
    get = api.get

    async def replaced(*args):
        obj = await get(*args)
        api.remove(TENANTS, "vision")
        api.put(TENANTS, tenants.plan_tenant("vision", {}) | {"metadata": {"name": "vision", "uid": "another"}})
        return obj

    api.get = replaced
    with pytest.raises(Conflict):
        await tenants.delete_tenant(api, "vision")
    api.get = get
    assert (await tenants.delete_tenant(api, "vision"))["spec"] == {"namespace": "vision"}
    with pytest.raises(NotFound, match="tenant 'vision' not found"):
        await tenants.delete_tenant(api, "vision")
