"""What is forgotten of workflows, and when."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from moorage_kube.clock import rfc3339
from moorage_kube.errors import ServerError, UsageError
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_workflows.model.workflow import WorkflowRecord
from moorage_workflows.workflows.artifacts import open_artifacts
from moorage_workflows.workflows.records import LocalRecords
from moorage_workflows.workflows.retention import Retention, retention_settings, sweep_once

pytestmark = pytest.mark.anyio
DAY = timedelta(days=1)


async def no_data() -> AsyncIterator[bytes]:
    yield b"1"


async def nobody() -> frozenset[str]:
    return frozenset()


async def unknown() -> frozenset[str]:
    raise ServerError("the API server is away")


@pytest.mark.parametrize(
    ("present", "left"),
    [
        pytest.param(nobody, {"recent"}, id="objects that nobody saw go are noticed"),
        pytest.param(unknown, {"recent", "unseen"}, id="while they cannot be listed, only what was seen to go"),
    ],
)
async def test_runs_and_artifacts_are_forgotten_at_their_own_ages(tmp_path: Path, present, left) -> None:
    clock = FakeClock()
    artifacts = open_artifacts(tmp_path / "artifacts", most_bytes=1 << 20)
    with contextlib.closing(LocalRecords(tmp_path / "workflows.db")) as records:
        for uid, days, gone in (("long", 9, True), ("unseen", 9, False), ("recent", 1, True)):
            ended = NOON - days * DAY
            record = WorkflowRecord(
                uid=uid, namespace="lab", name=uid, document={}, phase="Failed", finished_at=rfc3339(ended)
            )
            await records.begin(record)
            if gone:
                await records.gone(uid, ended)
            await artifacts.put(no_data(), f"lab/{uid}", name="a")
            os.utime(tmp_path / "artifacts" / "lab" / uid, times=(ended.timestamp(), ended.timestamp()))
        retention = Retention(days=5, artifact_days=5)
        await sweep_once(records, artifacts, retention, present=present, clock=clock)
        kept = await records.do(lambda store: [run for run in ("long", "unseen", "recent") if store.run(run)])
    assert set(kept) == left
    assert {path.name for path in (tmp_path / "artifacts" / "lab").iterdir()} == {"recent"}


def test_settings_say_how_much_is_kept() -> None:
    env = {"MOORAGE_WORKFLOW_DAYS": "7", "MOORAGE_ARTIFACTS": "s3://b/p", "MOORAGE_ARTIFACT_BYTES": "5Gi"}
    assert retention_settings(env) == Retention(days=7, artifacts="s3://b/p", artifact_bytes=5 << 30)
    assert retention_settings({}) == Retention()
    with pytest.raises(UsageError, match="invalid MOORAGE_ARTIFACTS"):
        retention_settings({"MOORAGE_ARTIFACTS": "ftp://b"})
