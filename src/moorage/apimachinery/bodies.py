"""Bodies of requests, counted while they are read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class BodyTooLong(Exception):
    """More bytes than are read; the rest was left where it is."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the body has more than {most} bytes")
        self.most = most


class ClientLeft(Exception):
    """The client has gone before the end of its body."""


async def read_body(receive: Receive, most: int) -> bytes:
    """The whole body of an ASGI request, at most so many bytes. Raises BodyTooLong and ClientLeft.

    Never holds more than `most` and one part (64 KiB and a read of 256 KiB, by `serving`).
    """
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise BodyTooLong(most)
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)
