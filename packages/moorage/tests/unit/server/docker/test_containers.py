"""In which namespace Docker's clients work who name none."""

from __future__ import annotations

import json

import pytest

from moorage.model.tenant import TENANTS
from moorage_kube.errors import ServerError
from moorage_kube.resources import PODS

pytestmark = pytest.mark.anyio

ADA = {"authorization": "Bearer kube-token", "content-type": "application/json"}
IMAGE = json.dumps({"Image": "x", "Cmd": ["true"]}).encode()


@pytest.fixture
async def member(site):
    """ada, who may work in the namespace of the one tenant, and in `default`."""
    site.api.with_token = lambda _token, _account="": site.api
    site.api.readers |= {("ada", "speech"), ("ada", "default")}
    site.api.put(TENANTS, {"metadata": {"name": "ears"}, "spec": {"namespace": "speech"}})
    async with site.running():
        yield site


async def created_in(site, name):
    answer = await site.ask(f"/containers/create?name={name}", method="POST", body=IMAGE, headers=ADA)
    assert answer.status == 201, answer.text
    (pod,) = [pod for pod in (await site.api.list(PODS)).items if pod["metadata"]["name"].startswith(name)]
    return pod["metadata"]["namespace"]


async def test_containers_are_made_in_the_one_tenant_of_the_user_and_in_default_as_soon_as_it_is_deleted(member):
    assert await created_in(member, "first") == "speech"
    await member.api.delete(TENANTS, "ears")
    assert await created_in(member, "second") == "default"  # where it is found from now on


async def test_dockers_clients_see_in_the_message_how_to_choose_one_of_two_namespaces(member):
    member.api.readers.add(("ada", "vision"))
    member.api.put(TENANTS, {"metadata": {"name": "eyes"}, "spec": {"namespace": "vision"}})
    answer = await member.ask("/containers/create?name=x", method="POST", body=IMAGE, headers=ADA)
    assert (answer.status, answer.json["code"]) == (400, "which_namespace")
    assert answer.json["message"].startswith("you work in several namespaces: speech, vision (hint: choose one:")
    assert "moor docker -n NAME -- COMMAND" in answer.json["message"]


async def test_the_tenants_known_last_serve_while_the_api_fails(member):
    tenants = member.service.context.tenants
    (known,) = await tenants.all()
    member.api.failing = ServerError("etcd is away")
    assert await tenants.all(anew=True) == [known]
