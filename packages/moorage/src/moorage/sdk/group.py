"""Shared by the groups of the client: paths, pages, lines, keys."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from moorage.client.connection import Connection
from moorage_kube.clock import Clock

PAGE = 200  # things asked for at once


class Group:
    """Base of the methods for one kind of object. `namespace` None: the client's default namespace."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock

    async def _in(self, namespace: str | None) -> str:
        return namespace or (await self._connection.site()).namespace

    async def _path(self, kind: str, namespace: str | None, name: str, verb: str = "") -> str:
        path = f"/api/v1/{kind}/{quote(await self._in(namespace), safe='')}/{quote(name, safe='')}"
        return f"{path}/{verb}" if verb else path

    async def _json(self, method: str, path: str, **sent: Any) -> Any:
        return (await self._connection.json(method, path, **sent))[0]

    async def _pages(self, kind: str, namespace: str | None, everywhere: bool) -> AsyncIterator[Any]:
        """Yield every object of a list; requests one page at a time."""
        where = None if everywhere else await self._in(namespace)
        after: str | None = None
        while True:
            params = {"namespace": where, "limit": PAGE, "continue": after}
            page = await self._json("GET", f"/api/v1/{kind}", params=params)
            for item in page[kind]:
                yield item
            after = page.get("continue")
            if not after:
                return


async def lines_of(parts: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the lines of a stream without line ends. Its parts may end inside a line."""
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def new_key() -> str:
    return uuid.uuid4().hex
