"""Server-sent events: /events/gpus reports each change, /events/page sends the changed parts of the
page.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from moorage.server.context import Context
from moorage.server.endpoint import bound
from moorage.server.pages.clusterpages import Board
from moorage.server.pages.liveparts import event
from moorage_kube.moments import rfc3339

RETRY_MS = 2000  # how long a browser waits before it connects again
REFRESH_SECONDS = 15.0  # ages on the page move on; to programs a comment keeps the connection open


async def gpu_events(context: Context, _request: Request) -> Response:
    """Server-sent events: the totals of the GPUs, at once and at every change."""
    await context.ready()
    return _stream(_changes(context))


async def page_events(board: Board, request: Request) -> Response:
    """Server-sent events: the parts of the page, as HTML, that changed since the page's mark `seen`."""
    await board.context.ready()
    mark = request.headers.get("last-event-id") or request.query_params.get("seen", "")
    return _stream(_parts(board, mark))


def routes(context: Context, board: Board) -> list[Route]:
    return [
        Route("/events/gpus", bound(gpu_events, context), methods=["GET"]),
        Route("/events/page", bound(page_events, board), methods=["GET"]),
    ]


async def _changes(context: Context) -> AsyncIterator[str]:
    """Yield the GPU totals now and after every change, at most once per second (see `Cluster`)."""
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
            yield event("change", msgspec.json.encode(body).decode())
        await _wait(context, version)


async def _parts(board: Board, mark: str) -> AsyncIterator[bytes]:
    """Yield the parts of the page that changed after a version of it; of the GPU tiles, only the changed nodes.

    `mark`: the version that the browser has, as written into the page.
    """
    yield f"retry: {RETRY_MS}\n\n".encode()
    async for text in board.events(mark):
        yield text or b": still here\n\n"


async def _wait(context: Context, version: int) -> None:
    try:
        async with asyncio.timeout(REFRESH_SECONDS):
            await context.cluster.beyond(version)
    except TimeoutError:
        return


def _stream(chunks: AsyncIterator[str] | AsyncIterator[bytes]) -> Response:
    return StreamingResponse(
        chunks, media_type="text/event-stream", headers={"cache-control": "no-store", "x-accel-buffering": "no"}
    )
