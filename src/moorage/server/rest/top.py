"""GET /api/v1/top: GPU-hours by user, run, GPU type or single GPU in a window of time."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moorage.apimachinery.moments import parse_rfc3339, rfc3339
from moorage.apimachinery.resources import Obj
from moorage.decide.runs.timelimit import parse_time
from moorage.decide.usage.intervals import By, UsageRow, top
from moorage.server.context import Context
from moorage.server.problems import Json, Problem

DEFAULT_SINCE = "24h"


def routes(context: Context) -> list[Route]:
    async def get_top(request: Request) -> Response:
        """GPU-hours from `since` (24h) to `until` (now), `by` user, run, GPU type or single GPU."""
        now = context.now()
        since = moment_before(request.query_params.get("since", DEFAULT_SINCE), now, "since")
        until = moment_before(request.query_params.get("until", "") or rfc3339(now), now, "until")
        if "until" not in request.query_params:
            until = now
        if since >= until:
            raise Problem(
                400,
                "bad_request",
                f"the window is empty: since {rfc3339(since)}, until {rfc3339(until)}",
                "`since` must be before `until`",
                "since",
            )
        rows = await use(context, since=since, until=until, by=_by(request.query_params.get("by", By.USER)))
        return Json(
            {
                "since": rfc3339(since),
                "until": rfc3339(until),
                "by": request.query_params.get("by", By.USER),
                "rows": [row_json(row) for row in rows],
            }
        )

    return [Route("/api/v1/top", get_top, methods=["GET"])]


async def use(context: Context, *, since: datetime, until: datetime, by: By) -> tuple[UsageRow, ...]:
    """Read the store off the event loop and sum up. Raises StorageError."""
    rows = await asyncio.to_thread(context.usage.overlapping, since, until)
    return top(rows, since=since, until=until, by=by, now=context.now())


def row_json(row: UsageRow) -> Obj:
    return {
        "name": row.name,
        "gpuHours": round(row.gpu_hours, 6),
        "cpuHours": round(row.cpu_hours, 6),
        "memoryGiBHours": round(row.memory_gib_hours, 6),
        "runningGpus": row.running_gpus,
        "pods": row.pods,
    }


def moment_before(text: str, now: datetime, field: str) -> datetime:
    """Read "24h" (so long before now) or an RFC 3339 moment. Raises Problem 400 naming the parameter."""
    try:
        return now - timedelta(seconds=parse_time(text))
    except ValueError:
        pass
    try:
        return parse_rfc3339(text)
    except ValueError as exc:
        raise Problem(
            400,
            "bad_request",
            f"{field} is {text!r}, which is neither a span nor a moment",
            "write a span such as 24h, 7d or 90m, or a moment such as 2026-01-31T12:00:00Z",
            field,
        ) from exc


def _by(text: str) -> By:
    try:
        return By(text)
    except ValueError as exc:
        raise Problem(400, "bad_request", f"by is {text!r}", f"use one of: {', '.join(By)}", "by") from exc
