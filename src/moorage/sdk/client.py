"""Maps as the server speaks of them to users: docs/design/0005-map.md, "For users"."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import quote

from moorage.cli.session import refusal
from moorage.clock import SYSTEM, Clock
from moorage.errors import ApiError, ServerError, TooManyRequests

if TYPE_CHECKING:
    import aiohttp

ASK_SECONDS = 60.0  # patience with one answer
SILENT_SECONDS = 120.0  # patience between two parts of a stream
BACKOFF_SECONDS = (0.3, 10.0)  # first and longest pause after a broken connection
PATIENCE_SECONDS = 600.0  # a server that is away longer ends the command
UPLOAD_LINES = 10_000  # items in one request
UPLOAD_BYTES = 8 * 1024 * 1024

Told = dict[str, Any]
T = TypeVar("T")


class MapClient:
    """The maps of one server. `headers` say who asks; use it as an async context manager."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, *, clock: Clock = SYSTEM) -> None:
        self.url = url.rstrip("/")
        self._headers = dict(headers or {})
        self._clock = clock
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> MapClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    # -- maps

    async def show(self, namespace: str, name: str) -> Told:
        """State, counts, rate. Raises NotFound."""
        return dict(await self._json("GET", _path(namespace, name)))

    async def maps(self, namespace: str | None) -> list[Told]:
        """The maps of a namespace, or of all: those that the asker may see."""
        found = await self._json("GET", "/api/v1/maps" + (f"/{quote(namespace, safe='')}" if namespace else ""))
        return list(found["maps"])

    async def create(self, namespace: str, body: Told) -> Told:
        """Make a map that no MapJob stands for."""
        return dict(await self._json("POST", f"/api/v1/maps/{quote(namespace, safe='')}", json=dict(body)))

    async def change(self, namespace: str, name: str, **changes: Any) -> Told:
        """`state`, `closed`, `priority`, `rate`."""
        return dict(await self._json("PATCH", _path(namespace, name), json=changes))

    async def retry(self, namespace: str, name: str) -> int:
        return int((await self._json("POST", _path(namespace, name, "retry")))["retried"])

    async def delete(self, namespace: str, name: str) -> None:
        await self._json("DELETE", _path(namespace, name))

    async def token(self, namespace: str, name: str) -> str:
        """What the map's workers present."""
        return str((await self._json("POST", _path(namespace, name, "token")))["token"])

    # -- items

    async def add(
        self,
        namespace: str,
        name: str,
        body: bytes,
        *,
        first: int | None = None,
        request: str | None = None,
        close: bool = False,
    ) -> int:
        """Add lines as `NewItem`; the number of items that the map has now.

        Safe to repeat with `first` (the number of the first line) or `request` (an id of these lines).
        """
        params = {"close": "true"} if close else {}
        if first is not None:
            params["first"] = str(first)
        if request is not None:
            params["request"] = request
        headers = {"Content-Type": "application/x-ndjson"}
        path = _path(namespace, name, "items")
        return int((await self._json("POST", path, data=body, params=params, headers=headers))["total"])

    async def upload(
        self,
        namespace: str,
        name: str,
        lines: BinaryIO,
        *,
        first: int = 0,
        close: bool = True,
        seen: Callable[[int], None] = lambda _: None,
    ) -> int:
        """Add all lines of a file; the first has number `first`. What is there already is passed over.

        A connection that breaks is taken up again where it broke. `seen` is told how many were sent. Returns the
        number of lines. Memory: one request's lines.
        """
        at = first
        while part := await asyncio.to_thread(_take, lines):
            await self.patiently(partial(self.add, namespace, name, b"".join(part), first=at))
            at += len(part)
            seen(at - first)
        if close:
            await self.patiently(lambda: self.change(namespace, name, closed=True))
        return at - first

    async def items(
        self, namespace: str, name: str, *, states: Iterable[str] = (), after: int | None = None
    ) -> AsyncIterator[Told]:
        """Items in order, of some states."""
        path = _path(namespace, name, "items")
        while True:
            params = [("state", one) for one in states]
            if after is not None:
                params.append(("after", str(after)))
            page = await self._json("GET", path, params=params)
            for one in page["items"]:
                yield one
            if page["next"] is None:
                return
            after = page["next"]

    async def item(self, namespace: str, name: str, item: int) -> Told:
        """`{item, output}`."""
        return dict(await self._json("GET", _path(namespace, name, f"items/{item}")))

    async def results(self, namespace: str, name: str, *, after: int | None = None) -> AsyncIterator[bytes]:
        """Results so far, one JSON object each, in the items' order. A broken connection is taken up again."""
        pause = BACKOFF_SECONDS[0]
        began = self._clock.monotonic()
        while True:
            params = {} if after is None else {"after": str(after)}
            try:
                async for line in self._lines(_path(namespace, name, "results"), params):
                    yield line
                    after = json.loads(line)["item"]
                    began = self._clock.monotonic()
                return
            except ApiError as error:
                pause = await self._wait(error, pause, began)

    # -- output

    async def output(
        self, namespace: str, name: str, *, item: int | None = None, follow: bool = False
    ) -> AsyncIterator[Told]:
        """What items have printed: `{id, atMs, pod, item, lease, output}`, `output` in base64."""
        pause = BACKOFF_SECONDS[0]
        began = self._clock.monotonic()
        after: int | None = None
        while True:
            params = {"follow": "true"} if follow else {}
            if item is not None:
                params["item"] = str(item)
            if after is not None:
                params["after"] = str(after)
            try:
                async for line in self._lines(_path(namespace, name, "output"), params, silent=None):
                    part = json.loads(line)
                    yield part
                    after = part["id"]
                    began = self._clock.monotonic()
                return
            except ApiError as error:
                pause = await self._wait(error, pause, began)

    # -- limits

    async def limits(self) -> list[Told]:
        return list((await self._json("GET", "/api/v1/limits"))["limits"])

    async def set_limit(self, name: str, capacity: int) -> None:
        await self._json("PUT", f"/api/v1/limits/{quote(name, safe='')}", json={"capacity": capacity})

    # -- HTTP

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask again while the server is away, PATIENCE_SECONDS at most."""
        began, pause = self._clock.monotonic(), BACKOFF_SECONDS[0]
        while True:
            try:
                return await ask()
            except ApiError as error:
                pause = await self._wait(error, pause, began)

    async def _wait(self, error: ApiError, pause: float, began: float) -> float:
        """Back off when it may help, else raise the error."""
        if not isinstance(error, ServerError | TooManyRequests):
            raise error
        if self._clock.monotonic() - began > PATIENCE_SECONDS:
            raise error
        await self._clock.sleep(pause * random.uniform(0.7, 1.0))
        return min(pause * 2, BACKOFF_SECONDS[1])

    async def _json(self, method: str, path: str, **sent: Any) -> Any:
        import aiohttp

        sent["headers"] = {**self._headers, **sent.get("headers", {})}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=ASK_SECONDS)
        try:
            async with self._session().request(method, self.url + path, timeout=timeout, **sent) as answer:
                data = await answer.read()
                body = json.loads(data) if data else None
                if answer.status >= 400:
                    raise refusal(answer.status, body)
                return body
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise self._away(error) from error

    async def _lines(
        self, path: str, params: Mapping[str, str], *, silent: float | None = SILENT_SECONDS
    ) -> AsyncIterator[bytes]:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=silent)
        try:
            async with self._session().get(
                self.url + path, params=params, headers=self._headers, timeout=timeout
            ) as answer:
                if answer.status >= 400:
                    raise refusal(answer.status, json.loads(await answer.read()))
                rest: list[bytes] = []
                async for part in answer.content.iter_any():
                    *whole, last = part.split(b"\n")
                    if whole:
                        whole[0] = b"".join([*rest, whole[0]])
                        rest = [last]
                        for line in whole:
                            yield line
                    else:
                        rest.append(last)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise self._away(error) from error

    def _away(self, error: Exception) -> ServerError:
        return ServerError(
            f"Moorage's server at {self.url} does not answer: {error or type(error).__name__}", status=0
        )

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            import aiohttp

            self._http = aiohttp.ClientSession()
        return self._http


def _path(namespace: str, name: str, rest: str = "") -> str:
    path = f"/api/v1/maps/{quote(namespace, safe='')}/{quote(name, safe='')}"
    return f"{path}/{rest}" if rest else path


def _take(lines: BinaryIO) -> list[bytes]:
    """The next lines, so many as go into one request."""
    part: list[bytes] = []
    size = 0
    while len(part) < UPLOAD_LINES and size < UPLOAD_BYTES:
        line = lines.readline()
        if not line:
            break
        part.append(line)
        size += len(line)
    return part
