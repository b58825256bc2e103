"""Who gets in, and what every answer looks like."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from starlette.routing import Mount, Route, WebSocketRoute

from moorage.server.identity.auth import WAY_IN, Auth, same
from moorage.server.identity.pagesessions import TOUCH_SECONDS, PageSessions
from moorage.server.identity.people import People
from moorage.server.identity.sessions import Sessions
from moorage.server.problems import problem_of
from moorage.server.service import ServerService
from moorage_kube.databasefile import read_mark
from moorage_kube.errors import ServerError
from moorage_kube.testing.clock import FakeClock
from moorage_local.testing.fakeapi import FakeApi

OPEN = {"/healthz", "/readyz"}
PAGES = (
    "/workspaces/",
    "/jobs/",
    "/volumes/",
    "/datasets/",
    "/maps/",
    "/admin/",
)  # which say by a page what they cannot do
FILLED = {
    "{namespace}": "lab",
    "{name}": "none",
    "{run}": "none",
    "{item}": "0",
    "{limit}": "none",
    "{version:float}": "1.45",
}


def every_route(site):
    """(path, methods) of all routes, their parameters filled in with what does not exist."""
    found = []
    for route in site.service.app.routes:
        if isinstance(route, Route):
            path = route.path
            for mark, value in FILLED.items():
                path = path.replace(mark, value)
            found.append((path, sorted(route.methods or ())))
        elif not isinstance(route, WebSocketRoute):
            assert isinstance(route, Mount)
            found.append((f"{route.path}/none.css", ["GET", "HEAD"]))
    return found


def assert_is_problem(answer, status=None):
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json) <= {"code", "message", "hint", "field"}
    assert answer.json["code"]
    assert answer.json["message"]
    assert all(isinstance(value, str) for value in answer.json.values())
    if status is not None:
        assert answer.status == status


@pytest.mark.anyio
async def test_every_route_but_health_metrics_and_files_asks_for_a_token(site):
    async with site.running():
        for path, methods in every_route(site):
            for method in methods:
                for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": "moorage_session=wrong"}):
                    answer = await site.ask(path, method=method, token=False, headers=headers)
                    if path in OPEN:
                        assert answer.status == 200, path
                    elif path.startswith("/static/"):
                        assert answer.status == 404, path
                    elif path in WAY_IN:
                        assert answer.status in (200, 303, 400, 401, 403, 404, 415), path
                    else:
                        assert_is_problem(answer, 401)


@pytest.mark.anyio
async def test_metrics_name_people_to_those_alone_who_may_get_them(site):
    site.node()
    site.run(node="n1")
    prometheus = {"authorization": "Bearer kube-token"}
    async with site.running():
        for headers in ({}, {"authorization": "Bearer wrong"}):
            stranger = await site.ask("/metrics", token=False, headers=headers)
            assert_is_problem(stranger, 401)
        refused = await site.ask("/metrics", token=False, headers=prometheus)
        assert_is_problem(refused, 403)
        assert "ada" not in stranger.text
        site.api.readers.add(("ada", "/metrics"))
        site.clock.advance(61)
        answer = await site.ask("/metrics", token=False, headers=prometheus)
        assert 'moorage_gpus_held{user="ada"} 1.0' in answer.text


@pytest.mark.anyio
async def test_every_error_has_the_one_shape(site):
    async with site.running():
        for path, methods in every_route(site):
            wrong = await site.ask(path, method="TRACE")
            if path in WAY_IN:
                continue
            assert_is_problem(wrong, 401 if path.endswith("/checkpoint") and wrong.status == 401 else 405)
            longer = path.rstrip("/") + "/more/more/more/more"
            is_name = path.startswith("/v") and ("/images/" in longer or "/plugins/" in longer)  # has slashes
            assert_is_problem(await site.ask(longer), 405 if is_name else 404)
            assert_is_problem(await site.ask(path, host="evil.example"), 400) if path not in OPEN else None
            if path == "/static/none.css" or "none" in path:
                answer = await site.ask(path, method=methods[0])
                if path.startswith(PAGES) and answer.headers["content-type"].startswith("text/html"):
                    assert answer.status >= 400, path
                    assert len(answer.page.all('[role="alert"]')) == 1, path
                else:
                    assert_is_problem(answer)
        assert_is_problem(await site.ask("/nowhere"), 404)


@pytest.mark.anyio
async def test_before_the_cluster_is_read_the_server_says_so(site):
    paths = ("/readyz", "/api/v1/gpus", "/api/v1/jobs", "/", "/metrics")
    for answer in await asyncio.gather(*(site.ask(path) for path in paths)):  # each takes SYNC_WAIT_SECONDS
        assert_is_problem(answer, 503)
        assert answer.json["code"] == "starting"
    assert (await site.ask("/healthz")).status == 200


@pytest.mark.anyio
async def test_what_nobody_foresaw_is_no_more_than_an_internal_error(site, monkeypatch):
    async with site.running():
        monkeypatch.setattr(site.service.cluster, "gpus", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):  # Starlette answers, then hands it to the ASGI server
            await site.ask("/api/v1/gpus")
    problem = problem_of(ZeroDivisionError("secret"))
    assert (problem.status, problem.code) == (500, "internal_error")
    assert "secret" not in problem.message


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8080", True),
        ("localhost", True),
        ("LOCALHOST:1", True),
        ("[::1]:8080", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("localhost.evil.example:8080", False),
        *(
            (odd, False)
            for odd in (
                "localhost.",
                "ada@localhost",
                "localhost:",
                "localhost:0",
                "localhost:65536",
                " localhost",
                "[::1]x",
                "[::1",
                "localhost:80:80",
                "localhost@evil.example",
            )
        ),
    ],
)
async def test_only_loopback_names_are_answered_to(site, host, allowed):
    async with site.running():
        assert (await site.ask("/api/v1/gpus", host=host)).status == (200 if allowed else 400)
        assert (await site.ask("/metrics", host=host)).status == (200 if allowed else 400)
        assert (await site.ask("/healthz", host=host)).status == 200  # kubelets probe by address


@pytest.mark.anyio
async def test_the_token_in_the_address_becomes_a_cookie_and_leaves_the_address(site):
    async with site.running():
        answer = await site.ask(f"/?a=1&token={site.token}&b=2", token=False)
        assert (answer.status, answer.headers["location"]) == (303, "/?a=1&b=2")
        cookie = answer.headers["set-cookie"]
        assert "httponly" in cookie.lower()
        assert "samesite=strict" in cookie.lower()
        assert site.token not in cookie
        value = cookie.split(";")[0]
        page = await site.ask("/", token=False, headers={"cookie": f"theme=x; {value}"})
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert (await site.ask("/?token=wrong")).status == 401
        assert (await site.ask(f"/api/v1/gpus?token={site.token}", token=False)).status == 401


@pytest.mark.anyio
async def test_the_pages_cookie_is_good_for_nothing_after_the_logout_or_half_a_day(site):
    same_origin = {"origin": "http://127.0.0.1:8080", "sec-fetch-site": "same-origin"}

    async def come_in():
        answer = await site.ask(f"/?token={site.token}", token=False)
        return {"cookie": answer.cookies[0].partition(";")[0]}

    async def is_in(cookie):
        return (await site.ask("/api/v1/gpus", headers=cookie, token=False)).status == 200

    async with site.running():
        first, second = await come_in(), await come_in()
        assert first != second
        assert await is_in(first)
        out = await site.ask("/logout", method="POST", headers=first | same_origin, token=False)
        assert out.status == 303
        assert not await is_in(first)  # whoever else has a copy of it
        assert await is_in(second)
        site.clock.advance(11 * 3600)
        assert await is_in(second)
        site.clock.advance(12 * 3600 + 61)
        assert not await is_in(second)
        third = await come_in()
        for _ in range(7 * 3):
            assert await is_in(third)
            site.clock.advance(8 * 3600 + 1)
        assert not await is_in(third)  # a week is the most, however busy
        other = ServerService(site.api, usage_db=site.folder / "usage.db", page_token="another", clock=site.clock)
        fourth = (await come_in())["cookie"].partition("=")[2]
        assert not await other.auth.page_sessions.holds(fourth)
        other.usage.close()
        other.sessions.close()


def written(folder):
    """How many transactions people.db has committed."""
    return read_mark(folder / "people.db").count


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "method", "cookie", "body", "status"),
    [
        pytest.param("/api/v1/gpus", "GET", "moorage_session", b"", 401, id="a page's cookie"),
        pytest.param("/logout", "POST", "moorage_session", b"", 303, id="its logout"),
        pytest.param("/api/v1/gpus", "GET", "moorage_login", b"", 401, id="a session's cookie"),
        pytest.param("/login/callback?state=x&code=x", "GET", "moorage_flow", b"", 400, id="a way back"),
        pytest.param(
            "/api/v1/login/exchange", "POST", "", b'{"code": "made-up", "verifier": "x"}', 400, id="a code"
        ),
    ],
)
async def test_what_a_stranger_makes_up_is_looked_up_and_never_written(site, path, method, cookie, body, status):
    headers = {"origin": "http://127.0.0.1:8080", "sec-fetch-site": "same-origin"}
    if body:
        headers["content-type"] = "application/json"
    async with site.running():
        await site.ask(f"/?token={site.token}", token=False)
        before = written(site.folder)
        for number in range(3):
            given = {"cookie": f"{cookie}=mrs_made-up-{number}"} if cookie else {}
            answer = await site.ask(path, method=method, headers=headers | given, body=body, token=False)
            assert answer.status == status
        assert written(site.folder) == before


@pytest.mark.anyio
async def test_the_use_of_a_pages_session_is_written_once_a_minute_whoever_asks(tmp_path):
    sessions, clock = Sessions(tmp_path / "people.db"), FakeClock()
    value = await PageSessions(sessions, "token", clock=clock).open()
    before = written(tmp_path)
    for _ in range(3):
        assert await PageSessions(sessions, "token", clock=clock).holds(value)
    assert written(tmp_path) == before
    clock.advance(TOUCH_SECONDS)
    for _ in range(3):
        assert await PageSessions(sessions, "token", clock=clock).holds(value)
    assert written(tmp_path) == before + 1
    sessions.close()


class SlowSessions(Sessions):
    """Gives each answer when it is told to."""

    def __init__(self, where):
        super().__init__(where)
        self.answers, self.go_on, self.all_looked = 0, asyncio.Event(), asyncio.Event()

    async def do(self, work):
        answer = await super().do(work)
        self.answers += 1
        if self.answers == 2:
            self.all_looked.set()
        await self.go_on.wait()
        return answer


@pytest.mark.anyio
async def test_a_look_under_way_at_the_logout_brings_no_session_back(tmp_path):
    sessions = SlowSessions(tmp_path / "people.db")
    sessions.go_on.set()
    pages = PageSessions(sessions, "token", clock=FakeClock())
    value = await pages.open()
    sessions.go_on.clear()
    sessions.answers = 0
    sessions.all_looked.clear()
    tasks = [asyncio.create_task(work) for work in (pages.holds(value), pages.end(value))]
    await sessions.all_looked.wait()
    sessions.go_on.set()
    assert (await asyncio.gather(*tasks))[0]  # it was open when it was looked at
    assert not await pages.holds(value)
    sessions.close()


@pytest.mark.anyio
async def test_a_path_that_could_be_read_in_two_ways_is_refused(site):
    odd = (
        "//evil.example/",
        "/\\evil.example",
        "//api/v1/jobs",
        "/api/v1/../../metrics",
        "/./login",
        "/static/..",
    )
    async with site.running():
        for path in odd:
            for asked in (f"{path}?token={site.token}", path):
                answer = await site.ask(asked, token=False)
                assert (answer.status, answer.json["code"]) == (400, "odd_path")


@pytest.mark.anyio
async def test_a_browser_without_a_token_is_told_where_to_find_it(site):
    answer = await site.ask("/", token=False, headers={"accept": "text/html,*/*"})
    hint = "Open the address that moor up or moor status printed. It ends in ?token=…"
    assert (answer.status, answer.page.texts("main p")[1]) == (401, hint)


@pytest.mark.anyio
async def test_every_answer_forbids_foreign_scripts_and_frames(site):
    async with site.running():
        for path in ("/", "/api/v1/gpus", "/static/moorage.css", "/nowhere", "/healthz"):
            answer = await site.ask(path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "same-origin"
        page = (await site.ask("/")).page
        assert page.all("style") == []
        assert [
            each for each in page if any(name == "style" or name[:2] == "on" for name in each.attributes)
        ] == []
        assert page.all("script") == page.all("script[src]")


@pytest.mark.anyio
async def test_a_kubernetes_token_is_reviewed_once_a_minute(site):
    async with site.running():
        headers = {"authorization": "bearer kube-token"}

        def reviews():
            return sum(call.resource == "tokenreviews" for call in site.api.calls)

        for _ in range(3):
            assert (await site.ask("/api/v1/gpus", token=False, headers=headers)).status == 200
        assert reviews() == 1
        site.clock.advance(61)
        assert (await site.ask("/api/v1/gpus", token=False, headers=headers)).status == 200
        assert reviews() == 2
        site.api.users.clear()
        site.clock.advance(61)
        assert (await site.ask("/api/v1/gpus", token=False, headers=headers)).status == 401
        site.api.users["kube-token"] = "ada"
        assert (await site.ask("/api/v1/gpus", token=False, headers=headers)).status == 401
        site.clock.advance(6)
        assert (await site.ask("/api/v1/gpus", token=False, headers=headers)).status == 200


@pytest.mark.anyio
async def test_a_review_that_cannot_be_had_is_no_no(site):
    async with site.running():
        site.api.failing = ServerError("etcd is away")
        answer = await site.ask("/api/v1/gpus", token=False, headers={"authorization": "Bearer kube-token"})
        assert_is_problem(answer, 503)
        site.api.failing = None
        assert (await site.ask("/api/v1/gpus")).status == 200


class NoSessions:
    """Nobody is logged in, neither as a person nor with the page's cookie."""

    async def session_of(self, _token):
        return None

    async def holds(self, _value):
        return False


def an_auth(api, page_token, **more):
    sessions = NoSessions()
    return Auth(api, page_token=page_token, people=People(api), logins=sessions, page_sessions=sessions, **more)


@pytest.mark.anyio
async def test_reviews_kept_are_bounded():
    auth = an_auth(FakeApi(), "x", reviews_kept=3)
    for at in range(10):
        assert await auth.review(f"t{at}") is None
    assert len(auth._reviews) == 3


@pytest.mark.anyio
async def test_without_a_page_token_no_empty_secret_opens_the_door():
    auth = an_auth(FakeApi(users={"": "nobody"}), "")
    for headers in (
        {},
        {"authorization": "Bearer "},
        {"authorization": "Bearer"},
        {"cookie": "moorage_session="},
        {"cookie": "moorage_session=" + hashlib.sha256(b"").hexdigest()},
        {"cookie": "\x00;;=;moorage_session"},
    ):
        assert await auth.identify(headers) is None
    assert not same("", "")
    assert not same("a", "")
    assert same("é", "é")


@pytest.mark.anyio
async def test_who_may_act_as_another_is_taken_for_that_user(site):
    site.node(gpus=1)
    site.run("held", owner="bob", pod=False)
    sent = {"authorization": "Bearer kube-token", "impersonate-user": "bob"}
    async with site.running():
        assert (await site.ask("/api/v1/explain/lab/held", headers=sent, token=False)).status == 401
        site.clock.advance(3600)
        site.api.readers |= {("ada", "bob"), ("bob", "lab")}
        answer = await site.ask("/api/v1/explain/lab/held", headers=sent, token=False)
        assert (answer.status, answer.json["public"]) == (200, False)
        page = {"impersonate-user": "bob"}
        assert (await site.ask("/api/v1/explain/lab/held", headers=page)).status == 401
