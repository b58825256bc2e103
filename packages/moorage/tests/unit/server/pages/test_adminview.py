"""The pages of administrators: they act as their user, and show only what that user may do."""

from __future__ import annotations

import re
from datetime import timedelta
from urllib.parse import urlencode

import pytest

from moorage.model.machine import MACHINES, NODE_POOLS
from moorage.model.people import PEOPLE_NAMESPACE
from moorage.model.reservation import RESERVATIONS
from moorage.model.tenant import TENANTS
from moorage.server.pages.tenantpages import QUOTAS
from moorage_kube.clock import rfc3339
from moorage_kube.errors import TooManyRequests
from moorage_kube.resources import NAMESPACES, NODES, PODS, SECRETS, SERVICEACCOUNTS
from moorage_kube.testing.clock import NOON

pytestmark = pytest.mark.anyio


class Admin:
    """ada, who may do all; `may` decides what the API server answers about her rights."""

    def __init__(self, site):
        self.site, self.api = site, site.api
        site.api.with_token = lambda token, *_: site.api
        site.api.readers |= {("ada", None), ("ada", PEOPLE_NAMESPACE)}
        site.api.put(NAMESPACES, {"metadata": {"name": PEOPLE_NAMESPACE}})

    async def get(self, path):
        headers = {"authorization": "Bearer kube-token", "accept": "text/html"}
        return await self.site.ask(path, headers=headers, token=False)

    async def post(self, path, **form):
        headers = {
            "authorization": "Bearer kube-token",
            "accept": "text/html",
            "content-type": "application/x-www-form-urlencoded",
        }
        return await self.site.ask(
            path, method="POST", headers=headers, body=urlencode(form).encode(), token=False
        )


@pytest.fixture
async def ada(site):
    async with site.running():
        yield Admin(site)


async def test_an_account_is_created_disabled_enabled_and_gets_groups_by_forms(ada):
    created = await ada.post("/admin/users", name="ben@example.com", groups="vision, nlp")
    password = re.search(r"Password: (\S{16})<", created.text)
    assert (created.status, password is not None) == (200, True), created.text
    assert created.headers["cache-control"] == "no-store"
    taken = await ada.post("/admin/users", name="ben@example.com")
    assert (taken.status, "is taken" in taken.text, "<details class=\"maker\" id=\"new\" open>" in taken.text) == (
        409, True, True,
    )  # fmt: skip
    page = (await ada.get("/admin/users")).text
    assert "nlp, vision" in page
    at = "/admin/users/ben@example.com"
    assert "Disable ben@example.com?" in (await ada.get(f"{at}/disable")).text
    answer = await ada.post(f"{at}/disable", reason="left the team")
    assert (answer.status, answer.headers["location"]) == (303, f"{at}?done=disabled&what=ben%40example.com")
    shown = (await ada.get(answer.headers["location"])).text
    assert "ben@example.com is disabled." in shown
    assert "left the team" in shown
    assert f'action="{at}/enable"' in shown
    assert (await ada.post(f"{at}/enable")).status == 303
    assert (await ada.post(f"{at}/groups", groups="audio")).status == 303
    assert "audio" in (await ada.get(at)).text
    other = await ada.post(f"{at}/password")
    assert re.search(r"Password: (\S{16})<", other.text)[1] != password[1]
    assert [len((await ada.api.list(kind, PEOPLE_NAMESPACE)).items) for kind in (SERVICEACCOUNTS, SECRETS)] == [
        1,
        1,
    ]
    none = await ada.get("/admin/users/nobody")
    assert (none.status, "All users" in none.text) == (404, True)


async def test_users_are_searched_for_and_filtered(ada):
    for name in ("ben", "cem"):
        await ada.post("/admin/users", name=name)
    await ada.post("/admin/users/cem/disable")
    assert "1 user found, 2 in all" in (await ada.get("/admin/users/live?q=BEN")).text
    disabled = (await ada.get("/admin/users?state=disabled")).text
    assert ("/admin/users/cem" in disabled, "/admin/users/ben" in disabled) == (True, False)


async def test_who_may_not_see_the_list_gets_no_link_and_who_may_only_look_no_button(ada):
    ada.api.readers.discard(("ada", PEOPLE_NAMESPACE))
    assert "/admin/users" not in (await ada.get("/jobs")).text
    ada.api.readers.add(("ada", PEOPLE_NAMESPACE))
    ada.site.clock.advance(61)
    await ada.post("/admin/users", name="ben")
    page = await ada.get("/admin/users")
    assert 'href="/admin/users" aria-current="page"' in page.text


async def test_a_session_is_ended_only_by_who_may_change_accounts(ada):
    await ada.post("/admin/users", name="ben")
    missing = await ada.post("/admin/users/ben/sessions/none/end")
    assert (missing.status, "not found" in missing.text) == (404, True)
    ada.api.readers.discard(("ada", PEOPLE_NAMESPACE))
    ada.site.clock.advance(61)
    refused = await ada.post("/admin/users/ben/sessions/none/end")
    assert (refused.status, "may not end" in refused.text) == (403, True)


async def test_a_page_repeats_no_text_of_an_address_but_names(ada):
    page = (await ada.get("/admin/users?done=disabled&what=%3Cb%3E")).text
    assert ("<b>" in page, 'id="did"' in page) == (False, False)
    assert 'id="did"' not in (await ada.get("/jobs?done=deleted&what=call%20this%20number")).text


async def test_a_node_is_cordoned_drained_and_uncordoned_by_buttons(ada):
    ada.site.node("n1")
    job = ada.site.run("train", node="n1")
    ada.api.put(
        PODS,
        {
            "metadata": {"name": "alone", "namespace": "lab"},
            "spec": {"nodeName": "n1", "containers": []},
            "status": {"phase": "Running"},
        },
    )
    await ada.site.until(lambda: len(ada.site.service.cluster.pods.all()) == 2)
    page = (await ada.get("/admin/nodes")).text
    assert ('action="/admin/nodes/n1/cordon"' in page, 'href="/admin/nodes/n1/drain"' in page) == (True, True)
    cordoned = await ada.post("/admin/nodes/n1/cordon")
    assert cordoned.headers["location"] == "/admin/nodes?done=cordoned&what=n1"
    assert (await ada.api.get(NODES, "n1"))["spec"]["unschedulable"] is True
    assert (await ada.post("/admin/nodes/n1/uncordon")).status == 303
    asks = (await ada.get("/admin/nodes/n1/drain")).text
    assert f"Pod lab/{job['metadata']['name']}-x is evicted." in asks
    assert "Pod lab/alone is not evicted unless you tick a box" in asks
    assert 'name="force"' in asks
    refused = await ada.post("/admin/nodes/n1/drain")
    assert (refused.status, "Tick the boxes below" in refused.text) == (409, True)
    evicted = []

    async def evict(resource, name, subresource, body, namespace):
        if name == "alone":
            raise TooManyRequests("its budget forbids it")
        evicted.append((resource, name, subresource, namespace))

    ada.api.create_subresource = evict
    held = await ada.post("/admin/nodes/n1/drain", force="yes")
    assert (held.status, "its budget forbids it" in held.text) == (409, True)
    assert evicted == [(PODS, "train-x", "eviction", "lab")]
    assert (await ada.get("/admin/nodes/none/drain")).status == 404


async def test_the_audit_log_is_searched_by_user_action_and_time_and_read_on(ada):
    await ada.post("/admin/users", name="ben")
    ada.site.clock.advance(3600)
    for number in range(60):
        await ada.post(f"/admin/nodes/n{number}/cordon")
    first = (await ada.get("/admin/audit")).text
    assert (
        first.count('<tr role="row">'),
        "ada tried to cordon node n59: failed (404)" in first,
        "ada created user ben" in first,
    ) == (
        51,
        True,
        False,
    )
    older = re.search(r'id="older" rel="next" href="([^"]+)"', first)[1].replace("&amp;", "&")
    assert "ada created user ben" in (await ada.get(older)).text
    for query, has in (
        ("user=ada&q=CREATE", True), ("user=ben", False), ("q=%25", False), ("until=2026-01-01T00:00", False),
        (f"until={rfc3339(NOON)[:16]}", True), (f"since={rfc3339(NOON + timedelta(minutes=30))[:16]}", False),
    ):  # fmt: skip
        page = (await ada.get(f"/admin/audit?{query}")).text
        assert ("ada created user ben" in page) is has, query
    wrong = await ada.get("/admin/audit?since=yesterday")
    assert (wrong.status, "Invalid time" in wrong.text) == (400, True)
    ada.api.readers.discard(("ada", None))
    ada.site.clock.advance(61)
    assert [(await ada.get(path)).status for path in ("/admin/audit", "/admin/nodes")] == [403, 403]


async def test_a_tenant_is_created_and_its_people_change_by_forms(ada):
    created = await ada.post(
        "/admin/tenants", name="vision", admins="cem", members="ben, dana ben", groups="cv", gpus="8", cpu="64"
    )
    assert (created.status, created.headers["location"]) == (303, "/admin/tenants/vision?done=created&what=vision")
    spec = (await ada.api.get(TENANTS, "vision"))["spec"]
    assert spec == {
        "namespace": "vision",
        "admins": {"people": ["cem"]},
        "members": {"people": ["ben", "dana"], "groups": ["cv"]},
        "quota": {"requests.nvidia.com/gpu": "8", "requests.cpu": "64"},
    }
    taken = await ada.post("/admin/tenants", name="vision", members="eve")
    assert (taken.status, 'value="eve"' in taken.text) == (409, True)
    assert (await ada.post("/admin/tenants", name="Vision!")).status == 422
    ada.api.put(
        QUOTAS,
        {
            "metadata": {"name": "moorage-tenant", "namespace": "vision"},
            "status": {"used": {"requests.cpu": "12"}},
        },
    )
    page = (await ada.get(created.headers["location"])).text
    missing = [
        text for text in ("vision is created", "dana", "cpu", ">12<", ">64<", "not looked") if text not in page
    ]
    assert missing == []
    assert (await ada.post("/admin/tenants/vision/add", role="viewer", people="fay", groups="")).status == 303
    assert (await ada.post("/admin/tenants/vision/remove", role="member", people="ben")).status == 303
    spec = (await ada.api.get(TENANTS, "vision"))["spec"]
    assert (spec["viewers"], spec["members"]["people"]) == ({"people": ["fay"]}, ["dana"])
    for form in ({"role": "king", "people": "x"}, {"role": "member", "people": ""}):
        assert (await ada.post("/admin/tenants/vision/add", **form)).status in (400, 422)
    listed = (await ada.get("/admin/tenants?q=cem")).text
    assert 'href="/admin/tenants/vision"' in listed
    assert (await ada.get("/admin/tenants/none")).status == 404


async def test_machines_are_listed_and_reserved_and_a_reservation_is_cancelled(ada):
    size = {"cpu": "8", "memory": "64Gi", "gpu": {"type": "a100", "num": 1}}
    ada.api.put(
        MACHINES,
        {
            "metadata": {"name": "lab", "labels": {"moorage.dev/machine-group": "lab"}},
            "spec": {
                "nodePool": [{"name": "n1", "mode": "ready"}, {"name": "n2", "mode": "maintenance"}],
                "machineTypes": [{"name": "big", "spec": size, "available": 4}],
            },
            "status": {
                "availableMachines": [
                    {"name": "big", "usage": {"maximum": 4, "reserved": 3, "used": 1, "waiting": 7, "pending": 0}}
                ],
                "conditions": [{"type": "Ready", "status": "False", "reason": "NodeMissing", "message": "no n2"}],
            },
        },
    )
    nodes = [{"name": "n1", "mode": "ready"}, {"name": "n2", "mode": "maintenance"}]
    ada.api.put(NODE_POOLS, {"metadata": {"name": "lab"}, "spec": {"machineGroupName": "lab", "nodePool": nodes}})
    page = (await ada.get("/admin/machines")).text
    wanted = ("lab/big", "8 CPU, 64Gi, 1 × a100", ">7<", "n1, n2 (maintenance)", "NodeMissing", "lab: no n2")
    assert [text for text in wanted if text not in page] == []
    ada.api.put(NAMESPACES, {"metadata": {"name": "team"}})
    begins, ends = (rfc3339(NOON + timedelta(days=days))[:16] for days in (1, 2))
    form = {"name": "paper", "namespace": "team", "machine": "lab/big", "count": "2", "from": begins, "to": ends}
    assert 'type="datetime-local"' in (await ada.get("/admin/reservations")).text
    created = await ada.post("/admin/reservations", **form)
    assert created.headers["location"] == "/admin/reservations?done=created&what=team%2Fpaper", created.text
    spec = (await ada.api.get(RESERVATIONS, "paper", "team"))["spec"]
    assert (spec["machineGroup"], spec["machineType"], spec["count"]) == ("lab", "big", 2)
    for wrong in ({"name": "other", "count": "9"}, {"to": "tomorrow"}, {"name": "X"}, {"name": "o", "to": begins}):
        answer = await ada.post("/admin/reservations", **(form | wrong))
        assert (answer.status in (400, 409, 422), 'id="new" open' in answer.text) == (True, True), answer.text
    listed = (await ada.get("/admin/reservations?q=paper")).text
    assert 'href="/admin/reservations/team/paper/cancel"' in listed
    assert "Cancel reservation paper?" in (await ada.get("/admin/reservations/team/paper/cancel")).text
    assert (await ada.post("/admin/reservations/team/paper/cancel")).status == 303
    assert (await ada.api.list(RESERVATIONS)).items == []
    assert (await ada.post("/admin/reservations/team/paper/cancel")).status == 404
