"""The policy of a map as the database has it.

It is written with the names of this release and those of the last one, which may run beside it on the same
database, or again after it. `RENAMED` is emptied a release later.
"""

from __future__ import annotations

import json
from dataclasses import asdict

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
    renamed = {new: fields[old] for old, new in RENAMED.items() if old in fields}
    return msgspec.convert(renamed | fields, Policy)


def write_policy(policy: Policy) -> str:
    """What `read_policy` of this release and of the last one read."""
    fields = asdict(policy)
    return json.dumps(fields | {old: fields[new] for old, new in RENAMED.items()}, sort_keys=True)
