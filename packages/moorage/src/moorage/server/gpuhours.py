"""GPU-hours of a window, from the recorded use."""

from __future__ import annotations

import asyncio
from datetime import datetime

from moorage.decide.usage.intervals import By, UsageRow, top
from moorage.server.context import Context
from moorage.server.namespaces import by_namespace


async def gpu_hours(context: Context, *, since: datetime, until: datetime, by: By) -> tuple[UsageRow, ...]:
    """GPU-hours of a window, grouped by `by`. Reads the store in a thread. Raises StorageError."""
    rows = await by_namespace(context.api, await asyncio.to_thread(context.usage.overlapping, since, until))
    return top(rows, since=since, until=until, by=by, now=context.now())
