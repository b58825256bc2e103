"""Pass an HTTP request or a WebSocket on to a workspace's application, byte for byte, as fast as both
take it.

Pure functions decide the headers; `Forwarder` streams. Only the bytes in transit are in memory: a
body that is never ending, or read slowly, slows the other side down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from starlette.types import Message, Receive, Scope, Send

from moorage_kube.clock import SYSTEM, Clock

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)

Headers = list[tuple[str, str]]

CONNECT_SECONDS = 10.0
IDLE_BODY_SECONDS = 120.0  # a client that begins a body must continue it, or is disconnected
STALLED_SECONDS = 300.0  # a client that takes nothing of an answer for so long is let go
CHUNK_BYTES = 64 * 1024
MESSAGE_BYTES = 256 * 1024 * 1024  # of a WebSocket: a notebook with its pictures is one message
HEARTBEAT_SECONDS = 30.0
CONNECTIONS = 512  # to one workspace at a time
GOING_AWAY, POLICY = 1001, 1008

HOP_BY_HOP = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
NOT_PASSED = HOP_BY_HOP | {
    "authorization",  # never the platform's tokens; the application gets its own
    "cookie",  # see `cookies_passed`
    "forwarded",
    "host",
    "expect",  # answered here
    "x-real-ip",
    "x-original-url",
    "x-rewrite-url",
    "impersonate-user",
    "impersonate-group",
    "impersonate-uid",
}
NOT_RETURNED = HOP_BY_HOP | {"alt-svc", "set-cookie", "server", "date"}
OF_WEBSOCKET = ("sec-websocket-",)
OUR_COOKIES = ("moorage_", "__host-moorage_", "__secure-moorage_")  # prefixes, lower case


class Unreachable(Exception):
    """The application does not answer."""


class Destination(Struct, frozen=True, kw_only=True):
    """The address of an application, and the headers and cookies that it gets with each request."""

    address: str
    port: int
    host: str  # the Host it hears, as the browser named it
    scheme: str  # of the address the browser used
    headers: tuple[tuple[str, str], ...] = ()
    cookies: tuple[tuple[str, str], ...] = ()

    @property
    def netloc(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.port}"


def passed_on(given: Iterable[tuple[str, str]], to: Destination, client: str) -> Headers:
    """The headers of a request as the application gets them.

    Without headers of this hop, the platform's own, and those that only a proxy may set.
    """
    pairs = [(name.lower(), value) for name, value in given]
    named = {part.strip().lower() for name, value in pairs if name == "connection" for part in value.split(",")}
    own = {name.lower() for name, _ in to.headers}
    headers = [
        (name, value)
        for name, value in pairs
        if name not in NOT_PASSED
        and name not in named
        and name not in own
        and "_" not in name  # some frameworks read X_Forwarded_For as X-Forwarded-For
        and not name.startswith("x-forwarded-")
        and not name.startswith(OF_WEBSOCKET)
    ]
    cookies = cookies_passed((value for name, value in pairs if name == "cookie"), to.cookies)
    headers += [
        ("host", to.host),
        ("x-forwarded-for", client),
        ("x-forwarded-proto", to.scheme),
        ("x-forwarded-host", to.host),
        *to.headers,
    ]
    return headers + ([("cookie", cookies)] if cookies else [])


def cookies_passed(given: Iterable[str], ours: Sequence[tuple[str, str]]) -> str:
    """The Cookie header for the application: without the platform's cookies, plus the cookies in `ours`."""
    replaced = {name for name, _ in ours}
    kept = []
    for header in given:
        for pair in header.split(";"):
            name = pair.partition("=")[0].strip()
            if name and not is_our_cookie(name) and name not in replaced:
                kept.append(pair.strip())
    return "; ".join([*kept, *(f"{name}={value}" for name, value in ours)])


def is_our_cookie(name: str) -> bool:
    return name.strip().lower().startswith(OUR_COOKIES)


def returned(given: Iterable[tuple[str, str]]) -> Headers:
    """The response headers for the browser. Cookies with the platform's names or for other hosts are removed."""
    pairs = [(name.lower(), value) for name, value in given]
    named = {part.strip().lower() for name, value in pairs if name == "connection" for part in value.split(",")}
    headers = [(name, value) for name, value in pairs if name not in NOT_RETURNED and name not in named]
    headers += [
        ("set-cookie", cookie) for name, value in pairs if name == "set-cookie" and (cookie := own_cookie(value))
    ]
    # workspaces cannot be framed; this policy holds in addition to the application's own
    return [*headers, ("content-security-policy", "frame-ancestors 'self'")]


def own_cookie(header: str) -> str:
    """A Set-Cookie limited to this host; empty for one that must not be set. Raises nothing."""
    name = header.partition("=")[0]
    if not name.strip() or is_our_cookie(name):
        return ""
    parts = header.split(";")
    return ";".join(
        [parts[0], *(part for part in parts[1:] if part.strip().partition("=")[0].lower() != "domain")]
    )


def cookie_values(headers: Iterable[tuple[str, str]], name: str) -> list[str]:
    """All values of a cookie: another workspace may have set a second cookie with the same name."""
    values = []
    for key, value in headers:
        if key.lower() != "cookie":
            continue
        for pair in value.split(";"):
            with contextlib.suppress(CookieError):
                cookie = SimpleCookie(pair.strip()).get(name)
                if cookie is not None:
                    values.append(cookie.value)
    return values


def headers_of(scope: Scope) -> Headers:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]


def target_of(scope: Scope) -> str:
    """Path and query, byte for byte as the browser sent them."""
    raw = scope.get("raw_path") or scope["path"].encode("utf-8")
    path = raw.partition(b"?")[0].decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    return (path if path.startswith("/") else f"/{path}") + (f"?{query}" if query else "")


class Forwarder:
    """Forwards requests to applications. Create one per process and `close` it at the end."""

    def __init__(self, *, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            import aiohttp

            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, limit_per_host=CONNECTIONS, use_dns_cache=False),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                trust_env=False,
                max_line_size=65536,
                max_field_size=65536,
            )
        return self._session

    async def http(
        self, scope: Scope, receive: Receive, send: Send, to: Destination, holds: Callable[[], Awaitable[None]]
    ) -> None:
        """Stream one request and its answer. Raises Unreachable only before the answer begins.

        `holds` returns when the caller is no longer allowed; then the answer ends.
        """
        import aiohttp
        import yarl

        headers = passed_on(headers_of(scope), to, _client(scope))
        names = {name for name, _ in headers}
        body_done = asyncio.Event()
        has_body = "content-length" in names or any(name == "transfer-encoding" for name, _ in headers_of(scope))
        body = self._body(receive, body_done) if has_body else None
        if not has_body:
            body_done.set()
        url = yarl.URL(f"http://{to.netloc}{target_of(scope)}", encoded=True)
        started = False
        try:
            async with self._open().request(
                scope["method"], url, headers=headers, data=body, allow_redirects=False
            ) as answer:
                started = True
                await self._answer(scope, answer, receive, send, body_done, holds)
        except (aiohttp.ClientError, TimeoutError, OSError, ConnectionError) as error:
            if started:
                raise  # the connection is cut: the browser sees that the answer is not whole
            raise Unreachable(str(error) or type(error).__name__) from error

    async def _body(self, receive: Receive, done: asyncio.Event) -> AsyncIterator[bytes]:
        while True:
            async with asyncio.timeout(IDLE_BODY_SECONDS):
                message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError("the client disconnected")
            if chunk := message.get("body"):
                yield chunk
            if not message.get("more_body"):
                done.set()
                return

    async def _answer(
        self,
        scope: Scope,
        answer: aiohttp.ClientResponse,
        receive: Receive,
        send: Send,
        body_done: asyncio.Event,
        holds: Callable[[], Awaitable[None]],
    ) -> None:
        raw = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.raw_headers]
        await send(
            {
                "type": "http.response.start",
                "status": answer.status,
                "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in returned(raw)],
            }
        )

        async def pump() -> None:
            async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                async with asyncio.timeout(STALLED_SECONDS):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        async def gone() -> None:
            await body_done.wait()
            while (await receive())["type"] != "http.disconnect":
                pass

        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        await first_of(pump(), gone(), holds())

    async def websocket(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        to: Destination,
        holds: Callable[[], Awaitable[None]],
        heard: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Forward the messages of a WebSocket in both directions until either side closes it.

        `heard` is called with the length of each message of the client.
        """
        import aiohttp

        # connect to the application before the browser's socket is accepted, so that its refusal is passed on
        assert (await receive())["type"] == "websocket.connect"
        headers = passed_on(headers_of(scope), to, _client(scope))
        try:
            upstream = await self._open().ws_connect(
                f"http://{to.netloc}{target_of(scope)}",
                headers=headers,
                protocols=tuple(scope.get("subprotocols") or ()),
                max_msg_size=MESSAGE_BYTES,
                heartbeat=HEARTBEAT_SECONDS,
                autoclose=False,
            )
        except aiohttp.WSServerHandshakeError as error:
            await deny(scope, send, error.status if 400 <= error.status < 600 else 502)
            return
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.info("a workspace's WebSocket cannot be opened", extra={"error": str(error), "to": to.netloc})
            await deny(scope, send, 502)
            return
        # accept with the subprotocol that the application chose
        async with upstream:
            accept: Message = {"type": "websocket.accept", "headers": []}
            if upstream.protocol:
                accept["subprotocol"] = upstream.protocol
            await send(accept)
            ended: dict[str, Any] = {"code": POLICY, "by_client": False}

            # copy both ways; each side notes the code with which it closed
            async def up() -> None:
                while True:
                    message = await receive()
                    if message["type"] == "websocket.disconnect":
                        ended.update(code=message.get("code") or GOING_AWAY, by_client=True)
                        return
                    if (text := message.get("text")) is not None:
                        heard(len(text))
                        await upstream.send_str(text)
                    else:
                        data = message.get("bytes") or b""
                        heard(len(data))
                        await upstream.send_bytes(data)

            async def down() -> None:
                async for message in upstream:
                    async with asyncio.timeout(STALLED_SECONDS):
                        if message.type is aiohttp.WSMsgType.TEXT:
                            await send({"type": "websocket.send", "text": message.data})
                        elif message.type is aiohttp.WSMsgType.BINARY:
                            await send({"type": "websocket.send", "bytes": message.data})
                ended.update(code=_close_code(upstream.close_code))

            # the first end closes the other side with the same code
            with contextlib.suppress(ConnectionError, aiohttp.ClientError, TimeoutError):
                await first_of(up(), down(), holds())
            if ended["by_client"]:
                await upstream.close(code=_close_code(ended["code"]))
                return
            with contextlib.suppress(RuntimeError, OSError):  # the client may have disconnected too
                await send({"type": "websocket.close", "code": ended["code"]})


async def first_of(*works: Any) -> None:
    """Run all until one ends; cancel the rest, and raise the error of the first one."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if task in done and (error := task.exception()) is not None:
            raise error


async def deny(scope: Scope, send: Send, status: int) -> None:
    """Refuse a WebSocket with an HTTP status if the server supports that, else close it."""
    if "websocket.http.response" in (scope.get("extensions") or {}):
        await send({"type": "websocket.http.response.start", "status": status, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b"", "more_body": False})
        return
    await send({"type": "websocket.close", "code": POLICY})


def _close_code(code: int | None) -> int:
    """A code that may be sent: 1005 and 1006 only mean that none was received."""
    if code is None or code in (1005, 1006, 1015) or not 1000 <= code < 5000:
        return GOING_AWAY
    return code


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""
