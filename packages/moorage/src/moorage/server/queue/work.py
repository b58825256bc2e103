"""/api/v1/work and /api/v1/work/output, for workers, with the token of their map. docs/design/0005-map.md"""

from __future__ import annotations

import asyncio

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from moorage.api.errors import ErrorCode
from moorage.decide.maps import leasing
from moorage.decide.maps.leasing import Exchange
from moorage.queue.manager import Queue, is_waiting
from moorage.queue.outputs import Outputs
from moorage.server.context import Context
from moorage.server.identity.auth import bearer_of
from moorage.server.inputs import check_depth, decode
from moorage.server.problems import Json, Problem
from moorage_kube.bodies import BodyTooLong, ClientLeft, read_body
from moorage_kube.errors import NotFound, Unauthorized

WORK_PATH = "/api/v1/work"
WORK_BYTES = 8 * 1024 * 1024  # of one request of a worker: ten results of the longest kind and more
OUTPUT_ENTRIES = 10_000
OUTPUT_BYTES = 2 * 1024 * 1024
OWN = -1  # the item of a note that is the worker's own

_EXCHANGE = msgspec.json.Decoder(Exchange)
_ENCODER = msgspec.json.Encoder()


class OutputEntry(msgspec.Struct):
    """The output of an item."""

    item: leasing.Natural
    lease: leasing.Natural
    at: leasing.Natural
    output: bytes


class NewOutput(msgspec.Struct):
    """The output of a worker's items. `dropped`: bytes that were printed faster than they could be sent."""

    session: leasing.Text64
    pod: str
    entries: list[OutputEntry] = []
    dropped: leasing.Natural = 0


def routes(context: Context) -> list[Route]:
    """The workers' routes."""
    return [
        Route(WORK_PATH, Work(context.queue)),
        Route(f"{WORK_PATH}/output", Output(context.queue, context.outputs), methods=["POST"]),
    ]


class Work:
    """For workers of a map: send results and get items."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            raise Problem(405, ErrorCode.METHOD_NOT_ALLOWED, f"{scope['method']} is not known here", "use POST")
        queue = self._queue
        try:
            of = await queue.map_of_token(bearer_of(Headers(scope=scope)))
            exchange = parse_exchange(await _whole(receive, WORK_BYTES))
            reply = await queue.exchange(of, exchange)
            if is_waiting(exchange, reply):
                waiting = asyncio.ensure_future(queue.wait_for_items(of, exchange, reply))
                leaving = asyncio.ensure_future(_disconnected(receive))
                try:
                    await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
                    if not waiting.done():
                        return  # the worker has closed the connection
                    reply = await waiting
                finally:
                    waiting.cancel()
                    leaving.cancel()
        except Unauthorized as error:
            raise Problem(401, ErrorCode.UNAUTHORIZED, error.message, error.hint) from error
        except NotFound as error:
            raise Problem(410, ErrorCode.GONE, error.message, error.hint) from error
        body = _ENCODER.encode(reply)
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", b"application/json"),
                    (b"content-length", str(len(body)).encode()),
                ],
            }
        )
        await send({"type": "http.response.body", "body": body})


class Output:
    """For workers of a map: send the output of items."""

    def __init__(self, queue: Queue, outputs: Outputs) -> None:
        self._queue, self._outputs = queue, outputs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.keep(Request(scope, receive))
        await response(scope, receive, send)

    async def keep(self, request: Request) -> Response:
        """Store the output of items that a worker sends."""
        try:
            of = await self._queue.map_of_token(bearer_of(request.headers))
        except Unauthorized as error:
            raise Problem(401, ErrorCode.UNAUTHORIZED, error.message, error.hint) from error
        printed = decode(await _whole(request.receive, OUTPUT_BYTES), NewOutput)
        if len(printed.entries) > OUTPUT_ENTRIES:
            raise Problem(
                413,
                ErrorCode.TOO_LARGE,
                f"{len(printed.entries)} entries; at most {OUTPUT_ENTRIES}",
                "send fewer at once",
            )
        parts = [(entry.item, entry.lease, entry.at, entry.output) for entry in printed.entries]
        if printed.dropped:
            at = parts[-1][2] if parts else 0
            note = f"[{printed.dropped} bytes were printed faster than they could be sent, and are lost]\n"
            parts.append((OWN, 0, at, note.encode()))
        await self._outputs.add(of, printed.pod[:253], parts)
        return Json({"kept": len(parts)})


def parse_exchange(body: bytes) -> Exchange:
    """Parse the request of a worker. Raises Problem."""
    try:
        exchange = _EXCHANGE.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid(error, "see docs/design/0005-map.md for the request") from error
    for report in exchange.reports:
        where = f"reports[item={report.item}].value"
        check_depth(report.value, where)
        if len(report.value) > leasing.RESULT_BYTES:
            raise Problem(
                413,
                ErrorCode.RESULT_TOO_LARGE,
                f"the result of item {report.item} has {len(report.value)} bytes; at most {leasing.RESULT_BYTES}",
                "write it to a file and send the path",
                where,
            )
    return exchange


def _invalid(error: Exception, hint: str) -> Problem:
    if not isinstance(error, msgspec.ValidationError):
        return Problem(400, ErrorCode.BAD_REQUEST, f"the body cannot be read: {error}", hint)
    message, _, path = str(error).partition(" - at `$")
    return Problem(422, ErrorCode.INVALID, message, hint, path.strip("`.") or None)


async def _whole(receive: Receive, most: int) -> bytes:
    try:
        return await read_body(receive, most)
    except BodyTooLong as error:
        raise Problem(413, ErrorCode.TOO_LARGE, str(error), "send fewer at once") from error
    except ClientLeft:
        raise Problem(400, ErrorCode.BAD_REQUEST, "the request was not sent to its end") from None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
