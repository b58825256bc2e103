"""Steps of one pass that are taken together."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_local.controllers.base import TOGETHER_MAX, take_together
from moorage_local.controllers.job.controller import AT_ONCE_PODS, BATCH_SECONDS, pause


class Broken(Exception):
    pass


@given(st.integers(0, 100), st.integers(1, TOGETHER_MAX), st.integers(0, 120))
def test_each_step_is_taken_once_and_a_failure_ends_what_has_not_begun(steps, first, broken):
    begun, most = [], 0

    async def step(number):
        nonlocal most
        begun.append(number)
        under_way.add(number)
        most = max(most, len(under_way))
        await asyncio.sleep(0)
        under_way.discard(number)
        if number == broken:
            raise Broken

    under_way: set[int] = set()

    async def run():
        await take_together([partial(step, number) for number in range(steps)], first=first)

    if broken < steps:
        with pytest.raises(Broken):
            asyncio.run(run())
        assert broken in begun
        assert len(begun) <= broken + TOGETHER_MAX
    else:
        asyncio.run(run())
        assert begun == list(range(steps))
    assert begun == list(range(len(begun)))
    assert not under_way
    assert most <= TOGETHER_MAX


def test_what_fails_every_time_fails_once_where_the_start_is_slow():
    tried = []

    async def refused(number):
        tried.append(number)
        raise Broken

    with pytest.raises(Broken):
        asyncio.run(take_together([partial(refused, number) for number in range(50)], first=1))
    assert tried == [0]


@given(st.integers(0, 100_000))
def test_changes_of_pods_wait_longer_for_each_other_the_more_pods_a_job_has(pods):
    assert 0.0 <= pause(pods) <= pause(pods + 1) <= BATCH_SECONDS
    assert (pause(pods) == 0.0) == (pods <= AT_ONCE_PODS)
