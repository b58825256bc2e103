"""The last release and this one, each as processes that a test gives steps to."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LAST_RELEASE = "0.1"
LAST_COMMIT = "06d327b"  # what was released as LAST_RELEASE
ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(__file__).with_name("fixtures") / LAST_RELEASE
PARTICIPANT = Path(__file__).with_name("participant.py")


class StepFailed(Exception):
    """A step raised: its class and message."""


def unpack_last_release(folder: Path) -> str | None:
    """Write the last release's files into a folder; why that cannot be, or None.

    A clone may be shallow, and a packed copy of the sources has no history.
    """
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", LAST_COMMIT, "src", "deploy", "pyproject.toml"],
        capture_output=True,
        check=False,
    )
    if archive.returncode:
        return f"commit {LAST_COMMIT} of release {LAST_RELEASE} is not in this clone: git fetch --unshallow"
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return None


def environment(sources: Path) -> dict[str, str]:
    """Of a process that runs the code of `sources`."""
    return {**os.environ, "PYTHONPATH": str(sources), "PYTHONWARNINGS": "default", "NO_COLOR": "1"}


class Process:
    """A participant; see participant.py for its steps."""

    def __init__(self, sources: Path, folder: Path, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PARTICIPANT), str(folder), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(sources),
            cwd=folder,
        )

    def do(self, step: str, *args: Any, **options: Any) -> Any:
        """The value that a step returns. Raises StepFailed with what it raised."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": step, "args": args, "options": options}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise StepFailed(answer["error"])
        return answer["value"]

    def answers(self, step: str) -> bool:
        """Do a step in which the process may end by itself; whether it is still there."""
        try:
            self.do(step)
        except (json.JSONDecodeError, BrokenPipeError):
            return False
        return True

    def kill(self) -> None:
        """As by SIGKILL, at whatever it does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def running(sources: Path, folder: Path, url: str = "") -> Iterator[Process]:
    """A participant on a folder and, with `url`, on a PostgreSQL database."""
    process = Process(sources, folder, url)
    try:
        yield process
    finally:
        process.close()
