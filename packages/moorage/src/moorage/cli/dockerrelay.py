"""A local port that connects Docker's command line to a server behind a proxy.

Docker's command line ends its side of an attached connection as soon as it has nothing to type. nginx then closes
both sides, and the output is lost (`ngx_http_upstream_process_upgraded`). The relay does not pass this end on: the
server closes the connection after all output.

Each connection carries one request, so the relay reads only its head.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Sequence
from urllib.parse import urlsplit

HEAD_MAX = 256 * 1024  # bytes; a token and Docker's own fields take 3 KiB
_CHUNK = 65536
_HOST = re.compile(rb"(?im)^host:[^\r\n]*")
_CONNECTION = re.compile(rb"(?im)^connection:[^\r\n]*\r\n")
_UPGRADE = re.compile(rb"(?im)^upgrade:")
_TYPES = re.compile(r"-[a-zA-Z]*i[a-zA-Z]*|--interactive(=true)?")


def types_into(words: Sequence[str]) -> bool:
    """Whether a Docker command passes stdin on: its end must then reach the server."""
    return "exec" in words and any(_TYPES.fullmatch(word) for word in words)


@contextlib.asynccontextmanager
async def relayed(url: str, ca: str = "") -> AsyncIterator[str]:
    """Listen on a free port of 127.0.0.1 inside the block; yield the address, `http://127.0.0.1:PORT`.

    `ca`: the PEM of the authority that signed the server's certificate; "" for the authorities of this machine.
    """
    parts = urlsplit(url)
    assert parts.hostname is not None
    context = ssl.create_default_context(cadata=ca or None) if parts.scheme == "https" else None
    port = parts.port or (443 if context else 80)
    host = parts.hostname
    open_connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = one_request(await reader.readuntil(b"\r\n\r\n"), parts.netloc)
            there, back = await asyncio.open_connection(host, port, ssl=context)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return
        back.write(head)
        asking = asyncio.create_task(_pump(reader, back))
        try:
            await _pump(there, writer)
        finally:
            asking.cancel()
            back.transport.abort()
            writer.close()
            for end in (back, writer):
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # asyncio's streams have only weak references to each other: without this, a connection is collected
        task = asyncio.get_running_loop().create_task(serve(reader, writer))
        open_connections.add(task)
        task.add_done_callback(open_connections.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=HEAD_MAX)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in open_connections:
            task.cancel()
        await asyncio.gather(*open_connections, return_exceptions=True)


def one_request(head: bytes, host: str) -> bytes:
    """The head of a request with the server's host and, except for an upgrade, `Connection: close`."""
    head = _HOST.sub(b"Host: " + host.encode(), head, count=1)
    if _UPGRADE.search(head):
        return head
    return _CONNECTION.sub(b"", head).removesuffix(b"\r\n") + b"Connection: close\r\n\r\n"


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until one side ends; do not close the other side."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
