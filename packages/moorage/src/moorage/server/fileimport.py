"""Move data from the server's files into PostgreSQL, once, when a server with a database starts.

Only data that people need is moved: the history of GPU use, the ends of stored logs, and data of
features. A moved file gets `.moved` at the end of its name and stays, so that it can be restored. A
server that is killed half-way begins again: existing rows stay as they are, and a log is moved
whole.
"""

from __future__ import annotations

import logging
from pathlib import Path

from moorage.attempts.logs import LogFolder, Logs
from moorage.decide.usage.intervals import Open
from moorage.decide.usage.nodelives import Begin
from moorage.server.databases import LOGS_FOLDER
from moorage.usage.store import UsageStore
from moorage_kube.databasefile import forget

log = logging.getLogger(__name__)

MOVED = ".moved"
_BATCH = 1000  # intervals in one transaction


def move_usage(folder: Path, to: UsageStore) -> int:
    """Import `usage.db` of a folder; return the number of its intervals. After StorageError nothing is renamed."""
    path = folder / "usage.db"
    if not path.exists():
        return 0
    before = UsageStore(path)
    try:
        intervals, lives = before.everything(), before.every_life()
    finally:
        before.close()
    for at in range(0, len(intervals), _BATCH):
        to.apply([Open(interval) for interval in intervals[at : at + _BATCH]])
    for life in lives:
        to.apply_nodes([Begin(life)], now=life.last_seen_at)
    set_aside(path)
    log.info("moved the history of GPU use into PostgreSQL", extra={"intervals": len(intervals)})
    return len(intervals)


def set_aside(database: Path) -> None:
    """Rename a database file after its import."""
    database.rename(database.with_name(database.name + MOVED))
    forget(database)


def move_logs(folder: Path, to: Logs) -> int:
    """Move the stored ends of logs and return their number. Logs of pods without a record are left out."""
    path = folder / LOGS_FOLDER
    if not path.is_dir():
        return 0
    before = LogFolder(path, keep_bytes=to.keep_bytes)
    sizes = before.sizes()
    for size in sizes:
        if not to.read(size.key).data:
            to.append(size.key, before.read(size.key).data)
        if before.is_finished(size.key):
            to.finish(size.key)
    path.rename(path.with_name(path.name + MOVED))
    log.info("moved the stored logs into PostgreSQL", extra={"logs": len(sizes)})
    return len(sizes)
