"""Which failures are tried again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.workflowrecords import a_node_record

from moorage.decide.evaluation import TextError
from moorage_testing.workflowplayer import Ends, Player
from moorage_workflows.decide.workflows.graph.retries import Again, GiveUp, backoff_of, last_retry, next_attempt
from moorage_workflows.model.workflow import NodePhase, NodeRecord, Outputs

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def an_attempt(phase: NodePhase = NodePhase.FAILED, *, message: str = "", number: int = 0) -> NodeRecord:
    times = {"started_at": "2026-03-01T11:59:00Z", "finished_at": "2026-03-01T12:00:00Z"}
    outputs = Outputs(exit_code="3")
    return a_node_record(f"wf({number})", phase=phase, message=message, outputs=outputs, **times)


def follows(strategy: dict[str, Any], *attempts: NodeRecord, may: bool = True) -> Again | GiveUp:
    return next_attempt(strategy, attempts or (an_attempt(),), now=NOON, may=lambda text: may)


@pytest.mark.parametrize(
    ("strategy", "phase", "is_again"),
    [
        pytest.param({}, NodePhase.FAILED, True, id="no limit: for ever"),
        pytest.param({}, NodePhase.ERROR, False, id="an error is no failure"),
        pytest.param({"retryPolicy": "OnError"}, NodePhase.ERROR, True, id="OnError"),
        pytest.param({"retryPolicy": "OnError"}, NodePhase.FAILED, False, id="OnError: not a failure"),
        pytest.param({"retryPolicy": "Always"}, NodePhase.ERROR, True, id="Always"),
        pytest.param({"expression": "true"}, NodePhase.ERROR, True, id="an expression means Always"),
        pytest.param({"limit": "0"}, NodePhase.FAILED, False, id="a limit of none"),
        pytest.param({"limit": 1}, NodePhase.FAILED, True, id="a limit of one"),
    ],
)
def test_policies(strategy: dict[str, Any], phase: NodePhase, is_again: bool) -> None:
    assert isinstance(follows(strategy, an_attempt(phase)), Again) == is_again


def test_transient_errors_are_known_by_their_message() -> None:
    strategy = {"retryPolicy": "OnTransientError"}
    assert isinstance(follows(strategy, an_attempt(message="pods is forbidden: exceeded quota: q")), Again)
    assert isinstance(follows(strategy, an_attempt(message="Error (exit code 1)")), GiveUp)


def test_an_expression_that_is_false_ends_it() -> None:
    assert follows({"expression": "x"}, may=False) == GiveUp("retryStrategy.expression evaluated to false")


def test_waits_grow_up_to_their_cap() -> None:
    backoff = {"duration": "10s", "factor": 3, "cap": "1m"}
    assert [backoff_of(backoff, number).total_seconds() for number in (1, 2, 3)] == [10, 30, 60]
    assert backoff_of({"duration": "5", "factor": "2"}, 10_000) > timedelta(days=300)
    assert follows({"backoff": {"duration": "10s"}}) == Again(NOON + timedelta(seconds=10))


def test_no_wait_passes_the_longest_duration() -> None:
    backoff = {"duration": "10s", "maxDuration": "1m5s"}
    assert follows({"backoff": backoff}) == GiveUp("Backoff would exceed max duration limit")
    assert follows({"backoff": backoff | {"maxDuration": "30s"}}) == GiveUp("Max duration limit exceeded")


@pytest.mark.parametrize(
    "strategy",
    [
        {"retryPolicy": "Never"},
        {"limit": "some"},
        {"backoff": {"duration": "1s", "factor": "x"}},
        {"backoff": {"duration": "1d"}},
    ],
)
def test_what_cannot_be_read_is_said(strategy: dict[str, Any]) -> None:
    with pytest.raises(TextError):
        follows(strategy)


def test_the_last_attempt_as_tags() -> None:
    assert last_retry(None)["lastRetry.exitCode"] == "0"
    assert last_retry(an_attempt(message="why")) == {
        "lastRetry.exitCode": "3",
        "lastRetry.status": "Failed",
        "lastRetry.duration": "60",
        "lastRetry.message": "why",
    }


def test_a_strict_workflow_waits_as_argo_does() -> None:
    def strictly(strategy: dict[str, Any], *attempts: NodeRecord) -> Again | GiveUp:
        given = attempts or (an_attempt(),)
        return next_attempt(strategy, given, now=NOON, may=lambda _text: False, is_strict=True)

    backoff = {"duration": "10s"}
    later = NOON + timedelta(seconds=10)
    assert strictly({"backoff": backoff}) == Again(NOON)  # without a limit there is no wait
    assert strictly({"limit": 1, "backoff": backoff}) == Again(later)
    refused = strictly({"limit": 1, "backoff": backoff, "retryPolicy": "OnError"}, an_attempt(message="why"))
    assert refused == GiveUp("why", later)
    assert strictly({"limit": 0}) == GiveUp("No more retries left")


def test_a_strict_workflow_counts_attempts_that_nodes_took_away() -> None:
    manifest = """
      metadata: {annotations: {moorage.dev/strict: "true"}}
      spec:
        entrypoint: main
        templates:
        - {name: main, retryStrategy: {limit: 1, retryPolicy: OnError, backoff: {duration: 10s}},
           container: {image: busybox}}
    """
    player = Player(manifest, lambda _order: Ends(disrupted="Evicted")).play()
    assert (player.workflow.phase, len(player.created)) == ("Failed", 1)
    assert player.node("WF").finished_at == "2026-03-01T12:00:11.000Z"


@pytest.mark.parametrize(
    ("first", "phase"),
    [
        pytest.param(Ends(error="the pod was deleted"), "Succeeded", id="an error has no exit code"),
        pytest.param(Ends(exit_code=7), "Succeeded", id="the named exit code"),
        pytest.param(Ends(exit_code=3), "Failed", id="another exit code"),
    ],
)
def test_an_expression_may_ask_for_errors_or_an_exit_code(first: Ends, phase: str) -> None:
    strategy = {"limit": "2", "expression": "lastRetry.status == 'Error' || asInt(lastRetry.exitCode) == 7"}
    main = {"name": "main", "retryStrategy": strategy, "container": {"image": "busybox", "command": ["x"]}}
    ends = iter((first, Ends()))
    player = Player({"spec": {"entrypoint": "main", "templates": [main]}}, lambda order: next(ends)).play()
    assert player.workflow.phase == phase
