"""The progress of a process of this package: lines of JSON on its output; the last one counts."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

TERMINATION_LOG = "/dev/termination-log"  # https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
TERMINATION_BYTES = 4096
EVERY_SECONDS = 1.0


class Progress:
    """Writes progress lines, at most one per second; the last line is always written."""

    def __init__(self, *, every: float = EVERY_SECONDS) -> None:
        self._every = every
        self._reported_at = 0.0
        self.phase = ""
        self.files = self.bytes = 0
        self.files_total: int | None = None
        self.bytes_total: int | None = None

    def begin(self, phase: str, *, files: int | None = None, size: int | None = None) -> None:
        self.phase, self.files, self.bytes = phase, 0, 0
        self.files_total, self.bytes_total = files, size
        self.report(now=True)

    def add(self, *, files: int = 0, size: int = 0) -> None:
        self.files += files
        self.bytes += size
        self.report()

    def report(self, *, now: bool = False) -> None:
        moment = time.monotonic()
        if not now and moment - self._reported_at < self._every:
            return
        self._reported_at = moment
        self.line(
            {
                "phase": self.phase,
                "files": self.files,
                "bytes": self.bytes,
                "filesTotal": self.files_total,
                "bytesTotal": self.bytes_total,
            }
        )

    def line(self, document: Mapping[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(document), flush=True)

    def end(self, document: Mapping[str, Any]) -> None:
        """Print the result as the last line, and write it to the container's termination message if that
        exists.
        """
        self.line(document)
        text = json.dumps(document).encode()
        if len(text) <= TERMINATION_BYTES and os.access(TERMINATION_LOG, os.W_OK):
            with contextlib.suppress(OSError):
                with open(TERMINATION_LOG, "wb") as out:
                    out.write(text)


def say(text: str) -> None:
    """Print a message for people who read the log. It is never the last line."""
    print(text, file=sys.stderr, flush=True)
