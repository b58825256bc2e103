"""The end of a step's pod that was told to stop, and ends that are seen after a stronger fact."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from moorage.decide.interruptions import STOPPED
from moorage_workflows.controllers.workflow.observe import pod_seen
from moorage_workflows.decide.workflows.graph.outcomes import Ended, outcome_of
from moorage_workflows.model.workflow import NodePhase, Outputs, StepReport

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EVICTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "EvictionByEvictionAPI",
    "lastTransitionTime": "2026-03-01T12:00:00Z",
}
DELETED = {"deletionTimestamp": "2026-03-01T12:00:30Z", "deletionGracePeriodSeconds": 30}


def outcome(
    code: int, *, at: str, conditions=(), meta=None, wrapped=False, report=None, wait=0, **status
) -> Ended:
    ended = {"exitCode": code, "startedAt": "2026-03-01T11:00:00Z", "finishedAt": f"2026-03-01T{at}Z"}
    containers = [{"name": "main"}, *([{"name": "wait"}] if wrapped else [])]
    pod = {
        "metadata": {"name": "a", "namespace": "lab", **(meta or {})},
        "spec": {"nodeName": "n", "containers": containers},
        "status": {
            "phase": "Failed" if code else "Succeeded",
            "conditions": list(conditions),
            "containerStatuses": [
                {"name": "main", "state": {"terminated": ended}},
                *([{"name": "wait", "state": {"terminated": {"exitCode": wait}}}] if wrapped else []),
            ],
            **status,
        },
    }
    seen = pod_seen(pod, now=NOON, lost_nodes={}, lost_after=timedelta(minutes=5), report=report)
    result = outcome_of(seen)
    assert isinstance(result, Ended)
    return result


@pytest.mark.parametrize(
    ("case", "phase", "is_lost"),
    [
        pytest.param({"code": 0, "at": "12:00:01", "conditions": [EVICTED], "meta": DELETED}, NodePhase.FAILED,
                     True, id="drained, and left with 0"),
        pytest.param({"code": 0, "at": "11:59:59", "conditions": [EVICTED], "meta": DELETED}, NodePhase.SUCCEEDED,
                     False, id="it had finished before"),
        pytest.param({"code": 1, "at": "11:59:59", "conditions": [EVICTED], "meta": DELETED}, NodePhase.ERROR,
                     False, id="it had failed before"),
        pytest.param({"code": 0, "at": "12:00:01", "conditions": [EVICTED], "meta": DELETED, "wrapped": True},
                     NodePhase.SUCCEEDED, False, id="the script says that it has finished"),
        pytest.param(
            {"code": STOPPED, "at": "12:00:01", "conditions": [EVICTED], "meta": DELETED, "wrapped": True},
            NodePhase.FAILED, True, id="the script says that it has not",
        ),
        pytest.param({"code": STOPPED, "at": "12:00:01", "wrapped": True}, NodePhase.FAILED, True,
                     id="the script says so, and no object does"),
        pytest.param(
            {"code": 0, "at": "12:00:01", "conditions": [EVICTED], "meta": DELETED, "wrapped": True, "wait": 143},
            NodePhase.FAILED, True, id="it has finished, and its outputs could not be saved",
        ),
        pytest.param({"code": 0, "at": "12:00:01", "meta": DELETED}, NodePhase.ERROR, False,
                     id="a person deleted it"),
        pytest.param({"code": 0, "at": "12:00:01"}, NodePhase.SUCCEEDED, False, id="nothing told it to stop"),
    ],
)  # fmt: skip
def test_a_step_that_leaves_when_told_has_not_finished(case, phase, is_lost) -> None:
    ended = outcome(**case)
    assert (ended.phase, ended.is_lost) == (phase, is_lost)


@pytest.mark.parametrize(
    "later",
    [
        pytest.param({"code": 137, "at": "12:00:05"}, id="exit code 137"),
        pytest.param(
            {
                "code": 137,
                "at": "12:00:05",
                "conditions": [EVICTED | {"reason": "TerminationByKubelet", "message": "processes were lost"}],
                "reason": "Terminated",
                "message": "processes were lost",
            },
            id="the processes were lost",
        ),
        pytest.param({"code": 0, "at": "12:00:05", "conditions": [EVICTED], "meta": DELETED}, id="an eviction"),
    ],
)
def test_a_stored_report_of_exit_code_0_stands_whatever_is_seen_later(later) -> None:
    report = StepReport(pod="a", outputs=Outputs(exit_code="0", result="7"))
    ended = outcome(wrapped=True, report=report, **later)
    assert (ended.phase, ended.is_lost) == (NodePhase.SUCCEEDED, False)
    assert (ended.outputs.exit_code, ended.outputs.result) == ("0", "7")
