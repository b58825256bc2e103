"""Two members of one team: neither gets at what the Secret of the other's run holds.

Each attempt is Eve's; what she is answered never holds CONTENT, which is in the Secret of Ada's run.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from moorage.actions import people
from moorage.actions.atomic import AtomicCreate, set_owner
from moorage.cluster.serverurl import server_url
from moorage.decide.runs.names import secret_name
from moorage.model.people import LOCAL
from moorage.model.tenant import TENANTS
from moorage.model.workspace import WORKSPACES
from moorage_kube.errors import AlreadyExists, ApiError, Forbidden, NotFound
from moorage_kube.meta import owner_reference
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import JOBS, NAMESPACES, PODS, SECRETS, SERVICEACCOUNTS
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api"), pytest.mark.xdist_group("tenants")]

CONTENT = "what-ada-was-sent"
CONTENTS = (CONTENT, base64.b64encode(CONTENT.encode()).decode())


@dataclass
class Scene:
    """Clients of the administrator, of two members of one tenant, and the Secret of the first member's run."""

    admin: KubeClient
    ada: KubeClient
    eve: KubeClient
    eve_token: str
    namespace: str
    secret: str


@pytest.fixture
async def scene(cluster: Cluster, api: KubeClient, unique: str) -> AsyncIterator[Scene]:
    members = [f"{who}-{unique}" for who in ("ada", "eve")]
    kind = {"apiVersion": TENANTS.api_version, "kind": TENANTS.kind}
    spec = {"namespace": unique, "members": {"people": members}}
    await api.create(TENANTS, kind | {"metadata": {"name": unique}, "spec": spec})
    tokens = []
    for member in members:
        await people.create_account(api, member, [], LOCAL)
        tokens.append((await people.kube_token(api, member, 3600)).token)
    ada, eve = (api.with_token(token) for token in tokens)

    async def may_work() -> bool:
        try:
            return all([await client.list(JOBS, unique) is not None for client in (ada, eve)])
        except ApiError:
            return False

    await until("both to work in the namespace", may_work)
    try:
        await api.create(SERVICEACCOUNTS, {"metadata": {"name": "default"}}, unique)
    except AlreadyExists:
        pass
    name = secret_name("train", members[0], secrets.token_urlsafe())
    secret = {"metadata": {"name": name}, "immutable": True, "stringData": {"work.tar.gz": CONTENT}}
    await ada.create(SECRETS, secret, unique)
    yield Scene(api, ada, eve, tokens[1], unique, name)
    for resource in (TENANTS, NAMESPACES):
        try:
            await api.delete(resource, unique)
        except NotFound:
            pass
    for member in members:
        await people.delete_account(api, member)


def mounting(secret: str) -> dict[str, Any]:
    container = {"name": "m", "image": "x", "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}
    volume = {"name": "v", "secret": {"secretName": secret}}
    return {"containers": [container], "volumes": [volume], "restartPolicy": "Never"}


@pytest.mark.parametrize(
    ("method", "query", "body"),
    [
        ("GET", "", None),
        ("GET", "?watch=true&timeoutSeconds=1", None),
        ("PATCH", "", {"metadata": {"labels": {"a": "b"}}}),
        ("PATCH", "?dryRun=All", {}),
        ("DELETE", "?dryRun=All", {"propagationPolicy": "Foreground"}),
        ("DELETE", "", {"propagationPolicy": "Foreground"}),
        ("PUT", "?dryRun=All", {"immutable": True}),
        ("PUT", "", {"immutable": True, "stringData": {"work.tar.gz": "eve's"}}),
    ],
)
async def test_a_member_learns_and_changes_nothing_of_the_secret_of_anothers_run(
    scene: Scene, method: str, query: str, body: Any
) -> None:
    base = f"{scene.admin.connection.server}/api/v1/namespaces/{scene.namespace}/secrets"
    headers = {"Authorization": f"Bearer {scene.eve_token}"}
    headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
    if method == "PUT":
        body = body | {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": scene.secret}}
    urls = [f"{base}/{scene.secret}{query}"] + ([f"{base}{query}"] if method in ("GET", "DELETE") else [])
    async with aiohttp.ClientSession(headers=headers) as http:
        for url in urls:
            async with http.request(method, url, json=body, ssl=False) as answer:
                text = await answer.text()
                assert answer.status == (422 if method == "PUT" else 403), text
                assert not any(content in text for content in CONTENTS)
    stored = await scene.admin.get(SECRETS, scene.secret, scene.namespace)
    assert stored["data"] == {"work.tar.gz": CONTENTS[1]}


async def test_a_member_mounts_the_secret_of_their_own_run_alone(scene: Scene) -> None:
    spec = mounting(scene.secret)
    pod: Any = {"metadata": {"name": "reader"}, "spec": spec}
    job: Any = {"metadata": {"name": "reader"}, "spec": {"template": {"spec": spec}}}
    for resource, obj in ((PODS, pod), (JOBS, job)):
        await scene.ada.create(resource, obj, scene.namespace, dry_run=True)
        with pytest.raises(ApiError, match="must not be the Secret of a run that another user owns"):
            await scene.eve.create(resource, obj, scene.namespace, dry_run=True)


async def test_what_a_member_may_do_is_enough_to_hand_the_secret_to_its_job_and_to_remove_it(scene: Scene) -> None:
    job: Any = {
        "metadata": {"name": "train"},
        "spec": {"suspend": True, "template": {"spec": mounting(scene.secret)}},
    }
    made = await scene.ada.create(JOBS, job, scene.namespace)
    obj = {"metadata": {"name": f"{scene.secret[:-8]}00000000", "namespace": scene.namespace}, "type": "Opaque"}
    obj |= {"apiVersion": "v1", "kind": "Secret", "immutable": True, "data": {"work.tar.gz": CONTENTS[1]}}
    secret = await AtomicCreate(scene.ada, scene.namespace).create(SECRETS, obj)
    await set_owner(scene.ada, SECRETS, secret, owner_reference(made))
    stored = await scene.admin.get(SECRETS, secret["metadata"]["name"], scene.namespace)
    assert [owner["uid"] for owner in stored["metadata"]["ownerReferences"]] == [made["metadata"]["uid"]]
    obj["metadata"]["name"] = f"{scene.secret[:-8]}11111111"
    batch = AtomicCreate(scene.ada, scene.namespace)
    await batch.create(SECRETS, obj)
    await batch.remove()
    left = await _left(scene, obj["metadata"]["name"])
    assert left is None or left != made["metadata"]["uid"], "its owner does not exist"
    with pytest.raises(Forbidden):
        await scene.ada.get(SECRETS, scene.secret, scene.namespace)


async def _left(scene: Scene, name: str) -> str | None:
    """The uid of the owner of a Secret; None: the garbage collector was there."""
    try:
        secret = await scene.admin.get(SECRETS, name, scene.namespace)
    except NotFound:
        return None
    return str(secret["metadata"]["ownerReferences"][0]["uid"])


async def test_the_owner_of_a_workspace_gets_its_token_and_another_member_does_not(
    scene: Scene, cluster: Cluster
) -> None:
    if cluster.kind != "local":
        pytest.skip("workspaces need an address: only the local cluster has a domain for them")
    size = {"cpu": "100m", "memory": "64Mi"}
    spec = {"type": "jupyterlab", "access": "token", "resources": size}
    await scene.ada.create(WORKSPACES, {"metadata": {"name": "lab"}, "spec": spec}, scene.namespace)

    async def secret_of_it() -> Any:
        status = (await scene.ada.get(WORKSPACES, "lab", scene.namespace)).get("status") or {}
        return status.get("url") and await scene.admin.get(SECRETS, status["secret"], scene.namespace)

    secret = await until("its address", secret_of_it)
    token = base64.b64decode(secret["data"]["token"]).decode()
    for member in (scene.ada, scene.eve):
        with pytest.raises(Forbidden):
            await member.get(SECRETS, secret["metadata"]["name"], scene.namespace)
    url = f"{await server_url(scene.admin)}/api/v1/workspaces/{scene.namespace}/lab/open"
    async with aiohttp.ClientSession() as http:
        for authorization, status in (
            (await scene.ada.authorization(), 200),
            (await scene.eve.authorization(), 403),
        ):
            async with http.post(url, json={}, headers={"Authorization": authorization}) as answer:
                text = await answer.text()
                assert (answer.status, token in text) == (status, status == 200), text
