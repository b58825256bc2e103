"""The ends of pods' logs, a folder of files for each.

A log is cut into segments of a quarter of its size limit. The newest is a plain file that grows; a full one is
compressed. Four full segments and the newest hold at least the size limit; older ones are deleted. So a log
takes a bounded number of bytes, nothing is ever rewritten, and a process killed at any moment leaves whole lines,
and perhaps the beginning of one more, which the next append or read drops.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from moorage_kube.errors import StorageError, StorageFull

FULL_SEGMENTS = 4  # in addition to the newest one
SEGMENT_MIN = 1024  # bytes
WHOLE = "whole"  # file in the folder of a log that was read to its end
_KEY = re.compile(r"[A-Za-z0-9._-]{1,128}")
_BESIDE = ".."  # between uid and container in a key: neither has it
_SEGMENT = re.compile(r"(\d{8})\.(log|z)")


def log_key(uid: str, container: str = "") -> str:
    """The key of a log by the uid of its pod. `container`: another container than the one with the pod's log."""
    return f"{uid}{_BESIDE}{container}" if container else uid


def pod_of(key: str) -> str:
    """The uid of the log's pod."""
    return key.partition(_BESIDE)[0]


class LogEnd(Struct, frozen=True):
    """The stored end of a log: whole lines. `cut`: earlier lines were deleted."""

    data: bytes = b""
    cut: bool = False


class LogSize(Struct, frozen=True):
    """The size of a log on the disk, and when it last grew, in seconds since 1970."""

    key: str
    bytes: int
    changed: float


class Logs(Protocol):
    """A store of the ends of logs. Safe for threads, as long as only one at a time appends to a log.

    `key`: from `log_key`. Methods raise StorageError.
    """

    keep_bytes: int

    def append(self, key: str, data: bytes) -> None:
        """Add whole lines to a log, and delete its oldest lines beyond the limit."""
        ...

    def read(self, key: str) -> LogEnd:
        """The stored end of a log; empty if there is none."""
        ...

    def finish(self, key: str) -> None:
        """Mark a log as read to its end."""
        ...

    def is_finished(self, key: str) -> bool: ...

    def erase(self, key: str) -> None:
        """Delete a log, if there is one."""
        ...

    def sizes(self) -> list[LogSize]:
        """All logs; the log that has not changed for the longest time comes first."""
        ...

    def close(self) -> None: ...


class LogFolder:
    """Logs in a folder. Thread-safe if one thread at a time appends to a log. Methods raise StorageError."""

    def __init__(self, path: Path, *, keep_bytes: int) -> None:
        self._path = path
        self.keep_bytes = keep_bytes
        self._segment_bytes = max(SEGMENT_MIN, keep_bytes // FULL_SEGMENTS)
        self._whole: set[str] = set()  # logs whose newest segment ends with a line's end

    def append(self, key: str, data: bytes) -> None:
        """Add whole lines to a log, and delete its oldest lines beyond the limit."""
        with _errors("write", self._path):
            folder = self._folder(key)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            segments = _segments(folder)
            for name in _stale(folder):
                (folder / name).unlink(missing_ok=True)
            number = next((number for number, name in reversed(segments) if name.endswith(".log")), None)
            if number is None:
                number = segments[-1][0] + 1 if segments else 1
            newest = folder / f"{number:08}.log"
            if key not in self._whole:
                _drop_half_line(newest)
            self._whole.discard(key)  # until all is written
            with newest.open("ab") as file:
                file.write(data)
                size = file.tell()
            self._whole.add(key)
            if size >= self._segment_bytes:
                _compress(newest)
                self._drop_oldest(folder)

    def read(self, key: str) -> LogEnd:
        """The stored end of a log; empty if there is none."""
        with _errors("read", self._path):
            folder = self._folder(key)
            segments = _segments(folder) if folder.is_dir() else []
            parts = [part for _, name in segments if (part := _read(folder / name)) is not None]
        return end_of(b"".join(parts), cut=bool(segments) and segments[0][0] > 1, keep_bytes=self.keep_bytes)

    def finish(self, key: str) -> None:
        """Mark a log as read to its end."""
        self._whole.discard(key)
        with _errors("write", self._path):
            folder = self._folder(key)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / WHOLE).touch(mode=0o600)

    def is_finished(self, key: str) -> bool:
        with _errors("read", self._path):
            return (self._folder(key) / WHOLE).exists()

    def erase(self, key: str) -> None:
        """Delete a log, if there is one."""
        self._whole.discard(key)
        with _errors("erase", self._path), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._folder(key))

    def sizes(self) -> list[LogSize]:
        """All logs; the log that has not changed for the longest time comes first."""
        sizes = []
        with _errors("read", self._path):
            if not self._path.is_dir():
                return []
            for entry in self._path.iterdir():
                stats = [stat for name in _names(entry) if (stat := _stat(entry / name)) is not None]
                if stats:
                    changed = max(stat.st_mtime for stat in stats)
                    sizes.append(LogSize(entry.name, sum(stat.st_size for stat in stats), changed))
        return sorted(sizes, key=lambda size: (size.changed, size.key))

    def close(self) -> None:
        """Do nothing: this class has no open files."""

    def _folder(self, key: str) -> Path:
        if not _KEY.fullmatch(key) or key.startswith("."):
            raise StorageError(f"invalid key {key[:80]!r} of a log: use letters, digits, '-', '_' and '.'")
        return self._path / key

    def _drop_oldest(self, folder: Path) -> None:
        full = [name for _, name in _segments(folder) if name.endswith(".z")]
        for name in full[:-FULL_SEGMENTS]:
            (folder / name).unlink(missing_ok=True)


def end_of(data: bytes, *, cut: bool, keep_bytes: int) -> LogEnd:
    """The last complete lines within `keep_bytes`, at least one line.

    `cut`: `data` does not begin at the log's start.
    """
    data = data[: data.rfind(b"\n") + 1]
    if len(data) > keep_bytes:
        at = data.find(b"\n", len(data) - keep_bytes - 1) + 1
        data, cut = data[at:] or data[data[:-1].rfind(b"\n") + 1 :], True
    return LogEnd(data, cut)


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(folder)
    return []


def _segments(folder: Path) -> list[tuple[int, str]]:
    """The number and file name of each segment, oldest first. If both files exist, the compressed file."""
    segments: dict[int, str] = {}
    for name in sorted(_names(folder)):  # .log before .z
        if match := _SEGMENT.fullmatch(name):
            segments[int(match[1])] = name
    return sorted(segments.items())


def _stale(folder: Path) -> list[str]:
    """Uncompressed segments that also exist compressed, because a process was killed before it deleted them."""
    names = set(_names(folder))
    return [name for name in names if name.endswith(".log") and name.removesuffix("log") + "z" in names]


def _read(path: Path) -> bytes | None:
    """The lines of a segment; None if the file was deleted meanwhile or is damaged."""
    try:
        return path.read_bytes() if path.suffix == ".log" else zlib.decompress(path.read_bytes())
    except FileNotFoundError:
        compressed = path.with_suffix(".z")
        return _read(compressed) if path.suffix == ".log" and compressed.exists() else None
    except zlib.error:
        return None  # damaged by the disk: the rest is still of use


def _drop_half_line(path: Path) -> None:
    """Cut an incomplete last line that a killed process left."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)


def _compress(path: Path) -> None:
    """Safe to stop anywhere: the compressed file appears whole, and then the plain one is deleted."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(zlib.compress(path.read_bytes(), 6))
    part.replace(path.with_suffix(".z"))
    path.unlink()


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _errors(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = StorageFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
        raise kind(f"could not {verb} the stored logs in {path}: {error.strerror or error}") from error
