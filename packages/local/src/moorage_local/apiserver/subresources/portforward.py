"""`pods/portforward` over WebSocket: SPDY streams inside it (kubectl), or one channel pair per port (v4).

https://github.com/kubernetes/cri-streaming/tree/master/pkg/streaming/portforward
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from moorage_kube import spdy
from moorage_kube.errors import ApiError, BadRequest, ServerError
from moorage_kube.integers import integer_or
from moorage_kube.resources import Obj
from moorage_local.apiserver.core import PortSource
from moorage_local.apiserver.wire.websocket import PIECE, Receive, Send, Socket

log = logging.getLogger(__name__)

TUNNEL = "SPDY/3.1+portforward.k8s.io"
OFFERED = TUNNEL.replace("/", "_")  # from `moorage_kube.serving`
CHANNELS = "v4.channel.k8s.io"
STREAMS_MAX = 2000  # open at once in one connection: two for each TCP connection
PORTS_MAX = 100
HELD_MAX = 64  # pieces of one stream on their way to the pod before the whole connection waits


@dataclass(eq=False, slots=True)
class _Stream:
    """One stream of the client."""

    number: int
    headers: Mapping[str, str]
    pieces: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(HELD_MAX))  # b"": no more comes
    closed: bool = False  # its pieces are not read any more


async def serve_ports(
    source: PortSource | None,
    pod: Obj,
    query: Mapping[str, Sequence[str]],
    offered: Sequence[str],
    receive: Receive,
    send: Send,
) -> None:
    """Forward ports until the client disconnects. Raises ApiError before the WebSocket is accepted.

    `source` is None if no node agents run.
    """
    if source is None:
        raise ServerError("this API server runs without node agents", status=501)
    socket = Socket(receive, send)
    if OFFERED in offered:
        await socket.accept(TUNNEL)
        await _Tunnel(socket, pod, source).run()
    elif CHANNELS in offered:
        ports = [_port(port) for text in query.get("ports") or () for port in text.split(",")]
        if not 0 < len(ports) <= PORTS_MAX:
            raise BadRequest(f"query parameter ports: 1 to {PORTS_MAX} ports are needed")
        await socket.accept(CHANNELS)
        await _channels(socket, pod, source, ports)
    else:
        raise BadRequest(f"unsupported WebSocket subprotocol: use {TUNNEL} or {CHANNELS}")


def _port(text: str) -> int:
    """Raises BadRequest."""
    if not integer_or(text, 0, maximum=65535, signed=False):
        raise BadRequest(f'unable to parse "{text[:20]}" as a port')
    return int(text)


class _Tunnel:
    """SPDY streams in one WebSocket: two for each TCP connection, with the same request id."""

    def __init__(self, socket: Socket, pod: Obj, source: PortSource) -> None:
        self._socket = socket
        self._pod = pod
        self._source = source
        self._writer = spdy.Writer()
        self._streams: dict[int, _Stream] = {}
        self._pairs: dict[str, dict[str, _Stream]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by the number of the data stream

    async def run(self) -> None:
        reader = spdy.Reader()
        try:
            while (message := await self._socket.message()) is not None:
                for frame in reader.feed(message):
                    await self._take(frame)
        except spdy.SpdyError as error:
            log.info("a port-forward was ended", extra={"error": str(error)})
            await self._socket.close(1002)
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, frame: spdy.Frame) -> None:
        match frame:
            case spdy.Opened(number, headers, fin):
                await self._open(number, headers, fin=fin)
            case spdy.Data(number, data, fin):
                stream = self._streams.get(number)
                if stream is None or stream.closed:
                    return
                if data:
                    await stream.pieces.put(data)
                if fin:
                    await stream.pieces.put(b"")
            case spdy.Reset(number):
                stream = self._streams.pop(number, None)
                if stream is not None:
                    stream.closed = True
                task = self._tasks.get(number)
                if task is not None:
                    task.cancel()
            case spdy.Ping(number):
                await self._socket.send_bytes(self._writer.ping(number))

    async def _open(self, number: int, headers: Mapping[str, str], *, fin: bool) -> None:
        kind, request, port = (headers.get(name, "") for name in ("streamtype", "requestid", "port"))
        proper = kind in ("error", "data") and integer_or(port, 0, maximum=65535, signed=False) > 0
        if not proper or number in self._streams or len(self._streams) >= STREAMS_MAX:
            await self._socket.send_bytes(self._writer.reset(number, spdy.REFUSED_STREAM))
            return
        stream = self._streams[number] = _Stream(number, headers)
        if kind == "error":
            stream.closed = True  # the client only listens there
        elif fin:
            await stream.pieces.put(b"")
        await self._socket.send_bytes(self._writer.reply(number))
        pair = self._pairs.setdefault(request or port, {})
        pair[kind] = stream
        if len(pair) == 2:
            del self._pairs[request or port]
            task = asyncio.get_running_loop().create_task(self._forward(pair["data"], pair["error"], int(port)))
            self._tasks[pair["data"].number] = task

    async def _forward(self, data: _Stream, errors: _Stream, port: int) -> None:
        problem = ""
        try:
            try:
                reader, writer = await self._source(self._pod, port)
            except (ApiError, OSError) as error:
                meta = self._pod["metadata"]
                problem = f"error forwarding port {port} to pod {meta['uid']}, uid : {error}"
                return
            try:
                await self._join(data, reader, writer)
            finally:
                writer.close()
        finally:
            data.closed = True
            while not data.pieces.empty():  # a task that waits to put a piece there must not wait on
                data.pieces.get_nowait()
            for stream in (data, errors):
                self._streams.pop(stream.number, None)
            self._tasks.pop(data.number, None)
            with contextlib.suppress(OSError, RuntimeError):
                await self._socket.send_bytes(self._writer.data(errors.number, problem.encode(), fin=True))
                await self._socket.send_bytes(self._writer.data(data.number, b"", fin=True))

    async def _join(self, data: _Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def to_pod() -> None:
            with contextlib.suppress(ConnectionError):
                while piece := await data.pieces.get():
                    writer.write(piece)
                    await writer.drain()
                writer.write_eof()

        sending = asyncio.get_running_loop().create_task(to_pod())
        try:
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(PIECE):
                    await self._socket.send_bytes(self._writer.data(data.number, piece))
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)


async def _channels(socket: Socket, pod: Obj, source: PortSource, ports: Sequence[int]) -> None:
    """Forward ports over channels: channel 2n has the data of the nth port, 2n+1 its errors.

    The first message of each channel is the port number.
    """
    # the protocol begins each channel with its port
    for at, port in enumerate(ports):
        for channel in (2 * at, 2 * at + 1):
            await socket.send(channel, struct.pack("<H", port))
    writers: dict[int, asyncio.StreamWriter] = {}

    # a connection that breaks ends its own channel only
    async def from_pod(channel: int, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(PIECE):
                await socket.send(channel, piece)

    tasks: list[asyncio.Task[None]] = []
    taking: asyncio.Task[None] | None = None
    loop = asyncio.get_running_loop()

    async def take() -> None:
        while (message := await socket.message()) is not None:
            writer = writers.get(message[0]) if message else None
            if writer is not None:
                with contextlib.suppress(ConnectionError):
                    writer.write(message[1:])
                    await writer.drain()

    # a port that refuses is reported on its error channel; the others work
    try:
        for at, port in enumerate(ports):
            try:
                reader, writers[2 * at] = await source(pod, port)
            except (ApiError, OSError) as error:
                await socket.send(2 * at + 1, f"error forwarding port {port}: {error}".encode())
                continue
            tasks.append(loop.create_task(from_pod(2 * at, reader)))
        # end with the client, or with the last connection
        taking = loop.create_task(take())
        pumping = loop.create_task(_all(tasks))
        await asyncio.wait({taking, pumping}, return_when=asyncio.FIRST_COMPLETED)
        pumping.cancel()
        await socket.close()
    finally:
        for task in [*tasks, *([taking] if taking else [])]:
            task.cancel()
        await asyncio.gather(*tasks, *([taking] if taking else []), return_exceptions=True)
        for writer in writers.values():
            writer.close()
