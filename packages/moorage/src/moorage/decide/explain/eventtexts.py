"""Messages of events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def newest_message(events: Iterable[Mapping[str, Any]]) -> str:
    """The message of the newest event; empty without events."""
    newest = max(
        events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""), default={}
    )
    return str(newest.get("message") or "")
