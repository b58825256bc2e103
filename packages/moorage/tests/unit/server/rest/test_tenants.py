"""Tenants over REST and on their page: rights of members, of admins of the team and of another team, and of
administrators of the cluster.
"""

from __future__ import annotations

import json
from urllib.parse import urlencode

import pytest

from moorage.model.budget import BUDGETS
from moorage.model.tenant import TENANTS
from moorage.server.tenantviews import QUOTAS

pytestmark = pytest.mark.anyio

PEOPLE = (
    "ada",
    "mia",
    "vera",
    "otto",
    "clio",
    "page",
)  # admin, member and viewer; of another team; of the cluster
VISION = {
    "namespace": "vision",
    "admins": {"people": ["ada", "page"]},
    "members": {"people": ["mia"], "groups": ["ml"]},
    "viewers": {"people": ["vera"]},
    "quota": {"requests.nvidia.com/gpu": "8"},
}


class Team:
    """Two tenants; `ask` sends a request as a user."""

    def __init__(self, site):
        self.site, self.api = site, site.api
        site.api.users = {f"token-{name}": name for name in PEOPLE}
        site.api.with_token = lambda *_: site.api
        site.api.readers |= {("clio", None)}
        site.api.put(TENANTS, {"metadata": {"name": "vision"}, "spec": VISION})
        other = {"namespace": "audio", "admins": {"people": ["otto"]}}
        site.api.put(TENANTS, {"metadata": {"name": "audio"}, "spec": other})

    async def ask(self, who, path="/api/v1/tenants/vision", body=None):
        headers = {"authorization": f"Bearer token-{who}", "content-type": "application/json"}
        data = json.dumps(body).encode() if body is not None else b""
        method = "POST" if body is not None else "GET"
        return await self.site.ask(path, method=method, headers=headers, body=data, token=False)

    async def change(self, who, verb="add", tenant="vision", **body):
        path = f"/api/v1/tenants/{tenant}/members" + ("/remove" if verb == "remove" else "")
        return await self.ask(who, path, body)

    async def spec(self, tenant="vision"):
        return (await self.api.get(TENANTS, tenant))["spec"]


@pytest.fixture
async def team(site):
    async with site.running():
        yield Team(site)


@pytest.mark.parametrize(
    ("who", "tenant", "status"),
    [
        pytest.param("ada", "vision", 200, id="an admin of the team"),
        pytest.param("clio", "vision", 200, id="an administrator of the cluster"),
        pytest.param("mia", "vision", 403, id="a member"),
        pytest.param("vera", "vision", 403, id="a viewer"),
        pytest.param("otto", "vision", 404, id="an admin of another team"),
        pytest.param("ada", "audio", 404, id="the admin in another team"),
    ],
)
async def test_only_admins_of_a_team_and_of_the_cluster_change_its_members(team, who, tenant, status):
    before = await team.spec(tenant)
    assert (await team.change(who, tenant=tenant, people=["eve"])).status == status
    if status != 200:
        assert await team.spec(tenant) == before
        return
    assert await team.spec() == VISION | {"members": {"people": ["mia", "eve"], "groups": ["ml"]}}
    removed = await team.change(who, "remove", people=["eve"], groups=["ml"])
    assert removed.json == {"people": ["mia"], "groups": []}
    await team.site.service.audit.flush()
    rows = await team.site.service.sessions.do(lambda store: store.audit())
    assert {(row.person, row.what) for row in rows} >= {
        (who, "change tenant vision: add member eve"),
        (who, "change tenant vision: remove member eve, ml"),
    }


async def test_an_admin_of_a_team_cannot_remove_its_last_admin(team):
    assert (await team.change("ada", "remove", role="admin", people=["page"])).status == 200
    refused = await team.change("ada", "remove", role="admin", people=["ada"])
    assert (refused.status, refused.json["message"]) == (409, "tenant 'vision' would have no admin")
    assert (await team.spec())["admins"] == {"people": ["ada"]}
    assert (await team.change("clio", "remove", role="admin", people=["ada"])).status == 200


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"role": "cluster-admin", "people": ["eve"]}, id="another role"),
        pytest.param({"people": ["eve"], "quota": {"pods": "9"}}, id="the quota"),
        pytest.param({"people": []}, id="no names"),
        pytest.param({"role": "admin", "people": ["x" * 254]}, id="a long name"),
    ],
)
async def test_a_change_of_members_changes_nothing_else(team, body):
    assert (await team.change("ada", **body)).status == 422
    assert await team.spec() == VISION


async def test_rights_are_those_of_the_tenant_as_it_is_changed(team):
    """Ada loses her role after she asked, before the server writes: the write is refused."""
    get = team.api.get
    answers = iter([VISION, VISION | {"admins": {"people": ["mia"]}}])

    async def demoted(resource, *args):
        return (
            {**await get(resource, *args), "spec": next(answers)}
            if resource is TENANTS
            else await get(resource, *args)
        )

    team.api.get = demoted
    assert (await team.change("ada", people=["eve"])).status == 403


async def test_the_token_of_the_page_has_no_role_in_a_team_with_a_user_of_its_name(team):
    assert (await team.site.ask("/api/v1/tenants/vision")).status == 404
    assert (await team.ask("page")).status == 200


async def test_names_of_kubernetes_give_no_role(team):
    team.api.put(
        TENANTS,
        {
            "metadata": {"name": "open"},
            "spec": {"namespace": "open", "admins": {"groups": ["system:authenticated"]}},
        },
    )
    assert (await team.change("mia", tenant="open", people=["mia"])).status == 404


async def test_members_see_limits_and_their_use(team):
    team.api.put(
        QUOTAS,
        {
            "metadata": {"name": "moorage-tenant", "namespace": "vision"},
            "status": {"used": {"requests.nvidia.com/gpu": "3"}},
        },
    )
    team.api.put(
        BUDGETS,
        {"metadata": {"name": "month"}, "spec": {"tenants": ["vision"], "gpuHours": "500", "whenOver": "queue"}},
    )
    team.site.node("n1")
    team.site.run("train", namespace="vision", node="n1")
    await team.site.until(lambda: team.site.service.cluster.pods_of_run("vision", "train"))
    shown = (await team.ask("vera")).json
    assert {key: shown[key] for key in ("role", "mayChangeMembers", "gpus", "quota")} == {
        "role": "viewer",
        "mayChangeMembers": False,
        "gpus": 1,
        "quota": [{"resource": "requests.nvidia.com/gpu", "hard": "8", "used": "3"}],
    }
    assert [(row["budget"], row["name"], row["limit"], row["whenOver"]) for row in shown["budgets"]] == [
        ("month", "vision", "500", "queue")
    ]
    assert [(rule["policy"], rule["warnAfter"], rule["suspendAfter"]) for rule in shown["idle"]] == [
        ("built-in", "1d", "")
    ]
    lists = {who: (await team.ask(who, "/api/v1/tenants")).json["tenants"] for who in ("vera", "otto", "clio")}
    assert {who: [row["name"] for row in rows] for who, rows in lists.items()} == {
        "vera": ["vision"], "otto": ["audio"], "clio": ["audio", "vision"],
    }  # fmt: skip


@pytest.mark.parametrize(("who", "status", "buttons"), [("ada", 303, True), ("mia", 403, False)])
async def test_the_page_of_a_team_has_its_form_for_its_admins_alone(team, who, status, buttons):
    headers = {"authorization": f"Bearer token-{who}", "accept": "text/html"}
    listed = await team.site.ask("/admin/tenants", headers=headers, token=False)
    assert 'href="/admin/tenants"' in listed.text
    assert ("vision", "/admin/tenants/vision") in listed.page.links()
    shown = await team.site.ask("/admin/tenants/vision", headers=headers, token=False)
    assert (shown.status, 'action="/admin/tenants/vision/add"' in shown.text) == (200, buttons)
    form = urlencode({"role": "viewer", "people": "eve"}).encode()
    headers |= {"content-type": "application/x-www-form-urlencoded"}
    sent = await team.site.ask("/admin/tenants/vision/add", method="POST", headers=headers, body=form, token=False)
    assert sent.status == status
