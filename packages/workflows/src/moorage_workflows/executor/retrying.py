"""Retries after temporary errors."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from moorage_workflows.executor.errors import Passing, StepError

T = TypeVar("T")
FIRST_SECONDS, MOST_SECONDS = 0.5, 30.0  # between two tries
TRY_SECONDS = 6 * 3600.0  # a server that is updated or moved is back by then


class Retrying:
    """Calls a function again that raises Passing, with growing waits, for `seconds` of waiting in all.

    `ending`: set when the pod is to end: then it does not wait longer than FIRST_SECONDS between tries.
    """

    def __init__(self, ending: threading.Event, *, seconds: float = TRY_SECONDS) -> None:
        self._ending = ending
        self._seconds = seconds
        self._chance = random.Random()

    def call(self, what: str, work: Callable[[], T]) -> T:
        """Call `work` until it succeeds, again after each Passing.

        Raises StepError: at once for other failures; for Passing, with its message when the time is over.
        """
        waited, pause = 0.0, FIRST_SECONDS
        while True:
            try:
                return work()
            except Passing as error:
                limit = self._seconds if error.seconds is None else min(self._seconds, error.seconds)
                if waited >= limit:
                    raise StepError(f"{error.message} (tried for {waited:.0f} s)") from error
                print(f"moorage: {what}: {error.message}; trying again", file=sys.stderr, flush=True)
                seconds = pause * self._chance.uniform(0.5, 1.0)
                if self._ending.is_set():
                    seconds = FIRST_SECONDS
                    threading.Event().wait(seconds)
                else:
                    self._ending.wait(seconds)
                waited += seconds
                pause = min(MOST_SECONDS, pause * 2)
