"""What the items of a map have printed: kept for workers, read by users. See docs/design/0005-map.md."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from moorage.decide.maps import leasing
from moorage.errors import Unauthorized
from moorage.queue.outputs import Part
from moorage.server.context import Context
from moorage.server.identity.auth import bearer_of
from moorage.server.inputs import whole_number
from moorage.server.problems import Json, Problem
from moorage.server.queue.routes import MAPS, WORK_PATH, body_of, map_of, while_allowed

ENTRIES = 10_000
BODY_BYTES = 2 * 1024 * 1024
END_LOOK_SECONDS = 2.0  # between two looks whether a map that is followed has ended
OWN = -1  # the item of a note that is the worker's own


class Entry(msgspec.Struct):
    """What an item printed: base64."""

    item: leasing.Natural
    lease: leasing.Natural
    at: leasing.Natural
    output: str


class Printed(msgspec.Struct):
    session: leasing.Text64
    pod: str
    entries: list[Entry] = []
    dropped: leasing.Natural = 0


def routes(context: Context) -> list[Route]:
    queue, outputs = context.queue, context.outputs
    if queue is None or outputs is None:
        return []

    async def keep(request: Request) -> Response:
        """Output of items, by their worker."""
        try:
            of = await queue.map_of_token(bearer_of(request.headers))
        except Unauthorized as error:
            raise Problem(401, "unauthorized", error.message, error.hint) from error
        asked = await body_of(request, Printed, most=BODY_BYTES)
        if len(asked.entries) > ENTRIES:
            raise Problem(
                413, "too_large", f"{len(asked.entries)} entries; at most {ENTRIES}", "send fewer at once"
            )
        try:
            parts = [(one.item, one.lease, one.at, base64.b64decode(one.output)) for one in asked.entries]
        except (ValueError, binascii.Error) as error:
            raise Problem(422, "invalid", "output is no base64", field="entries[].output") from error
        if asked.dropped:
            at = parts[-1][2] if parts else 0
            note = f"[{asked.dropped} bytes were printed faster than they could be sent, and are lost]\n"
            parts.append((OWN, 0, at, note.encode()))
        await outputs.add(of, asked.pod[:253], parts)
        return Json({"kept": len(parts)})

    async def show(request: Request) -> Response:
        """What was printed so far, one JSON object per line; `follow=true` goes on until the map has ended."""
        found = await map_of(request, context, queue)
        of, item = found.map.id, whole_number(request, "item")
        follow = request.query_params.get("follow") == "true"
        start = whole_number(request, "after") or 0

        async def ended() -> bool:
            now = await queue.read(lambda store: store.find_uid(found.uid))
            if now is None or leasing.is_finished(now.map, now.map.counts):
                return True
            return now.map.state is leasing.MapState.CANCELLED and not now.map.counts.leases

        async def lines() -> AsyncIterator[bytes]:
            after, last = start, not follow
            while True:
                page = await outputs.page(of, item=item, after=after)
                for part in page:
                    yield _line(part)
                    after = part.id
                if page:
                    continue
                if last:
                    return
                try:
                    async with asyncio.timeout(END_LOOK_SECONDS):
                        await outputs.news(of)
                except TimeoutError:
                    last = await ended()

        allowed = while_allowed(context, request.state.user, found.namespace, lines())
        return StreamingResponse(allowed, media_type="application/x-ndjson")

    return [
        Route(f"{WORK_PATH}/output", keep, methods=["POST"]),
        Route(f"{MAPS}/output", show, methods=["GET"]),
    ]


def _line(part: Part) -> bytes:
    about = {"id": part.id, "atMs": part.at, "pod": part.pod, "item": part.item, "lease": part.lease}
    return msgspec.json.encode(about | {"output": base64.b64encode(part.output).decode()}) + b"\n"
