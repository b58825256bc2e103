"""The store of workflows, used from an event loop: the server's own, and that of tests.

It is a `moorage_workflows.controllers.workflow.records.RecordStore`, with more methods for steps and users.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from moorage.sql.thread import StoreThread
from moorage_kube.clock import SYSTEM
from moorage_kube.errors import MoorageError
from moorage_workflows.model.workflow import (
    ArtifactName,
    Loaded,
    Memo,
    MetricPoint,
    MetricSeries,
    NodeRecord,
    StepReport,
    WorkflowRecord,
)
from moorage_workflows.workflows.artifacts import Artifacts
from moorage_workflows.workflows.query import NODES_PAGE_MAX, NodePage, RunPage, RunQuery
from moorage_workflows.workflows.store import WorkflowStore, open_workflows

T = TypeVar("T")


class LocalRecords:
    """A thread with a store of records. `where`: a file or a `postgresql://` address, opened on first use.

    Every method raises StorageError if the database is unavailable.
    """

    def __init__(
        self,
        where: Path | str,
        *,
        prepare: Callable[[WorkflowStore], None] | None = None,
        artifacts: Artifacts | None = None,
        quota: int = 0,
    ) -> None:
        """`prepare` is called with the store before its first use; if it raises, all methods raise the same error.

        `quota`: as of WorkflowStore. `artifacts`: our own store of them, in which `delete_artifacts` deletes.
        """
        self._artifacts = artifacts

        def opened() -> WorkflowStore:
            store = open_workflows(where, quota)
            try:
                if prepare is not None:
                    prepare(store)
            except BaseException:
                store.close()
                raise
            return store

        self._thread = StoreThread("workflows", opened)

    def close(self) -> None:
        self._thread.close()

    async def do(self, work: Callable[[WorkflowStore], T]) -> T:
        return await self._thread.do(work)

    async def begin(self, record: WorkflowRecord, since: datetime | None = None) -> WorkflowRecord:
        return await self.do(lambda store: store.begin(record, since))

    async def load(self, uid: str, holder: str) -> Loaded:
        return await self.do(lambda store: store.load(uid, holder))

    async def save(
        self,
        uid: str,
        holder: str,
        nodes: Sequence[NodeRecord] = (),
        workflow: WorkflowRecord | None = None,
        metrics: Sequence[MetricPoint] = (),
    ) -> tuple[str, ...]:
        at = SYSTEM.now()
        return await self.do(lambda store: store.save(uid, holder, nodes, workflow, metrics=metrics, at=at))

    async def forget_nodes(
        self, uid: str, holder: str, ids: Collection[str], workflow: WorkflowRecord | None = None
    ) -> None:
        at = SYSTEM.now()
        await self.do(lambda store: store.forget_nodes(uid, holder, ids, workflow, at=at))

    async def delete_artifacts(self, uid: str, holder: str, artifacts: Sequence[ArtifactName]) -> tuple[str, ...]:
        await self.mark_deleted(uid, holder, ())  # nothing for an operator that is not the run's any more
        run = await self.run(uid)
        failures: list[str] = []
        deleted: list[ArtifactName] = []
        for name in artifacts:
            node = await self.node(uid, name.node)
            outputs = () if node is None or node.outputs is None else node.outputs.artifacts
            artifact = next((each for each in outputs if each.name == name.name and not each.location), None)
            if artifact is None or run is None:
                continue
            try:
                if self._artifacts is not None and artifact.key and artifact.version:
                    key = f"{run.namespace}/{artifact.key}"
                    if artifact.files:
                        await self._artifacts.delete_folder(key, version=artifact.version)
                    else:
                        await self._artifacts.delete(key, version=artifact.version)
                deleted.append(name)
            except MoorageError as error:
                failures.append(f"artifact {name.name!r}: {error.message}")
        await self.mark_deleted(uid, holder, deleted)
        return tuple(failures)

    async def mark_deleted(self, uid: str, holder: str, artifacts: Sequence[ArtifactName]) -> None:
        await self.do(lambda store: store.mark_deleted(uid, holder, artifacts))

    async def reports(self, uid: str, pods: Collection[str]) -> tuple[StepReport, ...]:
        return await self.do(lambda store: store.reports(uid, pods))

    async def unfinished(self) -> tuple[str, ...]:
        return await self.do(WorkflowStore.unfinished)

    async def gone(self, uid: str, at: datetime) -> None:
        await self.do(lambda store: store.gone(uid, at))

    async def remember(self, namespace: str, cache: str, key: str, memo: Memo) -> None:
        await self.do(lambda store: store.remember(namespace, cache, key, memo))

    async def recall(self, namespace: str, cache: str, key: str, *, since: datetime | None = None) -> Memo | None:
        return await self.do(lambda store: store.recall(namespace, cache, key, since=since))

    async def metrics(self) -> Sequence[MetricSeries]:
        """Return all metrics with values of workflows, sorted by name."""
        return await self.do(WorkflowStore.metrics)

    async def phases(self) -> dict[str, int]:
        """Number of runs with existing objects, by phase."""
        return await self.do(WorkflowStore.phases)

    async def run(self, uid: str) -> WorkflowRecord | None:
        """Return the run with this uid, with an empty document; None if it is unknown."""
        return await self.do(lambda store: store.run(uid))

    async def has_pod(self, uid: str, pod: str) -> bool:
        """Whether a node of this run has a pod of this name. A node is saved before its pod is created."""
        return await self.do(lambda store: store.has_pod(uid, pod))

    async def report(self, uid: str, pod: str, report: StepReport) -> bool:
        """Store the report of a step's pod; False if the pod has reported before: the first report counts.

        Raises NotFound and QuotaExceeded.
        """
        return await self.do(lambda store: store.report(uid, pod, report))

    async def get(self, namespace: str, name: str, since: datetime | None = None) -> WorkflowRecord | None:
        """Return the newest run of this name with its document. Runs older than `since` are ignored."""
        return await self.do(lambda store: store.get(namespace, name, since))

    async def by_uid(self, uid: str) -> WorkflowRecord | None:
        """Return the run with this uid, with its document; None if it is unknown."""
        return await self.do(lambda store: store.by_uid(uid))

    async def history(
        self, namespace: str, name: str, since: datetime | None = None
    ) -> tuple[WorkflowRecord, ...]:
        """Return the runs of this name since `since`, newest first, with empty documents."""
        return await self.do(lambda store: store.history(namespace, name, since))

    async def list(self, query: RunQuery) -> RunPage:
        """Return a page of runs, newest first."""
        return await self.do(lambda store: store.list(query))

    async def nodes(self, uid: str, *, after: str = "", limit: int = NODES_PAGE_MAX) -> NodePage:
        """Return a page of a run's nodes, sorted by id; empty for an unknown run."""
        return await self.do(lambda store: store.nodes(uid, after=after, limit=limit))

    async def node(self, uid: str, node_id: str) -> NodeRecord | None:
        return await self.do(lambda store: store.node(uid, node_id))

    async def holders(self, locks: Collection[str]) -> tuple[tuple[WorkflowRecord, NodeRecord | None], ...]:
        """Return the runs that hold one of these locks, each with the node that holds it; None: the whole run."""
        return await self.do(lambda store: store.holders(locks))

    async def forget(self, older: datetime, *, present: Collection[str] | None = None) -> int:
        return await self.do(lambda store: store.forget(older, present=present))
