"""Serve an ASGI application inside a running event loop, on a socket that already listens."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.connections import (
    CLIENT_CERTIFICATE,
    Bounds,
    ClientConnection,
    Connections,
    Refusal,
    bounds,
    file_limit,
)

log = logging.getLogger(__name__)

DATE_SECONDS = 1.0  # how often the Date of answers is renewed: it has whole seconds
BACKLOG = 2048
HANDSHAKE_SECONDS = 15.0  # of TLS; as long as a slow line needs, and its connection waits for its client meanwhile
IDLE_SECONDS = 120  # longer than clients keep an idle connection (Go's 90, ours 60), or a request meets its end
HEAD_SECONDS = 30.0  # a request's head is whole by then, or the connection ends
HEAD_BYTES = 64 * 1024  # of a request's line and headers
BODY_SECONDS = 60.0  # so long a client may send nothing of a body that the application waits for
REST_BYTES = 64 * 1024  # saved after an Upgrade until the application takes over the connection
REST_MOST_BYTES = 1024 * 1024  # may still arrive before reading stops: some reads of 256 KiB
FRAMING_BYTES = 64 * 1024  # that may come of a body without a byte of content: sizes of chunks, trailers
PIPELINED = 64  # requests that wait behind another on their connection; browsers and libraries send one
RAW_BODY_BYTES = 256 * 1024  # of a request that takes its connection over: Docker's say how to attach or exec
UNREAD_BYTES = 2 * 1024 * 1024  # of a body that waits for the application; reading stops at 64 KiB
# of a body that is still read once its request was answered, so that the answer arrives
REFUSED_BYTES = 1024 * 1024
FAREWELL_SECONDS = 1.0  # for a client that is not taken to read why
LINGER_SECONDS = 30.0  # for a client to read the end of an answer on a connection that is closed
WEBSOCKET_MESSAGES = 4  # that wait for the application, of at most 16 MiB each
LAST_SECONDS = 0.5  # at the end: for the first request of a connection that was just made, and the rest of a head
LAST_LOOK_SECONDS = 0.01
GRACE_SECONDS = 2  # open watches and log streams are cut after this when the process stops
READY_PATH = "/readyz"
RELOAD_SECONDS = 10.0  # how often certificate files are looked at; a kubelet renews mounted Secrets within minutes


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds after which a connection ends whose client does nothing."""

    idle: float = IDLE_SECONDS
    head: float = HEAD_SECONDS
    body: float = BODY_SECONDS
    linger: float = LINGER_SECONDS


DEFAULT_WAITS = Waits()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process that embeds the server has its own.

    The server wakes up once a second, for the date of answers, and when it must stop; uvicorn wakes up ten times a
    second.
    """

    def __init__(self, config: uvicorn.Config, handshakes: set[asyncio.Task[None]]) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()
        self._handshakes = handshakes

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # 0: renew the date
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), DATE_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, and leave no connection that a client could take for accepted but that gets no answer.

        Connections that wait to be accepted are accepted, then no more. A new client may still send a request, and
        data sent before is read. Then as uvicorn: idle connections are closed, running requests have the grace
        period.
        """
        loop = asyncio.get_running_loop()
        entrance = functools.partial(
            cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class),
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        for sock in sockets or ():
            loop.remove_reader(sock)
        await asyncio.sleep(0)  # asyncio drops accepted connections if the server is closed before the next turn
        rest = [connection for sock in sockets or () for connection in _accept_all(sock)]
        for server in self.servers:
            server.close()
        for connection in rest:
            connection.setblocking(False)
            await loop.connect_accepted_socket(entrance, connection)
        for _ in range(2):  # the second turn comes after the reads of the first
            await asyncio.sleep(0)
        end = loop.time() + LAST_SECONDS
        while loop.time() < end and self._expects_some():  # noqa: ASYNC110  (connections send no event)
            await asyncio.sleep(LAST_LOOK_SECONDS)
        for handshake in self._handshakes:
            handshake.cancel()
        await super().shutdown(sockets)

    def _expects_some(self) -> bool:
        return bool(self._handshakes) or any(
            isinstance(connection, _Protocol) and connection.expects_request()
            for connection in self.server_state.connections
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _accept_all(sock: socket.socket) -> list[socket.socket]:
    """Return the connections that wait to be accepted: a close of the socket would reset them."""
    accepted = []
    with contextlib.suppress(OSError):  # BlockingIOError: there are no more
        while True:
            accepted.append(sock.accept()[0])
    return accepted


class _OneWrite:
    """A transport that delays the head of an answer until its body begins, or until the next turn of the loop.

    uvicorn writes them one after the other: two system calls and two segments for every small answer.
    """

    def __init__(self, transport: asyncio.Transport, linger_seconds: float) -> None:
        self._transport = transport
        self._linger_seconds = linger_seconds
        self._loop = asyncio.get_running_loop()
        self._held = b""
        self.on_lost: Callable[[], None] | None = None  # also after another protocol has the connection

    def write(self, data: bytes) -> None:
        if self._held:
            data, self._held = self._held + data, b""
        elif data.startswith(b"HTTP/1.1 "):
            self._held = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        self._flush()
        unread = not self._transport.is_closing() and self._transport.get_write_buffer_size()
        self._transport.close()
        if unread:  # a client that reads nothing would keep it for ever
            self._loop.call_later(self._linger_seconds, self._transport.abort)

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._flush()
        if self.on_lost is not None:
            protocol.connection_lost = functools.partial(  # type: ignore[method-assign]
                _lost, self.on_lost, protocol.connection_lost
            )
        self._transport.set_protocol(protocol)

    def _flush(self) -> None:
        if self._held:
            data, self._held = self._held, b""
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _lost(
    on_lost: Callable[[], None], connection_lost: Callable[[Exception | None], None], error: Exception | None
) -> None:
    on_lost()
    connection_lost(error)


class RawConnection:
    """A connection after the end of HTTP: bytes in both directions, as Docker's clients need it."""

    def __init__(self, protocol: _Protocol, rest: bytes | bytearray, length: int) -> None:
        self._length = length
        self.reader = asyncio.StreamReader()
        self._protocol = protocol
        self._transport = protocol.transport
        self.reader.set_transport(self._transport)
        if rest:
            self.reader.feed_data(rest)

    async def body(self) -> bytes:
        """Read the request's body, which comes first: the HTTP parser leaves it here. Call before any other read.

        Raises asyncio.IncompleteReadError, and ConnectionError for a body longer than RAW_BODY_BYTES.
        """
        if self._length > RAW_BODY_BYTES:
            self.close()
            raise ConnectionAbortedError(f"the body has {self._length} bytes, at most {RAW_BODY_BYTES} are read")
        return await self.reader.readexactly(self._length)

    async def write(self, data: bytes) -> None:
        """Raises ConnectionError after the client closed the connection."""
        if self._transport.is_closing():
            raise ConnectionResetError("the client closed the connection")
        self._transport.write(data)
        await self._protocol.flow.drain()

    def close(self) -> None:
        self._transport.close()


class _Draining:
    """An application that adds `Connection: close` to each answer, and answers on /readyz that it is not ready.

    So clients send their next request to another server, and proxies send no new clients.
    """

    def __init__(self, app: Any, draining: asyncio.Event) -> None:
        self._app, self._draining = app, draining

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not self._draining.is_set():
            await self._app(scope, receive, send)
            return

        async def send_last(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [*(message.get("headers") or ()), (b"connection", b"close")]
                message = {**message, "headers": headers}
            await send(message)

        if scope["path"] != READY_PATH:
            await self._app(scope, receive, send_last)
            return
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"8")]
        await send_last({"type": "http.response.start", "status": 503, "headers": headers})
        await send_last({"type": "http.response.body", "body": b"stopping"})


def _short_answer(status: bytes, headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\n%bconnection: close\r\ncontent-length: 0\r\n\r\n" % (status, headers)


class _Entrance(asyncio.Protocol):
    """A connection that was just accepted.

    It counts before TLS begins, because a client may send nothing at all.
    """

    def __init__(
        self,
        *,
        connections: Connections,
        handshakes: set[asyncio.Task[None]],
        context: ssl.SSLContext | None = None,
        **options: Any,
    ) -> None:
        self._connections = connections
        self._handshakes = handshakes
        self._context = context
        self._options = options
        self._early = bytearray()  # data that came with the handshake's end; one read at most

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        connection = ClientConnection(peer[0] if peer else "", transport.abort)
        refusal = self._connections.enter(connection)
        if refusal is not None:
            log.info("too many connections", extra={"address": connection.address, "status": refusal.value})
            if not self._connections.may_send_refusal(connection):
                transport.abort()
                return
        if self._context is None:
            self._begin(transport, connection, refusal)
            return
        transport.pause_reading()  # until the handshake begins, at the loop's next turn
        task = asyncio.get_running_loop().create_task(
            self._handshake(transport, self._context, connection, refusal)
        )
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    def data_received(self, data: bytes) -> None:
        self._early += data

    async def _handshake(
        self,
        transport: asyncio.Transport,
        context: ssl.SSLContext,
        connection: ClientConnection,
        refusal: Refusal | None,
    ) -> None:
        secured: asyncio.Transport | None = None
        try:
            if not transport.is_closing():
                secured = await asyncio.get_running_loop().start_tls(
                    transport, self, context, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS
                )
        except OSError as error:  # ssl.SSLError and a late client are
            log.debug("no TLS handshake", extra={"address": connection.address, "error": str(error)})
        finally:
            if secured is None or secured.is_closing():
                self._connections.leave(connection)
                transport.abort()
        if secured is not None and not secured.is_closing():
            protocol = self._begin(secured, connection, refusal)
            if self._early:
                protocol.data_received(bytes(self._early))

    def _begin(
        self, transport: asyncio.Transport, connection: ClientConnection, refusal: Refusal | None
    ) -> _Protocol:
        protocol = _Protocol(
            **self._options, connections=self._connections, connection=connection, refusal=refusal
        )
        if shown := transport.get_extra_info("peercert"):
            protocol.app_state = {**protocol.app_state, CLIENT_CERTIFICATE: shown}
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        return protocol


class _Protocol(HttpToolsProtocol):
    """HTTP/1.1 with limits for clients that stop sending, or send without end.

    With `Upgrade: tcp` the scope's extension `moorage.raw` is a function that ends HTTP on the connection, answers
    101 with the headers it is given, and returns a RawConnection.
    """

    _raw: RawConnection | None = None
    _last = b""
    _rest: bytearray | None = None  # data after the end of HTTP
    _framing = 0  # bytes of this body since its last byte of content
    _refused = 0  # bytes of this body that came after its request was answered
    _part = "head"  # the part of a request that is due; "" when a request is whole
    _head_bytes = 0
    _deadline = 0.0  # of the part that is due, in the loop's time
    _watch: asyncio.TimerHandle | None = None
    _is_websocket = False  # another protocol has the connection

    def __init__(
        self,
        *,
        connections: Connections,
        connection: ClientConnection,
        refusal: Refusal | None = None,
        waits: Waits = DEFAULT_WAITS,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._waits = waits
        self._connections = connections
        self._connection = connection
        self._refusal = refusal

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        outer = _OneWrite(transport, self._waits.linger)
        super().connection_made(outer)  # type: ignore[arg-type]
        if self._refusal is not None:
            self._turn_away(self._refusal)
            return
        outer.on_lost = functools.partial(self._connections.leave, self._connection)
        self._expect("head", self._waits.idle)  # clients open connections ahead of their need

    def _turn_away(self, refusal: Refusal) -> None:
        """Refuse the connection, and then read the client's data for a while.

        An immediate close would reset the connection before the answer arrives.
        """
        status = b"429 Too Many Requests" if refusal.value == 429 else b"503 Service Unavailable"
        self.transport.write(_short_answer(status, b"retry-after: 1\r\n"))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(FAREWELL_SECONDS, self.transport.abort)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = self._framing = self._refused = 0
        self._expect("head", self._waits.head)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._part == "head":  # later ones are trailers, which applications do not use
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._framing = 0
        super().on_body(body)
        if len(self.cycle.body) > UNREAD_BYTES:
            self.transport.abort()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._part = ""
        self._mark()

    def expects_request(self) -> bool:
        """Whether a request is likely to come: the connection is new, or the head of a request has begun."""
        if self._refusal is not None or self.transport.is_closing():
            return False
        return self._part == "head" and (self.cycle is None or self._head_bytes > 0)

    def _is_answered(self) -> bool:
        return self.cycle is not None and self.cycle.response_complete

    def _is_answering(self) -> bool:
        """Whether the application has a complete request to answer."""
        if self._raw is not None or self.pipeline:
            return True
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def _mark(self) -> None:
        """Mark the connection as waiting for its client, or as answering a request."""
        if self._is_answering() and not self.flow.write_paused:
            self._connections.works(self._connection)
        else:
            self._connections.waits(self._connection)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._mark()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._mark()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._mark()

    def _expect(self, part: str, seconds: float) -> None:
        self._part, self._deadline = part, self.loop.time() + seconds
        if self._watch is not None and self._watch.when() > self._deadline:
            self._watch.cancel()
            self._watch = None
        if self._watch is None:
            self._watch = self.loop.call_at(self._deadline, self._look)

    def _look(self) -> None:
        """Check the deadline of the connection.

        A connection has one timer, which is set again only while something is awaited: a request needs no new
        timer.
        """
        self._watch = None
        if not self._part or self.transport.is_closing():
            return
        if self.flow.read_paused:  # the application is the one that is slow
            self._deadline = self.loop.time() + self._waits.body
        if self._deadline > self.loop.time():
            self._watch = self.loop.call_at(self._deadline, self._look)
            return
        if self._part == "head" and not self._head_bytes:
            self.transport.close()
            return
        log.info("a client stopped sending in the middle of a request", extra={"part": self._part})
        if self._part == "head":
            self._refuse(b"408 Request Timeout")
        else:
            self.transport.close()

    def _refuse(self, status: bytes) -> None:
        self.transport.write(_short_answer(status))
        self.transport.close()

    def _forget(self) -> None:
        self._part = ""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def handle_websocket_upgrade(self) -> None:
        """Replace slashes in subprotocol names by `_`, and let applications answer with their own header.

        kubectl offers `SPDY/3.1+portforward.k8s.io`, which is not a token: the WebSocket library would refuse it.
        """
        headers = [
            (name, value.replace(b"/", b"_") if name == b"sec-websocket-protocol" else value)
            for name, value in self.scope["headers"]
        ]
        self.scope["headers"] = headers
        self._forget()
        self._is_websocket = True
        self._connections.works(self._connection)
        super().handle_websocket_upgrade()

    def on_headers_complete(self) -> None:
        self._expect("body", self._waits.body)
        if self._get_upgrade() == b"tcp":
            self.scope["extensions"] = {"moorage.raw": self._take_over}  # type: ignore[dict-item]
        super().on_headers_complete()
        if len(self.pipeline) > PIPELINED:
            self.transport.abort()
            raise ValueError("too many requests wait behind another")  # the parser stops

    def data_received(self, data: bytes) -> None:
        if self._raw is not None:
            self._raw.reader.feed_data(data)
            return
        if self._refusal is not None or self.transport.is_closing():
            return
        if self._rest is not None:
            self._keep_rest(data)
            return
        self._last = data
        self._framing += len(data)
        super().data_received(data)
        self._last = b""
        if self._is_websocket:
            return
        self._mark()
        if self._part == "body" and self._framing > FRAMING_BYTES:
            self._refuse(b"431 Request Header Fields Too Large")
        elif self._part == "body" and self._is_answered():
            self._refused += len(data)
            if self._refused > REFUSED_BYTES:
                self.transport.close()
        if self._part == "head":
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refuse(b"431 Request Header Fields Too Large")
        elif self._part:
            self._deadline = self.loop.time() + self._waits.body
        elif self._is_answered():  # an empty line, or the rest of a body, ended uvicorn's timer
            self._head_bytes = 0
            self._expect("head", self._waits.idle)

    def _unsupported_upgrade_warning(self) -> None:
        """Called when the parser meets the end of HTTP: the rest of the same bytes is saved."""
        error = sys.exc_info()[1]
        if error is not None and error.args and isinstance(error.args[0], int):
            self._rest = bytearray()
            self.cycle.keep_alive = False  # the rest is not HTTP: this is the last HTTP answer
            self._keep_rest(self._last[error.args[0] :])

    def _keep_rest(self, data: bytes) -> None:
        """Save bytes until the application decides about the upgrade."""
        assert self._rest is not None
        self._rest += data
        if len(self._rest) > REST_BYTES:
            self.flow.pause_reading()
        if len(self._rest) > REST_MOST_BYTES:
            self.transport.abort()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        if self._raw is not None:
            self._raw.reader.feed_eof()
            return True  # it has said all, and still listens
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._raw is not None:
            self._raw.reader.feed_eof()
        self._forget()
        self._connections.leave(self._connection)
        super().connection_lost(exc)

    def _take_over(self, headers: Iterable[tuple[bytes, bytes]]) -> RawConnection:
        self._forget()
        self.cycle.response_started = self.cycle.response_complete = True
        head = [b"HTTP/1.1 101 UPGRADED\r\n", *(b"%s: %s\r\n" % pair for pair in headers), b"\r\n"]
        self.transport.write(b"".join(head))
        lengths = [value for name, value in self.headers if name == b"content-length"]
        rest, self._rest = self._rest or bytearray(), None
        self.flow.resume_reading()
        self._raw = RawConnection(self, rest, int(lengths[0]) if lengths else 0)
        return self._raw


class Indoors:
    """Serve an ASGI application on connections that this process creates itself, such as the end of a tunnel."""

    def __init__(self, app: Any, *, most: Bounds | None = None) -> None:
        self._config = uvicorn.Config(
            app,
            interface="asgi3",
            ws_max_queue=WEBSOCKET_MESSAGES,
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE_SECONDS,
        )
        self._state = ServerState()
        self._connections = Connections(most or bounds(file_limit(), files_of_connection=3))

    async def connect(
        self, address: str, state: Mapping[str, Any]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to the application, to be closed. Its scopes have `state`, as `scope["state"]`.

        `address` is the key of the bounds. Raises ConnectionError when there are too many connections.
        """
        if not self._config.loaded:
            self._config.load()
        ours, theirs = socket.socketpair()
        connection = ClientConnection(address, functools.partial(_shut, theirs))
        if self._connections.enter(connection) is not None:
            ours.close()
            theirs.close()
            raise ConnectionRefusedError(f"too many connections of {address}")
        protocol = functools.partial(
            _Protocol,
            config=self._config,
            server_state=self._state,
            app_state=dict(state),
            connections=self._connections,
            connection=connection,
        )
        await asyncio.get_running_loop().connect_accepted_socket(protocol, theirs)
        return await asyncio.open_connection(sock=ours)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


async def serve(
    app: Any,
    sock: socket.socket,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    client_ca: Path | None = None,
    stop: asyncio.Event | None = None,
    draining: asyncio.Event | None = None,
    grace_seconds: int = GRACE_SECONDS,
    clock: Clock = SYSTEM,
    most: Bounds | None = None,
    waits: Waits = DEFAULT_WAITS,
) -> None:
    """Serve until `stop` is set or the task is cancelled; with `certificate` and `key` (PEM files) over TLS.

    Requests that are under way then have `grace_seconds`. Once `draining` is set, /readyz says that we stop, and
    each answer ends its connection.

    With `client_ca` (PEM) clients may show a certificate that it signed: each scope's state has it then, as
    CLIENT_CERTIFICATE, in the form of `ssl.SSLSocket.getpeercert`. One that it did not sign ends the handshake.

    `most` bounds the connections; without it the limit of open files does (`connections.bounds`). `waits`: for
    clients that do nothing.

    When the files change, new connections get the new certificate; files that do not fit together are left alone.
    """
    handshakes: set[asyncio.Task[None]] = set()
    config = uvicorn.Config(
        _Draining(app, draining) if draining is not None else app,
        ws_max_queue=WEBSOCKET_MESSAGES,
        loop="asyncio",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # the client is the peer: any local process could claim another address
        backlog=BACKLOG,
        timeout_keep_alive=IDLE_SECONDS,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        ssl_ca_certs=str(client_ca) if client_ca is not None else None,
        ssl_cert_reqs=ssl.CERT_OPTIONAL if client_ca is not None else ssl.CERT_NONE,
        timeout_graceful_shutdown=grace_seconds,
    )
    config.load()
    context, config.ssl = config.ssl, None  # connections are counted first: see _Entrance
    config.http_protocol_class = functools.partial(  # type: ignore[assignment]
        _Entrance,
        connections=Connections(most or bounds(file_limit())),
        handshakes=handshakes,
        context=context,
        waits=waits,
    )
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        # accepted sockets inherit it. asyncio sets it only where the protocol was named when the socket was made;
        # without, an answer's second segment waits for the client's delayed acknowledgement: 40 ms
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = _Server(config, handshakes)
    following: asyncio.Task[None] | None = None
    if context is not None and certificate is not None and key is not None:
        following = asyncio.create_task(_follow_certificate(context, certificate, key, clock))
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    waiting = asyncio.create_task((stop or asyncio.Event()).wait())
    try:
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        if following is not None:
            following.cancel()
        server.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


async def _follow_certificate(context: ssl.SSLContext, certificate: Path, key: Path, clock: Clock) -> None:
    """Load the files again after each change. All files of a mounted Secret change at once, by a symlink."""
    seen = _stamps(certificate, key)
    while True:
        await clock.sleep(RELOAD_SECONDS)
        stamps = _stamps(certificate, key)
        if stamps is None or stamps == seen:
            continue
        try:
            # a failed load leaves a context without a key: try it on another first
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            log.warning("cannot load the new certificate", extra={"path": str(certificate), "error": str(error)})
            continue
        seen = stamps
        log.info("serving with the new certificate", extra={"path": str(certificate)})


def _stamps(*paths: Path) -> tuple[tuple[int, int, int], ...] | None:
    """Values that change with the content of the files; None while a file is missing."""
    try:
        statuses = [path.stat() for path in paths]
    except OSError:
        return None
    return tuple((status.st_ino, status.st_mtime_ns, status.st_size) for status in statuses)
