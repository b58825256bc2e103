"""Routes for the records and logs of a run that the server stores after its pods are deleted."""

from __future__ import annotations

from typing import Any

from moorage.api.errors import ErrorCode
from moorage.api.storedrecords import Erased, StoredLog, StoredRun
from moorage.server.endpoint import Call, Endpoint
from moorage.server.namespaces import oldest_for
from moorage.server.problems import Problem
from moorage.server.rest.jobs import ONE
from moorage.server.storedruns import RecordsForUser
from moorage_kube.errors import ServerError, StorageError
from moorage_kube.resources import JOBS, Resource

RECORDS = f"{ONE}/records"


async def show_records(call: Call[None, None]) -> StoredRun:
    """Show the stored records of the newest run of a name; for users who may read its Job."""
    await check_right(call, "get", JOBS)
    return await RecordsForUser(call.context, call.user).run(call.namespace, call.name)


async def show_stored_log(call: Call[None, None]) -> StoredLog:
    """Show the stored end of the log of a pod of a run; for users who may read logs of pods in its
    namespace.
    """
    return await RecordsForUser(call.context, call.user).log(call.namespace, call.name, str(call.path["uid"]))


async def erase_records(call: Call[None, None]) -> Erased:
    """Delete the stored records and logs of all runs of a name, permanently; for users who may delete its
    Job.
    """
    await check_right(call, "delete", JOBS)
    call.audit("erase stored records of run", f"{call.namespace}/{call.name}")
    try:
        since = await oldest_for(call.context, call.user, "delete", JOBS, call.namespace)
        return Erased(pods=await call.context.keeper.erase(call.namespace, call.name, since))
    except StorageError as error:
        raise ServerError(f"stored records cannot be erased: {error.message}", status=503) from error


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=RECORDS, handler=show_records, answer=StoredRun),
    Endpoint(method="GET", path=f"{RECORDS}/{{uid}}", handler=show_stored_log, answer=StoredLog),
    Endpoint(method="DELETE", path=RECORDS, handler=erase_records, answer=Erased),
)


async def check_right(call: Call[None, Any], verb: str, resource: Resource) -> None:
    """Raises Problem 403."""
    auth, kind = call.context.auth, resource.plural
    if not await auth.may(call.user, verb, kind, group=resource.group, namespace=call.namespace):
        raise Problem(
            403, ErrorCode.FORBIDDEN, f"{call.user.name} may not {verb} {kind} in namespace {call.namespace}"
        )
