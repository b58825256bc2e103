"""Asyncio tasks that end reliably and leave no reference cycles."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeVar

T = TypeVar("T")

CANCEL_AGAIN_SECONDS = 10.0  # longer than any cleanup of our tasks


async def end_task(
    task: asyncio.Future[Any], *quiet: type[Exception], again_seconds: float = CANCEL_AGAIN_SECONDS
) -> None:
    """Cancel a task and wait until it has ended. Raises its error, but not the `quiet` ones.

    A task that waits for several others can lose its cancellation: `asyncio.gather` raises the error of one that
    failed in the same moment instead. So a task that does not end is cancelled again,
    every `again_seconds`.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=again_seconds)
    with contextlib.suppress(asyncio.CancelledError, *quiet):
        task.result()


def next_task(iterator: AsyncIterator[T]) -> asyncio.Task[T | None]:
    """Return a task that reads the next item; its result is None at the end.

    A task with StopAsyncIteration would be in a reference cycle with the frame that waits for the task.
    """

    async def read() -> T | None:
        return await anext(iterator, None)

    return asyncio.create_task(read())
