"""Logs of containers in the format of CRI runtimes."""

from __future__ import annotations

import errno
import os
import sys
import time

LINE_MAX = 16 * 1024  # longer lines are cut in parts, as CRI runtimes do


def stamp(moment: float | None = None) -> str:
    """Return a time in RFC 3339 format, in UTC with microseconds; None for now."""
    now = time.time() if moment is None else moment
    whole = int(now)
    parts = time.gmtime(whole)
    return time.strftime("%Y-%m-%dT%H:%M:%S", parts) + f".{int((now - whole) * 1e6):06d}Z"


def complain(*words: object) -> None:
    """Write a line to shim.log; an error of the disk is ignored, so that the pod continues."""
    try:
        print(stamp(), *words, file=sys.stderr, flush=True)
    except OSError:
        pass


class Log:
    """The log of one attempt in CRI format, `<RFC3339Nano> stdout|stderr F|P text`, rotated by size.

    The current file is `0.log`; `0.log.1` is the newest full file. If the disk is full, lines are lost, but the
    container continues.
    https://github.com/kubernetes/design-proposals-archive/blob/main/node/kubelet-cri-logging.md
    """

    def __init__(self, path: str, max_bytes: int, max_files: int) -> None:
        self._path = path
        self._max_bytes, self._max_files = max_bytes, max_files
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._fd).st_size
        self._rest: dict[bytes, bytes] = {}
        self._since: dict[bytes, float] = {}
        self._complained = ""  # of the last write

    def feed(self, stream: bytes, data: bytes) -> None:
        """Add bytes of the container's output."""
        data = self._rest.pop(stream, b"") + data
        lines = data.split(b"\n")
        rest = lines.pop()
        at = _nano()
        full, part = at + b" " + stream + b" F ", at + b" " + stream + b" P "
        out: list[bytes] = []
        for line in lines:
            while len(line) > LINE_MAX:
                out.append(part + line[:LINE_MAX])
                line = line[LINE_MAX:]
            out.append(full + line)
        while len(rest) >= LINE_MAX:
            out.append(part + rest[:LINE_MAX])
            rest = rest[LINE_MAX:]
        if rest:
            self._rest[stream] = rest
            self._since[stream] = time.monotonic()
        self._write(out)

    def flush(self, *, older_than: float = 0.0) -> None:
        """Write unfinished lines that have waited `older_than` seconds; 0 means that the stream has ended."""
        now = time.monotonic()
        for stream in list(self._rest):
            if now - self._since[stream] >= older_than:
                kind = b" P " if older_than else b" F "
                self._write([_nano() + b" " + stream + kind + self._rest.pop(stream)])

    def waits(self) -> bool:
        return bool(self._rest)

    def tail(self, max_bytes: int, max_lines: int) -> str:
        """Return the end of the log as text, for the termination message."""
        try:
            with open(self._path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - 4 * max_bytes))
                lines = file.read().split(b"\n")[:-1]
        except OSError:
            return ""
        text = b"".join(
            parts[3] + (b"\n" if parts[2] == b"F" else b"")
            for parts in (line.split(b" ", 3) for line in lines[-max_lines:])
            if len(parts) == 4
        )
        return text[-max_bytes:].decode("utf-8", "replace")

    def close(self) -> None:
        self.flush()
        os.close(self._fd)

    def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        try:
            start, size = 0, self._size
            for at, line in enumerate(lines):
                if size and size + len(line) + 1 > self._max_bytes:
                    self._append(lines[start:at])
                    self._rotate()
                    start, size = at, 0
                size += len(line) + 1
            self._append(lines[start:])
            self._complained = ""
        except OSError as error:
            if self._complained != (problem := str(error)):
                self._complained = problem
                complain("log lines lost:", problem)

    def _append(self, lines: list[bytes]) -> None:
        if not lines:
            return
        data = b"\n".join(lines) + b"\n"
        written = os.write(self._fd, data)
        self._size += written
        if written < len(data):  # the disk is full: later output starts a new line
            whole = data.rfind(b"\n", 0, written) + 1
            self._size -= written - whole
            os.ftruncate(self._fd, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _rotate(self) -> None:
        for number in range(self._max_files - 1, 0, -1):
            older = f"{self._path}.{number - 1}" if number > 1 else self._path
            try:
                os.rename(older, f"{self._path}.{number}")
            except FileNotFoundError:
                pass
        new = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.close(self._fd)
        self._fd, self._size = new, 0


def _nano() -> bytes:
    nanos = time.time_ns()
    whole, rest = divmod(nanos, 10**9)
    return (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{rest:09d}Z").encode()
