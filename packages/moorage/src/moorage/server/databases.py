"""The list of the server's databases, for backup, restore and checks of its folder."""

from __future__ import annotations

import functools

from msgspec import Struct

from moorage.attempts import logtable
from moorage.attempts import store as attempts
from moorage.features import load_all
from moorage.queue import outputs
from moorage.queue.tables import QUEUE
from moorage.server.identity import sessions
from moorage.sql import leases
from moorage.sql.migrations import Schema
from moorage.usage import samples
from moorage.usage import store as usage


class ServerDatabase(Struct, frozen=True, kw_only=True):
    """The tables of one schema, in the order in which rows can be inserted.

    On SQLite they are in `file` of the server's folder; "": there is no such file. On PostgreSQL all
    schemas are in one database. `needed` False: it is of use for minutes, or stored by best effort; a
    restore may leave it out. `passing` tables are in no backup: their rows are summed up or replaced
    within minutes. A backup says how many rows it has of `counted` tables. A target with rows of
    `content` tables is not empty.
    """

    name: str
    file: str
    schema: Schema
    tables: tuple[str, ...]
    passing: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()
    content: tuple[str, ...] = ()
    needed: bool = True


_OF_THE_PLATFORM = (
    ServerDatabase(
        name="maps",
        file="queue.db",
        schema=QUEUE,
        tables=(
            "maps",
            "map_sizes",
            "map_limits",
            "limits",
            "additions",
            "sessions",
            "items",
            "inputs",
            "results",
            "failures",
        ),
        counted=("maps", "items", "results"),
        content=("maps",),
    ),
    ServerDatabase(
        name="people",
        file="people.db",
        schema=sessions.SCHEMA,
        tables=("login_sessions", "login_places", "login_codes", "page_sessions", "shared_values", "audit_log"),
        counted=("login_sessions", "audit_log"),
    ),
    ServerDatabase(
        name="usage",
        file="usage.db",
        schema=usage.SCHEMA,
        tables=("intervals", "node_lives"),
        counted=("intervals",),
        content=("intervals",),
    ),
    ServerDatabase(
        name="samples",
        file="samples.db",
        schema=samples.SCHEMA,
        tables=(
            "sample_pods",
            "sample_latest",
            "sample_slots",
            "sample_packed_slots",
            "sample_windows",
            "sample_packed_windows",
            "sample_hours",
            "sample_sums",
            "sample_marks",
        ),
        passing=("sample_latest", "sample_slots", "sample_packed_slots"),
        needed=False,
    ),
    ServerDatabase(
        name="attempts",
        file="attempts.db",
        schema=attempts.SCHEMA,
        tables=("attempt_jobs", "attempt_pods"),
        counted=("attempt_jobs",),
        content=("attempt_jobs",),
    ),
    ServerDatabase(name="logs", file="", schema=logtable.SCHEMA, tables=("kept_logs", "kept_log_parts")),
    ServerDatabase(
        name="outputs",
        file="outputs.db",
        schema=outputs.SCHEMA,
        tables=("output_sizes", "outputs"),
        counted=("outputs",),
        needed=False,
    ),
    ServerDatabase(name="leases", file="", schema=leases.SCHEMA, tables=("server_leases",), needed=False),
)


@functools.cache
def databases() -> tuple[ServerDatabase, ...]:
    """The databases of the platform and of all features."""
    return (*_OF_THE_PLATFORM, *(database for added in load_all("databases") for database in added))


ARTIFACTS_FOLDER = "artifacts"  # next to the files: artifacts of workflows without a bucket
LOGS_FOLDER = "attempts"  # next to the files: the stored ends of logs, where they are not in PostgreSQL
