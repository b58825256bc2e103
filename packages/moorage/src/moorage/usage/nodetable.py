"""The table of lives of nodes, next to that of intervals."""

from __future__ import annotations

from typing import Any, assert_never

from moorage.decide.usage.devices import counts_text, read_counts
from moorage.decide.usage.nodelives import Amend, Begin, End, NodeLife, NodeStep, Resume
from moorage.sql.database import Database, Row
from moorage.sql.timestamps import from_microseconds, to_microseconds

COLUMNS = (
    "node_uid",
    "started_at",
    "node",
    "instance_type",
    "region",
    "market",
    "gpu_type",
    "devices",
    "cpu_milli",
    "memory_bytes",
    "ended_at",
    "first_seen_at",
    "last_seen_at",
)
_WHAT = ("node", "instance_type", "region", "market", "gpu_type", "devices", "cpu_milli", "memory_bytes")
SELECT = f"SELECT {', '.join(COLUMNS)} FROM node_lives"
_INSERT = (
    f"INSERT INTO node_lives ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
    " ON CONFLICT (node_uid, started_at) DO NOTHING"
)
_AMEND = (
    f"UPDATE node_lives SET {', '.join(f'{column} = ?' for column in _WHAT)} WHERE node_uid = ? AND started_at = ?"
)
_END = """
UPDATE node_lives SET ended_at = CASE WHEN started_at > ? THEN started_at ELSE ? END,
    last_seen_at = CASE WHEN last_seen_at > ? THEN last_seen_at ELSE ? END
WHERE node_uid = ? AND started_at = ? AND ended_at IS NULL
"""
_RESUME = "UPDATE node_lives SET ended_at = NULL WHERE node_uid = ? AND started_at = ?"
TOUCH = "UPDATE node_lives SET last_seen_at = ? WHERE node_uid = ? AND ended_at IS NULL AND last_seen_at < ?"
FORGET = "DELETE FROM node_lives WHERE ended_at < ?"
OPEN = "WHERE ended_at IS NULL"
OF_NODE = "WHERE node_uid = ?"
OVERLAPPING = "WHERE started_at < ? AND (ended_at IS NULL OR ended_at > ?) ORDER BY started_at, node_uid"
BEGAN = "SELECT MIN(first_seen_at) FROM node_lives"


def carry_out(database: Database, step: NodeStep) -> None:
    """Execute a step inside a transaction. A second execution changes nothing."""
    match step:
        case Begin(life):
            database.run(_INSERT, *row_of(life))
        case Amend(life):
            row = dict(zip(COLUMNS, row_of(life), strict=True))
            database.run(_AMEND, *(row[column] for column in _WHAT), row["node_uid"], row["started_at"])
        case End((uid, started), ended):
            at = to_microseconds(ended)
            database.run(_END, at, at, at, at, uid, to_microseconds(started))
        case Resume((uid, started)):
            database.run(_RESUME, uid, to_microseconds(started))
        case _:
            assert_never(step)


def row_of(life: NodeLife) -> Row:
    return (
        life.node_uid,
        to_microseconds(life.started_at),
        life.node,
        life.instance_type,
        life.region,
        life.market,
        life.gpu_type,
        counts_text(life.devices, life.shares),
        life.cpu_milli,
        life.memory_bytes,
        None if life.ended_at is None else to_microseconds(life.ended_at),
        to_microseconds(life.first_seen_at),
        to_microseconds(life.last_seen_at),
    )


def life_in(row: Row) -> NodeLife:
    fields: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
    devices, shares = read_counts(fields["devices"])
    fields |= {"devices": devices, "shares": {resource: share for resource, share in shares.items() if share != 1}}
    for column in ("started_at", "ended_at", "first_seen_at", "last_seen_at"):
        fields[column] = None if fields[column] is None else from_microseconds(fields[column])
    return NodeLife(**fields)
