"""Where the server is, who asks it, and one request to it: asked again where that does no harm."""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moorage.apimachinery.integers import integer_or
from moorage.clock import SYSTEM, Clock
from moorage.errors import AlreadyExists, ApiError, ServerError, UsageError, api_error
from moorage.settings import KUBECONFIG, SERVER_URL, TOKEN

if TYPE_CHECKING:
    import aiohttp

ANSWER_SECONDS = 60.0  # patience with one answer
PATIENCE_SECONDS = 30.0  # a server that does not answer, or puts off, longer is an error
PAUSES = (0.2, 5.0)  # first and longest pause before asking again
TAKEN = ("exists", "name_taken")  # the server's words for a name that another object has
NAMESPACE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """`address` gives the server's URL and the headers that say who asks; tokens may change between requests.

    `chosen`: the namespace that somebody chose; empty: nobody did.
    """

    address: Callable[[], Awaitable[tuple[str, Mapping[str, str]]]]
    chosen: str = ""
    ca: str = field(default="", repr=False)  # PEM; empty: the system's authorities

    @property
    def namespace(self) -> str:
        return self.chosen or NAMESPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a program said. See `find_site` for what counts where it said nothing."""

    url: str | None = None
    token: str | None = field(default=None, repr=False)
    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | os.PathLike[str] | None = None


async def find_site(given: Given, stack: AsyncExitStack, env: Mapping[str, str]) -> Site:
    """The server to ask: `url` (with `token`, or the login saved by `moor login`); $MOORAGE_SERVER (with
    $MOORAGE_TOKEN, or that login); the cluster of `kubeconfig`, `context` or $MOORAGE_KUBECONFIG; the last login;
    the running local cluster, or kubectl's.

    Raises UsageError for a token without a URL, NotReady where there is nothing, or nobody is logged in.
    """
    from moorage.client.logins import Known

    by_cluster = given.context is not None or given.kubeconfig is not None
    if given.url is None and given.token is not None:
        raise UsageError("a token needs the URL of its server", hint="Client(url=…, token=…)")
    if given.url is not None and by_cluster:
        raise UsageError("give a URL or a kubeconfig, not both")
    url, token = given.url, given.token
    if url is None and not by_cluster and SERVER_URL.read(env):
        url, token = SERVER_URL.read(env), TOKEN.read(env) or None
    chosen = given.namespace or ""
    if url is not None and token is not None:
        return _at(url, token, chosen)
    known = Known.read()
    if url is None and (by_cluster or KUBECONFIG.read(env) or not known.current):
        return await _of_cluster(given, stack)
    saved = known.find(url)
    return _at(saved.url, saved.token, chosen, saved.ca)


def _at(url: str, token: str, chosen: str, ca: str = "") -> Site:
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"the server's URL is {url!r}", hint="it begins with https://")
    where = (url.rstrip("/"), {"Authorization": f"Bearer {token}"})

    async def address() -> tuple[str, Mapping[str, str]]:
        return where

    return Site(address=address, chosen=chosen, ca=ca)


async def _of_cluster(given: Given, stack: AsyncExitStack) -> Site:
    from moorage.cli.session import Target, open_session

    kubeconfig = None if given.kubeconfig is None else Path(given.kubeconfig)
    target = Target(context=given.context, kubeconfig=kubeconfig, namespace=given.namespace)
    session = await stack.enter_async_context(open_session(target))
    namespace = session.namespace
    return Site(
        address=session.server.address, chosen=given.namespace or ("" if namespace == NAMESPACE else namespace)
    )


class Connection:
    """Requests to one server. Opened by its first request, on the loop that makes it; `close` it."""

    def __init__(self, given: Given, *, clock: Clock = SYSTEM) -> None:
        self._given = given
        self._clock = clock
        self._stack = AsyncExitStack()
        self._site: Site | None = None
        self._http: aiohttp.ClientSession | None = None
        self._opening: asyncio.Lock | None = None

    async def close(self) -> None:
        self._site = self._http = None
        await self._stack.aclose()

    async def site(self) -> Site:
        return (await self._open())[0]

    async def json(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, object] | None = None,
        body: object = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Any, Mapping[str, str]]:
        """The JSON answer (None: an empty one) and its headers. Raises ApiError.

        A GET, and a change with an idempotency `key`, is asked again when no answer comes; everything when the
        server says that it is asked too often.
        """
        answer, data = await self._ask(method, path, params, body, key, headers, timeout=ANSWER_SECONDS)
        try:
            return (json.loads(data) if data else None), answer.headers
        except ValueError as error:
            raise ServerError(f"the answer to {method} {path} is no JSON: {error}", status=0) from error

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, *, params: Mapping[str, object] | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """An answer's body as it comes, for however long that takes."""
        import aiohttp

        answer, _ = await self._ask(method, path, params, None, None, None, timeout=None)

        async def parts() -> AsyncIterator[bytes]:
            try:
                async for part in answer.content.iter_any():
                    yield part
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise ServerError(f"the answer to {method} {path} broke off: {error}", status=0) from error

        try:
            yield parts()
        finally:
            answer.close()

    @asynccontextmanager
    async def socket(
        self, path: str, params: list[tuple[str, str]], protocol: str
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A WebSocket. Raises ApiError where it is refused."""
        import aiohttp

        site, http = await self._open()
        url, who = await site.address()
        try:
            opened = await http.ws_connect(
                url + path, params=params, headers=dict(who), protocols=(protocol,), max_msg_size=0, heartbeat=30
            )
        except aiohttp.WSServerHandshakeError as error:
            raise problem_error(error.status, None) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._away(url, error) from error
        async with opened:
            yield opened

    async def _ask(
        self,
        method: str,
        path: str,
        params: Mapping[str, object] | None,
        body: object,
        key: str | None,
        headers: Mapping[str, str] | None,
        *,
        timeout: float | None,
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """`timeout` (of each try) None: the body is not read, and may take for ever."""
        import aiohttp

        site, http = await self._open()
        repeatable = method == "GET" or key is not None
        began, pause = self._clock.monotonic(), PAUSES[0]
        while True:
            url, who = await site.address()
            sent = {**who, **(headers or {}), **({"Idempotency-Key": key} if key is not None else {})}
            wait: float | None = pause * random.uniform(0.7, 1.0) if repeatable else None
            cause: BaseException | None = None
            try:
                answer = await http.request(
                    method,
                    url + path,
                    params=_written(params),
                    json=body,
                    headers=sent,
                    allow_redirects=False,  # a token is not carried elsewhere
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=timeout),
                )
                if timeout is None and answer.status < 400:
                    return answer, b""
                data = await answer.read()
                if answer.status < 300 or answer.status == 304:
                    return answer, data
                error: ApiError = problem_error(answer.status, data)
                if answer.status == 429:
                    wait = _seconds(answer.headers.get("Retry-After"), pause)
                elif answer.status not in (502, 503, 504):
                    wait = None
            except (aiohttp.ClientError, TimeoutError, OSError) as failed:
                error, cause = self._away(url, failed), failed
            if wait is None or self._clock.monotonic() - began + wait > PATIENCE_SECONDS:
                raise error from cause
            await self._clock.sleep(wait)
            pause = min(pause * 2, PAUSES[1])

    async def _open(self) -> tuple[Site, aiohttp.ClientSession]:
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._site is None or self._http is None:
                import aiohttp

                self._site = await find_site(self._given, self._stack, os.environ)
                trust = ssl.create_default_context(cadata=self._site.ca) if self._site.ca else True
                self._http = await self._stack.enter_async_context(
                    aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust))
                )
            return self._site, self._http

    def _away(self, url: str, error: BaseException) -> ServerError:
        said = str(error) or type(error).__name__
        return ServerError(
            f"Moorage's server at {url} does not answer: {said}", status=0, hint="is the address right?"
        )


def problem_error(status: int, data: bytes | None) -> ApiError:
    """The error for an answer in the server's shape, `{code, message, hint?, field?}`."""
    try:
        told = json.loads(data or b"{}")
    except ValueError:
        told = {}
    told = told if isinstance(told, dict) else {}
    code = str(told.get("code") or "")
    message = str(told.get("message") or f"Moorage's server answered HTTP {status}")
    reason = AlreadyExists.reason if code in TAKEN else ""
    error = api_error(status, {"message": message, "reason": reason})
    error.hint = str(told["hint"]) if told.get("hint") else None
    error.code = code
    error.field = str(told["field"]) if told.get("field") else None
    return error


def _written(params: Mapping[str, object] | None) -> dict[str, str]:
    return {
        name: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for name, value in (params or {}).items()
        if value is not None
    }


def _seconds(text: str | None, usual: float) -> float:
    seconds = integer_or(text, -1, maximum=86400)
    return float(seconds) if seconds >= 0 else usual
