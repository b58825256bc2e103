"""Which pods `podGC` deletes, and what is written to the status."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.workflowrecords import a_node_record

from moorage.model.argo import COMPLETED_LABEL, PHASE_LABEL
from moorage_kube.moments import rfc3339
from moorage_kube.testing.clock import NOON
from moorage_workflows.controllers.cronworkflow.plan import Record, status_of
from moorage_workflows.controllers.workflow.summary import (
    collect_at,
    collection_patch,
    pod_delete_at,
    summary_patch,
)
from moorage_workflows.decide.workflows.graph.events import Locks
from moorage_workflows.decide.workflows.graph.locks import LockTable
from moorage_workflows.model.cronworkflow import CronState
from moorage_workflows.model.workflow import NodePhase, WorkflowRecord


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
    node = a_node_record(phase=NodePhase.SUCCEEDED, template="say")
    assert (pod_delete_at(record, node) is not None) == is_deleted


def test_a_pod_that_saves_its_outputs_has_ended_after_that() -> None:
    record = a_record(podGC={"strategy": "OnPodCompletion", "deleteDelayDuration": "10s"})
    node = a_node_record(phase=NodePhase.SUCCEEDED, finished_at=rfc3339(NOON))
    ends = [{"state": {"terminated": {"finishedAt": rfc3339(NOON + timedelta(minutes=at))}}} for at in (0, 3)]
    pod = {"status": {"containerStatuses": [*ends, {"state": {"running": {}}}]}}
    assert pod_delete_at(record, node) == NOON + timedelta(seconds=10)
    assert pod_delete_at(record, node, pod) == NOON + timedelta(minutes=3, seconds=10)


def test_the_metadata_of_the_spec_is_written_once() -> None:
    document = {
        "metadata": {"labels": {"team": "vision", "other": "x"}, "annotations": {"note": "n"}},
        "spec": {"workflowMetadata": {"labels": {"team": "vision"}, "annotations": {"note": "n"}}},
    }
    record = WorkflowRecord(uid="u", namespace="lab", name="wf", phase="Running", document=document)
    phase = {PHASE_LABEL: "Running", COMPLETED_LABEL: "false"}
    first = summary_patch({"metadata": {}, "spec": {}}, record)
    assert first is not None
    assert first["metadata"] == {"labels": {"team": "vision"} | phase, "annotations": {"note": "n"}}
    changed = {"metadata": {"labels": {"team": "audio"}}, "spec": {}, "status": {"phase": "Pending"}}
    later = summary_patch(changed, record)
    assert later is not None
    assert later["metadata"] == {"labels": phase}


def test_the_time_to_live_of_a_template_is_in_the_status() -> None:
    strategy = {"secondsAfterCompletion": 60}
    record = a_record(ttlStrategy=strategy)
    obj = {"metadata": {}, "spec": {"workflowTemplateRef": {"name": "t"}}}
    patch = summary_patch(obj, record)
    assert patch["status"]["storedWorkflowTemplateSpec"] == {"ttlStrategy": strategy}
    ended = patch["status"] | {"phase": "Succeeded", "finishedAt": rfc3339(NOON)}
    assert collect_at(obj | {"status": ended}) == NOON + timedelta(minutes=1)
    own = summary_patch({"metadata": {}, "spec": {"ttlStrategy": strategy}}, record)
    assert "storedWorkflowTemplateSpec" not in own["status"]


def test_an_image_that_lets_a_pod_wait_is_the_message_until_it_starts() -> None:
    reason = "ImageNotRunnable: image x cannot be run"
    patch = summary_patch({"metadata": {}}, a_record(), waiting=reason)
    assert patch["status"]["message"] == reason
    obj = {"metadata": {"labels": patch["metadata"]["labels"]}, "status": patch["status"]}
    assert summary_patch(obj, a_record(), waiting=reason) is None
    assert summary_patch(obj, a_record())["status"]["message"] is None
    failed = msgspec.structs.replace(a_record(), message="failed")
    assert summary_patch(obj, failed, waiting=reason)["status"]["message"] == "failed"


def test_locks_come_into_the_status_and_leave_it() -> None:
    held = {"mutex": {"holding": [{"mutex": "lab/Mutex/m", "holder": "n"}]}}
    patch = summary_patch({"metadata": {}}, a_record(), held)
    assert patch["status"]["synchronization"] == held
    obj = {"metadata": {"labels": patch["metadata"]["labels"]}, "status": patch["status"]}
    assert summary_patch(obj, a_record(), held) is None
    assert summary_patch(obj, a_record(), {})["status"]["synchronization"] == {"mutex": None}


def test_a_global_output_whose_name_argo_refuses_stays_out_of_the_object() -> None:
    """Argo's full definitions have a pattern for it: an object with another name could not be written at all."""
    record = msgspec.structs.replace(
        a_record(), parameters={"a.b": "1", "from-{x}": "2", "Good_1-x": "3", "": "4"}
    )
    patch = summary_patch({"metadata": {}}, record)
    assert patch["status"]["outputs"] == {"parameters": [{"name": "Good_1-x", "value": "3"}]}


STARTED = "2026-03-01T12:00:00Z"
# what Argo's full definitions keep of a status; other fields are dropped by the API server
# https://argo-workflows.readthedocs.io/en/latest/fields/
_CONDITIONS = {"type": None, "status": None, "message": None}
_WORKFLOW_STATUS: dict[str, Any] = {
    "phase": None, "startedAt": None, "finishedAt": None, "message": None, "progress": None,
    "conditions": _CONDITIONS,
    "outputs": {"parameters": {"name": None, "value": None}},
    "synchronization": {
        "mutex": dict.fromkeys(("holding", "waiting"), {"mutex": None, "holder": None}),
        "semaphore": dict.fromkeys(("holding", "waiting"), {"semaphore": None, "holders": None}),
    },
}  # fmt: skip
_REFERENCE = dict.fromkeys(("apiVersion", "kind", "name", "namespace", "uid"))
_CRON_STATUS: dict[str, Any] = {
    "active": _REFERENCE, "conditions": _CONDITIONS, "phase": None, "succeeded": None, "failed": None,
    "lastScheduledTime": None,
}  # fmt: skip


def dropped(value: Any, known: Any, path: str = "status") -> list[str]:
    """The paths that a definition with these fields does not keep."""
    if isinstance(value, list):
        return [each for row in value for each in dropped(row, known, f"{path}[]")]
    if not isinstance(value, dict) or known is None:
        return []
    lost = [f"{path}.{name}" for name in value if name not in known]
    return lost + [
        each for name in value if name in known for each in dropped(value[name], known[name], f"{path}.{name}")
    ]


def test_argos_definitions_keep_what_is_written_to_a_status() -> None:
    locks = LockTable()
    for workflow in ("u", "other"):
        for node, lock in (("m", "Mutex/lab/m"), ("s", "Semaphore/lab/config/s")):
            locks.ask(workflow, Locks(node=f"{workflow}-{node}", locks=(lock,), priority=0, created_at=""))
    locks.grant({lock: 1 for lock in locks.wanted()})
    record = msgspec.structs.replace(
        a_record(), phase="Failed", message="m", started_at=STARTED, finished_at=STARTED,
        parameters={"a": "1"}, metrics_error="not a number",
    )  # fmt: skip
    for workflow in ("u", "other"):
        patch = summary_patch({"metadata": {}}, record, locks.status_of(workflow))
        assert patch is not None
        assert set(patch["status"]["synchronization"]) == {"mutex", "semaphore"}
        assert dropped(patch["status"], _WORKFLOW_STATUS) == []
    assert dropped(collection_patch({}, "no bucket")["status"], _WORKFLOW_STATUS) == []
    cron = Record(
        state=CronState(), schedule_used="", last_scheduled=datetime(2026, 3, 1, tzinfo=UTC), active=(("n", "u"),),
        succeeded=1, failed=1, is_stopped=True, submission_error="a", spec_error="b", has_backfill=False,
    )  # fmt: skip
    assert dropped(status_of(cron, "lab", "argoproj.io/v1alpha1", "Workflow"), _CRON_STATUS) == []
