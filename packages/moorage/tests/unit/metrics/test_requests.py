"""Requests are timed by the template of their route, so that names in paths make no series."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from moorage.metrics.requests import RequestTimes, TimedRequests
from moorage_kube.testing.clock import FakeClock


async def show(_request):
    return PlainTextResponse("here")


async def folder(scope, receive, send):
    await PlainTextResponse("file")(scope, receive, send)


@pytest.fixture
def times():
    return RequestTimes(clock=FakeClock())


async def ask(app, method, path):
    """The status of the answer."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "root_path": "", "query_string": b"", "headers": []}
    await app(scope, receive, send)
    return sent[0]["status"]


@pytest.mark.anyio
async def test_requests_are_counted_by_route_method_and_code(times):
    routes = [Route("/runs/{name}", show, methods=["GET"]), Mount("/static", folder)]
    app = TimedRequests(Starlette(routes=routes), times=times, routes=routes)
    for method, path in (
        ("GET", "/runs/a"),
        ("GET", "/runs/b"),
        ("GET", "/static/page.css"),
        ("GET", "/nothing/here"),
        ("POST", "/runs/a"),
        ("BREW", "/runs/a"),
    ):
        await ask(app, method, path)
    assert times.answers.read().values == {
        ("/runs/{name}", "GET", "200"): 2,
        ("/static", "GET", "200"): 1,
        ("other", "GET", "404"): 1,
        ("/runs/{name}", "POST", "405"): 1,
        ("/runs/{name}", "other", "405"): 1,
    }
    assert {key: sum(spread.counts) for key, spread in times.seconds.read().spreads.items()} == {
        ("/runs/{name}", "GET"): 2,
        ("/static", "GET"): 1,
        ("other", "GET"): 1,
        ("/runs/{name}", "POST"): 1,
        ("/runs/{name}", "other"): 1,
    }
