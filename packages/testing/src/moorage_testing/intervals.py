"""Intervals of GPU use for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from moorage.decide.usage.intervals import Interval
from moorage_testing import builders

TEN = datetime(2026, 1, 5, 10, 0, 0, 123456, tzinfo=UTC)
HOUR = timedelta(hours=1)


def an_interval(
    uid: str = "u1", *, start: datetime = TEN, end: datetime | None = None, seen: datetime = TEN, **fields: Any
) -> Interval:
    """An interval of a run on two GPUs, with amounts that need 64 bits. `end` None: it is still open."""
    amounts: dict[str, Any] = {"gpus": 2, "cpu_milli": 1500, "memory_bytes": 2**40, "last_seen_at": seen}
    return builders.an_interval(uid, start, end, **amounts | fields)
