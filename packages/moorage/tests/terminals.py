"""A program on a terminal of its own: what it shows can be awaited, and keys can be typed."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

PATIENCE = 180.0  # seconds; only bounds a hang
CONTROLS = re.compile(r"\x1b(?:\[[?>=]?[\d;]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[=>()][B0]?)")


class Terminal:
    """A program whose stdin, stdout and stderr are a terminal of this size."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], columns: int = 80, lines: int = 24) -> None:
        self._main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        clean = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
        self._process = subprocess.Popen(
            argv, stdin=side, stdout=side, stderr=side, env=clean, start_new_session=True, preexec_fn=_own_terminal
        )
        os.close(side)
        self.output = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end within a character

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._main)

    def type(self, keys: str) -> None:
        """Press keys: "\\x03" is Ctrl-C, "\\t" completes."""
        os.write(self._main, keys.encode())

    def read_until(self, words: str, *, patience: float = PATIENCE) -> str:
        """Wait until these words were shown since the last call; return what was shown up to the end of them."""
        end = time.monotonic() + patience
        while words not in self.output:
            assert self._read(end), f"{words!r} was not shown: {self.output!r}"
        shown, found, self.output = self.output.partition(words)
        return shown + found

    def wait(self) -> int:
        """Wait for the end of the program; return its exit code. `output` has the rest of what was shown."""
        end = time.monotonic() + PATIENCE
        while self._read(end):
            pass
        return self._process.wait(PATIENCE)

    def _read(self, end: float) -> bool:
        if not select.select([self._main], [], [], max(0.0, end - time.monotonic()))[0]:
            return False
        try:
            data = os.read(self._main, 65536)
        except OSError:  # the program ended
            return False
        self.output += self._decoder.decode(data)
        return bool(data)


def without_controls(text: str) -> str:
    """The text without what moves the cursor or colours it."""
    return CONTROLS.sub("", text).replace("\r", "")


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
