"""GET /api/v1/jobs: every run, with what everybody may know of it."""

from __future__ import annotations

from datetime import datetime

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moorage.apimachinery.moments import rfc3339
from moorage.apimachinery.resources import Obj
from moorage.decide.runstate import RunView, State
from moorage.server.context import Context
from moorage.server.problems import Json, Problem


def routes(context: Context) -> list[Route]:
    async def jobs(request: Request) -> Response:
        """Every run, with what everybody may know of it; `namespace`, `owner` and `state` choose."""
        cluster = await context.ready()
        wanted = {name: request.query_params.get(name) for name in ("namespace", "owner", "state")}
        if wanted["state"] is not None and wanted["state"] not in list(State):
            raise Problem(
                400, "bad_request", f"state is {wanted['state']!r}", f"use one of: {', '.join(State)}", "state"
            )
        return Json(
            {
                "now": rfc3339(context.now()),
                "jobs": [
                    run_json(run)
                    for run in cluster.runs()
                    if all(value in (None, str(getattr(run, name))) for name, value in wanted.items())
                ],
            }
        )

    return [Route("/api/v1/jobs", jobs, methods=["GET"])]


def run_json(run: RunView) -> Obj:
    """The public fields of a run: not its command, environment or logs."""
    return {
        "namespace": run.namespace,
        "name": run.name,
        "owner": run.owner,
        "state": str(run.state),
        "reason": run.reason,
        "gpus": run.gpus,
        "gpuType": run.gpu_type,
        "node": run.node,
        "created": _time(run.created),
        "started": _time(run.started),
        "ended": _time(run.ended),
        "attempts": len(run.attempts),
        "restarts": run.restarts,
        "restartLimit": run.restart_limit,
        "exitCode": run.exit_code,
        "checkpoint": run.checkpoint,
        "checkpointAt": _time(run.checkpoint_at),
        "checkpointCheckedAt": _time(run.checkpoint_checked_at),
    }


def _time(moment: datetime | None) -> str | None:
    return rfc3339(moment) if moment else None
