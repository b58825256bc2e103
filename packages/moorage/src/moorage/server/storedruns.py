"""Stored records of runs and of steps of workflows, as far as a user may read them.

The keeper reads logs with the server's own rights, so each reader's rights are checked again: users
who may read the logs of pods in a namespace may read the stored logs of that namespace.
"""

from __future__ import annotations

from datetime import datetime

from moorage.api.errors import ErrorCode
from moorage.api.storedrecords import StoredLog, StoredPod, StoredRun
from moorage.decide.runs.storedruns import has_own_log
from moorage.model.argo import WORKFLOWS
from moorage.model.names import is_dns_label
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage.server.namespaces import is_too_old, oldest_for
from moorage_kube.errors import Forbidden, NotFound, ServerError, StorageError
from moorage_kube.resources import JOBS, Resource


class RecordsForUser:
    """The records that a user may read: `RunRecords` and `StepRecords` of `actions.storedrecords`.

    Raises ServerError while the store is unavailable.
    """

    def __init__(self, context: Context, user: User) -> None:
        self._context = context
        self._user = user

    async def run(self, namespace: str, name: str) -> StoredRun:
        """Facts of the newest run of this name. The caller decides which of them the user may see."""
        try:
            run = await self._context.keeper.read_run(namespace, name)
        except StorageError as error:
            raise ServerError(f"stored records of runs cannot be read: {error.message}", status=503) from error
        if not run.attempts or (since := await self._oldest(JOBS, namespace)) is None:
            return run
        uids = {attempt.job_uid for attempt in run.attempts if not is_too_old(attempt.created, since)}
        return StoredRun(
            attempts=tuple(attempt for attempt in run.attempts if attempt.job_uid in uids),
            pods=tuple(pod for pod in run.pods if pod.job_uid in uids),
        )

    async def log(self, namespace: str, name: str, uid: str) -> StoredLog:
        """The stored log of a pod. Raises Forbidden if the user may not read the logs of pods there, NotFound
        for a pod of another run.
        """
        await self._check_logs(namespace)
        if all(pod.uid != uid for pod in (await self.run(namespace, name)).pods):
            raise NotFound(f"there are no stored records of pod {uid!r} of run {name}", code=ErrorCode.NOT_FOUND)
        return await self._log(uid)

    async def steps(self, namespace: str, workflow: str, uid: str, *, pod: str = "") -> tuple[StoredPod, ...]:
        """Facts of the pods of the Workflow with this uid. The caller has checked that the user may read it."""
        try:
            pods = await self._context.keeper.read_steps(namespace, workflow, uid, pod=pod)
        except StorageError as error:
            raise ServerError(f"stored records of steps cannot be read: {error.message}", status=503) from error
        if not pods or (since := await self._oldest(WORKFLOWS, namespace)) is None:
            return pods
        return tuple(each for each in pods if not is_too_old(each.created, since))

    async def step_log(
        self, namespace: str, workflow: str, uid: str, pod: str, *, container: str = ""
    ) -> StoredLog:
        """The stored log of a step. Raises Forbidden if the user may not read the logs of pods there, NotFound
        for a pod of another workflow.
        """
        await self._check_logs(namespace)
        kept = await self._pod_of(pod, namespace, workflow, uid)
        if kept is None:
            raise NotFound(
                f"there are no stored records of pod {pod!r} of workflow {workflow}", code=ErrorCode.NOT_FOUND
            )
        if has_own_log(kept, container):
            return await self._log(pod)
        return await self._log(pod, container) if is_dns_label(container) else StoredLog()

    async def _pod_of(self, pod: str, namespace: str, workflow: str, uid: str) -> StoredPod | None:
        """The stored record of the pod with this uid, if it is of the Workflow."""
        try:
            kept = await self._context.keeper.read_pod(pod)
        except StorageError as error:
            raise ServerError(f"stored records of steps cannot be read: {error.message}", status=503) from error
        if kept is None or (kept.namespace, kept.workflow, kept.job_uid) != (namespace, workflow, uid):
            return None
        return None if is_too_old(kept.created, await self._oldest(WORKFLOWS, namespace)) else kept

    async def _check_logs(self, namespace: str) -> None:
        """Raises Forbidden."""
        if not await self._context.auth.may_read_logs(self._user, namespace):
            raise Forbidden(
                f"{self._user.name} may not read the logs of pods in namespace {namespace}",
                code=ErrorCode.FORBIDDEN,
            )

    async def _log(self, uid: str, container: str = "") -> StoredLog:
        try:
            return await self._context.keeper.read_log(uid, container)
        except StorageError as error:
            raise ServerError(f"the stored log cannot be read: {error.message}", status=503) from error

    async def _oldest(self, resource: Resource, namespace: str) -> datetime | None:
        return await oldest_for(self._context, self._user, "get", resource, namespace)
