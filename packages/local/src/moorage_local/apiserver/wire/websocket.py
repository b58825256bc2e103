"""One WebSocket of an ASGI server, as incoming and outgoing messages."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PIECE = 32 * 1024  # bytes read from a pod for one message


class Socket:
    """One accepted WebSocket: incoming and outgoing messages, in order."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send

    async def accept(self, protocol: str) -> None:
        headers = [(b"sec-websocket-protocol", protocol.encode())]  # not all names are tokens
        await self._send({"type": "websocket.accept", "headers": headers})

    async def message(self) -> bytes | None:
        """Return the next message, or None when the client closed the connection."""
        while True:
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                return None
            if event["type"] == "websocket.receive":
                data = event.get("bytes")
                return data if data is not None else str(event.get("text") or "").encode()

    async def send(self, channel: int, data: bytes) -> None:
        await self._send({"type": "websocket.send", "bytes": bytes([channel]) + data})

    async def send_bytes(self, data: bytes) -> None:
        await self._send({"type": "websocket.send", "bytes": data})

    async def close(self, code: int = 1000) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # the client may have been quicker
            await self._send({"type": "websocket.close", "code": code})
