"""How a request reaches the server, and its answer us. HTTP here; a call in this process in `sdk.local`."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from moorage.client.errors import decode_error, no_answer
from moorage.errors import ServerError

if TYPE_CHECKING:
    import aiohttp

CONNECT_SECONDS = 10.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")

Pairs = Sequence[tuple[str, str]]


class Answer(Protocol):
    """An answer whose body may still be on its way. `close` it."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self) -> bytes:
        """The whole body."""
        ...

    def parts(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        ...

    def close(self) -> None: ...


class Transport(Protocol):
    """All raise ServerError with status 0 when no answer comes."""

    async def request(
        self,
        method: str,
        url: str,
        *,
        params: Pairs,
        body: bytes | None,
        headers: Mapping[str, str],
        silence: float | None,
    ) -> Answer:
        """`silence`: the longest time, in seconds, between two parts of the answer; None: any."""
        ...

    async def close(self) -> None: ...


class HttpTransport:
    """HTTP by aiohttp, opened by its first request. `ca`: PEM; empty: the system's authorities.

    The proxies of the environment count, but for this machine itself.
    """

    def __init__(self, ca: str = "") -> None:
        self._ca = ca
        self._http: aiohttp.ClientSession | None = None

    async def request(
        self,
        method: str,
        url: str,
        *,
        params: Pairs,
        body: bytes | None,
        headers: Mapping[str, str],
        silence: float | None,
    ) -> Answer:
        import aiohttp

        try:
            answer = await self._session().request(
                method,
                url,
                params=list(params),
                data=body,
                headers=dict(headers),
                allow_redirects=False,  # a token is not carried to another address
                proxy=proxy_of(url),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence),
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise no_answer(_origin(url), error) from error
        return _HttpAnswer(answer)

    @asynccontextmanager
    async def socket(
        self, url: str, params: Pairs, headers: Mapping[str, str], protocol: str
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A WebSocket. Raises ApiError where it is refused."""
        import aiohttp

        try:
            opened = await self._session().ws_connect(
                url,
                params=list(params),
                headers=dict(headers),
                protocols=(protocol,),
                max_msg_size=0,
                heartbeat=30,
                proxy=proxy_of(url),
            )
        except aiohttp.WSServerHandshakeError as error:
            raise decode_error(error.status, None) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise no_answer(_origin(url), error) from error
        async with opened:
            yield opened

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            import aiohttp

            trust = ssl.create_default_context(cadata=self._ca) if self._ca else True
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust))
        return self._http


class _HttpAnswer:
    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers

    async def read(self) -> bytes:
        return b"".join([part async for part in self.parts()])

    async def parts(self) -> AsyncIterator[bytes]:
        import aiohttp

        try:
            async for part in self._answer.content.iter_any():
                yield part
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            url = self._answer.url
            reason = str(error) or type(error).__name__
            raise ServerError(
                f"the answer to {self._answer.method} {url.path} was interrupted: {reason}", status=0
            ) from error

    def close(self) -> None:
        self._answer.close()


def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for an address; None for this machine itself, and without one."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in LOOPBACK or not (proxies := getproxies()) or proxy_bypass(host):
        return None
    return proxies.get(parts.scheme)


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
