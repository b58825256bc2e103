"""Forms of administrators for budgets, idle rules and settings of tenants."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from moorage.model.budget import BUDGETS
from moorage.model.idle import IDLE_POLICIES
from moorage.model.tenant import TENANTS

pytestmark = pytest.mark.anyio

BUDGET = {"tenants": ["vision"], "gpuHours": "500", "period": "month", "whenOver": "queue"}
POLICY = {
    "warnAfter": "4h",
    "quietHours": {"spans": [{"start": "20:00", "end": "08:00"}], "timeZone": "Asia/Tokyo"},
    "exempt": {"labels": {"keep": "yes"}},
}
TENANT = {
    "namespace": "vision",
    "admins": {"people": ["ada"]},
    "members": {"people": ["mia"]},
    "quota": {"requests.nvidia.com/gpu": "8", "memory": "64Gi"},
}


class People:
    """An administrator of the cluster (clio), and an admin (ada) and a member (mia) of a team."""

    def __init__(self, site):
        self.site, self.api = site, site.api
        site.api.users = {f"token-{name}": name for name in ("clio", "ada", "mia")}
        site.api.with_token = lambda *_: site.api
        site.api.readers |= {("clio", None)}
        for kind, name, spec in (
            (BUDGETS, "month", BUDGET),
            (IDLE_POLICIES, "gpus", POLICY),
            (TENANTS, "vision", TENANT),
        ):
            site.api.put(kind, {"metadata": {"name": name, "generation": 3}, "spec": spec})

    async def ask(self, who, path, form=None):
        headers = {"authorization": f"Bearer token-{who}", "accept": "text/html"}
        if form is None:
            return await self.site.ask(path, headers=headers, token=False)
        headers |= {"content-type": "application/x-www-form-urlencoded"}
        body = urlencode(form).encode()
        return await self.site.ask(path, method="POST", headers=headers, body=body, token=False)

    async def send(self, path, **changes):
        """Open a form, and send it with some inputs changed."""
        form = (await self.ask("clio", path)).page.form(path)
        return await self.ask("clio", path, form | changes)


@pytest.fixture
async def people(site):
    async with site.running():
        yield People(site)


@pytest.mark.parametrize(
    ("path", "changes", "kind", "name", "spec"),
    [
        pytest.param(
            "/admin/new-budget",
            {"name": "weekly", "users": "*", "money": "100", "period": "week", "warnAt": "50, 90"},
            BUDGETS,
            "weekly",
            {"users": ["*"], "money": "100", "period": "week", "whenOver": "warn", "warnAt": [50, 90]},
            id="a new budget",
        ),
        pytest.param(
            "/admin/budgets/month/change",
            {"gpuHours": "", "money": "90", "notify": "mailto:a@example.org"},
            BUDGETS,
            "month",
            {"tenants": ["vision"], "period": "month", "whenOver": "queue", "money": "90"}
            | {"notify": ["mailto:a@example.org"]},
            id="money in place of GPU-hours",
        ),
        pytest.param(
            "/admin/new-idle-policy",
            {"name": "strict", "warnAfter": "1h", "suspendAfter": "2h", "work": "run, workspace"},
            IDLE_POLICIES,
            "strict",
            {"warnAfter": "1h", "suspendAfter": "2h", "work": ["run", "workspace"]},
            id="a new idle rule",
        ),
        pytest.param(
            "/admin/idle/gpus/change",
            {"quietHours": "", "exemptUsers": "ada"},
            IDLE_POLICIES,
            "gpus",
            {"warnAfter": "4h", "exempt": {"labels": {"keep": "yes"}, "users": ["ada"]}},
            id="an idle rule: fields without an input stay",
        ),
        pytest.param(
            "/admin/tenants/vision/change",
            {"quota": "gpu=16\ncpu=64", "domain": "vision.example.org"},
            TENANTS,
            "vision",
            TENANT
            | {"quota": {"requests.nvidia.com/gpu": "16", "cpu": "64"}}
            | {"ingress": {"domain": "vision.example.org"}},
            id="settings of a tenant",
        ),
    ],
)
async def test_a_form_sets_the_fields_that_were_changed(people, path, changes, kind, name, spec):
    sent = await people.send(path, **changes)
    assert sent.status == 303, sent.page.texts(".wrong")
    assert (await people.api.get(kind, name))["spec"] == spec
    await people.site.service.audit.flush()
    assert [row.person for row in await people.site.service.sessions.do(lambda store: store.audit())] == ["clio"]


async def test_a_form_that_changes_nothing_writes_nothing(people):
    for path in ("/admin/budgets/month/change", "/admin/idle/gpus/change", "/admin/tenants/vision/change"):
        assert (await people.send(path)).status == 303
    assert [
        call for call in people.api.calls if call.verb == "patch" and call.resource.group == "moorage.dev"
    ] == []


@pytest.mark.parametrize(
    ("path", "changes", "field", "problem"),
    [
        ("/admin/budgets/month/change", {"gpuHours": "much"}, "gpuHours", "must be a number above 0"),
        ("/admin/budgets/month/change", {"money": "5"}, "money", "Fill in one of these two fields"),
        ("/admin/budgets/month/change", {"tenants": ""}, "tenants", "Fill in one of these two fields"),
        ("/admin/budgets/month/change", {"timeZone": "Tokyo"}, "timeZone", "Tokyo"),
        ("/admin/budgets/month/change", {"warnAt": "80 %"}, "warnAt", "Use whole numbers"),
        ("/admin/budgets/month/change", {"notify": "a@example.org"}, "notify", "mailto:ADDRESS"),
        ("/admin/new-budget", {"name": "big", "gpuHours": "x"}, "gpuHours", "'x' must be a number above 0"),
        ("/admin/new-budget", {"name": "big", "gpuHours": "x"}, "tenants", "Fill in one of these two fields"),
        ("/admin/new-budget", {"name": "month", "users": "ada", "money": "5"}, "name", "another Budget has it"),
        ("/admin/new-budget", {"name": "Big", "users": "ada", "money": "5"}, "name", "Invalid name 'Big'"),
        ("/admin/new-idle-policy", {"name": "new"}, "warnAfter", "This field needs a value"),
        ("/admin/idle/gpus/change", {"warnAfter": "soon"}, "warnAfter", "Invalid warnAfter 'soon'"),
        ("/admin/idle/gpus/change", {"remindAfter": "3h", "suspendAfter": "2h"}, "remindAfter", "suspendAfter"),
        ("/admin/idle/gpus/change", {"work": "runs"}, "work", "use workspace, run, map, workflow"),
        ("/admin/idle/gpus/change", {"quietHours": "at night"}, "quietHours", "START-END"),
        ("/admin/tenants/vision/change", {"quota": "gups=2"}, "quota", "did you mean gpus?"),
        ("/admin/tenants/vision/change", {"quota": "memory=400m"}, "quota", "memory=400m"),
        ("/admin/tenants/vision/change", {"cpuNodes": "team"}, "cpuNodes", "LABEL=VALUE"),
    ],
)
async def test_a_refusal_is_at_its_field_and_the_typed_values_stay(people, path, changes, field, problem):
    refused = await people.send(path, **changes)
    assert refused.status == (409 if "has it" in problem else 422)
    assert problem in refused.page.problem_at(field)
    typed = refused.page.form(path)
    assert {name: typed[name].strip() for name in changes} == changes


async def test_a_change_by_another_administrator_is_not_overwritten(people):
    """The CLI reads and writes at once; a form may be open for an hour."""
    path = "/admin/budgets/month/change"
    form = (await people.ask("clio", path)).page.form(path)
    people.api.put(BUDGETS, {"metadata": {"name": "month", "generation": 4}, "spec": BUDGET | {"gpuHours": "900"}})
    refused = await people.ask("clio", path, form | {"gpuHours": "600"})
    assert (refused.status, (await people.api.get(BUDGETS, "month"))["spec"]["gpuHours"]) == (409, "900")
    assert "was changed while the form was open" in refused.page.note
    assert refused.page.form(path)["gpuHours"] == "900"
    assert (await people.send(path, gpuHours="600")).status == 303


async def test_a_deleted_object_is_not_created_again_by_an_open_form(people):
    path = "/admin/budgets/month/change"
    form = (await people.ask("clio", path)).page.form(path)
    people.api.remove(BUDGETS, "month")
    assert (await people.ask("clio", path, form | {"gpuHours": "600"})).status == 404


@pytest.mark.parametrize("path", ["/admin/budgets/month", "/admin/idle/gpus"])
async def test_a_page_asks_before_it_deletes(people, path):
    kind, name = (BUDGETS, "month") if "budgets" in path else (IDLE_POLICIES, "gpus")
    asked = await people.ask("clio", f"{path}/delete")
    assert asked.page.buttons("main") == ["Delete"]
    assert (await people.ask("clio", f"{path}/delete", {})).status == 303
    assert name not in [obj["metadata"]["name"] for obj in (await people.api.list(kind)).items]


@pytest.mark.parametrize("who", ["ada", "mia"])
async def test_members_see_the_limits_of_their_team_and_whom_to_ask(people, who):
    shown = (await people.ask(who, "/admin/tenants/vision")).page
    assert ("month", "/admin/budgets/month") in shown.links("main")
    asks = shown.texts(".more")
    assert "Administrators of the cluster set the quota, budgets and idle rules: ask one for a change." in asks
    assert ("Admins of the team add and remove people: ask ada." in asks) == (who == "mia")
    for path in ("/admin/budgets", "/admin/budgets/month"):
        page = (await people.ask(who, path)).page
        assert page.buttons("main") in ([], ["Search"])
        assert not [href for _, href in page.links("main") if "change" in href or "new-" in href]
    for path in ("/admin/budgets/month/change", "/admin/idle/gpus/delete", "/admin/tenants/vision/change"):
        assert (await people.ask(who, path)).status == 403
    names = [name for name, _ in shown.links(".nav.admin")]
    assert names == ["Tenants", "Budgets"]


async def test_a_budget_of_others_is_not_shown(people):
    people.api.put(BUDGETS, {"metadata": {"name": "others"}, "spec": BUDGET | {"tenants": ["audio"]}})
    assert (await people.ask("mia", "/admin/budgets/others")).status == 404
    rows = (await people.ask("mia", "/admin/budgets")).page.rows("Budgets, and the largest use of each")
    assert [(row["Budget"], row["Limit"], row["When used up"]) for row in rows] == [
        ("month", "500 GPU-hours in a month", "new work waits behind others")
    ]
