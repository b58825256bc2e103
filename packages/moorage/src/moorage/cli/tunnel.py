"""A tunnel from a port of this machine to a workspace, for a browser: each connection is a WebSocket.

Other users of this machine can connect to the port, too. The gateway at the other end accepts only the browser in
which the one-time address was opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import sys
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from moorage.api.workspaces import TUNNEL_PATH, TUNNEL_PROTOCOL, Address
from moorage.cli import console, terminal
from moorage.cli.browser import open_browser
from moorage.cli.session import Session
from moorage.client.connection import Connection
from moorage_kube.errors import MoorageError, NotReady, PortTaken

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
PIECE = 64 * 1024  # bytes in one message
CONNECTIONS_MAX = 100  # at once; a page of JupyterLab has about ten


async def open_through(session: Session, name: str, *, port: int = 0, only_print: bool = False) -> int:
    """Open a workspace through a tunnel, until Ctrl-C. Raises MoorageError.

    `port`: the local port; 0: any free port.
    """
    stop = asyncio.Event()
    with terminal.on_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), stop.set):
        async with tunnel_to(session, name, port) as listening:
            path = f"/api/v1/workspaces/{session.namespace}/{name}/open"
            url = (await session.server.ask(Address, "POST", path, body={"tunnelPort": listening})).url
            if only_print:
                console.show(url)
            elif open_browser(url):
                console.say(f"opened {url.partition('/.moorage/')[0]}/")
            else:
                console.say("cannot open a browser here; open this address in yours, once and within a minute:")
                console.show(url)
            sys.stdout.flush()
            console.say(
                f"the workspace is open through this command: Ctrl-C closes it for your browser; {name} runs on"
            )
            await stop.wait()
    return 0


@contextlib.asynccontextmanager
async def tunnel_to(session: Session, name: str, port: int = 0) -> AsyncGenerator[int]:
    """Open a tunnel; yield its local port. Raises NotReady without a server, and PortTaken."""
    server = session.server
    if not isinstance(server, Connection):
        raise NotReady("a tunnel needs a Moorage server, and this cluster has none")
    await server.address()
    carrier = _Carrier(server, TUNNEL_PATH.format(namespace=session.namespace, name=name))
    try:
        listener = await asyncio.start_server(carrier.carry, LOOPBACK, port)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        why = "is taken" if error.errno == errno.EADDRINUSE else "needs the rights of root"
        raise PortTaken(f"port {port} of {LOOPBACK} {why}", hint="use another one, or leave out --port") from error
    try:
        yield int(listener.sockets[0].getsockname()[1])
    finally:
        listener.close()
        await carrier.close()


class _Carrier:
    """Forwards connections; `close` ends all open connections."""

    def __init__(self, server: Connection, path: str) -> None:
        self._server, self._path = server, path
        self._room = asyncio.Semaphore(CONNECTIONS_MAX)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._last = ""  # the fault that was printed last

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with self._room, self._server.socket(self._path, [], TUNNEL_PROTOCOL) as socket:
                self._last = ""
                await _join(socket, reader, writer)
        except asyncio.CancelledError:
            pass  # only by `close`; asyncio would log a traceback
        except MoorageError as error:
            if error.message != self._last:  # a browser tries again and again
                self._last = error.message
                console.say(f"a connection failed: {error.message}")
        except (ConnectionError, TimeoutError) as error:
            log.debug("a connection through the tunnel ended", extra={"error": str(error)})
        finally:
            self._tasks.discard(task)
            writer.close()


async def _join(
    socket: aiohttp.ClientWebSocketResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Copy bytes in both directions until either side ends."""
    import aiohttp

    async def to_server() -> None:
        while data := await reader.read(PIECE):
            await socket.send_bytes(data)

    async def from_server() -> None:
        async for message in socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                writer.write(message.data)
                await writer.drain()

    tasks = [asyncio.ensure_future(work) for work in (to_server(), from_server())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
