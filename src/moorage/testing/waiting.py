"""Wait for a state, with a deadline; never for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 180.0  # generous: shared machines are slow at times; nothing is asserted about it
POLL_SECONDS = 0.05


def wait_until(what: str, probe: Callable[[], T | None], *, patience: float = PATIENCE_SECONDS) -> T:
    """Call `probe` until it returns something true, and return that.

    Raises AssertionError naming `what` and the last value when patience (seconds) runs out. It pauses as long as
    the probe took, so that probes leave the processor to what they wait for.
    """
    deadline = time.monotonic() + patience
    while True:
        began = time.monotonic()
        answer = probe()
        took = time.monotonic() - began
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience:g} s for {what}; last seen: {answer!r}")
        time.sleep(max(POLL_SECONDS, took))


async def until(what: str, read: Callable[[], Awaitable[Any]], *, patience: float = PATIENCE_SECONDS) -> Any:
    """As `wait_until`, of a coroutine function."""
    deadline = time.monotonic() + patience
    while not (answer := await read()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience:g} s for {what}; last seen: {answer!r}")
        await asyncio.sleep(POLL_SECONDS)
    return answer


def read_until(read: Callable[[], T], is_wanted: Callable[[T], Any], *, patience: float = PATIENCE_SECONDS) -> T:
    """Read again and again until it is as wanted. Raises AssertionError with the last reading."""
    deadline = time.monotonic() + patience
    while not is_wanted(value := read()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience:g} s; last seen: {value!r}")
        time.sleep(POLL_SECONDS)
    return value
