"""Changes of workflows that depend on what an object holds, while others write to it; over a fake API."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from moorage.model.argo import CRON_WORKFLOWS, WORKFLOW_TEMPLATES, WORKFLOWS
from moorage_kube.meta import annotations_of
from moorage_kube.testing.clock import NOON
from moorage_testing.concurrentwrites import api as api
from moorage_testing.concurrentwrites import stored
from moorage_workflows.actions import crons
from moorage_workflows.actions.workflows import resume_workflow, retry_workflow
from moorage_workflows.actions.workflowtemplates import Applied, apply_template
from moorage_workflows.model.workflow import Resume, Retry

pytestmark = pytest.mark.anyio


async def test_a_workflow_is_resumed_and_retried_while_the_operator_writes_to_it(api):
    stored(api, WORKFLOWS, "train", spec={"suspend": True}, status={"phase": "Running"})
    assert "suspend" not in (await resume_workflow(api, "lab", "train", Resume(), now=NOON))["spec"]
    stored(api, WORKFLOWS, "train", spec={}, status={"phase": "Failed"})
    api.overtakes = 1
    assert "moorage.dev/workflow-retry" in annotations_of(await retry_workflow(api, "lab", "train", Retry()))


async def test_slots_run_again_while_the_operator_writes_to_their_schedule(api):
    stored(api, CRON_WORKFLOWS, "nightly", spec={"schedules": ["0 * * * *"], "workflowSpec": {}})
    answer = await crons.backfill_cron(api, "lab", "nightly", NOON - timedelta(hours=1), NOON, now=NOON)
    asked = json.loads(
        annotations_of(await api.get(CRON_WORKFLOWS, "nightly", "lab"))["moorage.dev/cron-backfill"]
    )
    assert (asked["id"], len(asked["slots"])) == (answer.id, 2)


async def test_a_template_is_applied_while_another_writes_to_it(api):
    document = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "WorkflowTemplate",
        "metadata": {"name": "train"},
        "spec": {"entrypoint": "main"},
    }
    stored(api, WORKFLOW_TEMPLATES, "train", spec={"entrypoint": "old"})
    changed, applied = await apply_template(api, "lab", document)
    assert (changed["spec"], applied) == ({"entrypoint": "main"}, Applied.CHANGED)
