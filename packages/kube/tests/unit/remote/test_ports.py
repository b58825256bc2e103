"""The two protocols of a connection to a pod's port, on a WebSocket in memory."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from moorage_kube import spdy
from moorage_kube.errors import ServerError
from moorage_kube.remote.ports import CHANNELS, DATA, ERRORS, PIECE, PROTOCOLS, TUNNEL, PodPort, open_port

pytestmark = pytest.mark.anyio


@dataclass
class Socket:
    """A WebSocket that answers `messages` and keeps what is sent."""

    protocol: str
    messages: Sequence[bytes] = ()
    sent: list[bytes] = field(default_factory=list)
    closed: bool = False

    async def send_bytes(self, data: bytes) -> None:
        if self.closed:
            raise ConnectionError
        self.sent.append(data)

    async def __aiter__(self) -> AsyncIterator[Any]:
        for data in self.messages:
            yield SimpleNamespace(type=aiohttp.WSMsgType.BINARY, data=data)

    async def close(self) -> None:
        self.closed = True


@dataclass
class Opener:
    """Opens one such WebSocket."""

    socket: Socket
    asked: list[Any] = field(default_factory=list)

    async def open_socket(self, path: str, query: Any, *, protocols: Any, what: str) -> Any:
        self.asked += [path, query, protocols, what]
        return self.socket


async def connected(protocol: str, *messages: bytes) -> tuple[PodPort, Socket]:
    socket = Socket(protocol, messages)
    opener = Opener(socket)
    port = await open_port(opener, "web", "lab", 8888)
    assert opener.asked == [
        "/api/v1/namespaces/lab/pods/web/portforward",
        [("ports", "8888")],
        PROTOCOLS,
        "port 8888 of pod lab/web",
    ]
    return port, socket


def frames(*messages: bytes) -> list[spdy.Frame]:
    reader = spdy.Reader()
    return [frame for message in messages for frame in reader.feed(message)]


async def test_the_streams_of_a_connection_are_opened_as_kubectl_opens_them():
    port, socket = await connected(TUNNEL)
    await port.write(b"x" * (PIECE + 1))
    await port.write_end()
    headers = {"port": "8888", "requestid": "0"}
    assert frames(*socket.sent) == [
        spdy.Opened(ERRORS, headers | {"streamtype": "error"}, False),
        spdy.Data(ERRORS, b"", True),
        spdy.Opened(DATA, headers | {"streamtype": "data"}, False),
        spdy.Data(DATA, b"x" * PIECE, False),
        spdy.Data(DATA, b"x", False),
        spdy.Data(DATA, b"", True),
    ]


async def test_what_the_pod_sends_comes_until_both_streams_end():
    pod = spdy.Writer()
    answers = pod.reply(ERRORS) + pod.reply(DATA) + pod.data(DATA, b"abc") + pod.ping(2)
    port, socket = await connected(
        TUNNEL, answers, pod.data(DATA, b"def", fin=True), pod.data(ERRORS, b"", fin=True), pod.data(DATA, b"late")
    )
    assert [piece async for piece in port.pieces()] == [b"abc", b"def"]
    assert frames(*socket.sent)[-1] == spdy.Ping(2)


async def test_an_error_of_the_pods_side_is_raised_with_its_text():
    pod = spdy.Writer()
    port, _ = await connected(TUNNEL, pod.data(ERRORS, b"connection refused", fin=True))
    with pytest.raises(ServerError) as caught:
        _ = [piece async for piece in port.pieces()]
    assert caught.value.message == "port 8888 of pod lab/web: connection refused"


async def test_a_server_without_the_tunnel_gets_channels():
    start = struct.pack("<H", 8888)
    port, socket = await connected(CHANNELS, b"\0" + start, b"\1" + start, b"\0abc", b"\0def")
    await port.write(b"GET")
    await port.write_end()
    assert not port.says_end
    assert socket.sent == [b"\0GET"]
    assert [piece async for piece in port.pieces()] == [b"abc", b"def"]


async def test_an_error_on_its_channel_is_raised():
    start = struct.pack("<H", 8888)
    port, _ = await connected(CHANNELS, b"\0" + start, b"\1" + start, b"\1connection refused")
    with pytest.raises(ServerError, match="connection refused"):
        _ = [piece async for piece in port.pieces()]


async def test_writing_to_a_connection_that_has_ended_is_an_error():
    port, socket = await connected(TUNNEL)
    async with port:
        pass
    assert socket.closed
    with pytest.raises(ServerError, match="the connection has ended"):
        await port.write(b"x")


async def test_what_is_no_spdy_is_an_error():
    port, _ = await connected(TUNNEL, struct.pack(">II", 0x8002_0001, 4) + b"abcd")
    with pytest.raises(ServerError, match="does not speak SPDY"):
        _ = [piece async for piece in port.pieces()]
