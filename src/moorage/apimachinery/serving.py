"""Serve an ASGI application on a socket that is already listening, inside a running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

BACKLOG = 2048
GRACE_SECONDS = 2  # open watches and log streams are cut after this when the process stops


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process that embeds it has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    app: Any,
    sock: socket.socket,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until `stop` is set or the task is cancelled; with `certificate` and `key` (PEM files) over TLS."""
    server = _Server(
        uvicorn.Config(
            app,
            http="httptools",
            loop="asyncio",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            backlog=BACKLOG,
            ssl_certfile=certificate,
            ssl_keyfile=key,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    waiting = asyncio.create_task((stop or asyncio.Event()).wait())
    try:
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await serving
