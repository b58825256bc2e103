"""Which controls a page shows, by what the API server answers; and how often it is asked."""

from __future__ import annotations

import pytest

from moorage.server.identity.auth import PAGE, User
from moorage.server.pages.rights import ADMIN_PAGES, CONTROLS, Allowed, Right, allowed, decide, to
from moorage_kube.errors import ApiError
from moorage_kube.resources import JOBS, NODES, PODS

CANCEL, DELETE, EVICT = to("patch", JOBS), to("delete", JOBS), to("create", PODS, subresource="eviction")
ADA = User("ada", account="ada")


@pytest.mark.parametrize(
    ("controls", "answers", "want"),
    [
        (("cancel run",), {(CANCEL, ""): True}, {("cancel run", ""), ("cancel run", "team")}),
        (("cancel run",), {(CANCEL, ""): False, (CANCEL, "team"): True}, {("cancel run", "team")}),
        (("cancel run",), {}, set()),
        (("cancel run", "delete run"), {(DELETE, "team"): True}, {("delete run", "team")}),
        (("drain node",), {(to("patch", NODES), ""): True, (EVICT, ""): False}, set()),
        (("drain node",), {(to("patch", NODES), ""): True, (EVICT, "team"): True}, {("drain node", "team")}),
    ],
)
def test_a_control_is_shown_where_each_of_its_rights_is_given(controls, answers, want):
    assert decide(controls, ["team"], answers) == Allowed(frozenset(want))


def test_rights_in_a_fixed_namespace_are_looked_up_there():
    fixed = Right("list", "serviceaccounts", namespace="moorage-users")
    assert CONTROLS["see users"] == (fixed,)
    assert decide(["see users"], [], {(fixed, "moorage-users"): True}).may("see users")
    assert not decide(["see users"], [], {(fixed, ""): False}).may("see users")


def test_every_admin_page_has_a_control():
    assert {page.control for page in ADMIN_PAGES} <= CONTROLS.keys()


class Asked:
    """Stands for who asks the API server; `given`: (verb, resource, subresource, namespace)."""

    def __init__(self, given=(), fails=False):
        self.given, self.fails, self.asked = set(given), fails, []

    async def may(self, user, verb, resource, *, group, namespace, subresource):
        if self.fails:
            raise ApiError("no answer")
        self.asked.append((verb, resource, subresource, namespace))
        return self.asked[-1] in self.given


@pytest.mark.anyio
async def test_the_api_server_is_asked_once_for_all_namespaces_and_then_for_each_shown():
    everywhere = Asked([("patch", "jobs", "", "")])
    got = await allowed(everywhere, ADA, ["cancel run"], ["a", "b", "a"])
    assert (got.may("cancel run", "b"), everywhere.asked) == (True, [("patch", "jobs", "", "")])
    team = Asked([("patch", "jobs", "", "b")])
    got = await allowed(team, ADA, ["cancel run"], ["a", "b", "a"])
    assert (got.may("cancel run", "a"), got.may("cancel run", "b"), len(team.asked)) == (False, True, 3)


@pytest.mark.anyio
async def test_who_only_looks_and_who_cannot_be_asked_about_see_no_control():
    asked = Asked()
    assert (await allowed(asked, PAGE, CONTROLS, ["a"]), asked.asked) == (Allowed(), [])
    assert await allowed(Asked(fails=True), ADA, CONTROLS, ["a"]) == Allowed()


@pytest.mark.anyio
async def test_who_may_not_press_a_button_gets_no_page_that_asks_before_it(site):
    headers = {"authorization": "Bearer kube-token", "accept": "text/html"}
    site.api.with_token = lambda *_: site.api
    async with site.running():
        site.run("train", namespace="team")
        await site.until(lambda: site.service.cluster.jobs_of_run("team", "train"))
        for path, what in (
            ("/jobs/team/train/cancel", "cancel runs in namespace team"),
            ("/volumes/team/data/resize", "resize volumes in namespace team"),
            ("/maps/team/squares/delete", "delete maps in namespace team"),
            ("/admin/nodes/n1/drain", "drain nodes"),
        ):
            page = await site.ask(path, headers=headers, token=False)
            assert (page.status, page.page.note) == (403, f"You may not {what}.")
