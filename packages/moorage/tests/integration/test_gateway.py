"""The gateway to workspaces, over real sockets: who gets in, what the application sees, what is refused."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import socket
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest
from aiohttp import web
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from moorage.cli.session import Session
from moorage.cli.tunnel import tunnel_to
from moorage.client.connection import Connection, at_url
from moorage.model.people import PEOPLE_NAMESPACE, account_name, account_user
from moorage.model.workspace import WORKSPACES, make_token
from moorage.server.gateway.forward import passed_on, returned
from moorage.server.gateway.gateway import (
    Gateway,
    GatewayLayer,
    Ticket,
    clean_path,
    foreign_origin,
    host_of,
    seal,
    unseal,
)
from moorage.server.gateway.routes import open_workspace
from moorage.server.gateway.tunnel import websocket_route
from moorage.server.identity.audit import AuditLog
from moorage.server.identity.auth import Auth, User
from moorage.server.identity.logins import Logins
from moorage.server.identity.pagesessions import PageSessions
from moorage.server.identity.people import People
from moorage.server.identity.sessions import Sessions
from moorage.server.problems import Problem, on_error
from moorage_kube.resources import CONFIGMAPS, ENDPOINTSLICES, SECRETS, SERVICEACCOUNTS
from moorage_kube.serving import serve
from moorage_kube.testing.clock import FakeClock
from moorage_kube.testing.ports import dead_port
from moorage_kube.testing.waiting import soon, until
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio

KEY = b"k" * 32
HOST = "lab--team.apps.test"
ADA = User("ada", account=account_user("ada"))
HTML = {
    "Accept": "text/html",
    "Sec-Fetch-Dest": "document",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Site": "none",
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def a_workspace(name="lab", **spec):
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-of-{name}", "generation": 1},
        "spec": {"type": "jupyterlab", "running": True} | spec,
        "status": {"phase": "Running"},
    }


class App:
    """A workspace's application, which tells what it was asked."""

    def __init__(self):
        self.asked = []
        self.release = asyncio.Event()
        self.cut = asyncio.Event()
        routes = [
            web.get("/ws", self._socket),
            web.get("/stream", self._stream),
            web.route("*", "/{any:.*}", self._echo),
        ]
        self._app = web.Application(client_max_size=2**30)
        self._app.add_routes(routes)
        self._runner = web.AppRunner(self._app)

    async def start(self):
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return site._server.sockets[0].getsockname()[1]

    async def stop(self):
        self.release.set()
        await self._runner.cleanup()

    async def _echo(self, request):
        digest, size = hashlib.sha256(), 0
        async for chunk in request.content.iter_any():
            digest.update(chunk)
            size += len(chunk)
        told = {
            "method": request.method,
            "path": request.raw_path,
            "headers": [[name.lower(), value] for name, value in request.headers.items()],
            "size": size,
            "sha256": digest.hexdigest(),
        }
        self.asked.append(told)
        answer = web.json_response(told)
        answer.headers.add("Set-Cookie", "mine=1; Domain=apps.test; Path=/")
        answer.headers.add("Set-Cookie", "moorage_workspace=forged; Path=/")
        answer.headers.add("Set-Cookie", "__Host-moorage_workspace=forged; Path=/; Secure")
        return answer

    async def _stream(self, request):
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            while not self.release.is_set():
                await answer.write(b"tick\n")
                await asyncio.sleep(0)
        except (ConnectionError, asyncio.CancelledError):
            self.cut.set()
            raise
        return answer

    async def _socket(self, request):
        answer = web.WebSocketResponse(protocols=("v1.kernel",))
        await answer.prepare(request)
        async for message in answer:
            if message.type is aiohttp.WSMsgType.TEXT:
                if message.data == "bye":
                    await answer.close(code=4001)
                    break
                await answer.send_str(message.data[::-1])
            elif message.type is aiohttp.WSMsgType.BINARY:
                await answer.send_bytes(message.data)
        self.cut.set()
        return answer


class Site:
    def __init__(self, folder):
        self.api, self.clock, self.app = FakeApi(), FakeClock(), App()
        self.people, self.sessions = People(self.api), Sessions(folder / "people.db")
        self.auth = Auth(
            self.api,
            page_token="page",
            people=self.people,
            logins=Logins(self.api, self.people, self.sessions, clock=self.clock),
            page_sessions=PageSessions(self.sessions, "page", clock=self.clock),
            clock=self.clock,
        )
        self.gateway = self.make_gateway()
        self.api.readers |= {(ADA.account, "lab"), (ADA.account, "team")}

    def make_gateway(self):
        audit = AuditLog(self.sessions, days=1, clock=self.clock)
        return Gateway(
            self.api, self.auth, clock=self.clock, people=self.people, sessions=self.sessions, audit=audit
        )

    def furnish(self, app_port):
        account = {"metadata": {"name": account_name("ada"), "namespace": PEOPLE_NAMESPACE,
                                "annotations": {"moorage.dev/user": "ada"}}}  # fmt: skip
        self.api.put(SERVICEACCOUNTS, account)
        data = {"workspaceUrl": f"http://*.apps.test:{self.port}", "publicUrl": f"http://127.0.0.1:{self.port}"}
        self.api.put(CONFIGMAPS, {"metadata": {"name": "moorage", "namespace": "moorage-system"}, "data": data})
        key = {"key": base64.b64encode(KEY).decode()}
        self.api.put(
            SECRETS, {"metadata": {"name": "moorage-gateway", "namespace": "moorage-system"}, "data": key}
        )
        for name in ("lab", "other"):
            self.api.put(WORKSPACES, a_workspace(name))
            self.lead(name, app_port)
        self.app_port = app_port

    def lead(self, name, port, *, ready=True, target="Pod"):
        self.api.put(
            ENDPOINTSLICES,
            {
                "metadata": {
                    "name": f"ws-{name}-x",
                    "namespace": "team",
                    "labels": {"kubernetes.io/service-name": f"ws-{name}", "moorage.dev/workspace": name},
                },
                "addressType": "IPv4",
                "ports": [{"name": "http", "port": port}],
                "endpoints": [
                    {
                        "addresses": ["127.0.0.1"],
                        "conditions": {"ready": ready},
                        "targetRef": {"kind": target, "name": "x"},
                    }
                ],
            },
        )

    async def ask(self, path, *, host=HOST, method="GET", headers=None, **more):
        netloc = f"{host}:{self.port}"
        async with self.client.request(
            method,
            f"http://127.0.0.1:{self.port}{path}",
            headers={"Host": netloc} | (headers or {}),
            allow_redirects=False,
            **more,
        ) as answer:
            answer.body = await answer.read()
            return answer

    def cookie(self, *, host=HOST, uid="uid-of-lab", person="ada", seconds=3600, key=KEY):
        until = int(self.clock.now().timestamp()) + seconds
        ticket = Ticket(person=person, account=account_user(person), host=host, uid=uid, until=until)
        return {"Cookie": f"moorage_workspace={seal(key, ticket)}"}

    @property
    def origin(self):
        return f"http://{HOST}:{self.port}"


class Known:
    """The gate before the tunnels: `Bearer NAME` is the person of that name, a cookie is ada's."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] == "websocket":
            shown = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
            user = User(shown, account=account_user(shown)) if shown else replace(ADA, by_cookie=True)
            scope.setdefault("state", {}).update(user=user, address="192.0.2.7")
        await self.app(scope, receive, send)


@pytest.fixture
async def site(tmp_path):
    site = Site(tmp_path)
    app_port = await site.app.start()

    async def platform(request):
        request.state.user = ADA
        return await open_workspace(site.gateway, request)

    starlette = Starlette(
        routes=[
            Route("/open/{namespace}/{name}", platform),
            websocket_route(site.gateway, clock=site.clock),
            Route("/{any:path}", lambda _: PlainTextResponse("the platform")),
        ],
        middleware=[Middleware(GatewayLayer, gateway=site.gateway), Middleware(Known)],
        exception_handlers={Problem: on_error},
    )
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        sock.setblocking(False)
        site.port = sock.getsockname()[1]
        site.furnish(app_port)
        work = [asyncio.create_task(site.gateway.run()), asyncio.create_task(serve(starlette, sock))]
        async with aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        ) as site.client:
            await soon("the domain", lambda: site.gateway.platform.domain)
            try:
                yield site
            finally:
                await site.app.stop()
                for task in reversed(work):
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)
                site.sessions.close()


async def until_status(site, status):
    async def probe():
        return (await site.ask("/", headers=site.cookie())).status == status

    await until(f"status {status}", probe)


async def walk(site, path="/lab?x=1"):
    """As a browser does: to the workspace, to the platform, and back; the cookie in the end."""
    first = await site.ask(path, headers=HTML)
    assert first.status == 303
    state, proof = first.cookies["moorage_state"], first.cookies["moorage_enter"]
    assert (state["path"], proof["path"]) == ("/", "/.moorage/enter")
    assert proof["httponly"]
    assert state["httponly"]
    assert state["samesite"] == "lax"
    assert not state["domain"]
    where = urlsplit(first.headers["Location"])
    assert where.path == "/open/team/lab"
    second = await site.ask(f"{where.path}?{where.query}", host="127.0.0.1", headers={"Cookie": "x=y"})
    assert second.status == 303
    entry = urlsplit(second.headers["Location"])
    assert entry.netloc == f"{HOST}:{site.port}"
    return f"{entry.path}?{entry.query}", {"Cookie": f"moorage_state={state.value}; moorage_enter={proof.value}"}


async def test_a_person_is_sent_to_the_platform_and_comes_back_with_a_cookie_for_this_host_alone(site):
    entry, state = await walk(site)
    third = await site.ask(entry, headers=state)
    assert (third.status, third.headers["Location"]) == (303, "/lab?x=1")
    cookie = third.cookies["moorage_workspace"]
    assert cookie["httponly"]
    assert not cookie["domain"]
    answer = await site.ask("/lab?x=1", headers={"Cookie": f"moorage_workspace={cookie.value}"})
    assert answer.status == 200
    assert json.loads(answer.body)["path"] == "/lab?x=1"


async def test_a_code_is_good_once_soon_and_in_the_browser_that_asked(site):
    entry, state = await walk(site)
    assert (await site.ask(entry)).status == 403  # another browser; and now it is used up
    assert (await site.ask(entry, headers=state)).status == 403
    entry, state = await walk(site)
    assert (await site.ask(entry, host="other--team.apps.test", headers=state)).status == 403
    entry, state = await walk(site)
    site.clock.advance(31)
    assert (await site.ask(entry, headers=state)).status == 403


async def test_what_browsers_send_to_other_paths_of_the_host_does_not_let_anybody_in(site):
    entry, cookies = await walk(site)
    state, proof = cookies["Cookie"].split("; ")
    assert (await site.ask(entry, headers={"Cookie": state})).status == 403  # all that other paths see
    entry, _ = await walk(site)
    assert (await site.ask(entry, headers={"Cookie": proof})).status == 403
    entry, cookies = await walk(site)
    forged = f"moorage_state={'x' * 43}; moorage_enter={'0' * 64}"
    assert (await site.ask(entry, headers={"Cookie": forged})).status == 403
    entry, cookies = await walk(site)
    theirs = cookies["Cookie"].partition("; ")[0] + f"; {proof}"  # of another state
    assert (await site.ask(entry, headers={"Cookie": theirs})).status == 403


async def test_two_tabs_are_let_in_at_once(site):
    first, cookies = await walk(site)
    again = await site.ask("/b", headers=HTML | cookies)
    assert again.cookies["moorage_state"].value == cookies["Cookie"].partition("; ")[0].partition("=")[2]
    assert again.cookies["moorage_enter"].value == cookies["Cookie"].rpartition("=")[2]
    assert (await site.ask(first, headers=cookies)).status == 303


async def test_a_way_in_made_for_a_program_needs_no_state_and_is_good_once(site):
    url = urlsplit(await site.gateway.link(ADA, "team", "lab"))
    assert parse_qs(url.query)["path"] == ["/lab"]
    assert (await site.ask(f"{url.path}?{url.query}")).status == 303
    assert (await site.ask(f"{url.path}?{url.query}")).status == 403


async def test_who_may_not_open_it_learns_no_more_than_that_there_is_none(site):
    with pytest.raises(Problem) as refused:
        await site.gateway.link(User("bob", account=account_user("bob")), "team", "lab")
    assert refused.value.status == 404
    with pytest.raises(Problem) as missing:
        await site.gateway.link(ADA, "team", "none")
    assert missing.value.status == 404
    answer = await site.ask("/", headers=site.cookie(person="bob"))
    assert answer.status == 403


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"key": b"x" * 32}, id="signed by somebody else"),
        pytest.param({"host": "other--team.apps.test"}, id="of another host"),
        pytest.param({"uid": "uid-before"}, id="of a former workspace of this name"),
        pytest.param({"seconds": -1}, id="too old"),
    ],
)
async def test_a_cookie_that_is_not_of_this_host_and_time_is_none(site, change):
    answer = await site.ask("/api", headers=site.cookie(**change))
    assert answer.status == 401
    assert site.app.asked == []


async def test_a_right_that_is_taken_ends_the_way_within_a_minute(site):
    assert (await site.ask("/", headers=site.cookie())).status == 200
    site.api.readers.clear()
    site.clock.advance(61)
    assert (await site.ask("/", headers=site.cookie())).status == 403


async def test_a_person_who_is_put_out_is_out_within_a_minute_and_streams_end(site):
    async with site.client.get(
        f"http://127.0.0.1:{site.port}/stream", headers={"Host": f"{HOST}:{site.port}"} | site.cookie()
    ) as answer:
        assert await answer.content.readany()
        site.api.remove(SERVICEACCOUNTS, account_name("ada"), PEOPLE_NAMESPACE)
        await soon("the end of the connection", site.app.cut.is_set, tick=lambda: site.clock.advance(61))
    assert (await site.ask("/", headers=site.cookie())).status == 403


async def test_the_application_sees_its_own_token_and_none_of_the_platforms(site):
    cookie = site.cookie()["Cookie"]
    answer = await site.ask(
        "/x",
        headers={
            "Cookie": f"{cookie}; moorage_session=s; __Host-moorage_login=l; own=1",
            "Authorization": "Bearer platform-token",
            "X-Forwarded-For": "6.6.6.6",
            "X-Forwarded-Host": "evil.test",
            "X_Forwarded_Proto": "https",
            "Forwarded": "for=6.6.6.6",
            "Impersonate-User": "root",
            "Connection": "X-Secret, keep-alive",
            "X-Secret": "hop",
        },
    )
    told = json.loads(answer.body)
    found = {}
    for name, value in told["headers"]:
        found.setdefault(name, []).append(value)
    assert found["authorization"] == [f"token {make_token(KEY, 'uid-of-lab')}"]
    assert found["cookie"] == ["own=1"]
    assert found["x-forwarded-for"] == ["127.0.0.1"]
    assert found["x-forwarded-host"] == [f"{HOST}:{site.port}"]
    assert found["x-forwarded-proto"] == ["http"]
    assert found["host"] == [f"{HOST}:{site.port}"]
    assert not {"forwarded", "impersonate-user", "x-secret", "x_forwarded_proto"} & set(found)


async def test_the_application_sets_no_cookie_of_ours_and_none_for_its_neighbours(site):
    answer = await site.ask("/", headers=site.cookie())
    assert answer.headers.getall("Set-Cookie") == ["mine=1; Path=/"]
    assert "frame-ancestors 'self'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        pytest.param("POST", {"Origin": "http://evil--team.apps.test:1"}, 403, id="a neighbour's script posts"),
        pytest.param("POST", {}, 403, id="a change from nowhere"),
        pytest.param("POST", {"Origin": "ORIGIN"}, 200, id="its own page posts"),
        pytest.param(
            "GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403, id="a neighbour fetches"
        ),
        pytest.param("GET", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403, id="an image tag"),
        pytest.param(
            "GET",
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
            403,
            id="a frame",
        ),
        pytest.param(
            "GET",
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
            200,
            id="a link",
        ),
        pytest.param("GET", {"Sec-Fetch-Site": "same-origin"}, 200, id="its own page"),
        pytest.param("TRACE", {"Origin": "ORIGIN"}, 405, id="a method that echoes cookies"),
    ],
)
async def test_what_another_site_asks_in_a_persons_name_is_refused(site, method, headers, status):
    sent = {name: site.origin if value == "ORIGIN" else value for name, value in headers.items()}
    answer = await site.ask("/x", method=method, headers=sent | site.cookie())
    assert answer.status == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        pytest.param("LAB--TEAM.apps.test", 401, id="whatever the case"),
        pytest.param("lab--team.apps.test.", 200, id="with the root's dot it is another host to browsers"),
        pytest.param("none--team.apps.test", 404, id="no such workspace"),
        pytest.param("a.lab--team.apps.test", 404, id="below one"),
        pytest.param("apps.test", 200, id="the domain itself is the platform's"),
        pytest.param("lab--team.apps.test@evil.test", 200, id="no host at all is left to the platform's own gate"),
    ],
)
async def test_hosts(site, host, status):
    assert (await site.ask("/api", host=host)).status == status


@pytest.mark.parametrize("path", ["//.moorage/enter", "/x/../.moorage/x", "/.moorage%2fenter", "/%2emoorage/x"])
async def test_no_spelling_of_the_gateways_own_paths_reaches_the_application(site, path):
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    cookie = site.cookie()["Cookie"]
    head = f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode())
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 404")


async def test_a_request_that_comes_before_workspaces_are_read_waits_for_them(site):
    gateway, statuses = site.make_gateway(), []
    headers = {"host": f"{HOST}:{site.port}", "cookie": site.cookie()["Cookie"]}
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": "/", "raw_path": b"/",
        "query_string": b"", "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    body = iter([{"type": "http.request"}])

    async def receive():
        return next(body, None) or await asyncio.Event().wait()

    async def send(message):
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async with asyncio.TaskGroup() as tasks:
        work = [tasks.create_task(gateway.info.run())]
        await gateway.info.synced.wait()
        asking = tasks.create_task(gateway(scope, receive, send))
        await asyncio.wait({asking}, timeout=0)
        work.append(tasks.create_task(gateway.run()))
        await asking
        for task in work:
            task.cancel()
    assert statuses == [200]


async def test_two_hosts_are_no_host(site):
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(f"GET /x HTTP/1.1\r\nHost: {HOST}\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
    assert b"the platform" in await reader.read()
    writer.close()


async def test_a_header_cannot_be_broken_into_two(site):
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    cookie = site.cookie()["Cookie"]
    writer.write(
        f"GET /x HTTP/1.1\r\nHost: {HOST}\r\nCookie: {cookie}\r\nX-A: b\rX-Evil: 1\r\n"
        "Connection: close\r\n\r\n".encode()
    )
    assert b" 400 " in (await reader.read()).split(b"\r\n")[0]
    writer.close()
    assert site.app.asked == []


async def test_a_body_of_any_size_is_streamed_whole(site):
    size, chunk = 64 * 1024 * 1024, b"0123456789abcdef" * 4096

    async def body():
        for _ in range(size // len(chunk)):
            yield chunk

    answer = await site.ask("/up", method="PUT", headers={"Origin": site.origin} | site.cookie(), data=body())
    told = json.loads(answer.body)
    assert told["size"] == size
    assert told["sha256"] == hashlib.sha256(chunk * (size // len(chunk))).hexdigest()


async def test_a_client_that_goes_away_frees_the_application(site):
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    cookie = site.cookie()["Cookie"]
    writer.write(f"GET /stream HTTP/1.1\r\nHost: {HOST}\r\nCookie: {cookie}\r\n\r\n".encode())
    await reader.readuntil(b"tick")
    writer.close()
    async with asyncio.timeout(120):
        await site.app.cut.wait()


async def test_a_websocket_is_passed_both_ways_with_its_protocol_and_close_code(site):
    headers = {"Host": f"{HOST}:{site.port}", "Origin": site.origin} | site.cookie()
    async with site.client.ws_connect(
        f"http://127.0.0.1:{site.port}/ws", headers=headers, protocols=("v1.kernel",), max_msg_size=0
    ) as ws:
        assert ws.protocol == "v1.kernel"
        await ws.send_str("abc")
        assert (await ws.receive()).data == "cba"
        large = bytes(range(256)) * 8192
        await ws.send_bytes(large)
        assert (await ws.receive()).data == large
        await ws.send_str("bye")
        await ws.receive()
        assert ws.close_code == 4001


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"Origin": "http://evil--team.apps.test"}, id="of another origin"),
        pytest.param({"Origin": None}, id="of none"),
        pytest.param({"Cookie": "moorage_workspace=x"}, id="without a cookie of ours"),
    ],
)
async def test_a_websocket_of_a_stranger_is_refused(site, change):
    headers = {"Host": f"{HOST}:{site.port}", "Origin": site.origin} | site.cookie() | change
    headers = {name: value for name, value in headers.items() if value is not None}
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await site.client.ws_connect(f"http://127.0.0.1:{site.port}/ws", headers=headers)
    assert not site.app.cut.is_set()


async def test_a_websocket_ends_when_the_right_does(site):
    headers = {"Host": f"{HOST}:{site.port}", "Origin": site.origin} | site.cookie()
    async with site.client.ws_connect(f"http://127.0.0.1:{site.port}/ws", headers=headers) as ws:
        await ws.send_str("abc")
        await ws.receive()
        site.api.readers.clear()
        await soon("the end of the connection", site.app.cut.is_set, tick=lambda: site.clock.advance(61))
        assert (await ws.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
        assert ws.close_code == 1008


async def test_one_that_does_not_run_says_what_it_waits_for(site):
    site.lead("lab", site.app_port, ready=False)
    waiting = a_workspace() | {
        "status": {"phase": "Waiting", "waitingFor": {"reason": "Machine", "message": "<b>2 ahead</b>"}}
    }
    site.api.put(WORKSPACES, waiting)

    async def read():
        answer = await site.ask("/", headers=HTML | site.cookie())
        return answer if answer.status == 503 and b"2 ahead" in answer.body else None

    answer = await until("the page of a workspace that waits", read)
    assert b"&lt;b&gt;2 ahead" in answer.body
    assert b'http-equiv="refresh"' in answer.body
    assert answer.headers["Retry-After"] == "2"


async def test_an_address_that_kubernetes_did_not_give_to_a_pod_is_not_asked(site):
    site.lead("lab", site.app_port, target="Service")
    await until_status(site, 503)


async def test_an_application_that_does_not_answer_is_said_to(site):
    with dead_port() as port:
        site.lead("lab", port)
        await until_status(site, 503)


async def test_leaving_takes_the_cookie_back(site):
    answer = await site.ask("/.moorage/leave", method="POST", headers={"Origin": site.origin} | site.cookie())
    assert answer.cookies["moorage_workspace"].value == ""
    foreign = await site.ask("/.moorage/leave", method="POST", headers={"Origin": "http://x"} | site.cookie())
    assert foreign.status == 403


async def test_a_workspace_by_token_is_none_of_the_gateways(site):
    site.api.put(WORKSPACES, a_workspace(access="token"))
    await until_status(site, 404)


# --- tunnels


class Browser:
    """A browser on the machine of a person's tunnel. It finds each host below localhost on that machine."""

    def __init__(self, site, port):
        self.site, self.port = site, port

    def host(self, name="lab"):
        return f"{name}--team.tunnel.localhost:{self.port}"

    async def ask(self, path, *, host=None, method="GET", headers=None, **more):
        async with self.site.client.request(
            method,
            f"http://127.0.0.1:{self.port}{path}",
            headers={"Host": host or self.host()} | (headers or {}),
            allow_redirects=False,
            **more,
        ) as answer:
            answer.body = await answer.read()
            return answer

    async def enter(self, user=ADA, name="lab"):
        """Follow the address that the program got; the cookie as a header."""
        url = urlsplit(await self.site.gateway.link(user, "team", name, tunnel_port=self.port))
        assert url.netloc == self.host(name)
        answer = await self.ask(f"{url.path}?{url.query}", host=url.netloc)
        assert answer.status == 303, answer.body
        cookie = answer.cookies[f"moorage_workspace_{self.port}"]
        assert (cookie["domain"], cookie["path"], cookie["httponly"]) == ("", "/", True)
        return {"Cookie": f"{cookie.key}={cookie.value}"}


@pytest.fixture
async def tunnel(site):
    """`await tunnel(person, workspace)` begins one, as `moor workspace open` does; the browser there."""
    config = {"metadata": {"name": "moorage", "namespace": "moorage-system"}}
    site.api.put(CONFIGMAPS, config | {"data": {"publicUrl": f"http://127.0.0.1:{site.port}"}})
    site.api.readers.add((account_user("bob"), "team"))
    await soon("the end of the domain", lambda: not site.gateway.platform.domain)
    async with contextlib.AsyncExitStack() as stack:

        async def begin(person="ada", name="lab"):
            server = Connection(at_url(f"http://127.0.0.1:{site.port}", person))
            stack.push_async_callback(server.close)
            session = Session(api=site.api, namespace="team", server=server)
            return Browser(site, await stack.enter_async_context(tunnel_to(session, name)))

        yield begin


async def test_without_a_domain_a_browser_comes_in_through_the_tunnel_of_its_person(site, tunnel):
    browser = await tunnel()
    cookie = await browser.enter()
    answer = await browser.ask("/lab?x=1", headers=cookie)
    assert answer.status == 200
    told = json.loads(answer.body)
    found = dict(told["headers"])
    assert told["path"] == "/lab?x=1"
    assert (found["host"], found["x-forwarded-host"]) == (browser.host(), browser.host())
    assert (found["x-forwarded-proto"], found["x-forwarded-for"]) == ("http", "192.0.2.7")
    assert found["authorization"] == f"token {make_token(KEY, 'uid-of-lab')}"
    assert "cookie" not in found
    assert answer.headers["Date"]


async def test_a_websocket_and_a_large_body_go_through_a_tunnel(site, tunnel):
    browser = await tunnel()
    cookie = await browser.enter()
    headers = {"Host": browser.host(), "Origin": f"http://{browser.host()}"} | cookie
    async with site.client.ws_connect(
        f"http://127.0.0.1:{browser.port}/ws", headers=headers, protocols=("v1.kernel",), max_msg_size=0
    ) as ws:
        assert ws.protocol == "v1.kernel"
        large = bytes(range(256)) * 8192
        await ws.send_bytes(large)
        assert (await ws.receive()).data == large
        await ws.send_str("bye")
        await ws.receive()
        assert ws.close_code == 4001
    data = b"0123456789abcdef" * 65536
    answer = await browser.ask(
        "/up", method="PUT", headers={"Origin": f"http://{browser.host()}"} | cookie, data=data
    )
    assert json.loads(answer.body)["sha256"] == hashlib.sha256(data).hexdigest()


async def test_who_shares_the_machine_and_has_no_cookie_does_not_come_in(site, tunnel):
    browser = await tunnel()
    answer = await browser.ask("/", headers=HTML)
    assert answer.status == 401
    assert b"moor workspace open lab -n team" in answer.body
    headers = {"Host": browser.host(), "Origin": f"http://{browser.host()}"}
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await site.client.ws_connect(f"http://127.0.0.1:{browser.port}/ws", headers=headers)
    assert site.app.asked == []


async def test_an_address_of_a_tunnel_is_good_once_there_alone_and_soon(site, tunnel):
    browser, second = await tunnel(), await tunnel()

    async def code():
        url = urlsplit(await site.gateway.link(ADA, "team", "lab", tunnel_port=browser.port))
        return f"{url.path}?{url.query}"

    entry = await code()
    assert (await browser.ask(entry)).status == 303
    assert (await browser.ask(entry)).status == 403
    assert (await second.ask(await code())).status == 403
    assert (
        await second.ask(await code(), host=browser.host())
    ).status == 303  # that port's program does this, too
    assert (await site.ask(await code())).status == 200  # no workspace's host there: the platform answers
    entry = await code()
    site.clock.advance(61)
    assert (await browser.ask(entry)).status == 403


async def test_a_cookie_of_a_tunnel_is_good_for_its_person_and_workspace_alone(site, tunnel):
    ada, bob = await tunnel(), await tunnel("bob", "other")
    cookie = await ada.enter()
    assert (await bob.ask("/", host=ada.host(), headers=cookie)).status == 404  # bob's leads to another workspace
    bobs = await tunnel("bob", "lab")
    assert (await bobs.ask("/", host=ada.host(), headers=cookie)).status == 401
    assert (await ada.ask("/", host=ada.host("other"), headers=cookie)).status == 404
    ingress = cookie["Cookie"].replace(f"_{ada.port}=", "=", 1)
    site.api.put(
        CONFIGMAPS,
        {
            "metadata": {"name": "moorage", "namespace": "moorage-system"},
            "data": {"workspaceUrl": f"http://*.tunnel.localhost:{site.port}"},
        },
    )
    await soon("the domain", lambda: site.gateway.platform.domain)
    answer = await site.ask("/", host="lab--team.tunnel.localhost", headers={"Cookie": ingress})
    assert answer.status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"Origin": "http://other--team.tunnel.localhost:1"}, 403, id="a neighbour's script"),
        pytest.param({"Origin": "http://lab--team.tunnel.localhost:1"}, 403, id="another port"),
        pytest.param({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403, id="a neighbour fetches"),
        pytest.param({"Sec-Fetch-Site": "same-origin"}, 200, id="its own page"),
    ],
)
async def test_origins_are_judged_in_tunnels_too(tunnel, headers, status):
    browser = await tunnel()
    assert (await browser.ask("/x", headers=await browser.enter() | headers)).status == status


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "evil.test", "lab--team", "lab--team.apps.test", "a@b"]
)
async def test_a_tunnel_serves_the_host_of_its_workspace_alone(tunnel, host):
    browser = await tunnel()
    assert (await browser.ask("/", host=f"{host}:{browser.port}", headers=await browser.enter())).status == 404


async def test_who_may_not_open_a_workspace_gets_no_tunnel_and_neither_does_a_browser(site, tunnel):
    with pytest.raises(Problem) as refused:
        await site.gateway.link(User("eve", account=account_user("eve")), "team", "lab", tunnel_port=1)
    assert refused.value.status == 404
    path = "/api/v1/workspaces/team/lab/tunnel"
    for headers, status in (({"Authorization": "Bearer eve"}, 404), ({"Cookie": "moorage_login=x"}, 403)):
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await site.client.ws_connect(f"http://127.0.0.1:{site.port}{path}", headers=headers)
        assert caught.value.status == status


async def test_a_tunnel_ends_when_the_right_does(site, tunnel):
    browser = await tunnel()
    cookie = await browser.enter()
    headers = {"Host": browser.host(), "Origin": f"http://{browser.host()}"} | cookie
    async with site.client.ws_connect(f"http://127.0.0.1:{browser.port}/ws", headers=headers) as ws:
        await ws.send_str("abc")
        await ws.receive()
        site.api.readers.clear()
        await soon("the end of the connection", site.app.cut.is_set, tick=lambda: site.clock.advance(61))
    with pytest.raises((aiohttp.ClientError, ConnectionError)):  # the program is refused, and ends the connection
        await browser.ask("/", headers=cookie)


# --- pure parts


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("lab--team.apps.test:80", "lab--team.apps.test"),
        ("LAB.test", "lab.test"),
        ("lab.test.", ""),
        ("lab.test:8x", ""),
        ("lab.test/evil", ""),
        ("a@b", ""),
        ("[::1]:80", ""),
        ("", ""),
    ],
)
def test_host_of(given, want):
    assert host_of(given) == want


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("/lab?x=1", "/lab?x=1"),
        ("//evil.test", ""),
        ("/\\evil.test", ""),
        ("https://evil.test", ""),
        ("/a\r\nSet-Cookie: x", ""),
        ("/.moorage/enter?code=x", ""),
        ("lab", ""),
    ],
)
def test_a_path_leads_nowhere_else(given, want):
    assert clean_path(given) == want


def test_a_ticket_that_was_changed_is_none():
    ticket = Ticket(person="ada", account="a", host=HOST, uid="u", until=1)
    sealed = seal(KEY, ticket)
    assert unseal(KEY, sealed) == ticket
    body, _, signature = sealed.partition(".")
    other = (
        base64.urlsafe_b64encode(base64.urlsafe_b64decode(body + "==").replace(b"ada", b"bob"))
        .decode()
        .rstrip("=")
    )
    for bad in (f"{other}.{signature}", body, "", ".", f"{body}.", sealed[:-2], "ü.x"):
        assert unseal(KEY, bad) is None


def test_a_websocket_over_plain_http_is_not_of_a_page_over_tls():
    headers = [("host", "lab.test"), ("origin", "http://lab.test")]
    assert foreign_origin(headers, "GET", "https", is_websocket=True)
    assert not foreign_origin(headers, "GET", "http", is_websocket=True)


def test_headers_of_the_hop_go_neither_way():
    with contextlib.suppress(StopIteration):
        assert returned([("Connection", "close, X-Hop"), ("X-Hop", "1"), ("Alt-Svc", "h3"), ("X-Own", "2")]) == [
            ("x-own", "2"),
            ("content-security-policy", "frame-ancestors 'self'"),
        ]
    from moorage.server.gateway.forward import Destination

    to = Destination(address="::1", port=1, host="h", scheme="https")
    assert to.netloc == "[::1]:1"
    names = [name for name, _ in passed_on([("TE", "x"), ("Upgrade", "h2c"), ("Expect", "100-continue")], to, "c")]
    assert names == ["host", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"]
