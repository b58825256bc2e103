"""/api/v1/jobs: runs started, listed, shown, followed and cancelled as `moor run` and its kin do it.

A run's public fields are for everybody; all else is read and done as the caller: cluster rights decide.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, cast

from starlette.responses import StreamingResponse

from moorage.actions import runs
from moorage.actions.kept import kept_of, misses_pods
from moorage.actions.runfacts import runner_source
from moorage.actions.runlogs import Cut, Event, Line, RunLog, Unreadable
from moorage.actions.submit import request_of, submit_run
from moorage.actions.suspension import resume_run, suspend_run
from moorage.api.jobs import Job, JobChoice, JobEnd, JobList, JobLogs, JobSummary, NewJob
from moorage.api.kept import KeptPod, KeptRun
from moorage.apimachinery.api import PodApi
from moorage.apimachinery.meta import labels_of
from moorage.apimachinery.resources import JOBS, Obj
from moorage.decide.runs.kept import kept_pods_of, uid_of
from moorage.decide.runs.request import Caller
from moorage.decide.runs.state import RunView, view_run
from moorage.decide.since import moment_before
from moorage.decide.usage.gpus import gpu_type
from moorage.errors import ApiError, StorageError
from moorage.kube.serverurl import server_url
from moorage.model.names import RUN_LABEL
from moorage.server.context import Context
from moorage.server.endpoint import Call, Endpoint
from moorage.server.kept import KeptForUser
from moorage.server.rest.around import around_of

log = logging.getLogger(__name__)

ALL = "/api/v1/jobs"
ONE = f"{ALL}/{{namespace}}/{{name}}"


async def list_jobs(call: Call[None, JobChoice]) -> JobList:
    """List runs, with the facts that everybody may see."""
    cluster, choice = await call.context.ready(), call.query
    now = call.context.now()
    since = None if choice.since is None else moment_before(choice.since, now, "since")
    known = cluster.runs()
    if choice.selector is not None:
        known = await _readable(call, known)
    chosen = runs.select_runs(
        known,
        namespace=choice.namespace,
        owner=choice.owner,
        state=choice.state,
        gpu_type=choice.gpu_type,
        since=since,
        selector=choice.selector,
        sort=choice.sort,
        limit=choice.limit,
    )
    shown = await with_kept(call.context, chosen)
    return JobList(now=now.replace(microsecond=0), jobs=tuple(runs.summary_of(run) for run in shown))


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
        around=around_of(context, request),
        url=server_url(context.api),
        note=notes.append,
        mark="" if body.dry_run else call.mark,
        dry_run=body.dry_run,
    )
    run = view_of(context, submitted.jobs)
    call.audit("start run", f"{run.namespace}/{run.name}")
    return 200 if body.dry_run else 201, runs.job_of(run, context.now(), private=False, notes=notes)


async def show_job(call: Call[None, None]) -> Job:
    """Show a run with its attempts. Only those who may read its Job see its command and messages."""
    run = await known_run(call)
    return runs.job_of(run, call.context.now(), private=await _may_read(call, run))


async def end_job(call: Call[None, JobEnd]) -> JobSummary | None:
    """Cancel a run; a run that has ended is deleted.

    Its pods get their grace period, no attempt follows, checkpoints are kept.
    """
    context, delete, what = call.context, call.query.delete, f"{call.namespace}/{call.name}"
    call.audit("delete run" if delete else "cancel run", what)
    ended = await runs.cancel_run(call.api, call.namespace, call.name, by=call.user.name, delete=delete)
    if ended.is_deleted:
        call.audit("delete run", what)
        return None
    return runs.summary_of(view_of(context, ended.jobs))


async def suspend_job(call: Call[None, None]) -> JobSummary:
    """Suspend a run: its pods get their grace period, and it holds nothing until it is resumed.

    It resumes from its checkpoint; without one it begins again from the start.
    """
    call.audit("suspend run", f"{call.namespace}/{call.name}")
    done = await suspend_run(call.api, call.namespace, call.name, by=call.user.name, clock=call.context.clock)
    return runs.summary_of(view_of(call.context, done.jobs))


async def resume_job(call: Call[None, None]) -> JobSummary:
    """Resume a suspended run from its checkpoint."""
    call.audit("resume run", f"{call.namespace}/{call.name}")
    done = await resume_run(call.api, call.namespace, call.name, clock=call.context.clock)
    return runs.summary_of(view_of(call.context, done.jobs))


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
        kept=KeptForUser(context, call.user),
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
    Endpoint(method="DELETE", path=ONE, handler=end_job, query=JobEnd, answer=JobSummary),
    Endpoint(method="POST", path=f"{ONE}/suspend", handler=suspend_job, answer=JobSummary),
    Endpoint(method="POST", path=f"{ONE}/resume", handler=resume_job, answer=JobSummary),
    Endpoint(method="GET", path=f"{ONE}/logs", handler=job_logs, query=JobLogs, media_type="text/plain"),
)


async def known_run(call: Call[Any, Any]) -> RunView:
    """As the server knows it; one that was only just made, as the caller does; one that was deleted, from what is
    kept. Raises NotFound."""
    kept = KeptForUser(call.context, call.user)
    cluster = await call.context.ready()
    jobs = cluster.jobs_of_run(call.namespace, call.name)
    if not jobs and call.user.account:
        try:
            jobs = await runs.jobs_of_run(call.api, call.namespace, call.name)
        except ApiError:
            jobs = []
    if not jobs:
        run = await runs.get_deleted(kept, call.namespace, call.name)
        if run is None:
            raise runs.missing_run(call.namespace, call.name, cluster.run_names(call.namespace), everywhere=False)
        return run
    pods = cluster.pods_of_run(call.namespace, call.name)
    return view_of(call.context, jobs, await kept_of(kept, call.namespace, call.name, jobs, pods))


def remote_caller(user: str, body: NewJob, *, salt: str = "") -> Caller:
    """Who asks from elsewhere: nothing of their machine goes into the run."""
    return Caller(
        user=user,
        cwd="",
        program=body.command[0],  # the node looks for it, in its own environment
        python=sys.executable,
        salt=salt or secrets.token_hex(8),
        token=secrets.token_urlsafe(32),
        runner=runner_source(),
    )


def view_of(context: Context, jobs: Sequence[Obj], kept: KeptRun | None = None) -> RunView:
    """A run, given its Jobs, with its pods and nodes as the server knows them, and what is kept of it."""
    cluster, meta = context.cluster, jobs[0]["metadata"]
    pods = cluster.pods_of_run(meta.get("namespace") or "", labels_of(jobs[0]).get(RUN_LABEL) or meta["name"])
    names = {(pod.get("spec") or {}).get("nodeName") or "" for pod in pods}
    nodes = [node for name in names if name and (node := cluster.nodes.get(name)) is not None]
    types = {node["metadata"]["name"]: gpu_type(labels_of(node)) for node in nodes}
    gone = kept_pods_of(kept or KeptRun(), jobs)
    return view_run(jobs, pods, node_types=types, kept=gone)


async def with_kept(context: Context, chosen: Sequence[RunView]) -> tuple[RunView, ...]:
    """Runs of a list, with what is kept of their pods that are gone: one look into the store for all of them.

    A store that cannot be read stands in the way of no list.
    """
    cluster, jobs_of = context.cluster, dict[tuple[str, str], list[Obj]]()
    for run in chosen:
        jobs = cluster.jobs_of_run(run.namespace, run.name)
        if misses_pods(jobs, cluster.pods_of_run(run.namespace, run.name)):
            jobs_of[run.namespace, run.name] = jobs
    if not jobs_of:
        return tuple(chosen)
    try:
        pods = await context.keeper.read_pods(uid_of(job) for jobs in jobs_of.values() for job in jobs)
    except StorageError as error:
        log.warning("runs are listed without what is kept of them", extra={"error": str(error)})
        return tuple(chosen)
    kept: dict[tuple[str, str], list[KeptPod]] = {}
    for pod in pods:
        kept.setdefault((pod.namespace, pod.run), []).append(pod)
    return tuple(
        view_of(context, jobs_of[key], KeptRun(pods=tuple(kept[key])))
        if (key := (run.namespace, run.name)) in jobs_of and key in kept
        else run
        for run in chosen
    )


async def _readable(call: Call[Any, JobChoice], known: Sequence[RunView]) -> tuple[RunView, ...]:
    """The runs whose labels the caller may read: a selector tells what the labels are."""
    chosen = [run for run in known if call.query.namespace in (None, run.namespace)]
    namespaces = sorted({run.namespace for run in chosen})
    rights = await asyncio.gather(*(_may_read_in(call, namespace) for namespace in namespaces))
    readable = {namespace for namespace, may in zip(namespaces, rights, strict=True) if may}
    return tuple(run for run in chosen if run.namespace in readable)


async def _may_read(call: Call[Any, Any], run: RunView) -> bool:
    return await _may_read_in(call, run.namespace)


async def _may_read_in(call: Call[Any, Any], namespace: str) -> bool:
    auth = call.context.auth
    try:
        return await auth.may(call.user, "get", JOBS.plural, group=JOBS.group, namespace=namespace)
    except ApiError:
        return False


async def _text(events: AsyncGenerator[Event]) -> AsyncGenerator[bytes]:
    """The events of a log as its text."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Line):
                yield event.text + b"\n"
            elif isinstance(event, Cut):
                yield f"--- {event.text}\n".encode()
            elif isinstance(event, Unreadable):
                log.warning("a log could not be read", extra={"pod": event.pod, "error": event.message})
                yield f"--- the log of {event.pod} cannot be read: {event.message}\n".encode()
