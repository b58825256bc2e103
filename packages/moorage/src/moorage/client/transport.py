"""Send a request to the server and return its answer.

This module uses HTTP; `sdk.local` calls the server directly.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from moorage.client.errors import LOOPBACK, decode_error, no_answer
from moorage_kube.errors import ServerError

if TYPE_CHECKING:
    import asyncio

    import aiohttp

CONNECT_SECONDS = 10.0

Pairs = Sequence[tuple[str, str]]


class Answer(Protocol):
    """An answer whose body may not be complete yet. The caller must `close` it."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self) -> bytes:
        """The whole body."""
        ...

    def parts(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        ...

    def close(self) -> None: ...


class Transport(Protocol):
    """Sends requests. All methods raise ServerError with status 0 if no answer arrives."""

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
        """Send a request.

        `silence`: the maximum time between two parts of the answer, in seconds; None: no limit.
        """
        ...

    async def close(self) -> None: ...


class HttpTransport:
    """Uses the proxies of the environment, except for localhost."""

    def __init__(self, ca: str = "") -> None:
        self._ca = ca
        self._http: aiohttp.ClientSession | None = None
        self._kept: AsyncGenerator[aiohttp.ClientSession, None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

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
            answer = await (await self._session()).request(
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
        """Open a WebSocket. Raises ApiError if the server refuses it."""
        import aiohttp

        try:
            opened = await (await self._session()).ws_connect(
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
        kept, self._kept, self._http = self._kept, None, None
        if kept is not None:
            await kept.aclose()

    async def _session(self) -> aiohttp.ClientSession:
        """Return the HTTP session of the running event loop.

        If the old session's loop has closed, create a new session.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        if self._http is None or self._http.closed or self._loop is not loop:
            self._kept, self._loop = _session_of(self._ca), loop
            self._http = await anext(self._kept)
        return self._http


async def _session_of(ca: str) -> AsyncGenerator[aiohttp.ClientSession, None]:
    """Yield a session that closes itself if its user does not close it.

    The event loop closes a generator that is no longer referenced, and all remaining ones when it ends.
    """
    import ssl

    import aiohttp

    trust = ssl.create_default_context(cadata=ca) if ca else True
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:
        yield session


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
    """Return the proxy that the environment names for an address; None for localhost, or without a proxy."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in LOOPBACK or not (proxies := getproxies()) or proxy_bypass(host):
        return None
    return proxies.get(parts.scheme)


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
