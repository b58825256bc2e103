"""What one connection may cost its server: bytes that are kept, requests that wait, answers that nobody reads."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import uvicorn

from moorage_kube import serving
from moorage_kube.connections import REFUSED, Bounds, ClientConnection, Connections
from moorage_kube.serving import Waits, _Entrance

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
UPGRADE = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: tcp\r\n\r\n"
REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n"


class Transport(asyncio.Transport):
    """A client's side that reads nothing and sends as long as it is let."""

    def __init__(self, address: str = "10.0.0.1") -> None:
        super().__init__({"peername": (address, 40000), "sockname": ("10.0.0.9", 80)})
        self.written = b""
        self.paused = self.closing = self.aborted = self.ended = False
        self.unread = 0
        self.protocol: Any = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return self.unread

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True


class Client:
    def __init__(
        self, app: Any, *, connections: Connections | None = None, address: str = "10.0.0.1", **more: Any
    ) -> None:
        config = uvicorn.Config(app, lifespan="off", log_config=None)
        config.load()
        self.transport = Transport(address)
        state: dict[str, Any] = {"config": config, "server_state": uvicorn.server.ServerState(), "app_state": {}}
        connections = Connections(Bounds(100, 100)) if connections is None else connections
        _Entrance(connections=connections, handshakes=set(), **state, **more).connection_made(self.transport)
        self.server = self.transport.protocol

    def send(self, data: bytes, *, most: int = 64 * MIB) -> int:
        """Send the same bytes again and again until the server stops reading; returns how many it took."""
        taken = 0
        while not self.transport.paused and not self.transport.closing and taken < most:
            self.server.data_received(data)
            taken += len(data)
        return taken

    def end(self) -> None:
        self.transport.closing = True
        self.server.connection_lost(None)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def refuse(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"no"})


class Waiting:
    """An application that answers when it is let."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = 0

    async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
        self.begun += 1
        await self.go.wait()
        await refuse(_scope, _receive, send)


@pytest.mark.parametrize("protocol", [b"tcp", b"h2c", b"SPDY/3.1"])
async def test_what_follows_an_upgrade_is_kept_only_up_to_a_bound_and_not_past_the_answer(protocol):
    app = Waiting()
    client = Client(app)
    client.server.data_received(UPGRADE.replace(b"tcp", protocol))
    await turns()
    taken = client.send(b"x" * 4096)
    assert taken <= serving.REST_BYTES + 4096
    assert client.transport.paused
    for _ in range(1000):  # whatever made it read on
        client.server.data_received(b"x" * 4096)
        if client.transport.closing:
            break
    assert client.transport.aborted
    assert len(client.server._rest) <= serving.REST_MOST_BYTES + 4096
    client.end()

    client = Client(refuse)
    client.server.data_received(UPGRADE.replace(b"tcp", protocol))
    await turns()
    assert client.transport.written.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in client.transport.written
    assert client.transport.closing, "nothing that follows an Upgrade is HTTP: the refusal is the last answer"
    kept = len(client.server._rest)
    assert client.send(b"x" * 4096) == 0
    client.server.data_received(b"x" * 4096)
    assert len(client.server._rest) == kept
    client.end()


async def test_requests_that_wait_behind_another_are_few():
    app = Waiting()
    client = Client(app)
    request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    client.server.data_received(request * 20)
    await turns()
    assert not client.transport.closing
    client.server.data_received(request * 20_000)
    assert client.transport.closing
    assert len(client.server.pipeline) <= serving.PIPELINED + 1
    app.go.set()
    await turns()
    client.end()
    assert app.begun <= serving.PIPELINED + 2


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(b"x-trailer: " + b"y" * 1000 + b"\r\n", id="trailers"),
        pytest.param(b"y" * 4096, id="one trailer without end"),
    ],
)
async def test_trailers_are_neither_kept_nor_without_end(part):
    client = Client(Waiting())
    client.server.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n")
    client.server.data_received(b"x-first: 1\r\nx-more: ")
    taken = client.send(part)
    assert taken <= serving.FRAMING_BYTES + len(part)
    assert client.transport.closing
    assert [name for name, _ in client.server.headers] == [b"host", b"transfer-encoding"]
    client.end()


async def test_a_body_whose_request_was_answered_is_not_read_for_ever():
    client = Client(refuse)
    client.server.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000000\r\n\r\nx")
    await turns()
    assert client.transport.written.startswith(b"HTTP/1.1 401 ")
    taken = client.send(b"x" * 65536)
    assert taken <= serving.REFUSED_BYTES + 65536
    assert client.transport.closing
    client.end()


async def test_a_small_rest_of_a_body_after_the_answer_costs_no_connection():
    client = Client(refuse)
    client.server.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nx")
    await turns()
    client.server.data_received(b"xxxx")
    assert not client.transport.closing
    client.server.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    await turns()
    assert client.transport.written.count(b"HTTP/1.1 401 ") == 2
    client.end()


async def test_a_body_that_the_application_does_not_read_is_not_taken_in():
    client = Client(Waiting())
    client.server.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n")
    assert client.send(b"x" * 65536) <= 3 * 65536
    for _ in range(100):
        client.server.data_received(b"x" * 65536)
        if client.transport.closing:
            break
    assert client.transport.aborted
    client.end()


async def test_an_answer_that_nobody_reads_ends_a_while_after_its_connection():
    client = Client(refuse, waits=Waits(linger=0.0))
    client.transport.unread = 100_000
    client.server.data_received(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    async with asyncio.timeout(120):
        while not client.transport.aborted:  # noqa: ASYNC110
            await asyncio.sleep(0)
    client.end()


async def test_an_application_waits_for_a_client_that_does_not_read():
    sent = 0

    async def watch(_scope: Any, _receive: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
            sent += 1
            if sent == 10:
                client.server.pause_writing()  # as the transport does at 64 KiB

    client = Client(watch)
    client.server.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    await turns()
    assert sent == 10
    client.end()
    client.server.cycle.disconnected = True
    for task in client.server.tasks:
        task.cancel()
    await turns()


async def test_one_clients_connections_do_not_keep_others_out(caplog):
    caplog.set_level(logging.CRITICAL)
    app = Waiting()
    connections = Connections(Bounds(8, 6))
    request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    busy = [Client(app, connections=connections, address="10.0.0.1") for _ in range(2)]
    for client in busy:
        client.server.data_received(request)
    waiting = [Client(app, connections=connections, address="10.0.0.1") for _ in range(50)]
    half = waiting[-1]
    half.server.data_received(b"GET / HTTP/1.1\r\nhost")
    await turns()
    assert len(connections) == 6
    assert [client.transport.aborted for client in waiting] == [True] * 46 + [False] * 4
    assert not any(client.transport.closing for client in busy)
    other = Client(app, connections=connections, address="10.0.0.2")
    other.server.data_received(request)
    await turns()
    assert app.begun == 3
    for client in waiting[-4:]:
        if client is not half:
            client.server.data_received(request)
    half.server.data_received(b": x\r\n\r\n")
    refused = Client(app, connections=connections, address="10.0.0.1")
    refused.server.data_received(request)
    await turns()
    assert refused.transport.written.startswith(b"HTTP/1.1 429 ")
    assert refused.transport.ended
    assert not refused.transport.closing, "closing at once would reset the connection before the client has read"
    assert app.begun == 7
    app.go.set()
    await turns()
    for client in (*busy, *waiting, other, refused):
        client.end()
    assert len(connections) == 0


def is_closed_for_another(client: Client, connections: Connections) -> bool:
    """Whether a full connections closes this client, the only one that it has, for one of the same address."""
    connections.enter(ClientConnection(client.transport.get_extra_info("peername")[0], lambda: None))
    return client.transport.aborted


@pytest.mark.parametrize(
    ("behind", "is_closed"),
    [
        pytest.param(REQUEST, False, id="the last of them is whole"),
        pytest.param(REQUEST + REQUEST, False, id="another waits behind it"),
        pytest.param(REQUEST + REQUEST[:10], False, id="half a head stands behind it"),
        pytest.param(POST + b"a", True, id="the rest of its body is awaited"),
    ],
)
async def test_a_request_that_waited_behind_another_is_not_closed_while_it_is_answered(behind, is_closed):
    app, connections = Waiting(), Connections(Bounds(1, 1))
    client = Client(app, connections=connections)
    client.server.data_received(REQUEST + behind)
    await turns()
    assert app.begun == 1
    app.go.set()
    app.go = asyncio.Event()
    await turns()
    assert app.begun == 2
    assert client.transport.written.count(b"HTTP/1.1 401 ") == 1
    assert is_closed_for_another(client, connections) == is_closed
    app.go.set()
    await turns()
    client.end()


async def test_half_a_request_behind_another_does_not_close_that_one():
    app, connections = Waiting(), Connections(Bounds(1, 1))
    client = Client(app, connections=connections)
    client.server.data_received(REQUEST)
    await turns()
    client.server.data_received(REQUEST[:10])
    assert not is_closed_for_another(client, connections)
    app.go.set()
    await turns()
    client.server.data_received(b"x")
    assert is_closed_for_another(client, connections)
    client.end()


async def test_a_connection_taken_over_is_not_closed_once_its_client_reads_again():
    connections = Connections(Bounds(1, 1))
    over = asyncio.Event()

    async def take_over(scope: Any, _receive: Any, _send: Any) -> None:
        scope["extensions"]["moorage.raw"]([])
        await over.wait()

    client = Client(take_over, connections=connections)
    client.server.data_received(UPGRADE)
    await turns()
    client.server.pause_writing()
    client.server.resume_writing()
    assert not is_closed_for_another(client, connections)
    over.set()
    await turns()
    client.end()


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([REQUEST, b"\r\n"], id="an empty line after the answer"),
        pytest.param([POST + b"a", b"bcde"], id="the rest of a body after the answer"),
    ],
)
async def test_an_idle_connection_always_has_a_timer(parts):
    client = Client(refuse)
    for part in parts:
        client.server.data_received(part)
        await turns()
    assert client.transport.written.startswith(b"HTTP/1.1 401 ")
    assert client.server._watch is not None
    assert client.server._part == "head"
    client.server.data_received(REQUEST)
    await turns()
    assert client.transport.written.count(b"HTTP/1.1 401 ") == 2
    client.end()


async def test_only_so_many_refused_clients_are_told_why(caplog):
    caplog.set_level(logging.CRITICAL)
    app, connections = Waiting(), Connections(Bounds(1, 1))
    busy = Client(app, connections=connections)
    busy.server.data_received(REQUEST)
    await turns()
    refused = [Client(app, connections=connections) for _ in range(REFUSED + 3)]
    await turns()
    assert [client.transport.aborted for client in refused] == [False] * REFUSED + [True] * 3
    refused[0].end()
    later = Client(app, connections=connections)
    await turns()
    assert later.transport.written.startswith(b"HTTP/1.1 429 ")
    app.go.set()
    await turns()
    for client in (busy, later, *refused[1:REFUSED]):
        client.end()
    assert len(connections) == 0
    assert not connections._refused
