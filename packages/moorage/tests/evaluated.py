"""What the tests have evaluated: functions that end, and some that do not."""

from __future__ import annotations

import os
from typing import Any

from moorage.decide.evaluation import current
from moorage_workflows.decide.workflows.text.errors import UnresolvedTag


def double(number: int) -> tuple[int, int]:
    """(twice the number, the process that says so)."""
    return number * 2, os.getpid()


def spend(steps: int) -> None:
    current().spend(steps)


def fail(name: str) -> None:
    raise UnresolvedTag(name)


def loop() -> None:
    while True:
        pass


def fill(gibibytes: int) -> int:
    return len(bytearray(gibibytes * 1024**3))


def crash() -> None:
    os.abort()


def secrets() -> dict[str, Any]:
    return dict(os.environ)
