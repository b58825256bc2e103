"""POST /api/v1/internal/workflows/{verb}: the records, for callers who may `update
workflownodes.moorage.dev`.

That is the operator. Its requests have no rate limit and are not in the audit log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moorage.api.errors import ErrorCode
from moorage.model.manifests.services import RECORDS_RIGHT
from moorage.server.context import Context
from moorage.server.inputs import decode, read_bytes
from moorage.server.namespaces import records_since
from moorage.server.problems import Problem, as_problem
from moorage_kube.errors import ApiError, StorageError
from moorage_workflows.api.workflowrecords import (
    RECORDS_BYTES,
    RECORDS_PATH,
    AskReports,
    Begin,
    DeleteArtifacts,
    ForgetNodes,
    Gone,
    Left,
    Load,
    Nothing,
    Recall,
    Recalled,
    Remember,
    Reports,
    Save,
    Saved,
    Uids,
)
from moorage_workflows.workflows.records import LocalRecords

LARGE = 256 * 1024  # bytes of a body that is read, or of an answer that is written, in a thread

B = TypeVar("B")


class Verb(Struct, Generic[B], frozen=True):
    body: type[B]
    do: Callable[[Context, B], Awaitable[Any]]


async def _begin(context: Context, asked: Begin) -> Any:
    since = await records_since(context.api, asked.record.namespace)
    return await context.part(LocalRecords).begin(asked.record, since)


async def _load(context: Context, asked: Load) -> Any:
    return await context.part(LocalRecords).load(asked.uid, asked.holder)


async def _save(context: Context, asked: Save) -> Any:
    problems = await context.part(LocalRecords).save(
        asked.uid, asked.holder, asked.nodes, asked.workflow, asked.metrics
    )
    return Saved(problems=problems)


async def _forget_nodes(context: Context, asked: ForgetNodes) -> Any:
    await context.part(LocalRecords).forget_nodes(asked.uid, asked.holder, asked.ids, asked.workflow)
    return Nothing()


async def _delete_artifacts(context: Context, asked: DeleteArtifacts) -> Any:
    return Left(
        failures=await context.part(LocalRecords).delete_artifacts(asked.uid, asked.holder, asked.artifacts)
    )


async def _mark_deleted(context: Context, asked: DeleteArtifacts) -> Any:
    await context.part(LocalRecords).mark_deleted(asked.uid, asked.holder, asked.artifacts)
    return Nothing()


async def _reports(context: Context, asked: AskReports) -> Any:
    return Reports(reports=await context.part(LocalRecords).reports(asked.uid, asked.pods))


async def _unfinished(context: Context, _asked: Nothing) -> Any:
    return Uids(uids=await context.part(LocalRecords).unfinished())


async def _gone(context: Context, asked: Gone) -> Any:
    await context.part(LocalRecords).gone(asked.uid, asked.at)
    return Nothing()


async def _remember(context: Context, asked: Remember) -> Any:
    await context.part(LocalRecords).remember(asked.namespace, asked.cache, asked.key, asked.memo)
    return Nothing()


async def _recall(context: Context, asked: Recall) -> Any:
    bounds = (asked.since, await records_since(context.api, asked.namespace))
    since = max((bound for bound in bounds if bound is not None), default=None)
    memo = await context.part(LocalRecords).recall(asked.namespace, asked.cache, asked.key, since=since)
    return Recalled(memo=memo)


VERBS: dict[str, Verb[Any]] = {
    "begin": Verb(Begin, _begin),
    "load": Verb(Load, _load),
    "save": Verb(Save, _save),
    "forget-nodes": Verb(ForgetNodes, _forget_nodes),
    "delete-artifacts": Verb(DeleteArtifacts, _delete_artifacts),
    "mark-deleted": Verb(DeleteArtifacts, _mark_deleted),
    "reports": Verb(AskReports, _reports),
    "unfinished": Verb(Nothing, _unfinished),
    "gone": Verb(Gone, _gone),
    "remember": Verb(Remember, _remember),
    "recall": Verb(Recall, _recall),
}


def routes(context: Context) -> list[Route]:
    async def answer_operator(request: Request) -> Response:
        """For the operator: read and write the records of workflows."""
        return await answer(context, request)

    return [Route(f"{RECORDS_PATH}/{{verb}}", answer_operator, methods=["POST"])]


async def answer(context: Context, request: Request) -> Response:
    """Answer one request of the operator. Raises Problem."""
    await _check(context, request)
    verb = VERBS.get(str(request.path_params["verb"]))
    if verb is None:
        raise Problem(404, ErrorCode.NOT_FOUND, "unknown verb", f"known are: {', '.join(VERBS)}")
    body = await read_bytes(request, RECORDS_BYTES) or b"{}"
    if len(body) > LARGE:
        asked = await asyncio.to_thread(decode, body, verb.body)
    else:
        asked = decode(body, verb.body)
    try:
        result = await verb.do(context, asked)
    except ApiError as error:
        raise as_problem(error) from error
    except StorageError as error:
        raise Problem(503, ErrorCode.UNAVAILABLE, error.message, error.hint) from error
    data = await asyncio.to_thread(msgspec.json.encode, result)
    return Response(data, media_type="application/json")


async def _check(context: Context, request: Request) -> None:
    """Raises Problem 403."""
    user = request.state.user
    if not await context.auth.may(user, "update", RECORDS_RIGHT.plural, group=RECORDS_RIGHT.group):
        raise Problem(
            403,
            ErrorCode.FORBIDDEN,
            f"{user.name} may not write the records of workflows",
            f"the operator may: it has the right to update {RECORDS_RIGHT.plural}.{RECORDS_RIGHT.group}",
        )
