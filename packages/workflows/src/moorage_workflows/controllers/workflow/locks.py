"""Locks of workflows: the reads and writes around `moorage_workflows.decide.workflows.graph.locks`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from datetime import timedelta

from moorage.controllers.base import Shared
from moorage.model.names import GUARD_LABEL, TENANT_LABEL
from moorage.model.people import account_user
from moorage_kube.access import SERVICE_ACCOUNT
from moorage_kube.errors import Forbidden, NotFound
from moorage_kube.informer import Informer
from moorage_kube.meta import Key, labels_of
from moorage_kube.remote.reviews import account_may
from moorage_kube.resources import CONFIGMAPS
from moorage_workflows.controllers.workflow.live import Live
from moorage_workflows.controllers.workflow.records import RecordStore
from moorage_workflows.decide.workflows.graph.events import Locks, Refusal
from moorage_workflows.decide.workflows.graph.locks import (
    SEMAPHORE,
    Limit,
    LockTable,
    limit_of,
    lock_name,
    lock_namespace,
    locks_held,
    right_to_hold,
)
from moorage_workflows.model.workflow import WorkflowRecord, is_strict

MISSING_EVERY = timedelta(seconds=2)  # between two looks for a limit that is missing
LIMITS_EVERY = timedelta(seconds=10)  # between two looks at the ConfigMaps of semaphores that nodes wait for


class RunLocks:
    """The holders of locks, over all runs of this operator.

    `live`: the runs in memory. `look`: schedules another look at a run, for example when it got a lock.
    """

    def __init__(
        self,
        shared: Shared,
        records: RecordStore,
        *,
        holder: str,
        namespaces: Informer,
        live: Mapping[Key, Live],
        look: Callable[[Key], object],
    ) -> None:
        self._api, self._clock = shared.api, shared.clock
        self._records, self._holder, self._namespaces = records, holder, namespaces
        self._live, self._look = live, look
        self.table = LockTable()
        self._is_restored = False
        self._restoring = asyncio.Lock()
        self._limits: dict[
            str, tuple[Limit, float]
        ] = {}  # of semaphores that nodes wait for, and when they were read

    async def restore(self) -> None:
        """Read the held locks from the records of every run, once, before the first lock is granted."""
        async with self._restoring:
            if self._is_restored:
                return
            for uid in await self._records.unfinished():
                with contextlib.suppress(NotFound):
                    loaded = await self._records.load(uid, self._holder)
                    for holder, locks in locks_held(loaded.workflow, loaded.nodes):
                        self.table.restore(uid, holder, locks)
            self._is_restored = True

    async def refusal_of(self, key: Key, record: WorkflowRecord, asked: Locks) -> Refusal | None:
        """Return why a run may not hold locks of other namespaces; None if it may.

        The operator itself may read all ConfigMaps, so the rights of the submitter count, or those of the
        service account of the steps. Webhooks guarantee the owner only in namespaces of tenants; elsewhere
        the submitter is unknown.
        """
        others = [lock for lock in asked.locks if lock_namespace(lock) != key.namespace]
        if not others:
            return None
        labels = labels_of(self._namespaces.get(key.namespace) or {"metadata": {}})
        owner = record.owner if labels.get(GUARD_LABEL) == "enabled" and labels.get(TENANT_LABEL) else ""
        steps = str((record.document.get("spec") or {}).get("serviceAccountName") or "default")
        accounts = [f"{SERVICE_ACCOUNT}{key.namespace}:{steps}"]
        if owner:
            accounts.append(owner if owner.startswith(SERVICE_ACCOUNT) else account_user(owner))
        for lock in others:
            right = right_to_hold(lock)
            if not any([await account_may(self._api, account, right) for account in accounts]):
                what = " ".join((right["verb"], right["resource"], right.get("name", ""))).strip()
                submitter = owner or "the unknown submitter"
                return Refusal(
                    f"{lock_name(lock)} belongs to another namespace: {submitter} and the ServiceAccount {steps}"
                    f" may not {what} in {right['namespace']}: use a lock of {key.namespace}"
                )
        return None

    def release(self, uid: str) -> None:
        self.table.release(uid)
        if self.table.wanted():
            for key in self._live:
                self._look(key)

    def release_node(self, live: Live, node: str) -> None:
        """Release all locks and requests of a node. The first node's id is the workflow's: the workflow's locks
        stay.
        """
        self.table.release(live.uid, node)
        self.table.restore(live.uid, live.run.workflow.name, live.run.workflow.locks)

    async def grant(self) -> None:
        """Grant free locks to waiting nodes, and continue their runs."""
        wanted = {lock for lock in self.table.wanted() if lock.startswith(SEMAPHORE)}
        self._limits = {lock: known for lock, known in self._limits.items() if lock in wanted}
        now = self._clock.monotonic()
        for lock in wanted:
            limit, read_at = self._limits.get(lock, (None, 0.0))
            every = MISSING_EVERY if limit is not None and limit.fault else LIMITS_EVERY
            if limit is None or now - read_at >= every.total_seconds():
                self._limits[lock] = (await self._limit(lock), now)
        for waiting in self.table.grant({lock: limit.count for lock, (limit, _) in self._limits.items()}):
            for key, live in self._live.items():
                if live.uid == waiting.workflow:
                    live.granted.append(waiting.asked)
                    self._look(key)

    async def _limit(self, lock: str) -> Limit:
        """Return how many holders a semaphore may have, from its ConfigMap."""
        _, namespace, name, entry = lock.split("/", 3)
        try:
            config = await self._api.get(CONFIGMAPS, name, namespace)
        except NotFound:
            return limit_of(name, entry, None)
        except Forbidden as error:
            return Limit(0, error.message)
        return limit_of(name, entry, config.get("data") or {})

    def explain(self, live: Live) -> timedelta | None:
        """Pass missing limits to a run; return when to look at them again.

        A strict run does not wait for them, as with Argo.
        """
        is_waiting = False
        for asked in self.table.asked_by(live.uid):
            limits = [self._limits[lock][0] for lock in asked.locks if lock in self._limits]
            reason = "; ".join(limit.fault for limit in limits if limit.fault)
            if reason and is_strict(live.run.workflow.document):
                self.release_node(live, asked.node)
                live.run.answer(asked, Refusal(reason))
            else:
                live.run.lock_waits(asked, reason)
            is_waiting |= bool(reason)
        return MISSING_EVERY if is_waiting else None
