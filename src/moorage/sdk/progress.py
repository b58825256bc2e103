"""One line on stderr that says how far a map is, drawn anew in place; nothing where stderr is no terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TextIO

from moorage.clock import SYSTEM, Clock, format_duration

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


def map_line(shown: Mapping[str, Any]) -> str:
    """How a map stands, from what the server says of it, on one line."""
    counts = shown["counts"]
    total, done, dead = counts["total"], counts["done"], counts["dead"]
    parts = [
        share_bar((done + dead) / total if total else 0.0),
        f"{done:,} of {total:,} done",
    ]
    if dead:
        parts.append(f"{dead:,} failed")
    parts.append(f"{counts['workers']:,} workers")
    if shown.get("itemsPerSecond"):
        parts.append(f"{shown['itemsPerSecond']:,.3g}/s")
    if shown.get("secondsLeft") is not None and done + dead < total:
        parts.append(f"{format_duration(timedelta(seconds=shown['secondsLeft']))} left")
    if shown["state"] != "running":
        parts.append(str(shown["state"]))
    return "  ".join(parts)
