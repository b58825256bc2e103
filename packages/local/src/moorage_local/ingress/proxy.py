"""The proxy: one task per client connection, one request after the other.

Bodies are forwarded in pieces of at most 64 KiB. The proxy waits for both sides, so its memory does not depend on
the size of bodies. After a WebSocket handshake the two connections are joined byte by byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from moorage_kube.connections import Bounds, ClientConnection, Connections, Refusal
from moorage_local.ingress.http1 import (
    CHUNK_LINE_MAX,
    HEAD_MAX,
    TRAILERS_MAX,
    Answer,
    BadHead,
    Request,
    answer_head,
    chunk_size,
    parse_answer,
    parse_request,
    request_head,
)
from moorage_local.ingress.table import Backend, Router

log = logging.getLogger(__name__)

PIECE = 64 * 1024  # bytes of a body on their way at once, and the largest head of an answer
INTERIM_MAX = 10  # informational answers before the final one
IDLE_MAX = 64  # open idle connections to one backend
LINGER_SECONDS = 1.0
END_OF_CHUNKS = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits of the proxy in seconds, and limits on connections."""

    head: float = 15.0  # from the first byte of a request's head to its last
    idle: float = 75.0  # between two requests of a connection
    body: float = 60.0  # without a byte from, or to, the client
    connect: float = 5.0  # for each address tried
    answer: float = 600.0  # from a request's last byte to the answer's head
    kept: float = 4.0  # an idle connection to a backend; most servers wait 5 s or longer
    # clients at once; the one that waits longest is closed for a new one, else the new one is refused
    connections: int = 1000
    of_address: int = 750  # of them from one address; the rest is for others


class ClientGone(Exception):
    """The client does not read or write any more, or has disconnected."""


class BackendGone(Exception):
    """The backend ended the connection too early."""


@dataclass(eq=False, slots=True)
class Link:
    """One connection to a backend."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used: bool = False
    idle_since: float = 0.0

    def is_usable(self, now: float, kept_seconds: float) -> bool:
        over = self.reader.at_eof() or self.writer.is_closing() or self.reader._buffer  # type: ignore[attr-defined]
        return not over and now - self.idle_since < kept_seconds


@dataclass(eq=False)
class Proxy:
    """Serves connections with the current `router`, which may be replaced at any time."""

    router: Router
    limits: Limits = Limits()
    port: int = 0
    _clients: set[asyncio.Task[None]] = field(default_factory=set)
    _connections: Connections = field(init=False)
    _idle: dict[tuple[str, int], list[Link]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._connections = Connections(
            Bounds(self.limits.connections, min(self.limits.of_address, self.limits.connections))
        )

    async def serve(self, sock: socket.socket, *, ready: Callable[[], None] = lambda: None) -> None:
        """Accept clients until cancelled; then their connections end, too."""
        self.port = sock.getsockname()[1]
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Client(self._client), sock=sock, backlog=512)
        ready()
        try:
            await server.serve_forever()
        finally:
            server.close()
            for task in list(self._clients):
                task.cancel()
            for links in self._idle.values():
                for link in links:
                    link.writer.close()

    def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._connection(reader, writer))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)
        return task

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        connection = ClientConnection(peer[0] if peer else "", writer.transport.abort)
        refusal = self._connections.enter(connection)
        try:
            with contextlib.suppress(ClientGone, BackendGone, ConnectionError, asyncio.IncompleteReadError):
                if refusal is not None:
                    log.info(
                        "too many connections", extra={"address": connection.address, "status": refusal.value}
                    )
                    if not self._connections.may_send_refusal(connection):
                        return
                    whose = " from your address" if refusal is Refusal.ADDRESS else ""
                    await self._say(writer, refusal.value, f"too many connections{whose}; try again in a moment")
                    await _linger(reader, writer)
                    return
                while await self._exchange(reader, writer, connection):
                    self._connections.waits(connection)
                self._connections.waits(connection)
                await _linger(reader, writer)
        except asyncio.CancelledError:
            pass  # the client disconnected, or the proxy stops
        except Exception:  # a defect costs one connection, not the proxy
            log.exception("a connection failed")
        finally:
            self._connections.leave(connection)
            writer.close()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: ClientConnection
    ) -> bool:
        """Serve one request. Return whether the connection may have another request."""
        try:
            head = await self._request_head(reader)
            request = parse_request(head)
        except BadHead as error:
            log.info("a request was refused", extra={"status": error.status, "why": str(error)})
            await self._say(writer, error.status, str(error))
            return False
        self._connections.works(connection)
        backend = self.router.find(request.host, request.path)
        if backend is None:
            what = f"no Ingress leads from http://{request.host or '(no host)'}{request.path[:200]} to a Service"
            return await self._refuse(request, writer, 404, what)
        if backend.problem:
            return await self._refuse(request, writer, 503, backend.problem)
        try:
            return await self._forward(request, backend, reader, writer)
        except BadHead as error:  # before anything was answered
            if error.status == 502:
                log.warning("a backend's answer was refused", extra={"host": request.host, "why": str(error)})
            await self._say(writer, error.status, str(error))
            return False

    async def _request_head(self, reader: asyncio.StreamReader) -> bytes:
        """Read the head of a request. Raises BadHead, and ClientGone if no (further) request comes."""
        try:
            async with asyncio.timeout(self.limits.idle):
                first = await reader.readexactly(1)
        except TimeoutError:
            raise ClientGone from None
        try:
            async with asyncio.timeout(self.limits.head):
                if first == b"\r":  # RFC 9112, 2.2: one empty line before a request is passed over
                    if await reader.readexactly(1) != b"\n":
                        raise BadHead(400, "the request line is not HTTP/1.1")
                    first = b""
                head = first + await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            raise BadHead(408, f"the request's head did not come within {self.limits.head:g} s") from None
        except asyncio.LimitOverrunError:
            raise BadHead(431, f"the request's head is longer than {HEAD_MAX} bytes") from None
        if len(head) > HEAD_MAX:
            raise BadHead(431, f"the request's head is longer than {HEAD_MAX} bytes")
        return head[:-4]

    # -- to the backend and back

    async def _forward(
        self, request: Request, backend: Backend, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        # a link to a backend: an idle one, if the request can be repeated
        peer = writer.get_extra_info("peername")
        head = request_head(request, client=peer[0] if peer else "127.0.0.1", port=self.port)
        address, link = await self._connect(backend, fresh=request.websocket or request.has_body)
        sending: asyncio.Task[None] | None = None
        kept = False
        try:
            # send the request; its body while waiting for the answer
            if request.expects_continue and request.has_body:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            try:
                link.writer.write(head)
                if request.has_body:
                    sending = asyncio.get_running_loop().create_task(self._send_body(request, reader, link.writer))
                answer = await self._answer(request, link, sending)
            except BackendGone:
                if not link.used or request.has_body:
                    raise
                link.writer.close()  # it was closed while idle: the backend has not seen the request
                try:
                    link = await self._open(address)
                except OSError:
                    raise BackendGone from None
                link.writer.write(head)
                answer = await self._answer(request, link, None)
            # a WebSocket: pass bytes both ways until one side ends
            if answer.status == 101:
                if not request.websocket:
                    raise BadHead(502, "the backend changes the protocol without being asked to")
                writer.write(answer_head(answer, chunked=False, close=False, upgrade=True))
                await _join(reader, writer, link)
                return False
            # pass the answer back, then keep the link if both sides allow it
            sent = sending is None or sending.done()
            chunked = answer.length is None and bool(request.minor)
            close = not request.keep_alive or not sent or (answer.length is None and not chunked)
            writer.write(answer_head(answer, chunked=chunked, close=close))
            await self._pass_back(request, answer, link, writer, chunked=chunked)
            if sending is not None and (not sending.done() or sending.exception() is not None):
                close = True  # the rest of the body is not another request
            if answer.keep_alive and not close:
                kept = True
                self._keep(address, link)
            return not close
        except BackendGone:
            where = f"{address[0]}:{address[1]}"
            raise BadHead(502, f"the backend {where} ended the connection without an answer") from None
        finally:
            if sending is not None:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            if not kept:
                link.writer.close()

    async def _connect(self, backend: Backend, *, fresh: bool) -> tuple[tuple[str, int], Link]:
        """Return a connection to the next address that accepts it. Raises BadHead."""
        last = ""
        for address in backend.in_turn():
            if not fresh and (known := self._reuse(address)) is not None:
                return address, known
            try:
                return address, await self._open(address)
            except OSError as error:  # TimeoutError is one
                last = f"{address[0]}:{address[1]} ({error.strerror or 'no answer'})"
        raise BadHead(502, f"no backend takes a connection; the last one tried was {last}")

    async def _open(self, address: tuple[str, int]) -> Link:
        async with asyncio.timeout(self.limits.connect):
            reader, writer = await asyncio.open_connection(*address, limit=PIECE)
        return Link(reader, writer)

    def _reuse(self, address: tuple[str, int]) -> Link | None:
        now = asyncio.get_running_loop().time()
        links = self._idle.get(address, [])
        while links:
            link = links.pop()
            if link.is_usable(now, self.limits.kept):
                link.used = True
                return link
            link.writer.close()
        self._idle.pop(address, None)
        return None

    def _keep(self, address: tuple[str, int], link: Link) -> None:
        links = self._idle.setdefault(address, [])
        if len(links) < IDLE_MAX:
            link.idle_since = asyncio.get_running_loop().time()
            links.append(link)

    def sweep(self) -> None:
        """Close connections to backends that have been idle for too long."""
        now = asyncio.get_running_loop().time()
        for address, links in list(self._idle.items()):
            for link in list(links):
                if not link.is_usable(now, self.limits.kept):
                    links.remove(link)
                    link.writer.close()
            if not links:
                del self._idle[address]

    async def _send_body(self, request: Request, reader: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        """Send the body to the backend.

        Raises BadHead for a malformed body, ClientGone, and ConnectionError if the backend closed the connection.
        """
        async with contextlib.aclosing(
            _pieces(reader, request.length, chunked=request.length is None, seconds=self.limits.body)
        ) as pieces:
            try:
                async for piece in pieces:
                    to.write(b"%x\r\n%b\r\n" % (len(piece), piece) if request.length is None else piece)
                    await to.drain()
            except asyncio.IncompleteReadError:
                raise ClientGone from None
        if request.length is None:
            to.write(END_OF_CHUNKS)
            await to.drain()

    async def _answer(self, request: Request, link: Link, sending: asyncio.Task[None] | None) -> Answer:
        """Return the head of the final answer. Raises BackendGone, BadHead, ClientGone."""
        reading = asyncio.get_running_loop().create_task(self._read_answer(request, link))
        try:
            if sending is not None:
                await asyncio.wait({reading, sending}, return_when=asyncio.FIRST_COMPLETED)
                if sending.done() and not reading.done():
                    error = sending.exception()
                    if isinstance(error, BadHead | ClientGone):
                        raise error
            async with asyncio.timeout(self.limits.answer):
                return await reading
        except TimeoutError:
            raise BadHead(504, f"the backend gave no answer within {self.limits.answer:g} s") from None
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_answer(self, request: Request, link: Link) -> Answer:
        for _ in range(INTERIM_MAX):
            try:
                head = await link.reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                raise BadHead(502, f"the head of the backend's answer is longer than {PIECE} bytes") from None
            except (asyncio.IncompleteReadError, ConnectionError):
                raise BackendGone from None
            answer = parse_answer(head[:-4], request.method)
            if answer.status >= 200 or answer.status == 101:
                return answer
        raise BadHead(502, "the backend gives only informational answers")

    async def _pass_back(
        self, request: Request, answer: Answer, link: Link, writer: asyncio.StreamWriter, *, chunked: bool
    ) -> None:
        """Stream the body to the client. Raises ClientGone.

        If the answer is incomplete, the client's connection is closed.
        """
        try:
            async with contextlib.aclosing(
                _pieces(link.reader, answer.length, chunked=answer.chunked, seconds=None)
            ) as pieces:
                async for piece in pieces:
                    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                    await self._drain(writer)
        except (asyncio.IncompleteReadError, BadHead, ConnectionError) as error:
            log.info("an answer was cut short", extra={"host": request.host, "error": str(error)})
            writer.transport.abort()
            raise ClientGone from None
        if chunked:
            writer.write(END_OF_CHUNKS)
        await self._drain(writer)

    async def _drain(self, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self.limits.body):
                await writer.drain()
        except (TimeoutError, ConnectionError):
            writer.transport.abort()
            raise ClientGone from None

    # -- the proxy's own answers

    async def _refuse(self, request: Request, writer: asyncio.StreamWriter, status: int, why: str) -> bool:
        keep = request.keep_alive and not request.has_body
        await self._say(writer, status, why, close=not keep, body=request.method != b"HEAD")
        return keep

    async def _say(
        self, writer: asyncio.StreamWriter, status: int, why: str, *, close: bool = True, body: bool = True
    ) -> None:
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = "Error"
        text = f"{status} {phrase}: {why}\n".encode("utf-8", "replace")
        head = [
            f"HTTP/1.1 {status} {phrase}",
            "Content-Type: text/plain; charset=utf-8",
            "X-Content-Type-Options: nosniff",
            "Cache-Control: no-store",
            f"Content-Length: {len(text)}",
        ]
        if status in (429, 503):
            head.append("Retry-After: 1")
        if close:
            head.append("Connection: close")
        writer.write("\r\n".join([*head, "", ""]).encode() + (text if body else b""))
        await self._drain(writer)


class _Client(asyncio.StreamReaderProtocol):
    """A client's connection. Its task ends when the client disconnects, during any wait."""

    def __init__(
        self,
        start: Callable[[asyncio.StreamReader, asyncio.StreamWriter], asyncio.Task[None]],
    ) -> None:
        self._serving: asyncio.Task[None] | None = None
        reader = asyncio.StreamReader(limit=PIECE)

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._serving = start(reader, writer)

        super().__init__(reader, connected)

    def eof_received(self) -> bool:
        super().eof_received()
        return False  # a client that closes its side does not read either, as for other proxies

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._serving is not None:
            self._serving.cancel()


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Signal the end of the answer, and read a little of the client's data: closing at once would reset the
    connection before the client has read the answer.
    """
    if writer.can_write_eof() and not writer.is_closing():
        writer.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while await reader.read(PIECE):
                    pass


async def _pieces(
    reader: asyncio.StreamReader, length: int | None, *, chunked: bool, seconds: float | None
) -> AsyncGenerator[bytes, None]:
    """Yield a body in pieces, without its framing. `length` None and not chunked: until the connection ends.

    `seconds`: the longest wait for each piece. Raises BadHead, IncompleteReadError, ClientGone (too slow).
    """

    # a side that stops sending must not hold the connection
    async def wait(read: Awaitable[bytes]) -> bytes:
        try:
            async with asyncio.timeout(seconds):
                return await read
        except TimeoutError:
            raise ClientGone from None

    async def exactly(count: int) -> AsyncGenerator[bytes, None]:
        while count:
            piece = await wait(reader.read(min(PIECE, count)))
            if not piece:
                raise asyncio.IncompleteReadError(b"", count)
            count -= len(piece)
            yield piece

    # the end of the connection ends the body
    if not chunked and length is None:
        while piece := await wait(reader.read(PIECE)):
            yield piece
        return
    # a given length
    if not chunked:
        async for piece in exactly(length or 0):
            yield piece
        return
    # chunks: sizes are checked, and trailers read but dropped
    while True:
        size = chunk_size(await wait(_line(reader, CHUNK_LINE_MAX)))
        if not size:
            break
        async for piece in exactly(size):
            yield piece
        if await wait(reader.readexactly(2)) != b"\r\n":
            raise BadHead(400, "a chunk of the body is longer than it says")
    left = TRAILERS_MAX
    while line := await wait(_line(reader, left)):
        left -= len(line)


async def _line(reader: asyncio.StreamReader, most: int) -> bytes:
    try:
        line = await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError:
        line = b"x" * (most + 3)
    if len(line) > most + 2:
        raise BadHead(400, f"a line of the body's framing is longer than {most} bytes")
    return line[:-2]


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: Link) -> None:
    """Forward bytes in both directions until one side ends."""

    async def pump(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await source.read(PIECE):
                to.write(piece)
                await to.drain()

    for end in (writer, link.writer):
        sock = end.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    loop = asyncio.get_running_loop()
    pumps = {loop.create_task(pump(reader, link.writer)), loop.create_task(pump(link.reader, writer))}
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
