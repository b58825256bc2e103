"""Requests to our server: add the address and headers, repeat a request where that is safe, decode the answer."""

from __future__ import annotations

import math
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

import msgspec
from msgspec import Struct

from moorage.client.errors import decode_error, is_refused, is_transient
from moorage.client.transport import Answer, HttpTransport, Transport
from moorage_kube.backoff import DoublingDelay
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import ApiError, ServerError, Unauthorized
from moorage_kube.integers import integer_or

if TYPE_CHECKING:
    import asyncio

    import aiohttp

    from moorage.client.discovery import Route

PAUSES = DoublingDelay(0.2, 5.0)  # before a request is repeated
NAMESPACE = "default"
JSON = "application/json"
LOGIN = "the login of this machine"

T = TypeVar("T")
Address = Callable[[], Awaitable[tuple[str, Mapping[str, str]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A server. `address` returns its URL and the headers with credentials; tokens may change between requests.

    `chosen`: the namespace that the user chose; empty: none. `forget`: drops credentials that the server refused
    (401), and returns whether `address` then returns other ones. `source`: where the token comes from.
    """

    address: Address
    forget: Callable[[], bool] = lambda: False
    chosen: str = ""
    ca: str = field(default="", repr=False)  # PEM; empty: the system's authorities
    route: Route | None = None  # how it was found from a kubeconfig
    source: str = LOGIN

    @property
    def namespace(self) -> str:
        return self.chosen or NAMESPACE


Finder = Callable[[AsyncExitStack], Awaitable[Site]]
"""Finds the server; what it opens for that is closed with the connection."""


class Patience(Struct, frozen=True, kw_only=True):
    """Time limits.

    `answer_seconds`: for one answer; `seconds`: for all waits while the server is unavailable or busy.
    """

    answer_seconds: float = 60.0
    seconds: float = 30.0


REPLICA_SECONDS = 5.0  # a replica that died gets no new connections after a second or two; another answers
USUAL = Patience()
REFUSED_SECONDS = 1.5  # for a port where no program listens, before the first answer
WAITING_PROGRAMS = ("MOORAGE_RUN", "MOORAGE_MAP")  # variables of runs and maps, which await a server that restarts
QUICK = Patience(answer_seconds=10.0, seconds=0.0)  # for optional parts of a command


class Sent(TypedDict, total=False):
    """Optional parts of a request.

    `data`: a body that is already encoded, of `content_type`; `key`: repeats with the same key have no
    further effect. `repeat`: whether it may be repeated (default: a GET, or a request with a key);
    `patience`: the `seconds` of `Patience`.
    """

    params: Mapping[str, object] | None
    body: object
    data: bytes | None
    content_type: str
    key: str | None
    headers: Mapping[str, str] | None
    repeat: bool
    patience: float


class Backoff:
    """The pauses between repetitions of one request. They get longer, and end with an error after `seconds`."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self.restart()

    def restart(self) -> None:
        """Reset the pauses after an answer."""
        self._began, self._failures = self._clock.monotonic(), 0

    async def wait(self, error: ApiError, *, least: float | None = None, most: float = math.inf) -> None:
        """Pause before the request is repeated; raise the error if a repeat is of no use or patience is used up.

        `least`: the wait that the server asked for, in seconds. `most`: a shorter patience than usual.
        """
        self._failures += 1
        wait = PAUSES.after(self._failures) * random.uniform(0.7, 1.0) if least is None else least
        if not is_transient(error) or self._clock.monotonic() - self._began + wait > min(self._seconds, most):
            raise error
        await self._clock.sleep(wait)


class Connection:
    """Requests to one server.

    The first request finds and opens it on the current event loop; `close` it at the end.
    """

    def __init__(
        self,
        find: Finder | tuple[Site, Transport],
        *,
        patience: Patience = USUAL,
        clock: Clock = SYSTEM,
        transport: Transport | None = None,
    ) -> None:
        self._find = find
        self.patience = patience
        self.clock = clock
        self._given_transport = transport
        self._stack = AsyncExitStack()
        self._site: Site | None = None
        self._transport: Transport | None = None
        self._opening: asyncio.Lock | None = None
        self._waits = any(name in os.environ for name in WAITING_PROGRAMS)  # or: the server has answered

    async def close(self) -> None:
        self._site = self._transport = None
        await self._stack.aclose()

    async def site(self) -> Site:
        return (await self._open())[0]

    async def address(self) -> tuple[str, dict[str, str]]:
        """Return the server's URL and the headers with credentials. Raises NotReady where there is no server."""
        url, headers = await (await self.site()).address()
        return url, dict(headers)

    async def ask(self, kind: type[T], method: str, path: str, **sent: Unpack[Sent]) -> T:
        """Return the answer as `kind`, a Struct of `moorage.api`.

        Raises ApiError; NotReady if there is no server.
        """
        return _decoded((await self._whole(method, path, **sent))[1], kind, method, path)

    async def json(self, method: str, path: str, **sent: Unpack[Sent]) -> tuple[Any, Mapping[str, str]]:
        """Return the JSON answer (None: an empty one) and its headers. Raises ApiError.

        A GET, and a change with an idempotency `key`, is repeated when no answer comes. Every request is
        repeated when the server answers that it gets too many requests.
        """
        answer, data = await self._whole(method, path, **sent)
        return (_decoded(data, object, method, path) if data else None), answer.headers

    async def lines(
        self, path: str, params: Mapping[str, object] | None = None, *, silence: float | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the lines of an answer as they arrive, without line ends.

        `silence`: as for `Transport.request`.
        """
        async with self.stream("GET", path, params=params, silence=silence) as parts:
            rest: list[bytes] = []
            async for part in parts:
                *whole, last = part.split(b"\n")
                if whole:
                    whole[0] = b"".join([*rest, whole[0]])
                    rest = [last]
                    for line in whole:
                        yield line
                else:
                    rest.append(last)
            if last_line := b"".join(rest):
                yield last_line

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, object] | None = None,
        silence: float | None = None,
        data: bytes | None = None,
        content_type: str = JSON,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the body of an answer as it arrives, without a time limit. `data`: the body of the request."""
        backoff = Backoff(self.clock, self.patience.seconds)
        answer = await self._request(
            method, path, backoff, silence, params=params, data=data, content_type=content_type
        )
        try:
            yield answer.parts()
        finally:
            answer.close()

    @asynccontextmanager
    async def socket(
        self, path: str, params: list[tuple[str, str]], protocol: str
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket. Raises ApiError if the server refuses it."""
        site, transport = await self._open()
        if not isinstance(transport, HttpTransport):
            raise ServerError("this server does not accept WebSockets", status=0)
        async with AsyncExitStack() as stack:
            url, who = await site.address()
            try:
                opening = transport.socket(url + path, params, who, protocol)
                opened = await stack.enter_async_context(opening)
            except Unauthorized:
                if not site.forget():
                    raise
                url, who = await site.address()
                opened = await stack.enter_async_context(transport.socket(url + path, params, who, protocol))
            yield opened

    async def _whole(self, method: str, path: str, **sent: Unpack[Sent]) -> tuple[Answer, bytes]:
        """Return an answer with its whole body.

        The request is also repeated if the connection breaks within the body.
        """
        backoff = Backoff(self.clock, sent.get("patience", self.patience.seconds))
        while True:
            answer = await self._request(method, path, backoff, self.patience.answer_seconds, **sent)
            try:
                return answer, await answer.read()
            except ServerError as error:
                if not _is_repeatable(method, sent):
                    raise
                await backoff.wait(error)
            finally:
                answer.close()

    async def _request(
        self, method: str, path: str, backoff: Backoff, silence: float | None, **sent: Unpack[Sent]
    ) -> Answer:
        """Return an answer that is not an error."""
        site, transport = await self._open()
        data = sent.get("data")
        if (body := sent.get("body")) is not None:
            data = msgspec.json.encode(body)
        headers = dict(sent.get("headers") or {})
        if (key := sent.get("key")) is not None:
            headers["Idempotency-Key"] = key
        if data is not None:
            headers["Content-Type"] = sent.get("content_type", JSON)
        params = _pairs(sent.get("params"))
        is_first = True
        while True:
            url, who = await site.address()
            most = math.inf
            try:
                answer = await transport.request(
                    method, url + path, params=params, body=data, headers={**who, **headers}, silence=silence
                )
                self._waits = True
                if answer.status < 300 or answer.status == 304:
                    return answer
                try:
                    error = decode_error(answer.status, await answer.read())
                finally:
                    answer.close()
                asked = answer.headers.get("Retry-After") if answer.status == 429 else None
            except ServerError as failure:
                error, asked = failure, None
                most = REFUSED_SECONDS if is_refused(failure) and not self._waits else most
            # a token may have ended: other credentials, or the words that name its source
            if error.status == 401 and is_first and site.forget():
                is_first = False
                continue
            if error.status == 401 and who:
                message = f"{url} refused the token from {site.source}: {error.message}"
                error = Unauthorized(message, hint=f"log in: moor login {url}", code=error.code)
            if not _is_repeatable(method, sent) and error.status != 429:
                raise error
            await backoff.wait(error, least=_seconds(asked), most=most)

    async def _open(self) -> tuple[Site, Transport]:
        if isinstance(self._find, tuple):  # a known server needs no lock, which would need an event loop
            return self._find
        import asyncio

        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._site is None or self._transport is None:
                self._site = await self._find(self._stack)
                self._transport = self._given_transport or HttpTransport(self._site.ca)
                self._stack.push_async_callback(self._transport.close)
            return self._site, self._transport


def at(address: Address, *, chosen: str = "", ca: str = "", source: str = LOGIN) -> Finder:
    """Return a finder for a server whose address is known."""

    async def find(_: AsyncExitStack) -> Site:
        return Site(address=address, chosen=chosen, ca=ca, source=source)

    return find


def at_url(url: str, token: str = "", *, chosen: str = "", ca: str = "", source: str = LOGIN) -> Finder:
    """Return a finder for a server with a known URL and token (empty: requests without credentials)."""
    known = (url.rstrip("/"), {"Authorization": f"Bearer {token}"} if token else {})

    async def address() -> tuple[str, Mapping[str, str]]:
        return known

    return at(address, chosen=chosen, ca=ca, source=source)


def _is_repeatable(method: str, sent: Sent) -> bool:
    return sent.get("repeat", method == "GET" or sent.get("key") is not None)


def _decoded(data: bytes, kind: type[T], method: str, path: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ServerError(f"the answer to {method} {path} cannot be read: {error}", status=0) from error


def _pairs(params: Mapping[str, object] | None) -> list[tuple[str, str]]:
    """Return the query parameters as pairs: without None, with one pair for each of several values."""
    pairs: list[tuple[str, str]] = []
    for name, value in (params or {}).items():
        for each in value if isinstance(value, list | tuple) else (value,):
            if each is not None:
                text = ("true" if each else "false") if isinstance(each, bool) else str(each)
                pairs.append((name, text))
    return pairs


def _seconds(text: str | None) -> float | None:
    """Return a Retry-After header in seconds; None if it is not a number."""
    seconds = integer_or(text, -1, maximum=86400)
    return float(seconds) if seconds >= 0 else None
