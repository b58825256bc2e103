"""Retention of workflows: limits of size and age, and the task that deletes old data."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

from msgspec import Struct

from moorage import settings
from moorage.model.retention import ARTIFACT_BYTES, ARTIFACT_DAYS, WORKFLOW_DAYS
from moorage_kube.clock import Clock
from moorage_kube.errors import MoorageError
from moorage_workflows.workflows.artifacts import Artifacts
from moorage_workflows.workflows.records import LocalRecords

log = logging.getLogger(__name__)

SWEEP_SECONDS = 3600.0

Uids = Callable[[], Awaitable[frozenset[str]]]


class Retention(Struct, frozen=True, kw_only=True):
    """Limits of size and age. `artifacts`: as MOORAGE_ARTIFACTS; empty: a folder next to the databases."""

    days: int = WORKFLOW_DAYS
    artifacts: str = ""
    artifact_days: int = ARTIFACT_DAYS
    artifact_bytes: int = ARTIFACT_BYTES
    namespace_bytes: int = settings.ARTIFACTS_PER_NAMESPACE.default  # of all artifacts of a namespace; 0: no limit
    record_bytes: int = settings.WORKFLOW_BYTES_PER_NAMESPACE.default  # of all records of a namespace; 0: no limit


def retention_settings(env: Mapping[str, str]) -> Retention:
    """Return the retention settings from the environment. Raises UsageError."""
    return Retention(
        days=settings.WORKFLOWS_KEPT_DAYS.read(env),
        artifacts=settings.ARTIFACTS.read(env),
        artifact_days=settings.ARTIFACTS_KEPT_DAYS.read(env),
        artifact_bytes=settings.ARTIFACT_MOST_BYTES.read(env),
        namespace_bytes=settings.ARTIFACTS_PER_NAMESPACE.read(env),
        record_bytes=settings.WORKFLOW_BYTES_PER_NAMESPACE.read(env),
    )


async def sweep(
    records: LocalRecords, artifacts: Artifacts, retention: Retention, *, present: Uids, clock: Clock
) -> None:
    """Delete old records and artifacts, each hour until cancelled. `present`: uids of all Workflows."""
    while True:
        await clock.sleep(SWEEP_SECONDS)
        await sweep_once(records, artifacts, retention, present=present, clock=clock)


async def sweep_once(
    records: LocalRecords, artifacts: Artifacts, retention: Retention, *, present: Uids, clock: Clock
) -> None:
    """Delete records and artifacts that are too old. After a failure the next sweep tries again."""
    uids: frozenset[str] | None = None
    try:
        uids = await present()
    except MoorageError as error:
        log.warning("workflows cannot be listed", extra={"error": error.message})
    now = clock.now()
    try:
        runs = await records.forget(now - timedelta(days=retention.days), present=uids)
        files = await artifacts.collect(now - timedelta(days=retention.artifact_days))
    except MoorageError as error:
        log.warning("old workflows and artifacts cannot be deleted now", extra={"error": error.message})
        return
    if runs or files:
        log.info("deleted old workflows and artifacts", extra={"runs": runs, "artifacts": files})
