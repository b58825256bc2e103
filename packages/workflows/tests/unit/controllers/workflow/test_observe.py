"""What a pod of a step says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from moorage_workflows.controllers.workflow.observe import keep_pod, pod_seen

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def ended(name: str, code: int) -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": code}}}


@pytest.mark.parametrize(
    ("policy", "broken"),
    [
        pytest.param({"restartPolicy": "Always"}, "", id="a sidecar is ended with the pod"),
        pytest.param({}, "init container side: exit code 143", id="an init container that failed"),
    ],
)
def test_the_end_of_a_sidecar_is_no_fault(policy: dict[str, Any], broken: str) -> None:
    pod = {
        "metadata": {"name": "a"},
        "spec": {"initContainers": [{"name": "side", **policy}], "containers": [{"name": "main"}]},
        "status": {
            "phase": "Succeeded",
            "initContainerStatuses": [ended("side", 143)],
            "containerStatuses": [ended("main", 0)],
        },
    }
    seen = pod_seen(pod, now=NOON, lost_nodes={}, lost_after=timedelta(minutes=1))
    assert (seen.exit_code, seen.broken) == (0, broken)
    assert pod_seen(keep_pod(pod), now=NOON, lost_nodes={}, lost_after=timedelta(minutes=1)) == seen
