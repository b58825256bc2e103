"""The ingress between real clients and real servers on loopback."""

from __future__ import annotations

import asyncio
import hashlib
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from moorage_kube.testing.ports import dead_port
from moorage_local.ingress.proxy import Limits, Proxy
from moorage_local.ingress.table import Router

pytestmark = pytest.mark.anyio
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def a_router(*addresses: tuple[str, int], problem: str = "") -> Router:
    backend = {"addresses": [list(one) for one in addresses], "problem": problem}
    return Router({"hosts": {"web.localhost": [{"path": "/", "exact": False, "backend": backend}]}})


@asynccontextmanager
async def proxying(router: Router, **limits: Any) -> AsyncIterator[Proxy]:
    proxy, ready = Proxy(router, Limits(**limits)), asyncio.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as sock:
        sock.setblocking(False)
        task = asyncio.create_task(proxy.serve(sock, ready=ready.set))
        await ready.wait()
        yield proxy
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def a_web(*routes: web.RouteDef) -> AsyncIterator[tuple[str, int]]:
    app = web.Application(client_max_size=1 << 40)
    app.add_routes(routes)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][:2]
    await runner.cleanup()


@asynccontextmanager
async def a_raw_server(handle: Handler) -> AsyncIterator[tuple[str, int]]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[:2]


def says(answer: bytes) -> Handler:
    """A server that answers this to whatever comes, and hangs up."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    return handle


async def exchange(proxy: Proxy, sent: bytes) -> bytes:
    """Send bytes and read until the proxy hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(sent)
    async with asyncio.timeout(120):
        said = await reader.read()
    writer.close()
    return said


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


HEAD = b"GET / HTTP/1.1\r\nHost: web.localhost\r\nConnection: close\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: web.localhost\r\nConnection: close\r\n"


@asynccontextmanager
async def a_site(*routes: web.RouteDef) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a web application behind the proxy."""
    async with a_web(*routes) as address, proxying(a_router(address)) as proxy, a_client(proxy) as http:
        yield http


@asynccontextmanager
async def a_client(proxy: Proxy) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Host": "web.localhost"}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{proxy.port}", headers=headers) as session:
        yield session


async def test_bodies_of_any_framing_go_through_both_ways_and_connections_are_kept() -> None:
    peers = set()

    async def echo(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        answer = web.StreamResponse(headers={"X-Seen": request.headers["X-Forwarded-Host"]})
        if "sized" in request.query:
            answer.content_length = int(request.query["sized"])
        await answer.prepare(request)
        async for piece in request.content.iter_any():
            await answer.write(piece)
        return answer

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(50):
            yield bytes([at]) * 1000

    async with (
        a_web(web.post("/", echo)) as address,
        proxying(a_router(address)) as proxy,
        a_client(proxy) as http,
    ):
        body = b"".join([one async for one in chunks()])
        for data, query in ((body, ""), (body, f"?sized={len(body)}"), (chunks(), ""), (b"", "")):
            async with http.post(f"/{query}", data=data) as answer:
                assert (answer.status, answer.headers["X-Seen"]) == (200, "web.localhost")
                assert await answer.read() == (b"" if data == b"" else body)


async def test_connections_to_a_backend_are_used_again_for_requests_without_a_body() -> None:
    peers = []

    async def hello(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.append(request.transport.get_extra_info("peername"))
        return web.Response(text="hello")

    async with (
        a_web(web.get("/", hello)) as address,
        proxying(a_router(address), kept=60.0) as proxy,
        a_client(proxy) as http,
    ):
        for _ in range(5):
            async with http.get("/") as answer:
                assert await answer.text() == "hello"
    assert len(set(peers)) == 1


async def test_a_kept_connection_that_the_backend_has_ended_costs_nothing() -> None:
    served = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        await reader.readuntil(b"\r\n\r\n")
        served += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        await reader.readuntil(b"\r\n\r\n")  # and hangs up at the second request

    async with a_raw_server(once) as address, proxying(a_router(address)) as proxy, a_client(proxy) as http:
        for _ in range(4):
            async with http.get("/") as answer:
                assert (answer.status, await answer.text()) == (200, "ok")
    assert served == 4


async def test_a_huge_body_is_streamed_and_memory_stays_flat() -> None:
    size = 300 << 20
    piece = bytes(range(256)) * 256

    async def sink(request: web.Request) -> web.StreamResponse:
        digest = hashlib.sha256()
        async for one in request.content.iter_any():
            digest.update(one)
        return web.Response(text=digest.hexdigest())

    async def source(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(size // len(piece)):
            await answer.write(piece)
        return answer

    async def body() -> AsyncIterator[bytes]:
        for _ in range(size // len(piece)):
            yield piece

    want = hashlib.sha256()
    for _ in range(size // len(piece)):
        want.update(piece)
    routes = (web.post("/", sink), web.get("/", source))
    async with a_site(*routes) as http:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        async with http.post("/", data=body(), timeout=aiohttp.ClientTimeout(300)) as answer:
            assert await answer.text() == want.hexdigest()
        got = hashlib.sha256()
        async with http.get("/", timeout=aiohttp.ClientTimeout(300)) as answer:
            async for one in answer.content.iter_any():
                got.update(one)
        assert got.hexdigest() == want.hexdigest()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 * 1024, f"{grown} KiB more for {size >> 20} MiB, client and server included"


async def test_an_answer_that_trickles_arrives_as_it_is_written() -> None:
    go = asyncio.Event()

    async def events(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(b"data: 1\n\n")
        await go.wait()
        await answer.write(b"data: 2\n\n")
        return answer

    async with (
        a_web(web.get("/", events)) as address,
        proxying(a_router(address)) as proxy,
        a_client(proxy) as http,
    ):
        async with http.get("/") as answer:
            assert await answer.content.readany() == b"data: 1\n\n"
            go.set()
            assert await answer.content.readany() == b"data: 2\n\n"


async def test_a_websocket_is_passed_through_with_its_protocol_and_large_messages() -> None:
    async def echo(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(protocols=("v1.kernel",), max_msg_size=0)
        await ws.prepare(request)
        async for message in ws:
            await ws.send_bytes(message.data) if message.type is aiohttp.WSMsgType.BINARY else await ws.send_str(
                message.data
            )
        return ws

    async with (
        a_web(web.get("/ws", echo)) as address,
        proxying(a_router(address)) as proxy,
        a_client(proxy) as http,
    ):
        async with http.ws_connect("/ws", protocols=("v1.kernel",), max_msg_size=0) as ws:
            assert ws.protocol == "v1.kernel"
            await ws.send_str("héllo")
            assert await ws.receive_str() == "héllo"
            large = bytes(8 << 20)
            await ws.send_bytes(large)
            assert await ws.receive_bytes() == large


async def test_the_backend_hears_when_a_websocket_is_left() -> None:
    left = asyncio.Event()

    async def wait(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        await ws.receive()
        left.set()
        return ws

    async with a_web(web.get("/", wait)) as address, proxying(a_router(address)) as proxy:
        async with a_client(proxy) as http:
            await http.ws_connect("/")
        async with asyncio.timeout(120):
            await left.wait()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(HEAD.replace(b"web.", b"no."), 404, id="a host nobody claims"),
        pytest.param(b"\x16\x03\x01 TLS\r\n\r\n", 400, id="no HTTP"),
        pytest.param(POST + b"Content-Length: 3\r\n" + CHUNKED + b"0\r\n\r\n", 400, id="smuggling"),
        pytest.param(POST + CHUNKED + b"z\r\n", 400, id="a bad chunk"),
        pytest.param(POST + CHUNKED + b"1\r\nabc\r\n", 400, id="a chunk that lies"),
        pytest.param(POST + CHUNKED + b"1" * 70_000, 400, id="an endless chunk size"),
        pytest.param(HEAD[:-2] + b"X: " + b"a" * 40_000 + b"\r\n\r\n", 431, id="a long field"),
        pytest.param(b"GET /" + b"a" * 100_000, 431, id="an endless line"),
        pytest.param(HEAD[:-2] + b"X: 1\r\n" * 200 + b"\r\n", 431, id="many fields"),
    ],
)
async def test_a_request_that_is_refused_is_told_why_and_no_backend_sees_it(sent: bytes, status: int) -> None:
    seen = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read())

    async with a_raw_server(handle) as address, proxying(a_router(address)) as proxy:
        answer = await exchange(proxy, sent)
    assert status_of(answer) == status
    assert b"Connection: close" in answer
    assert all(b"0\r\n\r\n" not in one for one in seen), "never a whole request"


async def test_a_second_request_hidden_in_a_body_stays_a_body() -> None:
    bodies = []

    async def post(request: web.Request) -> web.Response:
        bodies.append(await request.read())
        return web.Response(text="ok")

    hidden = b"GET /admin HTTP/1.1\r\nHost: web.localhost\r\n\r\n"
    async with a_web(web.post("/", post)) as address, proxying(a_router(address)) as proxy:
        sent = POST + b"Content-Length: %d\r\n\r\n" % len(hidden) + hidden
        assert status_of(await exchange(proxy, sent)) == 200
        chunk = b"%x\r\n%b\r\n0\r\nX-Trailer: 1\r\n\r\n" % (len(hidden), hidden)
        assert status_of(await exchange(proxy, POST + CHUNKED + b"" + chunk)) == 200
    assert bodies == [hidden, hidden]


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        pytest.param(b"", 502, id="nothing"),
        pytest.param(b"garbage\r\n\r\n", 502, id="no HTTP"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: a\nSet-Cookie: evil\r\n\r\n", 502, id="an injected line"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            502,
            id="two framings",
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000 + b"\r\n\r\n", 502, id="an endless head"),
        pytest.param(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", 502, id="an upgrade nobody asked for"),
        pytest.param(
            b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\r\nbody", 200, id="hints, then an answer"
        ),
    ],
)
async def test_answers_of_broken_backends(answer: bytes, status: int) -> None:
    async with a_raw_server(says(answer)) as address, proxying(a_router(address)) as proxy:
        got = await exchange(proxy, HEAD)
    assert status_of(got) == status
    assert b"evil" not in got


async def test_an_answer_cut_short_is_not_taken_for_a_whole_one() -> None:
    short = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    async with a_raw_server(says(short)) as address, proxying(a_router(address)) as proxy, a_client(proxy) as http:
        with pytest.raises(aiohttp.ClientError):
            async with http.get("/") as answer:
                await answer.read()


async def test_an_address_that_takes_no_connection_is_passed_over() -> None:
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    with dead_port() as port:
        dead = ("127.0.0.1", port)
        async with a_raw_server(says(ok)) as address, proxying(a_router(dead, address)) as proxy:
            assert [status_of(await exchange(proxy, HEAD)) for _ in range(4)] == [200] * 4
            proxy.router = a_router(dead)
            answer = await exchange(proxy, HEAD)
            assert status_of(answer) == 502
            assert f"127.0.0.1:{port}".encode() in answer
            proxy.router = a_router(problem="no pod behind Service lab/a is ready")
            answer = await exchange(proxy, HEAD)
            assert (status_of(answer), b"no pod behind Service lab/a is ready" in answer) == (503, True)


async def test_a_backend_that_answers_without_reading_the_body_is_heard() -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno!"
    async with a_raw_server(says(refusal)) as address, proxying(a_router(address)) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(POST + b"Content-Length: 100000000\r\n\r\n" + bytes(1000))
        async with asyncio.timeout(120):
            answer = await reader.read()
        writer.close()
    assert (status_of(answer), answer[-3:]) == (413, b"no!")


@pytest.mark.parametrize(
    ("limit", "sent", "status"),
    [
        pytest.param("head", b"GET / HTTP/1.1\r\nHost:", 408, id="half a head"),
        pytest.param("idle", b"", None, id="nothing"),
        pytest.param("body", POST + b"Content-Length: 9\r\n\r\nabc", None, id="half a body"),
        pytest.param("answer", HEAD, 504, id="no answer"),
    ],
)
async def test_slow_clients_and_backends_are_given_up(limit: str, sent: bytes, status: int | None) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    # one limit each, for on a busy machine another one would run out before all that is sent has come
    async with a_raw_server(never) as address, proxying(a_router(address), **{limit: 0.2}) as proxy:
        said = await exchange(proxy, sent)
    assert (status_of(said) if said else None) == status


async def test_a_client_that_leaves_is_left_by_the_proxy_too() -> None:
    gone = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()
        gone.set()

    asked = asyncio.Event()
    async with a_raw_server(wait) as address, proxying(a_router(address)) as proxy:
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(HEAD)
        async with asyncio.timeout(120):
            await asked.wait()
            writer.close()
            await gone.wait()


@pytest.mark.parametrize(
    ("limits", "status"),
    [
        pytest.param({"connections": 2, "of_address": 2}, 429, id="of one address"),
        pytest.param({"connections": 2, "of_address": 3}, 429, id="one address may never have more than all"),
    ],
)
async def test_too_many_clients_that_are_being_answered_are_told_to_come_back(
    limits: dict[str, int], status: int
) -> None:
    asked: asyncio.Queue[None] = asyncio.Queue()
    go = asyncio.Event()
    large = POST + b"Content-Length: 500000\r\n\r\n" + bytes(500_000)

    async def slow(_: web.Request) -> web.Response:
        asked.put_nowait(None)
        await go.wait()
        return web.Response(text="done")

    async with a_web(web.get("/", slow)) as address, proxying(a_router(address), **limits) as proxy:
        held = [asyncio.create_task(exchange(proxy, HEAD)) for _ in range(2)]
        async with asyncio.timeout(120):
            for _ in held:
                await asked.get()
        refused = [await exchange(proxy, sent) for sent in (b"", HEAD, large)]
        go.set()
        answers = await asyncio.gather(*held)
    for answer in refused:
        assert (status_of(answer), b"Retry-After: 1" in answer) == (status, True)
    assert [status_of(one) for one in answers] == [200, 200]


async def test_a_thousand_connections_that_wait_keep_nobody_out() -> None:
    async def fine(_: web.Request) -> web.Response:
        return web.Response(text="fine")

    async with a_web(web.get("/", fine)) as address, proxying(a_router(address), connections=20) as proxy:
        held = []
        for at in range(200):
            held.append(await asyncio.open_connection("127.0.0.1", proxy.port))
            held[-1][1].write((b"", b"GET / HTTP/1.1\r\nHo")[at % 2])
        for _ in range(5):
            assert status_of(await exchange(proxy, HEAD)) == 200
        assert len(proxy._connections) <= 20
        for _, writer in held:
            writer.close()


async def test_requests_in_one_breath_are_answered_in_order() -> None:
    async def name(request: web.Request) -> web.Response:
        return web.Response(text=request.path)

    async with a_web(web.get("/{name}", name)) as address, proxying(a_router(address)) as proxy:
        sent = b"".join(b"GET /number%d HTTP/1.1\r\nHost: web.localhost\r\n\r\n" % at for at in range(5))
        said = await exchange(proxy, sent + HEAD)
    found = [said.find(b"/number%d" % at) for at in range(5)]
    assert -1 not in found
    assert found == sorted(found)


async def test_a_client_that_wants_to_be_asked_first_is_asked() -> None:
    async def post(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async with a_web(web.post("/", post)) as address, proxying(a_router(address)) as proxy:
        said = await exchange(proxy, POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi")
    assert said.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
    assert said.endswith(b"hi")
