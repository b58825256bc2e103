"""The server's records of workflows, for users. Implements `moorage_workflows.actions.workflows.Records`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from moorage.model.argo import WORKFLOWS
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage.server.namespaces import oldest_for
from moorage_kube.errors import ServerError, StorageError
from moorage_kube.moments import moment
from moorage_kube.resources import Obj
from moorage_kube.selectors import parse_label_selector
from moorage_workflows.actions.workflows import Choice
from moorage_workflows.decide.workflows.views import workflow_object
from moorage_workflows.model.workflow import NodeRecord, WorkflowRecord
from moorage_workflows.workflows.query import PAGE_MAX, RunQuery
from moorage_workflows.workflows.records import LocalRecords


class StoreRecords:
    """The caller has asked the Kubernetes API as the user before: rights on workflows are rights on records.

    Raises ServerError while the store cannot be used.
    """

    def __init__(self, context: Context, user: User) -> None:
        self._context, self._user, self._store = context, user, context.part(LocalRecords)

    async def read(self, namespace: str, name: str, live: Obj | None) -> Obj | None:
        try:
            if live is None:
                record = await self._store.get(namespace, name, await self._oldest(namespace))
            else:
                record = await self._store.by_uid(str(live["metadata"].get("uid") or ""))
            if record is None:
                return None
            return workflow_object(record, await self._nodes(record.uid), live)
        except StorageError as error:
            raise _away(error) from error

    async def listed(self, namespace: str | None, choice: Choice) -> Sequence[Obj]:
        records: list[WorkflowRecord] = []
        after = ""
        since = None if namespace is None else await self._oldest(namespace)
        try:
            while True:
                page = await self._store.list(
                    RunQuery(
                        namespaces=None if namespace is None else (namespace,),
                        phases=choice.phases,
                        cron=choice.cron,
                        labels=parse_label_selector(choice.selector),
                        prefix=choice.prefix,
                        since=since,
                        limit=min(choice.limit or PAGE_MAX, PAGE_MAX),
                        after=after,
                    )
                )
                records += page.runs
                after = page.after
                if not after or self._is_enough(records, choice):
                    return [workflow_object(record, ()) for record in records]
        except StorageError as error:
            raise _away(error) from error

    async def _oldest(self, namespace: str) -> datetime | None:
        return await oldest_for(self._context, self._user, "list", WORKFLOWS, namespace)

    @staticmethod
    def _is_enough(records: Sequence[WorkflowRecord], choice: Choice) -> bool:
        oldest = moment(records[-1].created_at) if records else None
        return (choice.limit is not None and len(records) >= choice.limit) or (
            choice.since is not None and oldest is not None and oldest < choice.since
        )

    async def _nodes(self, uid: str) -> list[NodeRecord]:
        nodes: list[NodeRecord] = []
        after = ""
        while True:
            page = await self._store.nodes(uid, after=after)
            nodes += page.nodes
            after = page.after
            if not after:
                return nodes


def _away(error: StorageError) -> ServerError:
    return ServerError(f"the records of workflows cannot be read: {error.message}", status=503)
