"""Read the bodies of requests and answers, with a limit on their length."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, MutableMapping
from typing import Any

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class BodyTooLong(Exception):
    """The body is longer than the limit; the rest was not read."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the body has more than {most} bytes")
        self.most = most


class ClientLeft(Exception):
    """The client closed the connection before the end of its body."""


async def read_whole(parts: AsyncIterable[bytes], most: int) -> bytes:
    """Return all parts of a body, at most `most` bytes. Raises BodyTooLong, and the errors of the source.

    Never holds more than `most` and one part.
    """
    kept: list[bytes] = []
    size = 0
    async for part in parts:
        size += len(part)
        if size > most:
            raise BodyTooLong(most)
        kept.append(part)
    return kept[0] if len(kept) == 1 else b"".join(kept)


async def read_body(receive: Receive, most: int) -> bytes:
    """Return the whole body of an ASGI request, with the limit of `read_whole`.

    A part has at most 320 KiB (`serving`).

    Raises BodyTooLong and ClientLeft.
    """
    async with contextlib.aclosing(_parts(receive)) as parts:
        return await read_whole(parts, most)


async def _parts(receive: Receive) -> AsyncGenerator[bytes, None]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        yield message.get("body", b"")
        if not message.get("more_body"):
            return
