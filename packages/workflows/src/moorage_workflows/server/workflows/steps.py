"""/api/v1/steps: requests of the executors in steps' pods. The bearer is the token of their workflow.

The token's SHA-256 is in the workflow's record. It gives the right to store artifacts and reports for
pods of that workflow while it runs, and to read artifacts of its namespace: every key is taken to be
below that namespace.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Literal

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from moorage.api.errors import ErrorCode
from moorage.api.fields import Query
from moorage.server.context import Context
from moorage.server.identity.auth import STEPS_PREFIX, bearer_of, same
from moorage.server.inputs import decode, decode_query, read_bytes
from moorage.server.namespaces import is_too_old, records_since
from moorage.server.problems import Json, Problem, as_problem
from moorage_kube.bodies import BodyTooLong
from moorage_kube.cache import BoundedCache
from moorage_kube.errors import ApiError, QuotaExceeded, StorageError, StorageFull
from moorage_kube.moments import moment
from moorage_workflows.model.workflow import ENDED_PHASES, RESULT_BYTES, Artifact, StepReport, WorkflowRecord
from moorage_workflows.workflows.artifacts import Artifacts, make_key
from moorage_workflows.workflows.records import LocalRecords

REPORT_BYTES = 4 << 20  # of a whole report
PARAMETER_BYTES = 256 << 10  # of one output parameter; Argo keeps all of them in an object of 1 MiB
PARAMETERS = 500  # output parameters of one step, and artifacts
ERROR_CHARACTERS = 4096
NAME_CHARACTERS = 255
KNOWN_SECONDS = 10.0  # a run's record is believed this long
KNOWN = 4096

_POD = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9_][-A-Za-z0-9_.]{0,254}")


class Put(Query):
    """The query of an upload. `key`: its place in the namespace; "": a key from workflow, pod and artifact.

    `below`: the file is one of a folder, with this name below the key.
    """

    archive: Literal["tar", "zip", "none"] = "tar"
    key: str = ""
    below: str = ""


class Get(Query):
    """`below`: return not the artifact, but the keys below its key, relative to it; empty: all keys."""

    key: str = ""
    below: bool = False


class Steps:
    """The routes of executors."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._runs: BoundedCache[str, WorkflowRecord] = BoundedCache(
            KNOWN, keep_seconds=KNOWN_SECONDS, clock=context.clock
        )

    async def store_artifact(self, request: Request) -> Response:
        """For steps of workflows: store an output artifact, as a stream. The answer is an Artifact."""
        run, _ = await self._run(request)
        pod, name = await self._pod(request, run), _named(request, "artifact", _NAME)
        asked = decode_query(request.query_params.multi_items(), Put)
        key = asked.key or make_key(run.name, pod, name, asked.archive)
        key += f"/{asked.below}" if asked.below else ""
        artifacts = self._context.part(Artifacts)
        try:
            stored = await artifacts.put(
                _body(request), f"{run.namespace}/{key}", name=name, archive=asked.archive
            )
        except BodyTooLong as error:
            raise Problem(
                413,
                ErrorCode.TOO_LARGE,
                f"artifact {name} has more than {artifacts.most_bytes} bytes",
                "save less, save it to a bucket (`s3`, `gcs`), or ask an administrator for MOORAGE_ARTIFACT_BYTES",
            ) from error
        except ClientDisconnect:
            raise Problem(400, ErrorCode.BAD_REQUEST, "the artifact was not sent to its end") from None
        except QuotaExceeded as error:
            raise Problem(403, ErrorCode.QUOTA_EXCEEDED, error.message, error.hint) from error
        except (ApiError, StorageError) as error:
            raise _problem(error) from error
        return Json(msgspec.structs.replace(stored, key=key))

    async def fetch_artifact(self, request: Request) -> Response:
        """For steps of workflows: fetch an artifact of the workflow's namespace by its `key`, as it is stored."""
        run, since = await self._run(request)
        asked = decode_query(request.query_params.multi_items(), Get)
        if not (asked.key or asked.below):
            raise Problem(422, ErrorCode.INVALID, "the key of the artifact is missing", field="key")
        try:
            if asked.below:
                within = f"{run.namespace}/{asked.key}" if asked.key else run.namespace
                return Json(await self._context.part(Artifacts).below(within, since))
            content = await self._context.part(Artifacts).open(f"{run.namespace}/{asked.key}", since)
        except (ApiError, StorageError) as error:
            raise _problem(error) from error
        return StreamingResponse(
            content.parts,
            media_type="application/octet-stream",
            headers={"content-length": str(content.size_bytes)},
        )

    async def report(self, request: Request) -> Response:
        """For steps of workflows: report the outputs of a step. The first report of a pod counts."""
        run, _ = await self._run(request)
        pod = await self._pod(request, run)
        report = decode(await read_bytes(request, REPORT_BYTES) or b"{}", StepReport)
        check_report(report)
        try:
            await self._context.part(LocalRecords).report(run.uid, pod, report)
        except (ApiError, StorageError) as error:
            raise _problem(error) from error
        return Response(status_code=204)

    async def _pod(self, request: Request, run: WorkflowRecord) -> str:
        """Return the pod of the calling step.

        Raises Problem 425 for a pod that the workflow has not created, and 503.

        Without this check invented names could fill the store. After a restore the operator records the pod
        again.
        """
        pod = _named(request, "pod", _POD)
        try:
            is_known = await self._context.part(LocalRecords).has_pod(run.uid, pod)
        except StorageError as error:
            raise _problem(error) from error
        if not is_known:
            raise Problem(
                425,
                ErrorCode.TOO_EARLY,
                f"no step of workflow {run.namespace}/{run.name} has the pod {pod}",
                "ask again when the operator has recorded it",
            )
        return pod

    async def _run(self, request: Request) -> tuple[WorkflowRecord, datetime | None]:
        """Return the workflow of the request's token, and the creation time of its namespace.

        Raises Problem 401, 410 if the workflow has ended, 503.
        """
        uid = str(request.path_params["uid"])
        digest = "sha256:" + hashlib.sha256(bearer_of(request.headers).encode()).hexdigest()
        run = self._runs.get(uid)
        if run is None or not same(run.token_digest, digest) or _is_over(run):
            try:
                run = await self._context.part(LocalRecords).run(uid)
            except StorageError as error:
                raise _problem(error) from error
            if run is not None:
                self._runs.put(uid, run)
        if run is None or not same(run.token_digest, digest):
            raise Problem(
                401,
                ErrorCode.UNAUTHORIZED,
                f"the token is not that of workflow {uid[:64]}",
                "the token is in the workflow's Secret; a deleted workflow has none",
            )
        try:
            since = await records_since(self._context.api, run.namespace)
        except ApiError as error:
            raise as_problem(error) from error
        if _is_over(run) or is_too_old(moment(run.created_at), since):
            raise Problem(
                410,
                ErrorCode.GONE,
                f"workflow {run.namespace}/{run.name} has ended",
                "its steps save nothing more",
            )
        return run, since


def routes(context: Context) -> list[Route]:
    steps = Steps(context)
    return [
        Route(f"{STEPS_PREFIX}{{uid}}/artifacts", steps.fetch_artifact, methods=["GET"]),
        Route(f"{STEPS_PREFIX}{{uid}}/{{pod}}/artifacts/{{artifact}}", steps.store_artifact, methods=["PUT"]),
        Route(f"{STEPS_PREFIX}{{uid}}/{{pod}}/report", steps.report, methods=["POST"]),
    ]


def check_report(report: StepReport) -> None:
    """Raise Problem 413 for outputs that are too large to store, or too many."""
    outputs = report.outputs
    for what, count in (("parameters", len(outputs.parameters)), ("artifacts", len(outputs.artifacts))):
        if count > PARAMETERS:
            raise _too_large(f"{count} output {what}; at most {PARAMETERS}", f"outputs.{what}")
    for name, value in outputs.parameters.items():
        if len(name) > NAME_CHARACTERS:
            raise _too_large(
                f"a parameter's name has {len(name)} characters; at most {NAME_CHARACTERS}", "outputs.parameters"
            )
        if (size := len(value.encode(errors="replace"))) > PARAMETER_BYTES:
            raise _too_large(
                f"output parameter {name} has {size} bytes; at most {PARAMETER_BYTES}",
                f"outputs.parameters.{name}",
            )
    if (size := len((outputs.result or "").encode(errors="replace"))) > RESULT_BYTES:
        raise _too_large(f"the result has {size} bytes; at most {RESULT_BYTES}", "outputs.result")
    if len(report.error) > ERROR_CHARACTERS:
        raise _too_large(f"the error has {len(report.error)} characters; at most {ERROR_CHARACTERS}", "error")
    for artifact in outputs.artifacts:
        _check_artifact(artifact)


def _check_artifact(artifact: Artifact) -> None:
    if len(msgspec.json.encode(artifact)) > PARAMETER_BYTES:
        raise _too_large(f"the entry of artifact {artifact.name[:64]} is too long", "outputs.artifacts")


def _too_large(message: str, field: str) -> Problem:
    return Problem(413, ErrorCode.TOO_LARGE, message, "save it as an artifact", field)


def _named(request: Request, name: str, pattern: re.Pattern[str]) -> str:
    value = str(request.path_params[name])
    if pattern.fullmatch(value) is None:
        raise Problem(422, ErrorCode.INVALID, f"{value[:64]!r} is not a name of a {name}", field=name)
    return value


def _is_over(run: WorkflowRecord) -> bool:
    return run.phase in ENDED_PHASES or bool(run.gone_at)


async def _body(request: Request) -> AsyncIterator[bytes]:
    async for part in request.stream():
        if part:
            yield part


def _problem(error: ApiError | StorageError) -> Problem:
    if isinstance(error, ApiError):
        return as_problem(error)
    return Problem(
        507 if isinstance(error, StorageFull) else 503,
        ErrorCode.STORAGE_FULL if isinstance(error, StorageFull) else ErrorCode.UNAVAILABLE,
        error.message,
        error.hint,
    )
