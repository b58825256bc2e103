"""The operator's interface to the store of records.

`workflows.records.LocalRecords` implements it with a database, `RemoteStore` over HTTP; one suite of
tests covers both.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol

from moorage_workflows.model.workflow import (
    ArtifactName,
    Loaded,
    Memo,
    MetricPoint,
    NodeRecord,
    StepReport,
    WorkflowRecord,
)


class RecordStore(Protocol):
    """Every method raises StorageError while the store is unavailable, and ServerError for an unreadable
    answer.

    Each call is one transaction: when it returns, its writes are on the disk; after an error, none of them
    are. A call that failed may be made again.
    """

    async def begin(self, record: WorkflowRecord) -> WorkflowRecord:
        """Store a new run; return the stored record, which is an earlier one if there is one of this uid.

        An older run of the same namespace and name is recorded as deleted and finished. Raises QuotaExceeded
        where the namespace has no room for it.
        """
        ...

    async def load(self, uid: str, holder: str) -> Loaded:
        """All records of a run. From now on only `holder` may write to it. Raises NotFound.

        `holder` is an opaque text, which differs between operators and between their terms.
        """
        ...

    async def save(
        self,
        uid: str,
        holder: str,
        nodes: Sequence[NodeRecord] = (),
        workflow: WorkflowRecord | None = None,
        metrics: Sequence[MetricPoint] = (),
    ) -> tuple[str, ...]:
        """Add or replace nodes, and replace the run's own record; all or nothing.

        `metrics` are values from the ends of these nodes or of the run; values of ends that were saved before
        are ignored. Returns why values were refused, a sentence each.

        A stored node in a final phase does not change. The document of `begin` does not change, even if
        `workflow` has another. Raises Conflict if another holder has loaded the run since, and NotFound.
        """
        ...

    async def forget_nodes(
        self, uid: str, holder: str, ids: Collection[str], workflow: WorkflowRecord | None = None
    ) -> None:
        """Delete nodes, including final ones, with their pods' reports, and save the run; all or nothing.

        For a retry: `workflow` is the new record of the run. Raises Conflict and NotFound as `save` does.
        """
        ...

    async def delete_artifacts(self, uid: str, holder: str, artifacts: Sequence[ArtifactName]) -> tuple[str, ...]:
        """Delete output artifacts of a run in our own store, and note it; return why some stay, a sentence each.

        A missing artifact counts as deleted. If another step or workflow has written the same key since, its
        artifact stays, and this one counts as deleted. Raises Conflict and NotFound as `save` does.
        """
        ...

    async def mark_deleted(self, uid: str, holder: str, artifacts: Sequence[ArtifactName]) -> None:
        """Mark artifacts as deleted, also those of final nodes. Raises Conflict and NotFound as `save` does."""
        ...

    async def reports(self, uid: str, pods: Collection[str]) -> tuple[StepReport, ...]:
        """Return the reports of these pods, unordered. Pods without a report are left out."""
        ...

    async def unfinished(self) -> tuple[str, ...]:
        """The uids of the runs that are not in a final phase and not recorded as deleted; the oldest first."""
        ...

    async def gone(self, uid: str, at: datetime) -> None:
        """Record that the object of a run was deleted. Only the first call counts; unknown runs are ignored."""
        ...

    async def remember(self, namespace: str, cache: str, key: str, memo: Memo) -> None:
        """Store the outputs of a memoized template; earlier ones under this key are replaced.

        Raises QuotaExceeded.
        """
        ...

    async def recall(self, namespace: str, cache: str, key: str, *, since: datetime | None = None) -> Memo | None:
        """The memo under a key; None if there is none, or if it was stored before `since`."""
        ...
