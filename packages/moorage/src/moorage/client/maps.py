"""Requests about maps. See docs/design/0005-map.md, "For users"."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import BinaryIO
from urllib.parse import quote

import msgspec

from moorage.api.maps import (
    Deleted,
    ItemList,
    ItemOutput,
    ItemsAdded,
    Limit,
    LimitChange,
    LimitList,
    LimitSet,
    Map,
    MapChange,
    MapItem,
    MapList,
    NewMap,
    OutputPart,
    Retried,
    WorkerToken,
)
from moorage.client.connection import REPLICA_SECONDS, Address, Backoff, Connection, Patience, at
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import ApiError

SILENT_SECONDS = 120.0  # patience between two parts of a stream
PATIENCE_SECONDS = 600.0  # then patient requests fail
UPLOAD_LINES = 10_000  # items in one request
UPLOAD_BYTES = 8 * 1024 * 1024
NDJSON = "application/x-ndjson"
AT_ONCE = Patience(seconds=0.0)  # other requests fail at the first missing answer


def map_client(address: Address, *, ca: str = "", clock: Clock = SYSTEM) -> MapClient:
    """Return a client for the maps of the server at an address.

    `ca`: PEM; "" means the authorities of the system.
    """
    return MapClient(Connection(at(address, ca=ca), patience=AT_ONCE, clock=clock))


class MapClient:
    """The maps of one server. Use it as an async context manager. Its methods raise ApiError."""

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

    async def show(self, namespace: str, name: str, *, patient: bool = False) -> Map:
        """Return the state, counts and rate of a map. `patient`: wait for an unavailable server.

        Raises NotFound.
        """
        return await self._connection.ask(Map, "GET", _path(namespace, name), patience=_patience(patient))

    async def maps(self, namespace: str | None) -> tuple[Map, ...]:
        """Return the maps of a namespace (None: of all namespaces) that the caller may see."""
        path = "/api/v1/maps" + (f"/{quote(namespace, safe='')}" if namespace else "")
        return (await self._connection.ask(MapList, "GET", path)).maps

    async def create(self, namespace: str, body: NewMap) -> Map:
        """Create a map. Without `workers`, the map has no MapJob."""
        path = f"/api/v1/maps/{quote(namespace, safe='')}"
        return await self._connection.ask(Map, "POST", path, body=body, repeat=True)  # it has a `request`

    async def change(self, namespace: str, name: str, change: MapChange, *, patient: bool = False) -> Map:
        """Pause, resume, cancel, close or change a map. `patient`: wait for an unavailable server."""
        path = _path(namespace, name)
        return await self._connection.ask(
            Map,
            "PATCH",
            path,
            body=change,
            patience=_patience(patient),
            repeat=True,  # it sets, and adds nothing
        )

    async def retry(self, namespace: str, name: str) -> int:
        """Run the failed items again. Returns their number."""
        return (await self._connection.ask(Retried, "POST", _path(namespace, name, "retry"))).retried

    async def delete(self, namespace: str, name: str) -> None:
        await self._connection.ask(Deleted, "DELETE", _path(namespace, name))

    async def token(self, namespace: str, name: str) -> str:
        """Return the token of the map's workers."""
        return (
            await self._connection.ask(WorkerToken, "POST", _path(namespace, name, "token"), repeat=True)
        ).token

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
        """Add items, as lines of `NewItem`. Returns the new number of items of the map.

        Safe to repeat with `first` (the number of the first line) or `request` (an id of these lines).
        """
        params = {"close": close or None, "first": first, "request": request}
        answer = await self._connection.ask(
            ItemsAdded,
            "POST",
            _path(namespace, name, "items"),
            params=params,
            data=body,
            content_type=NDJSON,
            patience=_patience(patient),
            repeat=patient or first is not None or request is not None,
        )
        return answer.total

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
        """Add all lines of a file; the first has number `first`. Items that exist already are skipped.

        After a broken connection it continues at the same place. It calls `seen` with the number of lines
        sent so far. Returns the number of lines. Memory: one request's lines.
        """
        at = first
        while part := await asyncio.to_thread(_take, lines):
            await self.add(namespace, name, b"".join(part), first=at, patient=True)
            at += len(part)
            seen(at - first)
        if close:
            await self.change(namespace, name, MapChange(closed=True), patient=True)
        return at - first

    async def items(
        self, namespace: str, name: str, *, states: Iterable[str] = (), after: int | None = None
    ) -> AsyncIterator[MapItem]:
        """Yield items in order. `states`: only items in these states; empty means all."""
        path, wanted = _path(namespace, name, "items"), tuple(states)
        while True:
            page = await self._connection.ask(ItemList, "GET", path, params={"state": wanted, "after": after})
            for item in page.items:
                yield item
            if page.next is None:
                return
            after = page.next

    async def item(self, namespace: str, name: str, item: int) -> ItemOutput:
        """Return an item with the end of its output in its last failed attempt. Raises NotFound."""
        return await self._connection.ask(ItemOutput, "GET", _path(namespace, name, f"items/{item}"))

    async def results(
        self, namespace: str, name: str, *, after: int | None = None, inputs: bool = False
    ) -> AsyncIterator[bytes]:
        """Yield the results so far in the order of the items, each as a JSON object.

        `inputs`: with the values of the items. A broken connection is resumed.
        """
        path = _path(namespace, name, "results")
        lines = self._resumed(
            path,
            {"after": after, "inputs": inputs or None},
            lambda line: int(json.loads(line)["item"]),
            silence=SILENT_SECONDS,
        )
        async for line in lines:
            yield line

    # -- output

    async def output(
        self, namespace: str, name: str, *, item: int | None = None, follow: bool = False
    ) -> AsyncIterator[OutputPart]:
        """Yield the output of items."""
        path = _path(namespace, name, "output")
        params: dict[str, object] = {"follow": follow or None, "item": item}
        async for line in self._resumed(path, params, lambda line: int(json.loads(line)["id"]), silence=None):
            yield msgspec.json.decode(line, type=OutputPart)

    # -- limits

    async def limits(self) -> tuple[Limit, ...]:
        return (await self._connection.ask(LimitList, "GET", "/api/v1/limits")).limits

    async def set_limit(self, name: str, capacity: int) -> None:
        path = f"/api/v1/limits/{quote(name, safe='')}"
        await self._connection.ask(LimitSet, "PUT", path, body=LimitChange(capacity=capacity), repeat=True)

    async def _resumed(
        self, path: str, params: dict[str, object], after_of: Callable[[bytes], int], *, silence: float | None
    ) -> AsyncIterator[bytes]:
        """Yield the lines of a stream. After a broken connection it continues behind the last line."""
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
    return PATIENCE_SECONDS if patient else REPLICA_SECONDS


def _take(lines: BinaryIO) -> list[bytes]:
    """Read the next lines, as many as fit into one request."""
    part: list[bytes] = []
    size = 0
    while len(part) < UPLOAD_LINES and size < UPLOAD_BYTES:
        line = lines.readline()
        if not line:
            break
        part.append(line)
        size += len(line)
    return part
