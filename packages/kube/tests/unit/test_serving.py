"""Serving inside a running loop: plain, over TLS, and with a certificate that changes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from moorage_kube.certificates import Certificate, make_authority, make_server_certificate
from moorage_kube.clock import SYSTEM
from moorage_kube.connections import Bounds
from moorage_kube.serving import DEFAULT_WAITS, RELOAD_SECONDS, Waits, serve
from moorage_kube.testing.clock import FakeClock

pytestmark = pytest.mark.anyio

NAME = "webhook.test"


async def app(scope: Any, _: Any, send: Any) -> None:
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def issue() -> tuple[Certificate, bytes]:
    """A server's certificate, and that of its authority as PEM."""
    now, lifetime = SYSTEM.now(), timedelta(days=1)
    authority = make_authority("test", now=now, lifetime=lifetime)
    return make_server_certificate(authority, NAME, dns_names=[NAME], now=now, lifetime=lifetime), authority.pem


def put(folder: Path, issued: tuple[Certificate, bytes]) -> None:
    (folder / "tls.crt").write_bytes(issued[0].pem)
    (folder / "tls.key").write_bytes(issued[0].key_pem)


@contextlib.asynccontextmanager
async def serving(
    folder: Path, clock: FakeClock, *, most: Bounds | None = None, app: Any = app
) -> AsyncIterator[int]:
    stop = asyncio.Event()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        files = {"certificate": folder / "tls.crt", "key": folder / "tls.key"}
        task = asyncio.create_task(serve(app, sock, stop=stop, clock=clock, most=most, **files))
        async with asyncio.timeout(120):
            while not clock._sleepers:  # noqa: ASYNC110
                await asyncio.sleep(0)
        try:
            yield sock.getsockname()[1]
        finally:
            stop.set()
            await task


async def is_trusted(port: int, authority: bytes) -> bool:
    """Whether a client that trusts only this authority gets an answer."""
    context = ssl.create_default_context(cadata=authority.decode())
    async with asyncio.timeout(120):
        while True:
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=context, server_hostname=NAME
                )
                break
            except ssl.SSLCertVerificationError:
                return False
            except ConnectionError:  # not listening yet
                await asyncio.sleep(0)
        writer.write(f"GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return answer.endswith(b"ok")


async def test_a_renewed_certificate_is_served_to_new_connections(tmp_path):
    first, second = (issue() for _ in range(2))
    put(tmp_path, first)
    clock = FakeClock()
    async with serving(tmp_path, clock) as port:
        assert await is_trusted(port, first[1])
        put(tmp_path, second)
        async with asyncio.timeout(120):
            while not await is_trusted(port, second[1]):
                clock.advance(RELOAD_SECONDS)
        assert not await is_trusted(port, first[1])


async def test_files_that_do_not_fit_together_leave_the_old_certificate_in_use(tmp_path, caplog):
    first, second = (issue() for _ in range(2))
    put(tmp_path, first)
    clock = FakeClock()
    async with serving(tmp_path, clock) as port:
        (tmp_path / "tls.crt").write_bytes(second[0].pem)
        async with asyncio.timeout(120):
            while "cannot load the new certificate" not in caplog.text:
                clock.advance(RELOAD_SECONDS)
                await asyncio.sleep(0)
        assert await is_trusted(port, first[1])


async def ask(port: int, path: str, *, times: int = 1) -> list[tuple[int, bool]]:
    """The status of each answer on one connection, and whether it ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers: list[tuple[int, bool]] = []
    for _ in range(times):
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].split()[0])
        await reader.readexactly(length)
        answers.append((int(head.split()[1]), b"connection: close" in head))
        if answers[-1][1]:
            assert await reader.read() == b""
            break
    writer.close()
    return answers


async def test_a_server_that_drains_answers_all_ends_connections_and_is_not_ready():
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        if scope["path"] == "/slow":
            begun.set()
            await go_on.wait()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    draining, stop = asyncio.Event(), asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        port = sock.getsockname()[1]
        server = asyncio.create_task(serve(app, sock, stop=stop, draining=draining, grace_seconds=60))
        async with asyncio.timeout(120):
            assert await ask(port, "/readyz", times=2) == [(200, False)] * 2
            slow = asyncio.create_task(ask(port, "/slow"))
            await begun.wait()
            draining.set()
            assert await ask(port, "/readyz", times=2) == [(503, True)]
            assert await ask(port, "/", times=2) == [(200, True)]
            stop.set()
            await asyncio.sleep(0)
            assert not slow.done()
            go_on.set()
            ((status, _),) = await slow
            assert status == 200
            await server


async def test_connections_that_never_begin_tls_are_counted_and_make_room(tmp_path):
    issued = issue()
    put(tmp_path, issued)
    async with serving(tmp_path, FakeClock(), most=Bounds(6, 4)) as port, asyncio.timeout(120):
        assert await is_trusted(port, issued[1])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        for reader, _ in silent[:8]:  # the longest waiting
            assert await closed(reader)
        assert await is_trusted(port, issued[1])
        for _, writer in silent:
            writer.close()


async def test_a_client_that_is_not_taken_reads_why_over_tls_too(tmp_path):
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await go.wait()
        await app(scope, receive, send)

    issued = issue()
    put(tmp_path, issued)
    context = ssl.create_default_context(cadata=issued[1].decode())
    request = f"GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode()
    async with serving(tmp_path, FakeClock(), most=Bounds(1, 1), app=slow) as port, asyncio.timeout(120):
        while True:
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=context, server_hostname=NAME
                )
                break
            except ConnectionError:  # not listening yet
                await asyncio.sleep(0)
        writer.write(request)
        await begun.wait()
        refused, other = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=NAME)
        other.write(request)
        assert (await refused.readuntil(b"\r\n")).startswith(b"HTTP/1.1 429 ")
        go.set()
        assert (await reader.read()).endswith(b"ok")
        for each in (writer, other):
            each.close()


async def closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def test_answers_do_not_wait_for_the_delayed_acknowledgement_of_their_first_packet() -> None:
    stop = asyncio.Event()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        sock.setblocking(False)
        task = asyncio.create_task(serve(app, sock, stop=stop))
        reader, writer = await asyncio.open_connection("127.0.0.1", sock.getsockname()[1])
        writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        await reader.readuntil(b"ok")
        # an accepted connection has the option from the socket that listened
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        writer.close()
        stop.set()
        await task


def test_our_client_lets_go_of_idle_connections_before_our_servers_do():
    from moorage_kube import serving
    from moorage_kube.remote import client

    assert client.IDLE_SECONDS < serving.IDLE_SECONDS > 90  # and Go's clients, kube-scheduler among them


async def raw_app(scope: Any, _receive: Any, _send: Any) -> None:
    """Takes the connection over, says the body and then each line it hears in capitals."""
    raw = scope["extensions"]["moorage.raw"]([(b"Connection", b"Upgrade"), (b"Upgrade", b"tcp")])
    await raw.write(await raw.body() + b"|")
    while line := await raw.reader.readline():
        await raw.write(line.upper())
    await raw.write(b"end")
    raw.close()


@pytest.mark.parametrize("together", [True, False], ids=["in one segment", "after the answer"])
async def test_a_connection_that_is_taken_over_carries_bytes_both_ways_and_may_be_half_closed(together):
    stop = asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        task = asyncio.create_task(serve(raw_app, sock, stop=stop))
        async with asyncio.timeout(120):
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            head = b"POST /x HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: tcp\r\ncontent-length: 2\r\n"
            writer.write(head + b"\r\n{}" + (b"one\n" if together else b""))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 UPGRADED\r\n")
            assert await reader.readuntil(b"|") == b"{}|"
            if not together:
                writer.write(b"one\n")
            assert await reader.readline() == b"ONE\n"
            writer.write(b"two\n")
            writer.write_eof()
            assert await reader.read() == b"TWO\nend"
            writer.close()
            stop.set()
            await task


async def test_a_connection_that_is_taken_over_brings_no_body_without_bound():
    failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def take(scope: Any, _receive: Any, _send: Any) -> None:
        raw = scope["extensions"]["moorage.raw"]([])
        try:
            await raw.body()
        except ConnectionError as error:
            failed.set_result(error)

    stop = asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        task = asyncio.create_task(serve(take, sock, stop=stop))
        async with asyncio.timeout(120):
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            head = b"POST /x HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: tcp\r\n"
            writer.write(head + b"content-length: 1000000000\r\n\r\n{}")
            assert "1000000000" in str(await failed)
            assert (await reader.read()).startswith(b"HTTP/1.1 101 ")
            writer.close()
            stop.set()
            await task


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def echoing(waits: Waits = DEFAULT_WAITS) -> AsyncIterator[Any]:
    """A function that sends bytes and reads until the server closes."""
    stop = asyncio.Event()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        sock.setblocking(False)
        task = asyncio.create_task(serve(echo, sock, stop=stop, waits=waits))

        async def exchange(*parts: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", sock.getsockname()[1])
            with contextlib.suppress(ConnectionError):
                for part in parts:
                    writer.write(part)
                    await writer.drain()
            async with asyncio.timeout(120):
                try:
                    return await reader.read()
                except ConnectionError:
                    return b"reset"
                finally:
                    writer.close()

        try:
            yield exchange
        finally:
            stop.set()
            await task


async def test_a_client_that_stands_still_in_a_request_is_cut_off() -> None:
    async with echoing() as exchange:
        whole = await exchange(
            b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 5\r\n\r\nab", b"cde"
        )
        assert whole.endswith(b"\r\n\r\nabcde")
    async with echoing(Waits(idle=0.05, head=0.05, body=0.05)) as exchange:
        assert await exchange() == b""
        assert (await exchange(b"GET / HTTP/1.1\r\nHost: x\r\n")).startswith(b"HTTP/1.1 408 ")
        assert await exchange(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab") == b""


async def test_a_head_without_end_is_refused() -> None:
    async with echoing() as exchange:
        line = b"X-More: " + b"x" * 1000 + b"\r\n"
        answer = await exchange(b"GET / HTTP/1.1\r\nHost: x\r\n", *([line] * 200))
        assert answer == b"reset" or answer.startswith(b"HTTP/1.1 431 ")
        answer = await exchange(b"GET /" + b"a" * 200_000)
        assert answer == b"reset" or answer.startswith(b"HTTP/1.1 431 ")
        asked = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + line * 60 + b"\r\n"
        assert (await exchange(asked)).startswith(b"HTTP/1.1 200 ")


class Listener(socket.socket):
    """Notes the ports of the clients that were accepted."""

    def __init__(self) -> None:
        super().__init__()
        self.bind(("127.0.0.1", 0))
        self.setblocking(False)
        self.accepted: set[int] = set()

    def accept(self) -> Any:
        connection, address = super().accept()
        self.accepted.add(address[1])
        return connection, address


class PlainClient(threading.Thread):
    """Sends GETs that it never repeats, until nobody listens any more. `failed`: its ports, and why."""

    def __init__(self, port: int, *, keep_alive: bool) -> None:
        super().__init__(daemon=True)
        self._port, self._keep_alive = port, keep_alive
        self.answers = 0
        self.failed: list[tuple[int, str]] = []

    def run(self) -> None:
        while True:
            try:
                connection = socket.create_connection(("127.0.0.1", self._port), timeout=120)
            except ConnectionRefusedError:
                return
            except ConnectionResetError:  # it was in the queue of the kernel
                continue
            with connection:
                self._use(connection)

    def _use(self, connection: socket.socket) -> None:
        port = connection.getsockname()[1]
        reader = connection.makefile("rb")
        for number in itertools.count():
            try:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                head = b"".join(iter(reader.readline, b"\r\n")).lower()
                assert head.startswith(b"http/1.1 200"), head
                assert reader.read(2) == b"ok"
            except (OSError, AssertionError) as error:
                self.failed.append((port, f"request {number}: {error!r}"))
                return
            self.answers += 1
            if not self._keep_alive or b"connection: close" in head:
                return


@pytest.mark.parametrize("round_", range(6))
async def test_at_a_graceful_end_no_plain_client_that_was_accepted_goes_without_its_answer(round_: int, seed: int):
    chance = random.Random(seed + round_)
    draining, stop = asyncio.Event(), asyncio.Event()
    with Listener() as sock:
        server = asyncio.create_task(serve(app, sock, stop=stop, draining=draining, grace_seconds=60))
        clients = [PlainClient(sock.getsockname()[1], keep_alive=number % 2 == 0) for number in range(4)]

        async def answered(more: int) -> None:
            wanted = [client.answers + more for client in clients]
            while any(client.answers < want for client, want in zip(clients, wanted, strict=True)):  # noqa: ASYNC110
                await asyncio.sleep(0)

        async with asyncio.timeout(120):
            while not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):  # noqa: ASYNC110
                await asyncio.sleep(0)
            for client in clients:
                client.start()
            await answered(chance.randrange(1, 20))
            draining.set()
            await answered(chance.randrange(1, 20))
            for _ in range(chance.randrange(5)):
                await asyncio.sleep(0)
            stop.set()
            await server
        for client in clients:
            await asyncio.to_thread(client.join)
        failed = [failure for client in clients for failure in client.failed if failure[0] in sock.accepted]
        assert failed == []
