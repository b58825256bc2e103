"""Waiting for a state that the tasks of the event loop reach."""

from __future__ import annotations

import asyncio

import pytest

from moorage_kube.testing.clock import FakeClock
from moorage_kube.testing.waiting import soon


@pytest.mark.anyio
async def test_soon_returns_what_the_probe_does_once_a_task_has_worked() -> None:
    rows: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0)
        rows.append("done")

    task = asyncio.create_task(work())
    assert await soon("a row", lambda: rows) == ["done"]
    await task


@pytest.mark.anyio
async def test_soon_ticks_until_the_sleeper_of_a_fake_clock_wakes() -> None:
    clock = FakeClock()
    sleeping = asyncio.create_task(clock.sleep(30))
    assert await soon("the end of the sleep", sleeping.done, tick=lambda: clock.advance(10))
    assert clock.monotonic() >= 30


@pytest.mark.anyio
async def test_soon_names_what_does_not_come() -> None:
    with pytest.raises(AssertionError, match="waited 0 s for a miracle; last seen: None"):
        await soon("a miracle", lambda: None, patience=0)
