"""Images, volumes and the network through Docker's API, and the refusal of other routes."""

from __future__ import annotations

import inspect
import json
import re

import docker.api
import pytest
from starlette.routing import Match

from moorage.model.names import OWNER_ANNOTATION
from moorage_kube.resources import NODES, PODS
from moorage_kube.testing.builders import a_node

pytestmark = pytest.mark.anyio

ADA = {"authorization": "Bearer kube-token", "content-type": "application/json", "x-moorage-namespace": "lab"}


@pytest.fixture
async def ask(site):
    site.api.with_token = lambda _token, _account="": site.api
    site.api.readers.add(("ada", "lab"))
    site.api.put(NODES, a_node("n1"))

    async def asking(path, method="GET", status=200, **body):
        sent = json.dumps(body).encode() if body else b""
        answer = await site.ask(f"/v1.41{path}", method=method, body=sent, headers=ADA)
        assert answer.status == status, answer.text
        return answer

    async with site.running():
        yield asking


async def test_a_pulled_image_is_listed_shown_and_forgotten(ask):
    missing = await ask("/images/python:3.12/json", status=404)  # docker-py: ImageNotFound
    assert missing.json["message"] == "No such image: python:3.12 (hint: docker pull python:3.12)"
    assert '"Pulling python:3.12"' in (await ask("/images/create?fromImage=python&tag=3.12", "POST")).text
    await ask("/images/create?fromImage=docker.io/library/python&tag=3.12", "POST")
    assert [image["RepoTags"] for image in (await ask("/images/json")).json] == [["python:3.12"]]
    shown = (await ask("/images/docker.io/library/python:3.12/json")).json
    assert (await ask("/info")).json["Images"] == 1
    await ask(f"/images/{shown['Id']}", "DELETE")
    assert (await ask("/images/json")).json == []


async def test_an_image_of_a_container_is_in_use(ask):
    await ask("/containers/create?name=web", "POST", 201, Image="redis", Cmd=["true"])
    message = (await ask("/images/redis", "DELETE", 409)).json["message"]
    assert message == "conflict: 1 containers use the image redis:latest (hint: remove the containers first)"


async def test_only_the_ended_containers_of_the_user_are_pruned(ask, site):
    made = {}
    for owner in ("ada", "bob"):
        made[owner] = (
            await ask(f"/containers/create?name={owner}s", "POST", 201, Image="redis", Cmd=["true"])
        ).json["Id"]
    for pod in (await site.api.list(PODS)).items:  # as the admission webhook does
        owner = "ada" if pod["metadata"]["name"].startswith("ada") else "bob"
        site.api.put(PODS, pod | {"metadata": pod["metadata"] | owned_by(owner, pod)})
    assert (await ask("/containers/prune", "POST")).json["ContainersDeleted"] == [made["ada"]]
    assert [row["Id"] for row in (await ask("/system/df")).json["Containers"]] == [made["bob"]]


def owned_by(owner, pod):
    return {"annotations": pod["metadata"].get("annotations", {}) | {OWNER_ANNOTATION: owner}}


async def test_a_volume_needs_a_size_and_is_created_shown_and_removed(ask):
    refused = (await ask("/volumes/create", "POST", 400, Name="data")).json
    assert "(hint: docker volume create -o size=10Gi data)" in refused["message"]
    await ask("/volumes/create", "POST", 201, Name="data", DriverOpts={"size": "1Gi"})
    await ask("/volumes/create", "POST", 201, Name="data", DriverOpts={"size": "1Gi"})
    assert [volume["Name"] for volume in (await ask("/volumes")).json["Volumes"]] == ["data"]
    assert (await ask("/volumes/data")).json["Options"] == {"size": "1Gi"}
    await ask("/volumes/data", "DELETE", 204)
    await ask("/volumes/data", status=404)


async def test_the_one_network_is_bridge_and_others_are_refused_with_the_reason(ask):
    (network,) = (await ask("/networks")).json
    assert (await ask(f"/networks/{network['Id']}")).json["Name"] == "bridge"
    refused = (await ask("/networks/create", "POST", 501, Name="x")).json
    assert refused["code"] == "not_supported"
    assert refused["message"].startswith("POST /v1.41/networks/create is not supported: all containers of")


async def test_paths_without_a_version_are_web_pages_as_before(site):
    site.api.with_token = lambda _token, _account="": site.api
    async with site.running():
        assert (await site.ask("/volumes", headers=ADA)).text.startswith("<!doctype html>")


def test_each_path_of_dockers_python_package_has_a_route(site):
    """Docker's client gets a reason, and never a bare 404 or 405 from the server's router."""
    modules = inspect.getmembers(docker.api, inspect.ismodule)
    source = "".join(inspect.getsource(module) for _, module in modules)
    paths = set(re.findall(r"""_url\(\s*f?['"](/[^'"?]+)""", source))
    assert len(paths) > 60
    routes = [route for route in site.service.app.routes if "version" in getattr(route, "param_convertors", {})]

    def is_known(path):
        scope = {
            "type": "http",
            "method": "GET",
            "path": re.sub(r"\{[^}]*\}", "x", f"/v1.41{path}"),
        }
        return any(route.matches(scope)[0] is not Match.NONE for route in routes)

    assert sorted(path for path in paths if not is_known(path)) == []
