"""What the tests have evaluated: functions that end, and some that do not."""

from __future__ import annotations

import os
from typing import Any

from moorage.decide.evaluation import TextError, current


class Unknown(TextError):
    """`name` is not known."""

    def __init__(self, name: str) -> None:
        super().__init__(f"variable {name} is not known here")
        self.name = name


def double(number: int) -> tuple[int, int]:
    """(twice the number, the process that says so)."""
    return number * 2, os.getpid()


def spend(steps: int) -> None:
    current().spend(steps)


def fail(name: str) -> None:
    raise Unknown(name)


def loop() -> None:
    while True:
        pass


def fill(gibibytes: int) -> int:
    return len(bytearray(gibibytes * 1024**3))


def crash() -> None:
    os.abort()


def secrets() -> dict[str, Any]:
    return dict(os.environ)
