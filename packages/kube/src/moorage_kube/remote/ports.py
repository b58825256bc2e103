"""A connection to a port of a pod, over the API server's WebSocket.

Two protocols: streams of SPDY in the WebSocket, as kubectl speaks (a server of 1.31 and newer), and a pair of
channels (older servers). Each TCP connection has its own WebSocket, so that a slow one does not block others.

https://github.com/kubernetes/enhancements/tree/master/keps/sig-api-machinery/4006-transition-spdy-to-websockets
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol, Self

from moorage_kube import spdy
from moorage_kube.errors import ServerError
from moorage_kube.resources import PODS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    import aiohttp

TUNNEL = "SPDY/3.1+portforward.k8s.io"
CHANNELS = "v4.channel.k8s.io"
PROTOCOLS = (TUNNEL, CHANNELS)
ERRORS, DATA = 1, 3  # numbers of our streams: a client's are odd
DATA_CHANNEL, ERROR_CHANNEL = 0, 1
PORT_BYTES = 2  # each channel begins with its port
PIECE = 32 * 1024  # bytes in one message
QUIET_SECONDS = 10.0  # the longest answer after the end of our data, if the protocol cannot signal that end
ERROR_MAX = 4096  # bytes of an error that are shown


class SocketOpener(Protocol):
    """An opener of WebSockets, such as `KubeClient`."""

    async def open_socket(
        self, path: str, query: Sequence[tuple[str, str]], *, protocols: Sequence[str], what: str
    ) -> aiohttp.ClientWebSocketResponse: ...


class PodPort:
    """A connection to a port of a pod: `write` and `write_end`, and `pieces` with the data from the pod."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, where: str) -> None:
        self._socket = socket
        self._where = where
        self._writer = spdy.Writer() if socket.protocol == TUNNEL else None
        self._error = bytearray()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._socket.close()

    @property
    def says_end(self) -> bool:
        """Whether the protocol can signal the end of our data to the pod while the pod continues to send."""
        return self._writer is not None

    async def write(self, data: bytes) -> None:
        """Send data to the port. Raises ServerError if the connection has ended."""
        for at in range(0, len(data), PIECE):
            piece = data[at : at + PIECE]
            message = self._writer.data(DATA, piece) if self._writer else bytes([DATA_CHANNEL]) + piece
            await self._send(message)

    async def write_end(self) -> None:
        """Signal the end of our data if the protocol can (`says_end`).

        Raises ServerError if the connection has ended.
        """
        if self._writer is not None:
            await self._send(self._writer.data(DATA, b"", fin=True))

    async def pieces(self) -> AsyncGenerator[bytes]:
        """The data from the pod, to its end. Raises ServerError if the port could not be reached."""
        async for data in self._streams() if self._writer else self._channels():
            yield data
        if self._error:
            text = bytes(self._error[:ERROR_MAX]).decode("utf-8", "replace").strip()
            raise ServerError(f"{self._where}: {text}", status=0)

    async def open_streams(self, port: int) -> None:
        """Open the SPDY streams for errors and data. Raises ServerError."""
        if self._writer is None:
            return
        headers = {"port": str(port), "requestid": "0"}
        opening = self._writer.opened(ERRORS, headers | {"streamtype": "error"})
        opening += self._writer.data(ERRORS, b"", fin=True)  # we only listen there
        await self._send(opening)
        await self._send(self._writer.opened(DATA, headers | {"streamtype": "data"}))

    async def _streams(self) -> AsyncGenerator[bytes]:
        """Yield the data of SPDY frames, until the pod has ended both streams.

        An error may come after the data. After an error, the end of the error stream is enough.
        """
        reader, open_streams = spdy.Reader(), {ERRORS, DATA}
        try:
            async for message in self._messages():
                for frame in reader.feed(message):
                    match frame:
                        case spdy.Data(number, data, fin):
                            if number == DATA and data:
                                yield data
                            elif number == ERRORS:
                                self._error += data
                            if fin:
                                open_streams.discard(number)
                        case spdy.Reset(number):
                            open_streams.discard(number)
                        case spdy.Ping(number):
                            await self._send(self._writer.ping(number) if self._writer else b"")
                if not open_streams or (self._error and ERRORS not in open_streams):
                    return
        except spdy.SpdyError as error:
            raise ServerError(f"{self._where}: the API server does not speak SPDY: {error}", status=0) from error

    async def _channels(self) -> AsyncGenerator[bytes]:
        """Yield the data of messages.

        Their first byte is the channel; the first message of a channel has the port.
        """
        begun: set[int] = set()
        async for message in self._messages():
            channel, data = message[0], message[1:]
            if channel not in begun:
                begun.add(channel)
                data = data[PORT_BYTES:]
            if channel == DATA_CHANNEL and data:
                yield data
            elif channel == ERROR_CHANNEL and data:
                self._error += data
                return

    async def _messages(self) -> AsyncGenerator[bytes]:
        import aiohttp

        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.BINARY and message.data:
                yield message.data

    async def _send(self, message: bytes) -> None:
        try:
            await self._socket.send_bytes(message)
        except (ConnectionError, RuntimeError) as error:
            raise ServerError(f"{self._where}: the connection has ended", status=0) from error


async def open_port(api: SocketOpener, pod: str, namespace: str, port: int) -> PodPort:
    """Connect to a port of a pod; to be closed (`async with`). Raises ApiError.

    It takes `get` and `create` of `pods/portforward`. Only `pieces` reports that no process listens on the port.
    """
    where = f"port {port} of pod {namespace}/{pod}"
    path = PODS.path(namespace=namespace, name=pod, subresource="portforward")
    socket = await api.open_socket(path, [("ports", str(port))], protocols=PROTOCOLS, what=where)
    connection = PodPort(socket, where)
    try:
        await connection.open_streams(port)
    except BaseException:
        await socket.close()
        raise
    return connection


async def join_streams(port: PodPort, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on in both directions until the pod's side has ended, or ours was closed."""

    async def to_pod() -> None:
        while data := await reader.read(PIECE):
            await port.write(data)
        await port.write_end()

    async def from_pod() -> None:
        async with contextlib.aclosing(port.pieces()) as pieces:
            async for data in pieces:
                writer.write(data)
                await writer.drain()

    sending, receiving = asyncio.create_task(to_pod()), asyncio.create_task(from_pod())
    try:
        await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
        if not receiving.done():
            # the pod ends its side once it knows that ours has ended; where it cannot know, it gets a moment
            await asyncio.wait((receiving,), timeout=None if port.says_end else QUIET_SECONDS)
        if receiving.done():
            receiving.result()
    finally:
        for task in (sending, receiving):
            task.cancel()
        await asyncio.gather(sending, receiving, return_exceptions=True)
