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
from moorage.server.tenantviews import QUOTAS
from moorage_kube.clock import rfc3339
from moorage_kube.errors import TooManyRequests
from moorage_kube.resources import NAMESPACES, NODES, PODS, SECRETS, SERVICEACCOUNTS
from moorage_kube.testing.clock import NOON

pytestmark = pytest.mark.anyio
USERS = "Users, their groups, and when they were here last"


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
    assert (taken.status, "open" in taken.page.element("#new").attributes) == (409, True)
    assert taken.page.note.startswith("The name 'ben@example.com' is taken: another account has it.")
    assert [row["Groups"] for row in (await ada.get("/admin/users")).page.rows(USERS)] == ["nlp, vision"]
    at = "/admin/users/ben@example.com"
    assert (await ada.get(f"{at}/disable")).page.heading == "Disable ben@example.com?"
    answer = await ada.post(f"{at}/disable", reason="left the team")
    assert (answer.status, answer.headers["location"]) == (303, f"{at}?done=disabled&what=ben%40example.com")
    shown = (await ada.get(answer.headers["location"])).page
    assert shown.note == "ben@example.com is disabled. Sessions and tokens are revoked."
    assert (shown.facts["State"], shown.form(f"{at}/enable")) == ("disabled left the team", {})
    assert (await ada.post(f"{at}/enable")).status == 303
    assert (await ada.post(f"{at}/groups", groups="audio")).status == 303
    assert (await ada.get(at)).page.facts["Groups"] == "audio"
    other = await ada.post(f"{at}/password")
    assert re.search(r"Password: (\S{16})<", other.text)[1] != password[1]
    assert [len((await ada.api.list(kind, PEOPLE_NAMESPACE)).items) for kind in (SERVICEACCOUNTS, SECRETS)] == [
        1,
        1,
    ]
    none = await ada.get("/admin/users/nobody")
    assert (none.status, none.page.links()[0]) == (404, ("All users", "/admin/users"))


async def test_users_are_searched_for_and_filtered(ada):
    for name in ("ben", "cem"):
        await ada.post("/admin/users", name=name)
    await ada.post("/admin/users/cem/disable")
    assert (await ada.get("/admin/users/live?q=BEN")).page.texts(".more") == ["1 user found, 2 in all. Show all"]
    disabled = (await ada.get("/admin/users?state=disabled")).page.rows(USERS)
    assert [row["User"] for row in disabled] == ["cem"]


async def test_who_may_not_see_the_list_gets_no_link_and_who_may_only_look_no_button(ada):
    ada.api.readers.discard(("ada", PEOPLE_NAMESPACE))
    assert "/admin/users" not in (await ada.get("/jobs")).text
    ada.api.readers.add(("ada", PEOPLE_NAMESPACE))
    ada.site.clock.advance(61)
    await ada.post("/admin/users", name="ben")
    assert (await ada.get("/admin/users")).page.texts('[aria-current="page"]') == ["Users"]


async def test_a_session_is_ended_only_by_who_may_change_accounts(ada):
    await ada.post("/admin/users", name="ben")
    missing = await ada.post("/admin/users/ben/sessions/none/end")
    assert (missing.status, missing.page.note) == (404, "Session 'none' of user ben not found.")
    ada.api.readers.discard(("ada", PEOPLE_NAMESPACE))
    ada.site.clock.advance(61)
    refused = await ada.post("/admin/users/ben/sessions/none/end")
    assert (refused.status, refused.page.note) == (403, "You may not end the sessions of others.")


async def test_a_page_repeats_no_text_of_an_address_but_names(ada):
    page = (await ada.get("/admin/users?done=disabled&what=%3Cb%3E")).text
    assert ("<b>" in page, 'id="did"' in page) == (False, False)
    assert (await ada.get("/jobs?done=deleted&what=call%20this%20number")).page.notes == []


async def test_a_node_is_cordoned_drained_and_uncordoned_by_buttons(ada):
    ada.site.node("n1")
    ada.site.run("train", node="n1")
    ada.api.put(
        PODS,
        {
            "metadata": {"name": "alone", "namespace": "lab"},
            "spec": {"nodeName": "n1", "containers": []},
            "status": {"phase": "Running"},
        },
    )
    await ada.site.until(lambda: len(ada.site.service.cluster.pods.all()) == 2)
    page = (await ada.get("/admin/nodes")).page
    assert page.form("/admin/nodes/n1/cordon") == {}
    assert page.links("tbody") == [("n1", "/nodes/n1"), ("Drain n1", "/admin/nodes/n1/drain")]
    cordoned = await ada.post("/admin/nodes/n1/cordon")
    assert cordoned.headers["location"] == "/admin/nodes?done=cordoned&what=n1"
    assert (await ada.api.get(NODES, "n1"))["spec"]["unschedulable"] is True
    assert (await ada.post("/admin/nodes/n1/uncordon")).status == 303
    asks = (await ada.get("/admin/nodes/n1/drain")).page
    assert [text.partition(":")[0] for text in asks.texts(".ask p")][1:3] == [
        "Pod lab/train-x is evicted.", "Pod lab/alone is not evicted unless you tick a box",
    ]  # fmt: skip
    assert len(asks.all('[name="force"]')) == 1
    refused = await ada.post("/admin/nodes/n1/drain")
    assert (refused.status, refused.page.note.rpartition(". ")[2]) == (409, "Tick the boxes below to allow it.")
    evicted = []

    async def evict(resource, name, subresource, body, namespace):
        if name == "alone":
            raise TooManyRequests("its budget forbids it")
        evicted.append((resource, name, subresource, namespace))

    ada.api.create_subresource = evict
    held = await ada.post("/admin/nodes/n1/drain", force="yes")
    budget = "Pod lab/alone cannot be evicted yet: its budget forbids it."
    assert (held.status, held.page.note[: len(budget)]) == (409, budget)
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
    assert (taken.status, taken.page.form("/admin/tenants")["members"]) == (409, "eve")
    for field, value, says in (("name", "Vision!", "Invalid name 'Vision!'"), ("memory", "much", "Invalid quota")):
        wrong = await ada.post("/admin/tenants", **({"name": "speech", "members": "eve"} | {field: value}))
        assert (wrong.status, says in wrong.page.problem_at(f"new-{field}")) == (422, True)
        assert wrong.page.form("/admin/tenants")["members"] == "eve"
    ada.api.put(
        QUOTAS,
        {
            "metadata": {"name": "moorage-tenant", "namespace": "vision"},
            "status": {"used": {"requests.cpu": "12"}},
        },
    )
    page = (await ada.get(created.headers["location"])).page
    assert (page.note, page.facts["State"]) == ("vision is created.", "Not ready the operator has not looked yet")
    assert [row["Name"] for row in page.rows("People with their roles")] == ["cem", "ben", "dana", "cv"]
    assert [tuple(row.values()) for row in page.rows("Quota of the tenant")] == [
        ("requests.nvidia.com/gpu", "–", "8"), ("requests.cpu", "12", "64"),
    ]  # fmt: skip
    assert (await ada.post("/admin/tenants/vision/add", role="viewer", people="fay", groups="")).status == 303
    assert (await ada.post("/admin/tenants/vision/remove", role="member", people="ben")).status == 303
    spec = (await ada.api.get(TENANTS, "vision"))["spec"]
    assert (spec["viewers"], spec["members"]["people"]) == ({"people": ["fay"]}, ["dana"])
    king = await ada.post("/admin/tenants/vision/add", role="king", people="x")
    assert (king.status, king.page.problem_at("add-role")[:19]) == (422, "Invalid role 'king'")
    assert king.page.form("/admin/tenants/vision/add")["people"] == "x"
    assert (await ada.post("/admin/tenants/vision/add", role="member", people="")).status == 422
    assert ("vision", "/admin/tenants/vision") in (await ada.get("/admin/tenants?q=cem")).page.links()
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
    page = await ada.get("/admin/machines")
    caption = "Types of machines, how many there are, reserved, used and waited for"
    assert [tuple(row.values()) for row in page.page.rows(caption)] == [
        ("lab/big", "Not ready NodeMissing", "8 CPU, 64Gi, 1 × a100 order fifo", "4", "3", "1", "7", "0", "–",
         "n1, n2 (maintenance)")
    ]  # fmt: skip
    assert "lab: no n2" in page.text
    ada.api.put(NAMESPACES, {"metadata": {"name": "team"}})
    begins, ends = (rfc3339(NOON + timedelta(days=days))[:16] for days in (1, 2))
    form = {"name": "paper", "namespace": "team", "machine": "lab/big", "count": "2", "from": begins, "to": ends}
    assert 'type="datetime-local"' in (await ada.get("/admin/reservations")).text
    created = await ada.post("/admin/reservations", **form)
    assert created.headers["location"] == "/admin/reservations?done=created&what=team%2Fpaper", created.text
    spec = (await ada.api.get(RESERVATIONS, "paper", "team"))["spec"]
    assert (spec["machineGroup"], spec["machineType"], spec["count"]) == ("lab", "big", 2)
    for status, field, wrong in (
        (409, "count", {"name": "other", "count": "9"}),
        (422, "to", {"to": "tomorrow"}),
        (422, "name", {"name": "X"}),
        (422, "to", {"name": "o", "to": begins}),
        (422, "count", {"count": "many"}),
    ):  # fmt: skip
        answer = await ada.post("/admin/reservations", **(form | wrong))
        assert (answer.status, bool(answer.page.problem_at(f"new-{field}"))) == (status, True), answer.text
        assert "open" in answer.page.element("#new").attributes
    cancel = "/admin/reservations/team/paper/cancel"
    assert cancel in dict(
        (href, text) for text, href in (await ada.get("/admin/reservations?q=paper")).page.links()
    )
    assert (await ada.get(cancel)).page.heading == "Cancel reservation paper?"
    assert (await ada.post("/admin/reservations/team/paper/cancel")).status == 303
    assert (await ada.api.list(RESERVATIONS)).items == []
    assert (await ada.post("/admin/reservations/team/paper/cancel")).status == 404
