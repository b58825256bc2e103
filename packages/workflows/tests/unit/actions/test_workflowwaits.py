"""Why steps of a workflow wait or still run, when their pods are gone."""

from __future__ import annotations

import pytest

from moorage.decide.explain.types import Explanation
from moorage.model.argo import WORKFLOWS
from moorage_kube.errors import NotFound
from moorage_kube.testing.clock import NOON
from moorage_workflows.actions.workflows import NoRecords
from moorage_workflows.actions.workflowwaits import explain_workflow

pytestmark = pytest.mark.anyio

NODE = {"id": "t-1", "name": "train[0].fit", "displayName": "fit", "type": "Pod", "podName": "train-fit-1"}


async def pod_is_gone(name: str) -> Explanation:
    raise NotFound(f"pod {name!r} not found")


@pytest.mark.parametrize("phase", ["Running", "Pending"])
async def test_a_step_whose_pod_is_gone_says_so(api, phase: str) -> None:
    api.put(
        WORKFLOWS,
        {
            "metadata": {"name": "train", "namespace": "lab"},
            "spec": {"entrypoint": "main", "templates": [{"name": "main"}]},
            "status": {
                "phase": "Running",
                "startedAt": "2026-03-01T12:00:00Z",
                "nodes": {"t-1": {**NODE, "phase": phase}},
            },
        },
    )
    explanation = await explain_workflow(
        api, "lab", "train", records=NoRecords(), explain_pod=pod_is_gone, now=NOON
    )
    lines = [line for line in explanation.text.splitlines() if "train-fit-1" in line]
    assert lines
    for line in lines:
        assert line.endswith(": the operator creates it or ends the step, within 5 minutes")
