"""Which pods `podGC` deletes, and what the status says of locks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from moorage.apimachinery.moments import rfc3339
from moorage.controllers.workflow.summary import collect_at, pod_delete_at, summary_patch
from moorage.model.workflow import NodePhase, NodeRecord, NodeType, WorkflowRecord
from moorage.testing.clock import NOON


def a_record(**spec: Any) -> WorkflowRecord:
    return WorkflowRecord(uid="u", namespace="lab", name="wf", phase="Running", document={"spec": spec})


@pytest.mark.parametrize(("selector", "is_deleted"), [
    (None, True),
    ({"matchLabels": {"app": "web"}}, True),
    ({"matchLabels": {"app": "db"}}, False),
    ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db"]}]}, True),
    ({"matchExpressions": [{"key": "app", "operator": "Exists"}, {"key": "tier", "operator": "Exists"}]}, False),
    ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, True),
])  # fmt: skip
def test_pods_are_deleted_by_their_labels(selector: dict[str, Any] | None, is_deleted: bool) -> None:
    record = a_record(
        podGC={"strategy": "OnPodCompletion", **({"labelSelector": selector} if selector else {})},
        templates=[{"name": "say", "metadata": {"labels": {"app": "web"}}}],
    )
    node = NodeRecord(
        id="n", name="wf", display_name="wf", type=NodeType.POD, phase=NodePhase.SUCCEEDED, template="say"
    )
    assert (pod_delete_at(record, node) is not None) == is_deleted


def test_a_pod_that_saves_its_outputs_has_ended_after_that() -> None:
    record = a_record(podGC={"strategy": "OnPodCompletion", "deleteDelayDuration": "10s"})
    node = NodeRecord(
        id="n",
        name="wf",
        display_name="wf",
        type=NodeType.POD,
        phase=NodePhase.SUCCEEDED,
        finished_at=rfc3339(NOON),
    )
    ends = [{"state": {"terminated": {"finishedAt": rfc3339(NOON + timedelta(minutes=at))}}} for at in (0, 3)]
    pod = {"status": {"containerStatuses": [*ends, {"state": {"running": {}}}]}}
    assert pod_delete_at(record, node) == NOON + timedelta(seconds=10)
    assert pod_delete_at(record, node, pod) == NOON + timedelta(minutes=3, seconds=10)


def test_the_time_to_live_of_a_template_is_in_the_status() -> None:
    strategy = {"secondsAfterCompletion": 60}
    record = a_record(ttlStrategy=strategy)
    obj = {"metadata": {}, "spec": {"workflowTemplateRef": {"name": "t"}}}
    patch = summary_patch(obj, record)
    assert patch is not None
    assert patch["status"]["storedWorkflowTemplateSpec"] == {"ttlStrategy": strategy}
    ended = patch["status"] | {"phase": "Succeeded", "finishedAt": rfc3339(NOON)}
    assert collect_at(obj | {"status": ended}) == NOON + timedelta(minutes=1)
    own = summary_patch({"metadata": {}, "spec": {"ttlStrategy": strategy}}, record)
    assert own is not None
    assert "storedWorkflowTemplateSpec" not in own["status"]


def test_locks_come_into_the_status_and_leave_it() -> None:
    held = {"mutex": {"holding": [{"mutex": "lab/Mutex/m", "holder": "n"}]}}
    patch = summary_patch({"metadata": {}}, a_record(), held)
    assert patch is not None
    assert patch["status"]["synchronization"] == held
    obj = {"metadata": {"labels": patch["metadata"]["labels"]}, "status": patch["status"]}
    assert summary_patch(obj, a_record(), held) is None
    after = summary_patch(obj, a_record(), {})
    assert after is not None
    assert after["status"]["synchronization"] == {"mutex": None}
