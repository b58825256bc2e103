"""Ask a server within the same process, without a network in between, and time its answers."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from moorage.server.service import ServerService

BAR_SECONDS = 2.0  # of any report
HEAD = f"{'median':>8} {'worst':>8} {'of bar':>7} {'CPU':>7}"


@asynccontextmanager
async def at_work(service: ServerService) -> AsyncIterator[None]:
    """The server runs, and has read the cluster."""
    running = asyncio.create_task(service.run())
    try:
        await service.context.ready()
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def timed(
    service: ServerService, path: str, *, token: str, body: Any, times: int, pause: float = 0.0
) -> tuple[str, Any]:
    """Ask for a report so often, with a pause in seconds before each: its times under HEAD, and the answer."""
    took: list[float] = []
    used: list[float] = []
    answer: Any = None
    for _ in range(times):
        await asyncio.sleep(pause)
        began, cpu = time.perf_counter(), time.process_time()
        answer = msgspec.json.decode(await ask(service, path, token=token, body=body))
        took.append(time.perf_counter() - began)
        used.append(time.process_time() - cpu)
    words = (
        f"{statistics.median(took):6.2f} s {max(took):6.2f} s {100 * max(took) / BAR_SECONDS:5.0f} %"
        f" {statistics.median(used):5.2f} s"
    )
    return words, answer


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
