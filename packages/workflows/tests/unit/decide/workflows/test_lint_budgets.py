"""One budget for all that one object's text may cause, whatever it is spent on."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.evaluation import OBJECT_NODES, TENANT_NODES, Budget, TextError, TooMuchWork, shared
from moorage_workflows.decide.workflows.graph.run import Run
from moorage_workflows.decide.workflows.lint import check
from moorage_workflows.decide.workflows.normalise import normalise
from moorage_workflows.decide.workflows.schedules import ScheduleError, parse_schedule, parse_timetable
from moorage_workflows.decide.workflows.templates import stored
from moorage_workflows.decide.workflows.text.expressions import evaluate
from moorage_workflows.decide.workflows.text.tags import substitute
from moorage_workflows.decide.workflows.text.when import holds
from moorage_workflows.model.workflow import WorkflowRecord

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def a_document(*steps: dict[str, Any], **templates: list[dict[str, Any]]) -> dict[str, Any]:
    """A Workflow whose steps run one after the other, by default with a template that suspends."""
    groups = {"main": [{"name": f"s{number}", "template": "wait", **step} for number, step in enumerate(steps)]}
    document = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "wf", "namespace": "lab"},
        "spec": {
            "entrypoint": "main",
            "templates": [
                *(
                    {"name": name, "steps": [[step] for step in group]}
                    for name, group in (groups | templates).items()
                ),
                {"name": "wait", "inputs": {"parameters": [{"name": "x", "value": ""}]}, "suspend": {}},
            ],
        },
    }
    return normalise(document)


def a_run(document: dict[str, Any]) -> Run:
    record = WorkflowRecord(
        uid="1", namespace="lab", name="wf", document=stored(document, {}, {}), created_at="2026-03-01T12:00:00Z"
    )
    return Run(record, now=NOON)


def test_sequences_that_are_too_long_together_are_refused_before_they_run() -> None:
    document = a_document(*[{"withSequence": {"count": "20000"}}] * 3)
    words = [finding.message for finding in check(document, {}, is_run=True) if finding.is_error]
    assert words == ["have loops of 60,000 items; at most 25,000 nodes are allowed in one workflow"]


def test_sequences_that_are_known_only_at_run_time_fail_the_workflow_with_the_number() -> None:
    steps = [
        {"name": f"s{number}", "template": "wait", "withSequence": {"count": "{{=15000 + 0}}"}}
        for number in (1, 2)
    ]
    document = a_document()
    document["spec"]["templates"][0]["steps"] = [steps]
    run = a_run(document)
    run.decide(NOON)
    assert run.workflow.phase == "Failed"
    assert "with 15,000 more the workflow has 30,000 nodes; at most 25,000 are allowed" in _messages(run)
    assert len(run.records) < 10


def test_items_of_a_text_that_are_too_many_fail_the_workflow() -> None:
    run = a_run(a_document({"withParam": json.dumps(["x"] * (OBJECT_NODES + 1))}))
    run.decide(NOON)
    assert run.workflow.phase == "Failed"
    assert "a loop has 25,001 items; at most 25,000 are allowed" in _messages(run)


def test_the_running_workflows_of_a_namespace_have_one_number_of_nodes() -> None:
    run = a_run(a_document({"withSequence": {"count": "100"}}))
    run.decide(NOON, other_nodes=TENANT_NODES - 50)
    assert run.workflow.phase == "Failed"
    assert "the running workflows of this namespace have 50,050 nodes; at most 50,000 are allowed" in _messages(
        run
    )


def test_templates_that_call_themselves_twice_end_at_the_number_of_nodes() -> None:
    twice = [{"name": "a", "template": "again"}, {"name": "b", "template": "again"}]
    document = a_document({"template": "again"}, again=[])
    document["spec"]["templates"][1]["steps"] = [twice]
    run = a_run(document)
    run._state.budget.nodes = OBJECT_NODES - 500
    run.decide(NOON)
    assert run.workflow.phase == "Failed"
    assert len(run.records) < 2000


def test_tags_that_are_each_within_the_budget_share_it() -> None:
    document = {f"k{number}": f"{{{{=len(map(1..90000, # + {number}))}}}}" for number in range(60)}
    with shared(Budget()) as budget, pytest.raises(TooMuchWork, match="one object take more than 5,000,000 steps"):
        substitute(document, {})
    assert budget.left < 0


def test_what_ends_at_the_budget_goes_no_further() -> None:
    with shared(Budget(steps=10)):
        for _ in range(3):
            with pytest.raises(TooMuchWork):
                evaluate("len(1..1000)", {})
            with pytest.raises(TooMuchWork):
                holds("heads == heads")


def test_values_of_tags_are_counted_over_all_looks() -> None:
    budget = Budget()
    with shared(budget):
        for _ in range(127):
            budget.renew()
            substitute(["{{x}}"], {"x": "x" * 2**20})
        with pytest.raises(TooMuchWork, match="have more than 134,217,728 bytes"):
            substitute(["{{x}}{{x}}"], {"x": "x" * 2**20})


def test_schedules_are_counted_and_short() -> None:
    with pytest.raises(ScheduleError, match="there are 20,000 schedules; at most 100 are allowed"):
        parse_timetable(["* * * * *"] * 20_000, anchor=NOON)
    with pytest.raises(ScheduleError, match="has 40,000 characters; at most 256 are allowed"):
        parse_schedule("* " * 20_000)
    cron = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "CronWorkflow",
        "metadata": {"name": "c"},
        "spec": {"schedules": ["* * * * *"] * 20_000, "workflowSpec": a_document()["spec"]},
    }
    words = [finding.message for finding in check(cron, {}) if finding.is_error and finding.rule == "cron"]
    assert words == ["has 20,000 schedules; at most 100 are allowed"]


EXPRESSIONS = st.sampled_from(
    [
        "len(1..{n})",
        "sum(map(1..{n}, # * 2))",
        "join(map(1..{n}, string(#)), ',')",
        "len(repeat('x', {n}))",
        "sort(1..{n})[0]",
        "toJSON(1..{n})",
        "sprig.toDate('2006', '{n}')",
        "jsonpath('[1,2]', '$[0]')",
    ],
)


@given(st.lists(st.tuples(EXPRESSIONS, st.integers(1, 20_000)), max_size=20), st.integers(0, 100_000))
def test_no_mix_of_expressions_does_more_than_the_budget_allows(row: list[tuple[str, int]], steps: int) -> None:
    budget, done = Budget(steps=steps), 0
    with shared(budget):
        for text, number in row:
            before = budget.left
            try:
                evaluate(text.replace("{n}", str(number)), {})
            except TooMuchWork:
                assert budget.left < 0
            except TextError:
                pass
            else:
                assert budget.left >= 0
                done += before - budget.left
    assert done <= steps


def _messages(run: Run) -> str:
    return "; ".join([run.workflow.message, *(record.message for record in run.records.values())])
