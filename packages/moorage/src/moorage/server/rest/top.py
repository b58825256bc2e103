"""/api/v1/top: GPU-hours by user, namespace, run, workflow, GPU type or single GPU in a window of time."""

from __future__ import annotations

from typing import Any

from moorage.api.errors import ErrorCode
from moorage.api.usage import Top, TopQuery, TopRow
from moorage.decide.timetext import moment_before
from moorage.decide.usage.intervals import By, UsageRow
from moorage.server.endpoint import Call, Endpoint
from moorage.server.gpuhours import gpu_hours
from moorage_kube.errors import UsageError
from moorage_kube.moments import rfc3339

DECIMALS = 6  # of hours in an answer


async def get_top(call: Call[None, TopQuery]) -> Top:
    """Show GPU-hours by user, namespace, run, workflow, GPU type or single GPU."""
    query, now = call.query, call.context.now()
    since = moment_before(query.since, now, "since")
    until = now if query.until is None else moment_before(query.until or rfc3339(now), now, "until")
    if since >= until:
        raise UsageError(
            f"the window is empty: since {rfc3339(since)}, until {rfc3339(until)}",
            hint="`since` must be before `until`",
            code=ErrorCode.BAD_REQUEST,
            field="since",
        )
    by = _by(query.by)
    rows = await gpu_hours(call.context, since=since, until=until, by=by)
    return Top(
        since=since.replace(microsecond=0),
        until=until.replace(microsecond=0),
        by=by,
        rows=tuple(_row(row) for row in rows),
    )


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path="/api/v1/top", handler=get_top, query=TopQuery, answer=Top),
)


def _row(row: UsageRow) -> TopRow:
    return TopRow(
        name=row.name,
        gpu_hours=round(row.gpu_hours, DECIMALS),
        cpu_hours=round(row.cpu_hours, DECIMALS),
        memory_hours=round(row.memory_gib_hours, DECIMALS),
        running_gpus=row.running_gpus,
        pods=row.pods,
    )


def _by(text: str) -> By:
    try:
        return By(text)
    except ValueError as error:
        raise UsageError(
            f"invalid by {text!r}: use {', '.join(By)}", code=ErrorCode.BAD_REQUEST, field="by"
        ) from error
