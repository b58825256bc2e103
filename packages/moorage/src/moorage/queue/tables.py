"""The tables of the queue with bulk writes, and the place of its migrations."""

from moorage.sql.database import Table
from moorage.sql.migrations import Schema

QUEUE = Schema("moorage.queue")
_INTS = "bigint"
ITEMS = Table(
    "items",
    (
        "map",
        "seq",
        "state",
        "rank",
        "fence",
        "holder",
        "twin",
        "settled",
        "tries",
        "losses",
        "memory_bytes",
        "ready_at",
    ),
    (_INTS,) * 12,
)
INPUTS = Table("inputs", ("map", "seq", "key", "value"), (_INTS, _INTS, "text", "bytea"))
SESSIONS = Table(
    "sessions", ("map", "name", "expires_at", "request", "leases"), (_INTS, "text", _INTS, _INTS, "bytea")
)
RESULTS = Table(
    "results",
    ("map", "seq", "lease", "at", "seconds", "memory", "value", "path"),
    (_INTS, _INTS, _INTS, _INTS, "double precision", _INTS, "bytea", "text"),
)
FAILURES = Table(
    "failures",
    ("map", "seq", "lease", "at", "cause", "message", "exit", "output", "tries"),
    (_INTS, _INTS, _INTS, _INTS, "text", "text", _INTS, "bytea", _INTS),
)
