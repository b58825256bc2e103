"""Processes that evaluate users' text: what they answer, how they end, and whom they stop."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moorage.decide.evaluation import TooMuchWork
from moorage.evaluator.pool import Evaluators
from moorage.evaluator.wire import Request, frame
from tests import evaluated as functions

pytestmark = pytest.mark.anyio


@pytest.fixture
async def evaluators(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Evaluators]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))  # the functions of these tests
    monkeypatch.setenv("MOORAGE_SECRET_OF_A_TEST", "do not tell")
    evaluators = Evaluators(seconds=1)
    yield evaluators
    await evaluators.aclose()


async def test_a_function_runs_in_another_process_which_is_used_again(evaluators: Evaluators) -> None:
    first = await evaluators.call("lab", "a test", functions.double, 21)
    second = await evaluators.call("lab", "a test", functions.double, 4)
    assert first[0] == 42
    assert second == (8, first[1])
    assert first[1] != os.getpid()


async def test_an_error_comes_back_as_it_was_raised(evaluators: Evaluators) -> None:
    with pytest.raises(functions.Unknown, match="variable x.y is not known here") as error:
        await evaluators.call("lab", "a test", functions.fail, "x.y")
    assert error.value.name == "x.y"


async def test_what_loops_is_ended_and_named(evaluators: Evaluators) -> None:
    with pytest.raises(TooMuchWork, match="evaluating Workflow lab/a took more than 1 s of processor time"):
        await evaluators.call("lab", "Workflow lab/a", functions.loop)
    assert (await evaluators.call("lab", "a test", functions.double, 1))[0] == 2
    assert evaluators.ended == 1


async def test_what_fills_the_memory_is_ended_and_named(evaluators: Evaluators) -> None:
    words = "evaluating Workflow lab/a needs more than 1,073,741,824 bytes of memory"
    with pytest.raises(TooMuchWork, match=words):
        await evaluators.call("lab", "Workflow lab/a", functions.fill, 2)
    assert (await evaluators.call("lab", "a test", functions.double, 1))[0] == 2


async def test_what_crashes_its_process_is_named(evaluators: Evaluators) -> None:
    with pytest.raises(TooMuchWork, match=r"evaluating Workflow lab/a ended its process \(SIGABRT\)"):
        await evaluators.call("lab", "Workflow lab/a", functions.crash)


def test_a_process_whose_parent_reads_no_more_ends_without_a_word() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "moorage.evaluator"],
        input=frame(Request(module="operator", name="neg", arguments=(1,), seconds=1)),
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


async def test_a_process_has_no_secrets_of_the_service(evaluators: Evaluators) -> None:
    assert "MOORAGE_SECRET_OF_A_TEST" not in await evaluators.call("lab", "a test", functions.secrets)


async def test_a_tenant_has_one_turn_at_a_time_and_others_go_on(evaluators: Evaluators) -> None:
    ended: list[str] = []

    async def hostile(number: int) -> None:
        with pytest.raises(TooMuchWork):
            await evaluators.call("lab", f"document {number}", functions.loop)
        ended.append("hostile")

    async def honest() -> None:
        for number in range(5):
            await evaluators.call("hall", "a test", functions.double, number)
            ended.append("honest")

    async with asyncio.TaskGroup() as tasks:
        for number in range(2):
            tasks.create_task(hostile(number))
        tasks.create_task(honest())
    # one of the tenant's documents may be ended while the first process of the other starts, and no second one
    assert ended.index("hostile") < ended.index("hostile", ended.index("hostile") + 1)
    assert ended[:2].count("hostile") <= 1
    assert ended.count("honest") == 5
    assert ended[-1] == "hostile"
