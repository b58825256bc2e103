"""Read the logs that a shim wrote, for `kubectl logs`.

The lines are CRI lines `<RFC3339Nano> <stream> F|P <text>`. Full files are renamed to `.1`, `.2`, …, also while
they are read.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from moorage_kube.clock import Clock, parse_rfc3339
from moorage_kube.integers import is_digits
from moorage_local.nodeagent.records import open_regular

FOLLOW_SECONDS = 0.1  # between two looks at a log that is followed
CHUNK = 1 << 20  # bytes read at once


@dataclass(frozen=True, slots=True)
class Line:
    """One log entry. `whole` is False if the next entry of its stream continues the line."""

    at: bytes
    text: bytes
    whole: bool

    def moment(self) -> datetime:
        # nanoseconds: Python keeps six digits
        return parse_rfc3339(self.at[:26].decode().rstrip("Z") + "Z")


def parse_line(raw: bytes) -> Line | None:
    """Read one line without its newline; None if it is not a CRI line (a crash cut it short)."""
    parts = raw.split(b" ", 3)
    if len(parts) != 4 or parts[2] not in (b"F", b"P"):
        return None
    return Line(parts[0], parts[3], parts[2] == b"F")


def files_of(path: Path) -> list[Path]:
    """Return the existing files of one attempt, the oldest first."""
    rotated = []
    number = 1
    while (older := path.with_name(f"{path.name}.{number}")).exists():
        rotated.append(older)
        number += 1
    return [*reversed(rotated), *([path] if path.exists() else [])]


def attempts(folder: Path) -> list[int]:
    """Return the numbers of a container's attempts that have a log, in order."""
    if not folder.is_dir():
        return []
    numbers = (name.partition(".")[0] for name in os.listdir(folder))
    return sorted({int(number) for number in numbers if is_digits(number) and len(number) < 10})


class Reader:
    """Reads the log of one attempt from its oldest file on, also while the files are rotated."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def lines(self) -> Iterator[Line]:
        """Yield all entries that are available now; call it again for more."""
        while True:
            if self._file is None:
                self._file = self._open_oldest()
                if self._file is None:
                    return
            while chunk := self._file.read(CHUNK):
                *raws, self._rest = (self._rest + chunk).split(b"\n")
                for raw in raws:
                    line = parse_line(raw)
                    if line is not None:
                        yield line
            newer = self._open_next()
            if newer is None:
                return
            # read again: lines between the last read and the renaming
            while chunk := self._file.read(CHUNK):
                *raws, self._rest = (self._rest + chunk).split(b"\n")
                yield from (line for raw in raws if (line := parse_line(raw)) is not None)
            self._file.close()
            self._file, self._rest = newer, b""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open_oldest(self) -> BinaryIO | None:
        for path in files_of(self._path):
            try:
                return open_regular(path)
            except OSError:
                continue  # renamed this moment: a newer name has it
        return None

    def _open_next(self) -> BinaryIO | None:
        """Return the file after the open one; None while the open file is still being written."""
        assert self._file is not None
        inode = os.fstat(self._file.fileno()).st_ino
        files = files_of(self._path)
        for at, path in enumerate(files):
            try:
                if path.stat().st_ino == inode:
                    return open_regular(files[at + 1]) if at + 1 < len(files) else None
            except OSError:
                return None  # renamed this moment: look again later
        return open_regular(files[0]) if files else None  # ours was dropped as the oldest


async def read_log(
    path: Path,
    *,
    clock: Clock,
    is_over: Callable[[], bool],
    follow: bool = False,
    tail_lines: int | None = None,
    since: datetime | None = None,
    timestamps: bool = False,
    limit_bytes: int | None = None,
) -> AsyncIterator[bytes]:
    """The text of one attempt's log, in chunks; with `follow`, until `is_over` and all was read.

    `tail_lines` counts from the end of the log when reading begins.
    """
    reader = Reader(path)
    writer = _Writer(timestamps=timestamps, since=since, limit=limit_bytes)
    try:
        # the last lines of the file: a line may be in several parts
        if tail_lines is not None:
            last: deque[list[Line]] = deque(maxlen=max(0, tail_lines))
            group: list[Line] = []
            for line in reader.lines():
                group.append(line)
                if line.whole:
                    last.append(group)
                    group = []
            lines = [line for kept in last for line in kept] + (group if tail_lines else [])
            if data := writer.write(lines):
                yield data
        # the rest, until the log has ended
        while not writer.full:
            over = is_over()  # before the read: all that was written by then is seen
            data = b""
            for line in reader.lines():
                data += writer.write([line])
                if len(data) >= CHUNK:
                    yield data
                    data = b""
                    await asyncio.sleep(0)
                if writer.full:
                    break
            if data:
                yield data
            if over or not follow:
                return
            await clock.sleep(FOLLOW_SECONDS)
    finally:
        reader.close()


class _Writer:
    """Joins parts into lines, adds timestamps, and stops at the byte limit."""

    def __init__(self, *, timestamps: bool, since: datetime | None, limit: int | None) -> None:
        self._timestamps, self._since, self._left = timestamps, since, limit
        self._inside = False

    @property
    def full(self) -> bool:
        return self._left is not None and self._left <= 0

    def write(self, lines: list[Line]) -> bytes:
        out = []
        for line in lines:
            if self._since is not None:
                if line.moment() < self._since:
                    continue
                self._since = None
            if self._timestamps and not self._inside:
                out.append(line.at + b" ")
            out.append(line.text + (b"\n" if line.whole else b""))
            self._inside = not line.whole
        data = b"".join(out)
        if self._left is not None:
            data = data[: max(0, self._left)]
            self._left -= len(data)
        return data
