"""Tags and expressions in a process that evaluates users' text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from moorage.decide.evaluation import STEPS, Budget, TooMuchWork, current, shared
from moorage.evaluator.pool import Evaluators
from moorage_workflows.decide.workflows.text.expressions import evaluate
from moorage_workflows.decide.workflows.text.tags import substitute

pytestmark = pytest.mark.anyio


@pytest.fixture
async def evaluators() -> AsyncIterator[Evaluators]:
    evaluators = Evaluators(seconds=1)
    yield evaluators
    await evaluators.aclose()


async def test_expressions_of_live_state_are_evaluated_in_the_other_process(evaluators: Evaluators) -> None:
    scope = {"inputs.parameters.n": "3", "inputs.parameters.other": "x", "workflow.name": "w"}

    def resolve() -> Any:
        return substitute({"a": "{{=asInt(inputs.parameters.n) + 1}}", "b": "{{workflow.name}}"}, scope)

    assert await evaluators.think("lab", "a test", resolve) == {"a": "4", "b": "w"}

    def huge() -> Any:
        return substitute("{{=len(map(1..90000, map(1..90000, #)))}}", scope)

    with pytest.raises(TooMuchWork, match="take more than 5,000,000 steps"):
        await evaluators.think("lab", "a test", huge)


async def test_what_is_spent_in_the_other_process_is_taken_from_the_budget_here(evaluators: Evaluators) -> None:
    budget = Budget()

    def work() -> None:
        with shared(budget):
            for _ in range(3):
                evaluate("len(map(1..1000, #))", {})
            assert current() is budget

    await evaluators.think("lab", "a test", work)
    assert 3 * 1000 < STEPS - budget.left < 3 * 5000
