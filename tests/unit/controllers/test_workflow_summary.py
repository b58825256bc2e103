"""Which pods `podGC` deletes, and what the status says of locks."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.controllers.workflow.summary import pod_delete_at, summary_patch
from moorage.model.workflow import NodePhase, NodeRecord, NodeType, WorkflowRecord


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
    assert pod_delete_at(record, node, is_done=False) == is_deleted


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
