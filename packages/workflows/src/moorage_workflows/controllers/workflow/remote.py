"""The store of records over HTTP: the server has the database, and the operator uses it with its own token."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import TypeVar

import aiohttp
import msgspec

from moorage.api.errors import ErrorAnswer, ErrorCode
from moorage.cluster.serverurl import server_url
from moorage.controllers.base import OperatorApi
from moorage_kube.backoff import DoublingDelay
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import (
    ApiError,
    BadRequest,
    Conflict,
    MoorageError,
    NotFound,
    QuotaExceeded,
    ServerError,
    StorageError,
    TooLarge,
)
from moorage_workflows.api.workflowrecords import (
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
from moorage_workflows.model.workflow import (
    ArtifactName,
    Loaded,
    Memo,
    MetricPoint,
    NodeRecord,
    StepReport,
    WorkflowRecord,
)

log = logging.getLogger(__name__)

TRIES = 4
PAUSES = DoublingDelay(0.2, 2.0)  # before another try: 1.4 s in all, as long as a server takes to be replaced
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 60.0  # a save of 10,000 nodes takes 2 s on a slow disk
ERROR_BYTES = 64 * 1024

T = TypeVar("T")
_REFUSALS: dict[int, type[ApiError]] = {404: NotFound, 409: Conflict, 413: TooLarge, 422: BadRequest}


class RemoteStore:
    """A `RecordStore` over HTTP; see that class for the methods. Close it after use.

    A request without an answer is sent again: each call may be made twice. `guard` is called before each
    write, and raises ApiError to stop it, as in `KubeClient.guarded`.
    """

    def __init__(
        self, api: OperatorApi, *, guard: Callable[[], None] | None = None, clock: Clock = SYSTEM
    ) -> None:
        self._api, self._guard, self._clock = api, guard, clock
        self._address = ""
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def begin(self, record: WorkflowRecord) -> WorkflowRecord:
        return await self._ask("begin", Begin(record=record), WorkflowRecord)

    async def load(self, uid: str, holder: str) -> Loaded:
        return await self._ask("load", Load(uid=uid, holder=holder), Loaded)

    async def save(
        self,
        uid: str,
        holder: str,
        nodes: Sequence[NodeRecord] = (),
        workflow: WorkflowRecord | None = None,
        metrics: Sequence[MetricPoint] = (),
    ) -> tuple[str, ...]:
        body = Save(uid=uid, holder=holder, nodes=tuple(nodes), workflow=_bare(workflow), metrics=tuple(metrics))
        return (await self._ask("save", body, Saved)).problems

    async def forget_nodes(
        self, uid: str, holder: str, ids: Collection[str], workflow: WorkflowRecord | None = None
    ) -> None:
        body = ForgetNodes(uid=uid, holder=holder, ids=tuple(ids), workflow=_bare(workflow))
        await self._ask("forget-nodes", body, Nothing)

    async def delete_artifacts(self, uid: str, holder: str, artifacts: Sequence[ArtifactName]) -> tuple[str, ...]:
        body = DeleteArtifacts(uid=uid, holder=holder, artifacts=tuple(artifacts))
        return (await self._ask("delete-artifacts", body, Left)).failures

    async def mark_deleted(self, uid: str, holder: str, artifacts: Sequence[ArtifactName]) -> None:
        body = DeleteArtifacts(uid=uid, holder=holder, artifacts=tuple(artifacts))
        await self._ask("mark-deleted", body, Nothing)

    async def reports(self, uid: str, pods: Collection[str]) -> tuple[StepReport, ...]:
        return (await self._ask("reports", AskReports(uid=uid, pods=tuple(pods)), Reports)).reports

    async def unfinished(self) -> tuple[str, ...]:
        return (await self._ask("unfinished", Nothing(), Uids)).uids

    async def gone(self, uid: str, at: datetime) -> None:
        await self._ask("gone", Gone(uid=uid, at=at), Nothing)

    async def remember(self, namespace: str, cache: str, key: str, memo: Memo) -> None:
        await self._ask("remember", Remember(namespace=namespace, cache=cache, key=key, memo=memo), Nothing)

    async def recall(self, namespace: str, cache: str, key: str, *, since: datetime | None = None) -> Memo | None:
        body = Recall(namespace=namespace, cache=cache, key=key, since=since)
        return (await self._ask("recall", body, Recalled)).memo

    async def _ask(self, verb: str, body: msgspec.Struct, kind: type[T]) -> T:
        data, failures = msgspec.json.encode(body), 0
        while True:
            if self._guard is not None and verb not in ("reports", "unfinished", "recall"):
                self._guard()
            try:
                return await self._send(verb, data, kind)
            except StorageError as error:
                self._address = ""  # it may be another by now
                failures += 1
                if failures >= TRIES:
                    raise
                log.info("asking the server again", extra={"verb": verb, "error": error.message})
            await self._clock.sleep(PAUSES.after(failures) * random.uniform(0.7, 1.0))

    async def _send(self, verb: str, data: bytes, kind: type[T]) -> T:
        url = f"{await self._where()}{RECORDS_PATH}/{verb}"
        try:
            authorization = await self._api.authorization()
        except MoorageError as error:
            raise StorageError(f"records of workflows cannot be reached: {error.message}") from error
        if not authorization:
            raise StorageError(
                "records of workflows cannot be reached: the operator has no token for the server",
                hint="a client certificate is not enough: use a kubeconfig with a token for the operator",
            )
        headers = {"authorization": authorization, "content-type": "application/json"}
        try:
            async with self._open().post(url, data=data, headers=headers, allow_redirects=False) as answer:
                if answer.status == 200:
                    content = await answer.read()
                else:
                    raise _refusal(verb, answer.status, await answer.content.read(ERROR_BYTES))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise StorageError(
                f"records of workflows cannot be reached at {url}: {str(error) or type(error).__name__}"
            ) from error
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ServerError(f"POST {url}: the answer cannot be read: {error}") from error

    async def _where(self) -> str:
        if not self._address:
            self._address = (await server_url(self._api)).rstrip("/")
        if not self._address:
            raise StorageError(
                "the address of the server is not known", hint="it is the serverUrl in the ConfigMap moorage"
            )
        return self._address

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout)
        return self._session


def _bare(workflow: WorkflowRecord | None) -> WorkflowRecord | None:
    """Return the run without its document, which cannot change in the store."""
    return workflow if workflow is None else msgspec.structs.replace(workflow, document={})


def _refusal(verb: str, status: int, body: bytes) -> MoorageError:
    try:
        answer = msgspec.json.decode(body, type=ErrorAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer = ErrorAnswer(code="", message=f"HTTP {status}")
    if (refusal := _REFUSALS.get(status)) is not None and answer.code:
        return refusal(answer.message, hint=answer.hint, field=answer.field)
    if answer.code == ErrorCode.QUOTA_EXCEEDED:
        return QuotaExceeded(answer.message, hint=answer.hint)
    if status in (401, 403, 429) or status >= 500 or not answer.code:
        return StorageError(f"records of workflows: {verb}: {answer.message}", hint=answer.hint)
    return ServerError(f"records of workflows: {verb}: HTTP {status}: {answer.message}", hint=answer.hint)
