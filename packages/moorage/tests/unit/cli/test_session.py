"""Requests to Moorage's server, and the name of the user."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from moorage.cli.session import Session
from moorage.client import cluster
from moorage.client.connection import Connection as Server
from moorage_kube.errors import Forbidden, NotFound, NotReady, ServerError
from moorage_kube.remote.config import Connection
from moorage_kube.resources import CONFIGMAPS
from moorage_kube.testing.builders import an_object

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def server_of(api: Any, connection: Connection) -> AsyncIterator[Server]:
    server = cluster.server_of(api, connection)
    try:
        yield server
    finally:
        await server.close()


def put_address(api: Any, url: str) -> None:
    api.put(CONFIGMAPS, an_object(CONFIGMAPS, "moorage", namespace="moorage-system", data={"serverUrl": url}))


@asynccontextmanager
async def answering(api: Any, handler: Any, token: str = "") -> AsyncIterator[Server]:
    """A client of a server whose address is in the ConfigMap."""
    app = web.Application()
    app.router.add_get("/api/v1/top", handler)
    async with TestServer(app) as server:
        put_address(api, str(server.make_url("/")))
        async with server_of(api, Connection(server="https://x", token=token)) as ours:
            yield ours


async def test_the_server_of_the_configmap_is_asked_with_the_kubeconfigs_token(api):
    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"token": request.headers["Authorization"], "by": request.query["by"]})

    async with answering(api, handler, "t0k") as ours:
        answer = await ours.ask(dict, "GET", "/api/v1/top", params={"by": "run"})
    assert answer == {"token": "Bearer t0k", "by": "run"}


@pytest.mark.parametrize(
    ("status", "body", "kind", "message", "hint"),
    [
        (404, {"code": "not_found", "message": "no such run", "hint": "look"}, NotFound, "no such run", "look"),
        (403, {"code": "forbidden", "message": "not you"}, Forbidden, "not you", None),
        (502, "<html>", ServerError, "answered HTTP 502", None),
    ],
)
async def test_a_refusal_has_the_message_of_the_server(status, body, kind, message, hint, api):
    async def handler(_: web.Request) -> web.Response:
        if isinstance(body, str):
            return web.Response(text=body, status=status)
        return web.json_response(body, status=status)

    async with answering(api, handler) as ours:
        with pytest.raises(kind) as caught:
            await ours.ask(dict, "GET", "/api/v1/top")
    assert message in caught.value.message
    assert caught.value.hint == hint


async def test_a_server_that_is_away_is_one_error(api):
    put_address(api, "http://127.0.0.1:1")
    async with server_of(api, Connection(server="https://x")) as ours:
        with pytest.raises(ServerError, match="Moorage's server at http://127.0.0.1:1 does not answer"):
            await ours.ask(dict, "GET", "/api/v1/top")


async def test_a_cluster_without_a_server_says_so(api):
    async with server_of(api, Connection(server="https://x")) as ours:
        with pytest.raises(NotReady, match="this cluster has no Moorage server"):
            await ours.ask(dict, "GET", "/api/v1/top")


async def test_the_api_server_names_the_user(api):
    api.user = "eve@example.org"
    session = Session(api=api, server=None)  # type: ignore[arg-type]
    assert await session.user() == "eve@example.org"
