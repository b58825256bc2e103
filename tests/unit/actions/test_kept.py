"""When the server is asked for what it keeps of a run, because pods may be gone."""

from __future__ import annotations

import pytest

from moorage.actions.kept import misses_pods

POD = {"metadata": {"name": "p", "labels": {"moorage.dev/attempt": "1"}}}
RESUMED = {"type": "Suspended", "status": "False", "reason": "JobResumed"}
COMPLETE = {"type": "Complete", "status": "True"}


def a_job(*conditions, suspend=False, **counts):
    labels = {"moorage.dev/attempt": "1"}
    return {
        "metadata": {"name": "j", "labels": labels},
        "spec": {"suspend": suspend},
        "status": {"conditions": list(conditions)} | counts,
    }


@pytest.mark.parametrize(
    ("job", "pods", "want"),
    [
        pytest.param(a_job(active=1), [POD], False, id="its only pod is there"),
        pytest.param(a_job(), [], False, id="it has made none yet"),
        pytest.param(a_job(active=1, failed=1), [POD], True, id="one that failed is gone"),
        pytest.param(a_job(COMPLETE), [], True, id="over, and counts nothing"),
        pytest.param(a_job(suspend=True), [], True, id="suspended: a Job does not count what it deleted for that"),
        pytest.param(a_job(RESUMED, active=1), [POD], True, id="resumed: the pods from before are gone"),
    ],
)
def test_the_server_is_asked_where_pods_may_be_gone(job, pods, want):
    assert misses_pods([job], pods) is want
