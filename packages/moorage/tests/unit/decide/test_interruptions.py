"""One rule for runs, steps and items: what ends after it was told to stop has not finished, unless it says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from moorage.decide.interruptions import LONG_AGO, STOPPED, is_interruption, stop_time
from moorage.worker import runner

TOLD = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("exit_code", "ended", "stopped_at", "is_watched", "want"),
    [
        pytest.param(0, TOLD, None, False, False, id="nothing told it: it finished"),
        pytest.param(1, TOLD, None, False, False, id="nothing told it: it failed by itself"),
        pytest.param(0, TOLD + SECOND, TOLD, False, True, id="it left well when told"),
        pytest.param(143, TOLD + SECOND, TOLD, False, True, id="the signal ended it"),
        pytest.param(137, TOLD + SECOND, TOLD, False, True, id="it was killed after its grace period"),
        pytest.param(None, None, TOLD, False, True, id="its node never said how it ended"),
        pytest.param(0, TOLD, TOLD, False, True, id="in the same second: done twice is better than lost"),
        pytest.param(0, TOLD - SECOND, TOLD, False, False, id="it had finished before"),
        pytest.param(1, TOLD - SECOND, TOLD, False, False, id="it had failed before"),
        pytest.param(0, TOLD, TOLD, True, False, id="the runner saw that it finished, or it says so"),
        pytest.param(143, TOLD, TOLD, True, True, id="the runner saw it leave with another exit code"),
        pytest.param(STOPPED, TOLD, TOLD, True, True, id="the runner saw that it was told"),
        pytest.param(STOPPED, TOLD, None, False, True, id="the runner saw it, and no object says why"),
        pytest.param(0, TOLD, LONG_AGO, False, True, id="its kubelet says afterwards that it ended it"),
    ],
)
def test_an_end_is_an_interruption(exit_code, ended, stopped_at, is_watched, want):
    assert is_interruption(exit_code=exit_code, ended=ended, stopped_at=stopped_at, is_watched=is_watched) is want


def disrupted(reason):
    return {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": reason,
        "lastTransitionTime": "2026-11-21T12:00:00Z",
    }


DELETED = {"deletionTimestamp": "2026-11-21T12:00:31Z", "deletionGracePeriodSeconds": 30}


@pytest.mark.parametrize(
    ("meta", "conditions", "want"),
    [
        pytest.param({}, [], None, id="nobody asked"),
        pytest.param(DELETED, [], TOLD + SECOND, id="deletion, cancel, suspension"),
        pytest.param(DELETED, [disrupted("EvictionByEvictionAPI")], TOLD, id="drain, eviction"),
        pytest.param({}, [disrupted("PreemptionByScheduler")], TOLD, id="preemption"),
        pytest.param(DELETED, [disrupted("TurnOver")], TOLD, id="the turn of another run"),
        pytest.param(DELETED, [disrupted("DeletionByTaintManager")], TOLD, id="node loss"),
        pytest.param({}, [disrupted("TerminationByKubelet")], LONG_AGO, id="shutdown"),
        pytest.param({}, [disrupted("EvictionByEvictionAPI") | {"status": "False"}], None, id="no more"),
    ],
)
def test_a_pod_was_told_to_stop(meta, conditions, want):
    assert stop_time({"metadata": meta, "status": {"conditions": conditions}}) == want


def test_the_exit_code_of_the_runner_is_the_one_that_is_read():
    assert runner.STOPPED == STOPPED
