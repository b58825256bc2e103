"""Tunnels to workspaces: a browser's connections, carried here by the person's own program, each in a
WebSocket.

The program authenticates its user, as with every request. That is not enough for the connections in
it: the gateway asks for the cookie that only the browser has in which the workspace was opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from typing import Any

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from moorage.api.workspaces import TUNNEL_PATH, TUNNEL_PROTOCOL
from moorage.server.gateway.forward import first_of
from moorage.server.gateway.gateway import Gateway, Tunnel
from moorage.server.identity.auth import User
from moorage.server.problems import Problem, answer, problem_of
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import MoorageError
from moorage_kube.serving import Indoors

PIECE = 64 * 1024  # bytes in one message to the program


class Tunnels:
    """The server's ends of all tunnels."""

    def __init__(self, gateway: Gateway, *, clock: Clock = SYSTEM) -> None:
        self._gateway, self._clock = gateway, clock
        self._indoors = Indoors(self._serve)

    async def carry(self, websocket: WebSocket) -> None:
        """Carry one connection of a browser, until either side closes it."""
        user: User = websocket.state.user
        namespace, name = websocket.path_params["namespace"], websocket.path_params["name"]
        address = str(getattr(websocket.state, "address", "") or "")
        try:
            if user.by_cookie or user.is_page:
                raise Problem(403, "forbidden", "a tunnel is opened by a program that shows its own token")
            await self._gateway.judge(user, namespace, name, by_tunnel=True)
            tunnel = Tunnel(account=user.account, namespace=namespace, name=name, address=address)
            reader, writer = await self._indoors.connect(user.account, {"tunnel": tunnel})
        except (MoorageError, Problem) as error:
            await websocket.send_denial_response(answer(problem_of(error)))
            return
        except ConnectionError as error:
            await websocket.send_denial_response(answer(Problem(503, "unavailable", str(error))))
            return
        try:
            await websocket.accept(TUNNEL_PROTOCOL)
            with suppress(ConnectionError, RuntimeError, WebSocketDisconnect):
                await first_of(_in(websocket, writer), _out(reader, websocket))
            with suppress(RuntimeError, OSError, WebSocketDisconnect):  # the program may have disconnected
                await websocket.close()
        finally:
            writer.close()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        tunnel: Tunnel = scope["state"]["tunnel"]
        scope["client"] = (tunnel.address, 0)
        await self._gateway.through(tunnel, scope, receive, partial(_dated, send, self._clock))


async def _in(websocket: WebSocket, writer: asyncio.StreamWriter) -> None:
    while (message := await websocket.receive())["type"] != "websocket.disconnect":
        if data := message.get("bytes"):
            writer.write(data)
            await writer.drain()


async def _out(reader: asyncio.StreamReader, websocket: WebSocket) -> None:
    while data := await reader.read(PIECE):
        await websocket.send_bytes(data)


async def _dated(send: Callable[[Message], Awaitable[Any]], clock: Clock, message: Message) -> None:
    if message["type"] == "http.response.start":
        date = formatdate(clock.now().timestamp(), usegmt=True).encode()
        message = {**message, "headers": [*message["headers"], (b"date", date)]}
    await send(message)


def websocket_route(gateway: Gateway, *, clock: Clock = SYSTEM) -> BaseRoute:
    return WebSocketRoute(TUNNEL_PATH, Tunnels(gateway, clock=clock).carry)
