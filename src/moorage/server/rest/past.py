"""How long past runs took, for every answer that foretells an end."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta

from moorage.decide.runs.forecast import History, history_of
from moorage.decide.usage.intervals import stay_of
from moorage.errors import StorageError
from moorage.server.context import Context

WINDOW = timedelta(days=60)  # older stays say little of what is run now
ROWS = 20_000  # the newest of them
KEPT_SECONDS = 60.0  # how long what was read is believed to be all

log = logging.getLogger(__name__)


async def history(context: Context) -> History:
    """Past stays by likeness, read at most once in KEPT_SECONDS; empty while the store cannot be read."""
    known: tuple[float, History] | None = context.memory.get("history")
    at = context.clock.monotonic()
    if known is not None and at - known[0] < KEPT_SECONDS:
        return known[1]
    try:
        found = await asyncio.to_thread(_read, context, context.now() - WINDOW)
    except StorageError as error:
        log.error("past runs cannot be read", extra={"error": str(error)})
        found = History()
    context.memory["history"] = (at, found)
    return found


def _read(context: Context, since: datetime) -> History:
    rows = context.usage.ended(since, limit=ROWS)
    return history_of(stay for row in rows if (stay := stay_of(row)) is not None)
