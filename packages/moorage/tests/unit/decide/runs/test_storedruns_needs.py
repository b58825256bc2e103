"""Which runs are completed from what is kept, because pods may be gone."""

from __future__ import annotations

import pytest

from moorage.decide.runs.state import PEAK_MEMORY_ANNOTATION, view_run
from moorage.decide.runs.storedruns import needs_records
from moorage_kube.testing.builders import a_container_status
from moorage_testing.builders import a_run_job, a_run_pod

STARTED = "2026-11-21T12:00:00Z"
RESUMED = {"type": "Suspended", "status": "False", "reason": "JobResumed"}
COMPLETE = {"type": "Complete", "status": "True"}


def a_job(*conditions, attempt=1, suspend=False, **counts):
    status = {"conditions": list(conditions)} | counts
    return a_run_job("", attempt, name=f"j{attempt}", suspend=suspend, status=status)


def a_pod(*, attempt=1, peak=None):
    notes, state = {} if peak is None else {PEAK_MEMORY_ANNOTATION: peak}, a_container_status(started=STARTED)
    return a_run_pod(f"p{attempt}", run="", attempt=attempt, annotations=notes, statuses=[state])


@pytest.mark.parametrize(
    ("jobs", "pods", "want"),
    [
        pytest.param([a_job(active=1)], [a_pod()], False, id="its only pod is there"),
        pytest.param([a_job()], [], False, id="it has made none yet"),
        pytest.param([a_job(active=1, failed=1)], [a_pod()], True, id="one that failed is gone"),
        pytest.param([a_job(COMPLETE)], [], True, id="over, and counts nothing"),
        pytest.param([a_job(suspend=True)], [], True, id="suspended: its Job does not count that pod"),
        pytest.param([a_job(RESUMED, active=1)], [a_pod()], True, id="resumed: the pods from before are gone"),
        pytest.param(
            [a_job(failed=1), a_job(attempt=2, active=1)],
            [a_pod(attempt=2)],
            True,
            id="the pod of an earlier attempt is gone",
        ),
    ],
)  # fmt: skip
def test_a_run_needs_what_is_kept_where_pods_may_be_gone(jobs, pods, want):
    assert needs_records(view_run(jobs, pods), peaks=False) is want


@pytest.mark.parametrize(("peak", "want"), [(None, True), ("1024", False)])
def test_an_answer_with_memory_needs_it_where_a_pod_does_not_tell_its_own(peak, want):
    run = view_run([a_job(active=1)], [a_pod(peak=peak)])
    assert needs_records(run, peaks=True) is want
    assert not needs_records(run, peaks=False)
