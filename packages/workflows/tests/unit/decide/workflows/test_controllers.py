"""Argo's controller is known by its Deployment, where no Lease may be read."""

from __future__ import annotations

import pytest

from moorage_workflows.decide.workflows.controllers import is_live_deployment


def a_deployment(labels, ready=1, name="x"):
    return {"metadata": {"name": name, "labels": labels}, "status": {"readyReplicas": ready}}


@pytest.mark.parametrize(
    ("deployment", "want"),
    [
        pytest.param(a_deployment({"app": "workflow-controller"}), True, id="Argo's own label"),
        pytest.param(a_deployment({"app.kubernetes.io/name": "workflow-controller"}), True, id="Helm's label"),
        pytest.param(a_deployment({}, name="workflow-controller"), True, id="its name"),
        pytest.param(a_deployment({"app": "workflow-controller"}, ready=0), False, id="no pod is ready"),
        pytest.param(a_deployment({"app.kubernetes.io/part-of": "argo"}), False, id="another part of Argo"),
    ],
)
def test_a_deployment_tells_that_argo_runs(deployment, want):
    assert is_live_deployment(deployment) is want
