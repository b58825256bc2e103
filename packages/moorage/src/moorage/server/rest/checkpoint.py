"""POST /api/v1/runs/{namespace}/{run}/checkpoint: a run's runner reports how new its newest checkpoint
is.

The bearer is the run's own token; its SHA-256 is on the run's first Job. A report is written to that
Job's annotations, at most every WRITE_SECONDS unless there is a newer file.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Annotated, Any

import msgspec

from moorage.api.errors import ErrorCode
from moorage.api.fields import Answer
from moorage.decide.runs.gitaddress import pinned
from moorage.decide.runs.runfile import stored_request
from moorage.model.names import (
    CHECKPOINT_AT_ANNOTATION,
    CHECKPOINT_CHECKED_ANNOTATION,
    GIT_ANNOTATION,
    REPORT_TOKEN_ANNOTATION,
    RUN_LABEL,
)
from moorage.server.context import Context
from moorage.server.endpoint import Call, Endpoint
from moorage.server.identity.auth import bearer_of, same
from moorage.server.inputs import read_as
from moorage.server.problems import Problem
from moorage_kube.errors import NotFound
from moorage_kube.meta import annotations_of, labels_of
from moorage_kube.moments import rfc3339
from moorage_kube.resources import JOBS, Obj

BODY_BYTES = 4096

Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class CheckpointReport(msgspec.Struct, kw_only=True):
    """`newest` null: there is no file yet; `files`: the number of files.

    `commit`: the git commit that the run has checked out; such a report is of nothing else.
    """

    newest: Moment | None
    checked: Moment
    files: Annotated[int, msgspec.Meta(ge=0)] | None = None
    commit: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{40,64}$")] | None = None


class Recorded(Answer, frozen=True, omit_defaults=True):
    """Whether the report was written to the run. `commit`: the commit of its first attempt."""

    recorded: bool
    commit: str | None = None


async def report_checkpoint(call: Call[None, None]) -> Recorded:
    """Report the age of the newest checkpoint of a run. Only the run's own token may do this."""
    context, run = call.context, (call.namespace, str(call.path["run"]))
    namespace, name = run
    job = await _first_job(context, namespace, name)
    digest = hashlib.sha256(bearer_of(call.request.headers).encode()).hexdigest()
    if job is None or not same(annotations_of(job).get(REPORT_TOKEN_ANNOTATION, ""), digest):
        raise Problem(
            401,
            ErrorCode.UNAUTHORIZED,
            f"the token is not that of run {namespace}/{name}",
            "the token is in the run's Secret; a deleted run has none",
        )
    hint = "send {newest: RFC 3339 or null, checked: RFC 3339}"
    report = await read_as(
        call.request, CheckpointReport, BODY_BYTES, hint=hint
    )  # bodies of other callers are not read
    if report.commit is not None:
        request = stored_request(job)
        if request is None or request.git is None:
            return Recorded(recorded=False)
        job = await context.api.get(JOBS, name, namespace)  # newer than the watch
        if first := annotations_of(job).get(GIT_ANNOTATION, "").rpartition("@")[2]:
            return Recorded(recorded=False, commit=first)
        note = {GIT_ANNOTATION: pinned(request.git, report.commit)}
        await context.api.patch(JOBS, name, {"metadata": {"annotations": note}}, namespace, kind="merge")
        return Recorded(recorded=True, commit=report.commit)
    newest = rfc3339(report.newest) if report.newest else None
    if context.reports.is_written(run, newest):
        return Recorded(recorded=False)
    notes = {CHECKPOINT_AT_ANNOTATION: newest, CHECKPOINT_CHECKED_ANNOTATION: rfc3339(report.checked)}
    patch = {"metadata": {"annotations": notes}}
    await context.api.patch(JOBS, job["metadata"]["name"], patch, namespace, kind="merge")
    context.reports.remember(run, newest)
    return Recorded(recorded=True)


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(
        method="POST",
        path="/api/v1/runs/{namespace}/{run}/checkpoint",
        handler=report_checkpoint,
        answer=Recorded,
    ),
)


async def _first_job(context: Context, namespace: str, run: str) -> Obj | None:
    """The run's first Job, which has the run's name. Read from the API if the watch has not seen it yet."""
    job = context.cluster.jobs.get(run, namespace)
    if job is None:
        try:
            job = await context.api.get(JOBS, run, namespace)
        except NotFound:
            return None
    return job if labels_of(job).get(RUN_LABEL) == run else None
