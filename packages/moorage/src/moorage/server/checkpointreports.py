"""The server's memory of checkpoints that runners report."""

from __future__ import annotations

from moorage_kube.cache import BoundedCache
from moorage_kube.clock import Clock

WRITE_SECONDS = 5.0
REMEMBERED = 10_000  # runs whose last write is remembered; more than report at a time


class CheckpointReports:
    """For each run, the newest checkpoint that this server wrote to it in the last WRITE_SECONDS."""

    def __init__(self, *, clock: Clock) -> None:
        self._written: BoundedCache[tuple[str, str], str] = BoundedCache(
            REMEMBERED, keep_seconds=WRITE_SECONDS, clock=clock
        )

    def is_written(self, run: tuple[str, str], newest: str | None) -> bool:
        return self._written.get(run) == (newest or "")

    def remember(self, run: tuple[str, str], newest: str | None) -> None:
        self._written.put(run, newest or "")
