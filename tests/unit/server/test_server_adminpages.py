"""The pages of administrators: they act as their user, and show only what that user may do."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest

from moorage.apimachinery.resources import NAMESPACES, SECRETS, SERVICEACCOUNTS
from moorage.model.people import PEOPLE_NAMESPACE

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
