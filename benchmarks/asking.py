"""Ask a server within the same process, without a network in between."""

from __future__ import annotations

from typing import Any

import msgspec

from moorage.server.service import ServerService


async def ask(service: ServerService, path: str, *, token: str, body: Any = None) -> bytes:
    """The body of the answer; a POST where there is a body, as JSON. Raises SystemExit for any status but 200."""
    route, _, query = path.partition("?")
    answer = bytearray()
    status = 0

    async def receive() -> dict[str, object]:
        return {
            "type": "http.request",
            "body": b"" if body is None else msgspec.json.encode(body),
            "more_body": False,
        }

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        answer.extend(message.get("body") or b"")

    headers = [(b"authorization", f"Bearer {token}".encode()), (b"host", b"127.0.0.1"),
               (b"content-type", b"application/json")]  # fmt: skip
    scope = {
        "type": "http", "method": "GET" if body is None else "POST", "path": route, "raw_path": route.encode(),
        "query_string": query.encode(), "headers": headers, "client": ("127.0.0.1", 1), "root_path": "",
        "server": ("127.0.0.1", 80), "scheme": "http", "http_version": "1.1", "asgi": {"version": "3.0"},
    }  # fmt: skip
    await service.app(scope, receive, send)
    if status != 200:
        raise SystemExit(f"{path}: {status} {bytes(answer[:500]).decode()}")
    return bytes(answer)
