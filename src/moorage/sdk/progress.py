"""One line on stderr that says how far a map is, drawn anew in place; nothing where stderr is no terminal."""

from __future__ import annotations

import shutil
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, TextIO

from moorage.clock import SYSTEM, Clock, format_duration

if TYPE_CHECKING:
    from moorage.api.maps import Map

REDRAW_SECONDS = 0.2
BAR = 24  # characters


class Bar:
    """Use as a context manager; `show` may be called often."""

    def __init__(self, *, wanted: bool = True, stream: TextIO | None = None, clock: Clock = SYSTEM) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._on = wanted and self._stream.isatty()
        self._drawn_at = float("-inf")
        self._drawn = ""

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            self._stream.write("\n")
            self._stream.flush()
            self._drawn = ""

    def show(self, text: str, *, now: bool = False) -> None:
        """Draw a line instead of the one before; `now`: even if that is a moment ago."""
        moment = self._clock.monotonic()
        if not self._on or (not now and moment - self._drawn_at < REDRAW_SECONDS):
            return
        self._drawn_at = moment
        width = shutil.get_terminal_size().columns - 1
        self._stream.write("\r" + text[:width].ljust(min(len(self._drawn), width)))
        self._stream.flush()
        self._drawn = text[:width]


def share_bar(share: float) -> str:
    """A bar that is so far filled, 0 to 1."""
    filled = round(BAR * min(1.0, max(0.0, share)))
    return "[" + "#" * filled + "." * (BAR - filled) + "]"


def map_line(shown: Map) -> str:
    """How far a map is, on one line."""
    counts = shown.counts
    parts = [
        share_bar(counts.ended / counts.total if counts.total else 0.0),
        f"{counts.done:,} of {counts.total:,} done",
    ]
    if counts.dead:
        parts.append(f"{counts.dead:,} failed")
    parts.append(f"{counts.workers:,} workers")
    if shown.items_per_second:
        parts.append(f"{shown.items_per_second:,.3g}/s")
    if shown.seconds_left is not None and counts.ended < counts.total:
        parts.append(f"{format_duration(timedelta(seconds=shown.seconds_left))} left")
    if shown.state != "running":
        parts.append(shown.state)
    return "  ".join(parts)
