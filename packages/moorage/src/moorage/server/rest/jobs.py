"""/api/v1/jobs: start, list, show, follow and cancel runs, as `moor run` and its sister commands do.

All users may read a run's public fields; all other access uses the caller's rights in the cluster.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

from starlette.responses import StreamingResponse

from moorage.actions import runs
from moorage.actions.runinputs import remote_caller
from moorage.actions.runlogs import Cut, Event, Line, RunLog, Unreadable
from moorage.actions.submit import pack_stored, request_of, submit_run
from moorage.actions.suspension import resume_run, suspend_run
from moorage.api.jobs import Job, JobChoice, JobEnd, JobList, JobLogs, JobSummary, NewJob
from moorage.api.overviews import JobOverview, OverviewQuery
from moorage.cluster.serverurl import server_url
from moorage.server.endpoint import Call, Endpoint
from moorage.server.runfacts import nodes_of
from moorage.server.runs import RunReader
from moorage.server.storedruns import RecordsForUser
from moorage_kube.api import PodApi

log = logging.getLogger(__name__)

ALL = "/api/v1/jobs"
ONE = f"{ALL}/{{namespace}}/{{name}}"


async def list_jobs(call: Call[None, JobChoice]) -> JobList:
    """List runs, with the fields that all users may see."""
    return await RunReader(call.context, call.user).list(call.query)


async def create_job(call: Call[NewJob, None]) -> tuple[int, Job]:
    """Start a run, as `moor run` does. With `dryRun` nothing is created.

    `Idempotency-Key`: asking twice is as once, also where the name is made up.
    """
    body, context = call.body, call.context
    call.audit("start run", f"{body.namespace}/{body.name or ''}")
    request, notes = request_of(body), list[str]()
    caller = remote_caller(call.user.name, body, salt=call.mark)
    submitted = await submit_run(
        call.api,
        request,
        caller,
        cluster_nodes=nodes_of(context, request),
        url=server_url(context.api),
        note=notes.append,
        mark="" if body.dry_run else call.mark,
        dry_run=body.dry_run,
        pack=await pack_stored(call.api, body),
    )
    run = RunReader(context, call.user).view(submitted.jobs)
    call.audit("start run", f"{run.namespace}/{run.name}")
    return 200 if body.dry_run else 201, runs.job_of(run, context.now(), private=False, notes=notes)


async def show_job(call: Call[None, None]) -> Job:
    """Show a run with its attempts. Only those who may read its Job see its command and messages."""
    reader = RunReader(call.context, call.user)
    return await reader.answer(await reader.show(call.namespace, call.name))


async def show_overview(call: Call[None, OverviewQuery]) -> JobOverview:
    """Show a run with its use, events and advice, as `moor show` does; for users who may list Jobs there."""
    reader = RunReader(call.context, call.user)
    return await reader.overview(call.namespace, call.name, advice=call.query.advice)


async def end_job(call: Call[None, JobEnd]) -> JobSummary | None:
    """Cancel a run; a run that has ended is deleted.

    Its pods get their grace period, no attempt follows, checkpoints stay.
    """
    context, delete, what = call.context, call.query.delete, f"{call.namespace}/{call.name}"
    call.audit("delete run" if delete else "cancel run", what)
    ended = await runs.cancel_run(call.api, call.namespace, call.name, by=call.user.name, delete=delete)
    if ended.is_deleted:
        call.audit("delete run", what)
        return None
    return runs.summary_of(RunReader(context, call.user).view(ended.jobs))


async def suspend_job(call: Call[None, None]) -> JobSummary:
    """Suspend a run: its pods get their grace period, and it holds nothing until it is resumed.

    It resumes from its checkpoint; without one it begins again from the start.
    """
    call.audit("suspend run", f"{call.namespace}/{call.name}")
    done = await suspend_run(call.api, call.namespace, call.name, by=call.user.name, clock=call.context.clock)
    return runs.summary_of(RunReader(call.context, call.user).view(done.jobs))


async def resume_job(call: Call[None, None]) -> JobSummary:
    """Resume a suspended run from its checkpoint."""
    call.audit("resume run", f"{call.namespace}/{call.name}")
    done = await resume_run(call.api, call.namespace, call.name, clock=call.context.clock)
    return runs.summary_of(RunReader(call.context, call.user).view(done.jobs))


async def job_logs(call: Call[None, JobLogs]) -> StreamingResponse:
    """Show the output of a run, attempt after attempt."""
    context, query = call.context, call.query
    cluster = await context.ready()
    run_log = RunLog(
        cast(PodApi, call.api),
        call.namespace,
        call.name,
        clock=context.clock,
        tail=query.tail,
        attempt=query.attempt,
        records=RecordsForUser(context, call.user),
    )
    await run_log.open(follow=query.follow)
    return StreamingResponse(
        _text(run_log.follow(cluster) if query.follow else run_log.read()),
        media_type="text/plain",
        headers={"x-accel-buffering": "no", "cache-control": "no-store"},
    )


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=ALL, handler=list_jobs, query=JobChoice, answer=JobList),
    Endpoint(method="POST", path=ALL, handler=create_job, body=NewJob, answer=Job, status=201, once=True),
    Endpoint(method="GET", path=ONE, handler=show_job, answer=Job),
    Endpoint(method="GET", path=f"{ONE}/overview", handler=show_overview, query=OverviewQuery, answer=JobOverview),
    Endpoint(method="DELETE", path=ONE, handler=end_job, query=JobEnd, answer=JobSummary),
    Endpoint(method="POST", path=f"{ONE}/suspend", handler=suspend_job, answer=JobSummary),
    Endpoint(method="POST", path=f"{ONE}/resume", handler=resume_job, answer=JobSummary),
    Endpoint(method="GET", path=f"{ONE}/logs", handler=job_logs, query=JobLogs, media_type="text/plain"),
)


async def _text(events: AsyncGenerator[Event]) -> AsyncGenerator[bytes]:
    """Convert the events of a log to plain text."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Line):
                yield event.text + b"\n"
            elif isinstance(event, Cut):
                yield f"--- {event.text}\n".encode()
            elif isinstance(event, Unreadable):
                log.warning("a log could not be read", extra={"pod": event.pod, "error": event.message})
                yield f"--- the log of {event.pod} cannot be read: {event.message}\n".encode()
