"""Show the progress of a map or a transfer in one line on stderr, redrawn in place. Only on a terminal.

`map_line` and `transfer_line` are pure; only `Bar` writes.
"""

from __future__ import annotations

import shutil
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, TextIO

from msgspec import Struct

from moorage.present.sizes import bytes_text
from moorage_kube.clock import SYSTEM, Clock, format_duration
from moorage_kube.quantity import counted

if TYPE_CHECKING:
    from moorage.api.maps import Map

REDRAW_SECONDS = 0.2
BAR = 24  # characters
PATIENCE_SECONDS = 1.0  # work that ends within this time prints no line


class Bar:
    """A progress line. Use it as a context manager; `show` may be called often, and from any thread.

    Nothing is drawn in the first `after` seconds.
    """

    def __init__(
        self, *, wanted: bool = True, stream: TextIO | None = None, clock: Clock = SYSTEM, after: float = 0.0
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._on = wanted and self._stream.isatty()
        self._draws_from = clock.monotonic() + after
        self._drawn_at = float("-inf")
        self._drawn = ""

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_line()

    def end_line(self) -> None:
        """End the current line without erasing it: another text follows."""
        if self._drawn:
            self._stream.write("\n")
            self._stream.flush()
            self._drawn = ""

    def show(self, text: str, *, now: bool = False) -> None:
        """Replace the shown line. Without `now`, lines less than 0.2 seconds after the last are not drawn."""
        moment = self._clock.monotonic()
        if not self._on or moment < self._draws_from or (not now and moment - self._drawn_at < REDRAW_SECONDS):
            return
        self._drawn_at = moment
        width = shutil.get_terminal_size().columns - 1
        self._stream.write("\r" + text[:width].ljust(min(len(self._drawn), width)))
        self._stream.flush()
        self._drawn = text[:width]


def share_bar(share: float) -> str:
    """Return a progress bar. `share`: the filled part, 0 to 1."""
    filled = round(BAR * min(1.0, max(0.0, share)))
    return "[" + "#" * filled + "." * (BAR - filled) + "]"


def map_line(shown: Map) -> str:
    """Return the progress of a map as one line."""
    counts = shown.counts
    parts = [
        share_bar(counts.ended / counts.total if counts.total else 0.0),
        f"{counts.done:,} of {counts.total:,} done",
    ]
    if counts.dead:
        parts.append(f"{counts.dead:,} failed")
    parts.append(counted(counts.workers, "worker"))
    if shown.items_per_second:
        parts.append(f"{shown.items_per_second:,.3g}/s")
    if shown.seconds_left is not None and counts.ended < counts.total:
        parts.append(f"{format_duration(timedelta(seconds=shown.seconds_left))} left")
    if shown.state != "running":
        parts.append(shown.state)
    return "  ".join(parts)


class Transfer(Struct, frozen=True, kw_only=True):
    """Progress of a transfer of files at one moment. None: not known."""

    bytes: int
    bytes_total: int | None = None
    files: int = 0
    files_total: int | None = None
    bytes_per_second: float | None = None


def transfer_line(transfer: Transfer) -> str:
    """Return the progress of a transfer as one line, with percent and time left if the total is known."""
    parts = []
    done, total, rate = transfer.bytes, transfer.bytes_total, transfer.bytes_per_second
    size = bytes_text(done)
    if total:
        share = min(1.0, done / total)
        parts.append(f"{share_bar(share)}  {int(share * 100):3d}%")  # 100 only at the end
        size += f" of {bytes_text(total)}"
    parts.append(size)
    if rate:
        parts.append(f"{bytes_text(int(rate))}/s")
        if total and done < total:
            parts.append(f"{format_duration(timedelta(seconds=(total - done) / rate))} left")
    if transfer.files_total:
        parts.append(f"{transfer.files:,} of {counted(transfer.files_total, 'file')}")
    elif transfer.files:
        parts.append(counted(transfer.files, "file"))
    return "  ".join(parts)


class Meter:
    """Counts the files and bytes of a transfer, and shows them on a bar.

    The rate counts from the first display.
    """

    def __init__(self, bar: Bar, *, clock: Clock = SYSTEM) -> None:
        self._bar, self._clock = bar, clock
        self._files = self._bytes = 0
        self._files_total: int | None = None
        self._bytes_total: int | None = None
        self._began: tuple[float, int] | None = None  # moment, bytes that were there

    def begin(self, files: int, size: int) -> None:
        """Set the total of the transfer."""
        self._files_total, self._bytes_total = files, size
        self.add(0, 0)

    def add(self, files: int, size: int) -> None:
        """Add the files and bytes since the previous call."""
        self._files += files
        self._bytes += size
        self._show()

    def set(self, *, files: int, size: int, files_total: int | None, bytes_total: int | None) -> None:
        """Show counts that the caller maintains."""
        if size < self._bytes:
            self._began = None  # a new step, or a new attempt
        self._files, self._bytes, self._files_total, self._bytes_total = files, size, files_total, bytes_total
        self._show()

    def _show(self) -> None:
        moment = self._clock.monotonic()
        if self._began is None:
            self._began = (moment, self._bytes)
        since, before = self._began
        seconds = moment - since
        self._bar.show(
            transfer_line(
                Transfer(
                    bytes=self._bytes,
                    bytes_total=self._bytes_total,
                    files=self._files,
                    files_total=self._files_total,
                    bytes_per_second=(self._bytes - before) / seconds if seconds > 0 else None,
                )
            ),
            now=self._bytes_total is not None and self._bytes >= self._bytes_total,
        )
