"""The policy of a map as the database has it."""

from __future__ import annotations

import json

import msgspec

from moorage.decide.maps.leasing import Policy

RENAMED = {
    "timeout_seconds": "time_seconds",
    "memory_limit_bytes": "max_memory_bytes",
    "backoff_limit_seconds": "max_backoff_seconds",
}


def read_policy(text: str) -> Policy:
    """The policy of a row, also of one that was written before fields had their names of today."""
    fields = json.loads(text)
    return msgspec.convert({RENAMED.get(name, name): value for name, value in fields.items()}, Policy)
