"""Server-sent events: /events/gpus tells that something changed, /events/page sends the changed parts of the page.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from moorage.apimachinery.moments import rfc3339
from moorage.server.context import Context
from moorage.server.endpoint import bound
from moorage.server.pages.clusterpages import Board, Sections

RETRY_MS = 2000  # how long a browser waits before it connects again
REFRESH_SECONDS = 15.0  # ages on the page move on; to programs a comment keeps the connection open


async def gpu_events(context: Context, _request: Request) -> Response:
    """Server-sent events: the totals of the GPUs, at once and at every change."""
    await context.ready()
    return _stream(_changes(context))


async def page_events(board: Board, _request: Request) -> Response:
    """Server-sent events: the parts of the page that changed, as HTML."""
    await board.context.ready()
    return _stream(_sections(board.context, board))


def routes(context: Context, board: Board) -> list[Route]:
    return [
        Route("/events/gpus", bound(gpu_events, context), methods=["GET"]),
        Route("/events/page", bound(page_events, board), methods=["GET"]),
    ]


async def _changes(context: Context) -> AsyncIterator[str]:
    """The totals at once, then at every change: at most one event per second (see `Cluster`)."""
    cluster, version = context.cluster, -1
    yield f"retry: {RETRY_MS}\n\n"
    while not cluster.closed:
        if cluster.version == version:
            yield ": still here\n\n"
        else:
            version = cluster.version
            totals = cluster.gpus().totals
            body = {
                "now": rfc3339(context.now()),
                "total": totals.total,
                "used": totals.used,
                "free": totals.free,
                "unavailable": totals.unavailable,
                "reserved": totals.reserved,
            }
            yield _event("change", msgspec.json.encode(body).decode())
        await _wait(context, version)


async def _sections(context: Context, board: Board) -> AsyncIterator[str]:
    """Every part of the page at once, then those that changed; of the GPUs, those of the nodes that changed."""
    cluster, sent = context.cluster, Sections()
    yield f"retry: {RETRY_MS}\n\n"
    while not cluster.closed:
        version = cluster.version
        changed, sent = await board.changed(sent)
        yield "".join(_event(name, text) for name, text in changed.items()) or ": still here\n\n"
        await _wait(context, version)


async def _wait(context: Context, version: int) -> None:
    try:
        async with asyncio.timeout(REFRESH_SECONDS):
            await context.cluster.beyond(version)
    except TimeoutError:
        return


def _event(name: str, text: str) -> str:
    data = "".join(f"data: {line}\n" for line in text.splitlines()) or "data:\n"
    return f"event: {name}\n{data}\n"


def _stream(chunks: AsyncIterator[str]) -> Response:
    return StreamingResponse(
        chunks, media_type="text/event-stream", headers={"cache-control": "no-store", "x-accel-buffering": "no"}
    )
