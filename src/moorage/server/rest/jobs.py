"""/api/v1/jobs: runs started, listed, shown, followed and cancelled as `moor run` and its kin do it.

A run's public fields are for everybody; all else is read and done as the asker: cluster rights decide.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import sys
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, cast

from starlette.responses import StreamingResponse

from moorage.actions import runs
from moorage.actions.runfacts import Around, runner_source
from moorage.actions.submit import request_of, submit_run
from moorage.api.jobs import Job, JobChoice, JobEnd, JobList, JobLogs, JobSummary, NewJob
from moorage.apimachinery.api import PodApi
from moorage.apimachinery.meta import labels_of
from moorage.apimachinery.resources import JOBS, PODS, Obj
from moorage.decide.runs.request import Caller, RunRequest
from moorage.decide.runs.state import PodView, RunView, view_run
from moorage.decide.usage.gpus import gpu_type
from moorage.errors import ApiError, BadRequest, NotFound, ServerError
from moorage.kube.logs import STARTED, pod_lines
from moorage.kube.serverurl import server_url
from moorage.model.names import RUN_LABEL
from moorage.server.context import Context
from moorage.server.endpoint import Call, Endpoint

log = logging.getLogger(__name__)

ALL = "/api/v1/jobs"
ONE = f"{ALL}/{{namespace}}/{{name}}"
APPEAR_SECONDS = 10.0  # so long after it was made a run may be unknown to the server's own watch


async def list_jobs(call: Call[None, JobChoice]) -> JobList:
    """Every run, with what everybody may know of it; `namespace`, `owner` and `state` choose."""
    cluster, choice = await call.context.ready(), call.query
    chosen = runs.select_runs(cluster.runs(), namespace=choice.namespace, owner=choice.owner, state=choice.state)
    now = call.context.now().replace(microsecond=0)
    return JobList(now=now, jobs=tuple(runs.summary_of(run) for run in chosen))


async def create_job(call: Call[NewJob, None]) -> tuple[int, Job]:
    """Start a run, as `moor run` does: `{command, namespace, image, gpus, …}`; `dryRun`: only tried.

    `Idempotency-Key`: asking twice is as once, also where the name is made up.
    """
    body, context = call.body, call.context
    call.audit("start run", f"{body.namespace}/{body.name or ''}")
    request, notes = request_of(body), list[str]()
    caller = Caller(
        user=call.user.name,
        cwd="",
        program=body.command[0],  # the node looks for it, in its own environment
        python=sys.executable,
        salt=call.mark or secrets.token_hex(8),
        token=secrets.token_urlsafe(32),
        runner=runner_source(),
    )
    submitted = await submit_run(
        call.api,
        request,
        caller,
        around=_around(context, request),
        url=server_url(context.api),
        clock=context.clock,
        note=notes.append,
        mark="" if body.dry_run else call.mark,
        dry_run=body.dry_run,
    )
    run = view_of(context, submitted.jobs)
    call.audit("start run", f"{run.namespace}/{run.name}")
    return 200 if body.dry_run else 201, runs.job_of(run, private=False, notes=notes)


async def show_job(call: Call[None, None]) -> Job:
    """How a run stands, with its attempts; its command and messages are for who may read its Job."""
    run = await _known_run(call)
    return runs.job_of(run, private=await _may_read(call, run))


async def end_job(call: Call[None, JobEnd]) -> JobSummary | None:
    """Cancel a run; one that has ended is deleted. `delete`: whether it is deleted, however it stands.

    Its pods get their grace period, no attempt follows, checkpoints are kept.
    """
    context, delete, what = call.context, call.query.delete, f"{call.namespace}/{call.name}"
    call.audit("delete run" if delete else "cancel run", what)
    ended = await runs.cancel_run(
        call.api, call.namespace, call.name, by=call.user.name, now=context.now, delete=delete
    )
    if ended.is_deleted:
        call.audit("delete run", what)
        return None
    return runs.summary_of(view_of(context, ended.jobs))


async def job_logs(call: Call[None, JobLogs]) -> StreamingResponse:
    """What a run printed, attempt after attempt; `follow`: until it has ended; `tail`: lines of each pod."""
    context, namespace, name = call.context, call.namespace, call.name
    api = cast(PodApi, call.api)
    await context.ready()
    jobs = await runs.jobs_of_run(api, namespace, name)
    run = view_run(jobs, await runs.pods_of_run(api, namespace, name), now=context.now())
    printing = _Printing(context, api, run, follow=call.query.follow, tail=call.query.tail)
    await printing.check()
    return StreamingResponse(
        printing.lines(),
        media_type="text/plain",
        headers={"x-accel-buffering": "no", "cache-control": "no-store"},
    )


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=ALL, handler=list_jobs, query=JobChoice, answer=JobList),
    Endpoint(method="POST", path=ALL, handler=create_job, body=NewJob, answer=Job, status=201, once=True),
    Endpoint(method="GET", path=ONE, handler=show_job, answer=Job),
    Endpoint(method="DELETE", path=ONE, handler=end_job, query=JobEnd, answer=JobSummary),
    Endpoint(method="GET", path=f"{ONE}/logs", handler=job_logs, query=JobLogs, media_type="text/plain"),
)


async def _around(context: Context, request: RunRequest) -> Around:
    """Nodes and tenants as the server knows them: what GPUs are where, and what a namespace's own runs get."""
    cluster = await context.ready()
    needs_pods = request.gpu_type is not None or request.checkpoint is not None
    return Around(
        nodes=cluster.nodes.all(),
        pods=cluster.pods.all() if needs_pods else [],
        tenants=tuple(await context.tenants.all()),
    )


async def _known_run(call: Call[Any, Any]) -> RunView:
    """As the server knows it; one that was only just made, as the asker does. Raises NotFound."""
    cluster = await call.context.ready()
    jobs = cluster.jobs_of_run(call.namespace, call.name)
    if not jobs and call.user.account:
        try:
            jobs = await runs.jobs_of_run(call.api, call.namespace, call.name)
        except ApiError:
            jobs = []
    if not jobs:
        raise runs.missing_run(call.namespace, call.name, cluster.run_names(call.namespace))
    return view_of(call.context, jobs)


def view_of(context: Context, jobs: Sequence[Obj]) -> RunView:
    """A run, given its Jobs, with its pods and nodes as the server knows them."""
    cluster, meta = context.cluster, jobs[0]["metadata"]
    pods = cluster.pods_of_run(meta.get("namespace") or "", labels_of(jobs[0]).get(RUN_LABEL) or meta["name"])
    names = {(pod.get("spec") or {}).get("nodeName") or "" for pod in pods}
    nodes = [node for name in names if name and (node := cluster.nodes.get(name)) is not None]
    types = {node["metadata"]["name"]: gpu_type(labels_of(node)) for node in nodes}
    return view_run(jobs, pods, now=context.now(), node_types=types)


async def _may_read(call: Call[Any, Any], run: RunView) -> bool:
    auth = call.context.auth
    try:
        return await auth.may(call.user, "get", JOBS.plural, group=JOBS.group, namespace=run.namespace)
    except ApiError:
        return False


class _Printing:
    """What a run prints, read as the asker. `run`: as it stood when that was asked. Used once."""

    def __init__(self, context: Context, api: PodApi, run: RunView, *, follow: bool, tail: int | None) -> None:
        self._context = context
        self._api = api
        self._run = run
        self._follow = follow
        self._tail = tail
        self._seen: set[str] = set()

    async def check(self) -> None:
        """Raises ApiError where the asker may not read the log; later is too late to say so."""
        pod = next((one for one in reversed(self._run.pods) if one.phase in STARTED), None)
        if pod is None:
            return
        source = self._api.logs(pod.name, self._run.namespace, container=self._container(pod.name), tail_lines=0)
        try:
            async with aclosing(cast(AsyncGenerator[bytes, None], source)) as chunks:
                async for _ in chunks:
                    pass
        except (BadRequest, NotFound):
            return  # it begins in a moment, or nobody keeps it any more
        except ServerError:
            if not self._follow:
                raise

    async def lines(self) -> AsyncGenerator[bytes]:
        if self._follow:
            async for text in self._until_it_ends():
                yield text
        else:
            async for text in self._of(self._run.pods):
                yield text

    async def _until_it_ends(self) -> AsyncGenerator[bytes]:
        cluster, clock = self._context.cluster, self._context.clock
        namespace, name = self._run.namespace, self._run.name
        late, known = clock.monotonic() + APPEAR_SECONDS, False
        while not cluster.closed:
            version = cluster.version
            jobs = cluster.jobs_of_run(namespace, name)
            if jobs:
                known = True
                run = view_run(jobs, cluster.pods_of_run(namespace, name), now=self._context.now())
                if any(self._is_new(pod) for pod in run.pods):
                    async for text in self._of(run.pods):
                        yield text
                    continue
                if run.state.ended:
                    break
            elif known or clock.monotonic() > late:
                return  # it was deleted
            try:
                async with asyncio.timeout(None if known else APPEAR_SECONDS):
                    await cluster.beyond(version)
            except TimeoutError:
                continue
        try:  # pods that came and went faster than the watch told
            selector = f"{RUN_LABEL}={name}"
            pods = (await self._api.list(PODS, namespace, label_selector=selector)).items
        except ApiError:
            return
        async for text in self._of(view_run(jobs, pods, now=self._context.now()).pods):
            yield text

    async def _of(self, pods: Iterable[PodView]) -> AsyncGenerator[bytes]:
        """The lines of those pods that have any and were not printed yet, one pod after the other."""
        for pod in pods:
            if not self._is_new(pod):
                continue
            self._seen.add(pod.name)
            lines = pod_lines(
                self._api,
                pod.name,
                self._run.namespace,
                clock=self._context.clock,
                ended=functools.partial(self._is_over, pod.name),
                container=self._container(pod.name),
                follow=self._follow,
                tail=self._tail,
            )
            try:
                async with aclosing(lines):
                    async for line in lines:
                        yield line + b"\n"
            except NotFound:
                continue  # gone with the pod
            except ApiError as error:
                log.warning("a log could not be read", extra={"pod": pod.name, "error": error.message})
                yield f"--- the log of {pod.name} cannot be read: {error.message}\n".encode()

    def _is_new(self, pod: PodView) -> bool:
        return pod.name not in self._seen and pod.phase in STARTED

    def _is_over(self, pod: str) -> bool:
        found = self._context.cluster.pods.get(pod, self._run.namespace)
        return found is None or (found.get("status") or {}).get("phase") in ("Succeeded", "Failed")

    def _container(self, pod: str) -> str | None:
        found = self._context.cluster.pods.get(pod, self._run.namespace) or {}
        containers = (found.get("spec") or {}).get("containers") or [{}]
        return containers[0].get("name") or None
