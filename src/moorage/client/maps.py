"""Maps, by the one client of our server: docs/design/0005-map.md, "For users"."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Any, BinaryIO, Unpack
from urllib.parse import quote

from moorage.client.connection import Address, Backoff, Connection, Patience, Sent, at
from moorage.clock import SYSTEM, Clock
from moorage.errors import ApiError

SILENT_SECONDS = 120.0  # patience between two parts of a stream
PATIENCE_SECONDS = 600.0  # a server that is away longer ends what is patient
UPLOAD_LINES = 10_000  # items in one request
UPLOAD_BYTES = 8 * 1024 * 1024
NDJSON = "application/x-ndjson"
AT_ONCE = Patience(seconds=0.0)  # what is not patient fails at the first answer that does not come

Told = dict[str, Any]


def map_client(address: Address, *, clock: Clock = SYSTEM) -> MapClient:
    """The maps of the server at an address."""
    return MapClient(Connection(at(address), patience=AT_ONCE, clock=clock))


class MapClient:
    """The maps of one server; use it as an async context manager. Raises ApiError."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def __aenter__(self) -> MapClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._connection.close()

    # -- maps

    async def show(self, namespace: str, name: str, *, patient: bool = False) -> Told:
        """State, counts, rate. `patient`: a server that is away is waited for. Raises NotFound."""
        return dict(await self._json("GET", _path(namespace, name), patience=_patience(patient)))

    async def maps(self, namespace: str | None) -> list[Told]:
        """The maps of a namespace, or of all: those that the asker may see."""
        found = await self._json("GET", "/api/v1/maps" + (f"/{quote(namespace, safe='')}" if namespace else ""))
        return list(found["maps"])

    async def create(self, namespace: str, body: Told) -> Told:
        """Make a map that no MapJob stands for."""
        return dict(await self._json("POST", f"/api/v1/maps/{quote(namespace, safe='')}", body=body))

    async def change(self, namespace: str, name: str, *, patient: bool = False, **changes: Any) -> Told:
        """`state`, `closed`, `priority`, `rate`. `patient`: a server that is away is waited for."""
        path = _path(namespace, name)
        return dict(await self._json("PATCH", path, body=changes, patience=_patience(patient), repeat=patient))

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
        patient: bool = False,
    ) -> int:
        """Add lines as `NewItem`; the number of items that the map has now.

        Safe to repeat with `first` (the number of the first line) or `request` (an id of these lines).
        """
        params = {"close": close or None, "first": first, "request": request}
        answer = await self._json(
            "POST",
            _path(namespace, name, "items"),
            params=params,
            data=body,
            content_type=NDJSON,
            patience=_patience(patient),
            repeat=patient,
        )
        return int(answer["total"])

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
            await self.add(namespace, name, b"".join(part), first=at, patient=True)
            at += len(part)
            seen(at - first)
        if close:
            await self.change(namespace, name, closed=True, patient=True)
        return at - first

    async def items(
        self, namespace: str, name: str, *, states: Iterable[str] = (), after: int | None = None
    ) -> AsyncIterator[Told]:
        """Items in order, of some states."""
        path = _path(namespace, name, "items")
        while True:
            page = await self._json("GET", path, params={"state": tuple(states), "after": after})
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
        path = _path(namespace, name, "results")
        lines = self._resumed(
            path, {"after": after}, lambda line: int(json.loads(line)["item"]), silence=SILENT_SECONDS
        )
        async for line in lines:
            yield line

    # -- output

    async def output(
        self, namespace: str, name: str, *, item: int | None = None, follow: bool = False
    ) -> AsyncIterator[Told]:
        """What items have printed: `{id, atMs, pod, item, lease, output}`, `output` in base64."""
        path = _path(namespace, name, "output")
        params: dict[str, object] = {"follow": follow or None, "item": item}
        async for line in self._resumed(path, params, lambda line: int(json.loads(line)["id"]), silence=None):
            yield json.loads(line)

    # -- limits

    async def limits(self) -> list[Told]:
        return list((await self._json("GET", "/api/v1/limits"))["limits"])

    async def set_limit(self, name: str, capacity: int) -> None:
        await self._json("PUT", f"/api/v1/limits/{quote(name, safe='')}", body={"capacity": capacity})

    async def _json(self, method: str, path: str, **sent: Unpack[Sent]) -> Any:
        return (await self._connection.json(method, path, **sent))[0]

    async def _resumed(
        self, path: str, params: dict[str, object], after_of: Callable[[bytes], int], *, silence: float | None
    ) -> AsyncIterator[bytes]:
        """The lines of a stream; a connection that breaks is taken up again behind the last line."""
        backoff = Backoff(self._connection.clock, PATIENCE_SECONDS)
        while True:
            try:
                async for line in self._connection.lines(path, params, silence=silence):
                    yield line
                    params["after"] = after_of(line)
                    backoff.restart()
                return
            except ApiError as error:
                await backoff.wait(error)


def _path(namespace: str, name: str, rest: str = "") -> str:
    path = f"/api/v1/maps/{quote(namespace, safe='')}/{quote(name, safe='')}"
    return f"{path}/{rest}" if rest else path


def _patience(patient: bool) -> float:
    return PATIENCE_SECONDS if patient else 0.0


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
