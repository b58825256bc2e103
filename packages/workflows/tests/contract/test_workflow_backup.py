"""Backup and restore of the records of workflows."""

from __future__ import annotations

from contextlib import closing

import pytest

from moorage.server.backup.store import Place, restore
from moorage_kube.errors import Conflict
from moorage_testing.backups import back_up, lines, where
from moorage_testing.backups import new_place as new_place
from moorage_workflows.model.workflow import (
    Memo,
    NodePhase,
    NodeRecord,
    NodeType,
    Outputs,
    StepReport,
    WorkflowRecord,
)
from moorage_workflows.workflows.store import open_workflows


def fill(place: Place) -> None:
    with closing(open_workflows(where(place, "workflows.db"))) as workflows:
        workflows.begin(WorkflowRecord(uid="u1", namespace="lab", name="train", document={"spec": {"a": "é\n"}}))
        workflows.load("u1", "op")
        node = NodeRecord(id="n", name="n", display_name="n", type=NodeType.POD, phase=NodePhase.RUNNING)
        workflows.save("u1", "op", [node])
        workflows.report("u1", "p", StepReport(pod="p"))
        workflows.remember("lab", "c", "k", Memo(outputs=Outputs(), at="2026-11-23T12:00:00Z"))


@pytest.mark.parametrize("source", ["sqlite", "postgres"])
@pytest.mark.parametrize("target", ["sqlite", "postgres"])
def test_records_of_workflows_come_back_and_are_not_replaced_unasked(source, target, new_place, tmp_path) -> None:
    place, other, archive = new_place(source), new_place(target), tmp_path / "a.backup"
    fill(place)
    before = lines(place, tmp_path)
    manifest = back_up(place, archive)
    assert {name: count for name, count in manifest.rows.items() if count} == {"workflow_runs": 1}
    restore(other, archive)
    assert lines(other, tmp_path) == before
    with pytest.raises(Conflict, match="the target is not empty: it has 1 rows of workflow_runs"):
        restore(other, archive)
