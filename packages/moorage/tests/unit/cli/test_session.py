"""Asking Moorage's own server, and who we are."""

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

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def server_of(api: Any, connection: Connection) -> AsyncIterator[Server]:
    server = cluster.server_of(api, connection)
    try:
        yield server
    finally:
        await server.close()


def named(api: Any, url: str) -> Any:
    info = {"metadata": {"name": "moorage", "namespace": "moorage-system"}, "data": {"serverUrl": url}}
    api.put(CONFIGMAPS, info)
    return api


async def answering(handler: Any) -> TestServer:
    app = web.Application()
    app.router.add_get("/api/v1/top", handler)
    server = TestServer(app)
    await server.start_server()
    return server


async def test_the_server_of_the_configmap_is_asked_with_the_kubeconfigs_token(api):
    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"token": request.headers["Authorization"], "by": request.query["by"]})

    server = await answering(handler)
    try:
        by_token = Connection(server="https://x", token="t0k")
        async with server_of(named(api, str(server.make_url("/"))), by_token) as ours:
            assert await ours.ask(dict, "GET", "/api/v1/top", params={"by": "run"}) == {
                "token": "Bearer t0k",
                "by": "run",
            }
    finally:
        await server.close()


@pytest.mark.parametrize(
    ("status", "body", "kind", "message", "hint"),
    [
        (404, {"code": "not_found", "message": "no such run", "hint": "look"}, NotFound, "no such run", "look"),
        (403, {"code": "forbidden", "message": "not you"}, Forbidden, "not you", None),
        (502, "<html>", ServerError, "answered HTTP 502", None),
    ],
)
async def test_a_refusal_keeps_the_servers_words(status, body, kind, message, hint, api):
    async def handler(_: web.Request) -> web.Response:
        return (
            web.json_response(body, status=status)
            if isinstance(body, dict)
            else web.Response(text=body, status=status)
        )

    server = await answering(handler)
    try:
        async with server_of(named(api, str(server.make_url("/"))), Connection(server="https://x")) as ours:
            with pytest.raises(kind) as caught:
                await ours.ask(dict, "GET", "/api/v1/top")
        assert message in caught.value.message
        assert caught.value.hint == hint
    finally:
        await server.close()


async def test_a_server_that_is_away_is_one_error(api):
    async with server_of(named(api, "http://127.0.0.1:1"), Connection(server="https://x")) as ours:
        with pytest.raises(ServerError, match="Moorage's server at http://127.0.0.1:1 does not answer"):
            await ours.ask(dict, "GET", "/api/v1/top")


async def test_a_cluster_without_a_server_says_so(api):
    async with server_of(api, Connection(server="https://x")) as ours:
        with pytest.raises(NotReady, match="this cluster has no Moorage server"):
            await ours.ask(dict, "GET", "/api/v1/top")


async def test_who_we_are_is_asked_of_the_api_server(api):
    api.user = "eve@example.org"
    session = Session(api=api, server=None)  # type: ignore[arg-type]
    assert await session.user() == "eve@example.org"
