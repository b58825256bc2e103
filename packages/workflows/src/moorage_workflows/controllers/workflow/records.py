"""What the operator asks of the store of records.

`workflows.records.LocalRecords` is one beside a database, `RemoteStore` one over HTTP; one suite of tests
holds both to this.
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
    """Every method raises StorageError while the store is away, and ServerError where it answers with nonsense.

    Each call is one transaction: what it wrote is on the disk when it returns, and after an error nothing of it
    is. A call that failed may be made again.
    """

    async def begin(self, record: WorkflowRecord) -> WorkflowRecord:
        """Keep a new run; what is kept, which is an earlier record where there is one of this uid.

        An older run of the same namespace and name becomes history: it is gone, and no longer unfinished. Raises
        QuotaExceeded where the namespace has no room for it.
        """
        ...

    async def load(self, uid: str, holder: str) -> Loaded:
        """All that is kept of a run. From now on only `holder` may write to it. Raises NotFound.

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

        `metrics` are values that the ends of these nodes give, or that of the run; those of ends that were saved
        before are left out. Returned is why others were not taken, a sentence each.

        A node that is kept in a final phase stays as it is. The document stays that of `begin`, whatever
        `workflow` has. Raises Conflict where another has loaded the run since, and NotFound.
        """
        ...

    async def forget_nodes(
        self, uid: str, holder: str, ids: Collection[str], workflow: WorkflowRecord | None = None
    ) -> None:
        """Remove nodes, final ones too, with their pods' reports, and replace the run's record; all or nothing.

        For a retry: `workflow` is the run as it begins again. Raises Conflict and NotFound as `save` does.
        """
        ...

    async def delete_artifacts(self, uid: str, holder: str, artifacts: Sequence[ArtifactName]) -> tuple[str, ...]:
        """Delete output artifacts of a run in our own store, and note it; why some are left, a sentence each.

        What is not there is deleted already. What another step or workflow wrote under the same key since stays,
        and counts as deleted. Raises Conflict and NotFound as `save` does.
        """
        ...

    async def mark_deleted(self, uid: str, holder: str, artifacts: Sequence[ArtifactName]) -> None:
        """Note that artifacts are deleted, of final nodes too. Raises Conflict and NotFound as `save` does."""
        ...

    async def reports(self, uid: str, pods: Collection[str]) -> tuple[StepReport, ...]:
        """The reports of those of these pods that have reported, in no order."""
        ...

    async def unfinished(self) -> tuple[str, ...]:
        """The uids of the runs in no final phase whose objects are not known to be gone; the oldest first."""
        ...

    async def gone(self, uid: str, at: datetime) -> None:
        """The object of a run was deleted; the first call counts, and of an unknown run it does nothing."""
        ...

    async def remember(self, namespace: str, cache: str, key: str, memo: Memo) -> None:
        """Keep what a memoized template left, in place of what was kept under this key. Raises QuotaExceeded."""
        ...

    async def recall(self, namespace: str, cache: str, key: str, *, since: datetime | None = None) -> Memo | None:
        """What is kept under a key; None where nothing is, or only what was kept before `since`."""
        ...
