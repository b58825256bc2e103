"""POST /api/v1/runs/{namespace}/{run}/checkpoint: a run's runner tells how new its newest checkpoint is.

The bearer is the run's own token: its SHA-256 stands on the run's first Job. What is told goes into that Job's
annotations, at most every WRITE_SECONDS unless there is a newer file.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moorage.apimachinery.cache import BoundedCache
from moorage.apimachinery.meta import annotations_of, labels_of
from moorage.apimachinery.moments import rfc3339
from moorage.apimachinery.resources import JOBS, Obj
from moorage.errors import NotFound
from moorage.model.names import (
    CHECKPOINT_AT_ANNOTATION,
    CHECKPOINT_CHECKED_ANNOTATION,
    REPORT_TOKEN_ANNOTATION,
    RUN_LABEL,
)
from moorage.server.context import Context
from moorage.server.identity.auth import bearer_of, same
from moorage.server.inputs import read_as
from moorage.server.problems import Json, Problem

BODY_BYTES = 4096
WRITE_SECONDS = 5.0
REMEMBERED = 10_000  # runs whose last write is remembered; more than report at a time

Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class Report(msgspec.Struct, forbid_unknown_fields=False):
    """The body. `newest` null: no file is there yet; `files`: how many there are."""

    newest: Moment | None
    checked: Moment
    files: Annotated[int, msgspec.Meta(ge=0)] | None = None


def routes(context: Context) -> list[Route]:
    written: BoundedCache[tuple[str, str], str] = BoundedCache(
        REMEMBERED, keep_seconds=WRITE_SECONDS, clock=context.clock
    )  # the newest file; empty: none

    async def checkpoint(request: Request) -> Response:
        """A run's runner tells how new its newest checkpoint is; the bearer is the run's own token."""
        namespace, run = request.path_params["namespace"], request.path_params["run"]
        job = await _first_job(context, namespace, run)
        digest = hashlib.sha256(bearer_of(request.headers).encode()).hexdigest()
        if job is None or not same(annotations_of(job).get(REPORT_TOKEN_ANNOTATION, ""), digest):
            raise Problem(
                401,
                "unauthorized",
                f"the token is not that of run {namespace}/{run}",
                "the token is in the run's Secret; a deleted run has none",
            )
        report = await read_as(
            request, Report, BODY_BYTES, hint="send {newest: RFC 3339 or null, checked: RFC 3339}"
        )
        newest = rfc3339(report.newest) if report.newest else None
        if written.get((namespace, run)) == (newest or ""):
            return Json({"recorded": False})
        notes = {CHECKPOINT_AT_ANNOTATION: newest, CHECKPOINT_CHECKED_ANNOTATION: rfc3339(report.checked)}
        await context.api.patch(
            JOBS, job["metadata"]["name"], {"metadata": {"annotations": notes}}, namespace, kind="merge"
        )
        written.put((namespace, run), newest or "")
        return Json({"recorded": True})

    return [Route("/api/v1/runs/{namespace}/{run}/checkpoint", checkpoint, methods=["POST"])]


async def _first_job(context: Context, namespace: str, run: str) -> Obj | None:
    """The run's first Job: it bears the run's name. Asked of the API when the watch has not brought it yet."""
    job = context.cluster.jobs.get(run, namespace)
    if job is None:
        try:
            job = await context.api.get(JOBS, run, namespace)
        except NotFound:
            return None
    return job if labels_of(job).get(RUN_LABEL) == run else None
