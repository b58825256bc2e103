"""What a command in a container printed arrives whole, however slow the machine is."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace

import pytest

from moorage_local.nodeagent.execs import DRAIN_SECONDS, STDERR, STDOUT, Command

pytestmark = pytest.mark.anyio


class EndedProcess:
    """A process that has ended, with bytes in its pipes that were not read yet."""

    def __init__(self) -> None:
        self.stdin = None
        self.stdout, self.stderr = asyncio.StreamReader(), asyncio.StreamReader()
        self.returncode, self.pid = 0, 0
        self._transport = SimpleNamespace(close=lambda: None)

    async def wait(self) -> int:
        return self.returncode


async def test_output_that_is_read_after_a_stall_is_not_lost():
    loop, process, stalled = asyncio.get_running_loop(), EndedProcess(), [0.0]
    real_time = loop.time
    loop.time = lambda: real_time() + stalled[0]
    command = Command(process, None)
    command._begin(os.getpid())

    async def collect() -> list[tuple[int, bytes]]:
        return [piece async for piece in command.output()]

    try:
        process.stderr.feed_data(b"err")
        process.stderr.feed_eof()
        collecting = asyncio.ensure_future(collect())
        for _ in range(10):  # it has the errors, and waits for more
            await asyncio.sleep(0)
        stalled[0] = 2 * DRAIN_SECONDS  # the machine stood still: time is over when the loop looks again

        def read_pipe(turns: int) -> None:
            if turns:
                loop.call_soon(read_pipe, turns - 1)
            else:
                process.stdout.feed_data(b"out")
                process.stdout.feed_eof()

        read_pipe(2)
        assert sorted(await collecting) == [(STDOUT, b"out"), (STDERR, b"err")]
    finally:
        await command.close()
        del loop.time
