"""What is refused is a page in a browser, a note where htmx asks for a part of a page, and JSON for programs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from starlette.requests import Request

from moorage.decide.rates import Rate
from moorage.server.identity.auth import SECURITY_HEADERS
from moorage.server.pages.refusals import Refusal, Refuse, refusal_of, sentence, wants_page
from moorage.server.problems import Problem
from moorage.server.service import ServerService
from tests.pageaddresses import PAGES

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
HTMX = {"accept": "*/*", "hx-request": "true"}
SIGN_IN, AGAIN, HOME = ("/login", "Sign in with an account"), ("/", "Try again"), ("/", "All GPUs")


RBAC = (
    'serviceaccounts is forbidden: User "system:serviceaccount:moorage-users:mia" cannot list resource'
    ' "serviceaccounts" in API group "" in the namespace "moorage-users"'
)


@pytest.mark.parametrize(
    ("problem", "path", "is_known", "has_login", "want"),
    [
        pytest.param(
            Problem(404, "not_found", "run team/x not found", "use `moor jobs`"), "/jobs/team/x", True, False,
            Refusal(title="There is nothing here", message="Run team/x not found.", hint="Use moor jobs.",
                    links=(("/jobs", "All jobs"), HOME)), id="back to the list it is of",
        ),
        pytest.param(
            Problem(403, "forbidden", RBAC, "ask one of them"), "/admin/users/mia", True, True,
            Refusal(title="You may not do this", message="You may not list user accounts.",
                    hint="Ask one of them.", links=(HOME,)), id="a list of administrators refuses them too",
        ),
        pytest.param(
            Problem(418, "teapot", "no coffee"), "/what", True, True,
            Refusal(title="This did not work", message="No coffee.", hint="", links=(HOME,)), id="no list: home",
        ),
        pytest.param(
            Problem(401, "unauthorized", "no valid token", "send a header"), "/jobs", False, False,
            Refusal(title="This page needs its token", message="No valid token.",
                    hint="Open the address that moor up or moor status printed. It ends in ?token=…",
                    links=(SIGN_IN, AGAIN)), id="no login page: the printed address",
        ),
        pytest.param(
            Problem(401, "unauthorized", "no valid token", "send a header"), "/jobs", False, True,
            Refusal(title="You are not signed in", message="No valid token.", hint="", links=(SIGN_IN, AGAIN)),
            id="a login page",
        ),
        pytest.param(
            Problem(429, "too_many_requests", "you ask too often", "ask again in 2 s"), "/jobs", False, True,
            Refusal(title="Too many requests", message="You ask too often.", hint="Ask again in 2 s.",
                    links=(SIGN_IN, AGAIN)), id="a stranger gets no link to a list",
        ),
    ],
)  # fmt: skip
def test_a_refusal_says_what_failed_and_where_to_go(problem, path, is_known, has_login, want):
    assert refusal_of(problem, path, is_known=is_known, has_login=has_login) == want


def test_a_page_below_a_list_leads_back_to_it():
    addresses = {page.partition("?")[0] for page in PAGES}
    for page in addresses:
        is_below = any(page.startswith(f"{place}/") for place in addresses - {"/"})
        back, _ = refusal_of(Problem(404, "not_found", "it is not there"), page, is_known=True).links[0]
        assert page.startswith(f"{back}/") or not is_below, page
        assert back in addresses, page


@pytest.mark.parametrize(
    ("text", "want"),
    [("", ""), ("`moor jobs` lists them", "Moor jobs lists them."), ("Why?", "Why?"), ("a.", "A.")],
)
def test_a_message_becomes_a_sentence(text, want):
    assert sentence(text) == want


@pytest.mark.parametrize(
    ("headers", "path", "want"),
    [
        (BROWSER, "/jobs", True), (HTMX, "/jobs/live", True), ({"accept": "*/*"}, "/", False), ({}, "/", False),
        (BROWSER, "/api/v1/jobs", False), (HTMX, "/api/v1/jobs", False), (BROWSER, "/apis", True),
    ],
)  # fmt: skip
def test_pages_are_for_browsers_and_never_for_the_api(headers, path, want):
    assert wants_page(headers, path) is want


def is_a_page(answer):
    careful = SECURITY_HEADERS.items() <= answer.headers.items()
    return answer.headers["content-type"].startswith("text/html") and answer.text.count("<h1") == 1 and careful


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "method", "status", "text"),
    [
        ("/nowhere", "GET", 404, "There is nothing here"),
        ("/jobs/team/none", "GET", 404, "All jobs"),
        ("/maps/team/none", "GET", 404, "All maps"),
        ("/explain/team/none", "GET", 404, "All jobs"),
        ("/volumes", "GET", 403, "You may not do this"),
        ("/jobs", "DELETE", 405, "This page takes no such request"),
        ("//jobs", "GET", 400, "Ambiguous path '//jobs'."),
        ("/login/cli", "GET", 400, "Invalid challenge: use 43 characters of base64url, as S256 gives."),
        ("/static/none.css", "GET", 404, "There is nothing here"),
    ],
)
async def test_every_refusal_is_a_page_in_a_browser_and_json_for_a_program(site, path, method, status, text):
    async with site.running():
        page = await site.ask(path, method=method, headers=BROWSER)
        assert (page.status, is_a_page(page)) == (status, True), page.text
        assert text in (page.page.heading, page.page.note, *page.page.buttons())
        program = await site.ask(path, method=method)
        assert (program.status, {"code", "message"} <= program.json.keys()) == (status, True)
        note = await site.ask(path, method=method, headers=HTMX)
        assert (note.status, note.headers["hx-retarget"], note.headers["hx-reswap"]) == (
            status,
            "#toast",
            "innerHTML",
        )
        assert [each.attributes for each in note.page.all("div")][:1] == [
            {"class": "note wrong toast", "role": "alert"}
        ]


@pytest.mark.anyio
async def test_who_is_signed_out_gets_a_page_and_htmx_a_note(site):
    async with site.running():
        page = await site.ask("/jobs", headers=BROWSER, token=False)
        assert (page.status, is_a_page(page), page.page.heading) == (401, True, "This page needs its token")
        assert page.page.all("nav") == []
        note = await site.ask("/jobs/live", headers=HTMX, token=False)
        assert (note.status, "needs its token" in note.text, "<html" in note.text) == (401, True, False)
        assert (await site.ask("/api/v1/jobs", headers=BROWSER, token=False)).json["code"] == "unauthorized"


@pytest.mark.anyio
async def test_who_asks_too_often_gets_a_page_that_says_when_to_ask_again(site):
    site.service = ServerService(
        site.api, usage_db=site.folder / "slow.db", page_token=site.token, clock=site.clock,
        rate=Rate(per_second=0.5, burst=1),
    )  # fmt: skip
    async with site.running():
        assert (await site.ask("/jobs", headers=BROWSER)).status == 200
        page = await site.ask("/jobs", headers=BROWSER)
        assert (page.status, is_a_page(page), page.headers["retry-after"]) == (429, True, "2")
        assert page.page.texts("main p")[1] == "Ask again in 2 s; the header Retry-After says so too."


@pytest.mark.anyio
async def test_what_nobody_foresaw_is_a_careful_page_that_says_nothing_of_its_cause():
    headers = [(name.encode(), value.encode()) for name, value in BROWSER.items()]
    scope = {"type": "http", "method": "GET", "path": "/jobs", "headers": headers, "state": {"user": None}}
    answer = await Refuse(SimpleNamespace(has_login_page=True)).on_error(Request(scope), ValueError("a secret"))
    text = bytes(answer.body).decode()
    assert (answer.status_code, "The server failed" in text, "secret" in text) == (500, True, False)
    assert SECURITY_HEADERS.items() <= dict(answer.headers).items()
