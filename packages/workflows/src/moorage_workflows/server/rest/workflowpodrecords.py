"""`/records` of a workflow: the server's records of the deleted pods of its steps."""

from __future__ import annotations

from typing import Any

from moorage.api.errors import ErrorCode
from moorage.api.storedrecords import Erased, StoredLog, StoredSteps, WhichLog, WhichPods
from moorage.model.argo import WORKFLOWS
from moorage.server.endpoint import Call, Endpoint
from moorage.server.namespaces import oldest_for
from moorage.server.rest.storedrecords import check_right
from moorage.server.storedruns import RecordsForUser
from moorage_kube.errors import NotFound, ServerError, StorageError
from moorage_workflows.workflows.records import LocalRecords

STEPS = "/api/v1/workflows/{namespace}/{name}/records"


async def show_step_records(call: Call[None, WhichPods]) -> StoredSteps:
    """Show the records of the pods of a workflow's steps; for users who may read workflows there."""
    await check_right(call, "get", WORKFLOWS)
    uid = call.query.uid or await _newest(call)
    kept = RecordsForUser(call.context, call.user)
    return StoredSteps(pods=await kept.steps(call.namespace, call.name, uid, pod=call.query.pod))


async def show_stored_step_log(call: Call[None, WhichLog]) -> StoredLog:
    """Show the stored end of the log of a container of a step's pod; for users who may read logs of pods there."""
    uid = call.query.uid or await _newest(call)
    kept = RecordsForUser(call.context, call.user)
    pod, container = str(call.path["uid"]), call.query.container
    return await kept.step_log(call.namespace, call.name, uid, pod, container=container)


async def erase_step_records(call: Call[None, None]) -> Erased:
    """Erase the records and logs of the pods of all workflows of a name, permanently; for users who may delete
    workflows.
    """
    await check_right(call, "delete", WORKFLOWS)
    call.audit("erase records of pods of workflow", f"{call.namespace}/{call.name}")
    try:
        since = await oldest_for(call.context, call.user, "delete", WORKFLOWS, call.namespace)
        return Erased(pods=await call.context.keeper.erase_steps(call.namespace, call.name, since))
    except StorageError as error:
        raise ServerError(f"the records cannot be erased: {error.message}", status=503) from error


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=STEPS, handler=show_step_records, query=WhichPods, answer=StoredSteps),
    Endpoint(
        method="GET", path=f"{STEPS}/{{uid}}", handler=show_stored_step_log, query=WhichLog, answer=StoredLog
    ),
    Endpoint(method="DELETE", path=STEPS, handler=erase_step_records, answer=Erased),
)


async def _newest(call: Call[None, Any]) -> str:
    """Return the uid of the newest workflow of this name. Raises NotFound."""
    try:
        since = await oldest_for(call.context, call.user, "get", WORKFLOWS, call.namespace)
        record = await call.context.part(LocalRecords).get(call.namespace, call.name, since)
    except StorageError as error:
        raise ServerError(f"the records of workflows cannot be read: {error.message}", status=503) from error
    if record is None:
        raise NotFound(f"there are no records of workflow {call.namespace}/{call.name}", code=ErrorCode.NOT_FOUND)
    return record.uid
