"""Wait for a state with a deadline, never for a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")

PATIENCE_SECONDS = 180.0  # generous: shared machines are slow at times; nothing is asserted about it
POLL_SECONDS = 0.05
SOON_SECONDS = 0.002  # leaves the processor to the threads that the loop waits for
SHARE = 4  # a probe takes a quarter of the time, as several tests wait at once on few processors…
LONGEST_PAUSE_SECONDS = 0.5  # …but half of it where it is slow…
LONG_SHARE, LONG_PAUSE_SECONDS = 10, 2.0  # …and a tenth in a long wait, which gets at most a tenth longer by that


def pause_after(took: float, *, waited: float) -> float:
    """Seconds to wait after a probe that took `took` seconds, so that probes leave the processor to the tested
    program.
    """
    pause = max(took, min((SHARE - 1) * took, LONGEST_PAUSE_SECONDS))
    long_pause = min((LONG_SHARE - 1) * took, waited / LONG_SHARE, LONG_PAUSE_SECONDS)
    return max(POLL_SECONDS, pause, long_pause)


def wait_until(what: str, probe: Callable[[], T | None], *, patience: float = PATIENCE_SECONDS) -> T:
    """Call `probe` until it returns something true, and return that.

    Raises AssertionError naming `what` and the last value when patience (seconds) runs out.
    """
    return cast(T, _poll(f" for {what}", probe, bool, patience))


async def until(what: str, read: Callable[[], Awaitable[Any]], *, patience: float = PATIENCE_SECONDS) -> Any:
    """Like `wait_until`, for a coroutine function."""
    start = time.monotonic()
    while True:
        began = time.monotonic()
        answer = await read()
        ended = time.monotonic()
        if answer:
            return answer
        if ended - start > patience:
            raise AssertionError(f"waited {patience:g} s for {what}; last seen: {answer!r}")
        await asyncio.sleep(pause_after(ended - began, waited=ended - start))


async def soon(
    what: str,
    probe: Callable[[], T | None],
    *,
    tick: Callable[[], object] | None = None,
    patience: float = PATIENCE_SECONDS,
) -> T:
    """As `wait_until`, for a state that the tasks of this event loop reach within milliseconds.

    `tick` is called after each probe that returns nothing true: it can advance a fake clock.
    """
    start = time.monotonic()
    while not (value := probe()):
        if time.monotonic() - start > patience:
            raise AssertionError(f"waited {patience:g} s for {what}; last seen: {value!r}")
        if tick is not None:
            tick()
        await asyncio.sleep(SOON_SECONDS)
    return value


def read_until(read: Callable[[], T], is_wanted: Callable[[T], Any], *, patience: float = PATIENCE_SECONDS) -> T:
    """Read repeatedly until `is_wanted` is true.

    Raises AssertionError with the last value after `patience` seconds.
    """
    return _poll("", read, is_wanted, patience)


def _poll(what: str, read: Callable[[], T], is_wanted: Callable[[T], Any], patience: float) -> T:
    start = time.monotonic()
    while True:
        began = time.monotonic()
        value = read()
        ended = time.monotonic()
        if is_wanted(value):
            return value
        if ended - start > patience:
            raise AssertionError(f"waited {patience:g} s{what}; last seen: {value!r}")
        time.sleep(pause_after(ended - began, waited=ended - start))
