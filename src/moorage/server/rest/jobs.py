"""/api/v1/jobs: runs made, listed, shown, followed and cancelled as `moor run` and its kin do it.

What `run_json` tells of a run everybody may know; all else is read and done as the asker: cluster rights decide.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any, cast
from weakref import WeakValueDictionary

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from moorage.actions.objects import is_of
from moorage.actions.runfacts import Around, read_facts, runner_source
from moorage.actions.runs import cancel_run
from moorage.actions.submit import submit
from moorage.api.fields import Name
from moorage.apimachinery.api import PodApi
from moorage.apimachinery.integers import INT32_MAX
from moorage.apimachinery.meta import labels_of
from moorage.apimachinery.moments import rfc3339
from moorage.apimachinery.resources import JOBS, PODS, Obj
from moorage.decide.runs.job import plan_run
from moorage.decide.runs.request import Caller, RunPlan, RunRequest
from moorage.decide.runs.state import AttemptView, PodView, RunView, State, view_run
from moorage.decide.usage.gpus import gpu_type
from moorage.errors import ApiError, BadRequest, NotFound, ServerError
from moorage.kube.logs import STARTED, pod_lines
from moorage.kube.serverurl import server_url
from moorage.model.names import REQUEST_ANNOTATION, RUN_LABEL, RUN_NAME_MAX, is_dns_label
from moorage.server.cluster import Cluster
from moorage.server.context import Context
from moorage.server.docker.containers import known_tenants
from moorage.server.idempotency import request_mark
from moorage.server.identity.auth import User
from moorage.server.identity.loginroutes import read_json
from moorage.server.inputs import whole_number
from moorage.server.problems import Json, Problem, as_problem

log = logging.getLogger(__name__)

ALL = "/api/v1/jobs"
ONE = f"{ALL}/{{namespace}}/{{name}}"
APPEAR_SECONDS = 10.0  # so long after it was made a run may be unknown to the server's own watch


class NewJob(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The body of a POST; texts as the options of `moor run` have them."""

    command: Annotated[list[str], msgspec.Meta(min_length=1, max_length=4096)]
    namespace: Name
    name: str | None = None  # none: made from the command
    image: str | None = None
    env: dict[str, str] = {}
    gpus: int = 0
    gpu_type: str | None = None
    gpu_resource: str | None = None
    cpu: str | None = None
    memory: str | None = None
    time: str | None = None
    volumes: list[str] = []
    datasets: list[str] = []
    checkpoint: str | None = None
    workdir: str | None = None
    grace: int | None = None
    priority_class: str | None = None
    retries: int = 0
    restart_limit: int | None = None
    host_env: bool = False
    dry_run: bool = False

    def request(self) -> RunRequest:
        return RunRequest(
            command=tuple(self.command),
            namespace=self.namespace,
            name=self.name,
            image=self.image,
            env=tuple(f"{name}={value}" for name, value in self.env.items()),
            gpus=self.gpus,
            gpu_type=self.gpu_type,
            gpu_resource=self.gpu_resource,
            cpu=self.cpu,
            memory=self.memory,
            time=self.time,
            volumes=tuple(self.volumes),
            datasets=tuple(self.datasets),
            checkpoint=self.checkpoint,
            workdir=self.workdir,
            grace=self.grace,
            priority_class=self.priority_class,
            retries=self.retries,
            restart_limit=self.restart_limit,
            host_env=self.host_env,
        )


def routes(context: Context) -> list[Route]:
    making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

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

    async def create(request: Request) -> Response:
        """Start a run, as `moor run` does: `{command, namespace, image, gpus, …}`; `dryRun`: only tried.

        `Idempotency-Key`: asking twice is as once, also where the name is made up.
        """
        asked = await read_json(request, NewJob)
        _check_text(asked)
        mark = request_mark(request, asked)
        if not mark or asked.dry_run:
            return await _create(context, request, asked, "")
        async with making.setdefault(mark, asyncio.Lock()):
            return await _create(context, request, asked, mark)

    async def show(request: Request) -> Response:
        """How a run stands, with its attempts; its command and messages tell who may read its Job."""
        user: User = request.state.user
        run = await _run(context, request)
        return Json(run_json(run) | told_of(run, all=await _may_read(context, user, run)))

    async def delete(request: Request) -> Response:
        """Cancel a run; one that has ended is deleted. `delete`: whether it is deleted, however it stands.

        Its pods get their grace period, no attempt follows, checkpoints are kept.
        """
        namespace, name = _key(request)
        wish = _switch(request, "delete")
        user: User = request.state.user
        api = context.acting(user)
        try:
            found = await _jobs(context, user, namespace, name)
            delete = _view(context.cluster, found, context.now()).state.ended if wish is None else wish
            context.audit(request, "delete run" if delete else "cancel run", f"{namespace}/{name}")
            await cancel_run(api, found, by=user.name, delete=delete)
            if delete:
                return Response(status_code=204)
            found = await _jobs(context, user, namespace, name)
        except ApiError as error:
            raise as_problem(error) from error
        return Json(run_json(_view(context.cluster, found, context.now())))

    async def logs(request: Request) -> Response:
        """What a run printed, attempt after attempt; `follow`: until it has ended; `tail`: lines of each pod."""
        namespace, name = _key(request)
        follow = bool(_switch(request, "follow"))
        tail = whole_number(request, "tail", maximum=INT32_MAX)
        user: User = request.state.user
        api = cast(PodApi, context.acting(user))
        await context.ready()
        try:
            found = await _jobs(context, user, namespace, name)
            pods = (await api.list(PODS, namespace, label_selector=f"{RUN_LABEL}={name}")).items
            run = view_run(found, pods, now=context.now())
            printing = _Printing(context, api, run, follow=follow, tail=tail)
            await printing.check()
        except ApiError as error:
            raise as_problem(error) from error
        return StreamingResponse(
            printing.lines(),
            media_type="text/plain",
            headers={"x-accel-buffering": "no", "cache-control": "no-store"},
        )

    return [
        Route(ALL, jobs, methods=["GET"]),
        Route(ALL, create, methods=["POST"]),
        Route(ONE, show, methods=["GET"]),
        Route(ONE, delete, methods=["DELETE"]),
        Route(f"{ONE}/logs", logs, methods=["GET"]),
    ]


async def _create(context: Context, request: Request, asked: NewJob, mark: str) -> Response:
    user: User = request.state.user
    api = context.acting(user)
    wanted = asked.request()
    try:
        seen = await read_facts(api, wanted, around=_around(context, wanted), url=server_url(context.api))
        before = next((job for job in seen.jobs if is_of(job, mark)), None)
        if before is not None:
            run = labels_of(before).get(RUN_LABEL) or before["metadata"]["name"]
            found = [job for job in seen.jobs if labels_of(job).get(RUN_LABEL) == run]
            return Json(run_json(_view(context.cluster, found or [before], context.now())) | {"notes": []}, 201)
        caller = Caller(
            user=user.name,
            cwd="",
            program=asked.command[0],  # the node looks for it, in its own environment
            python=sys.executable,
            salt=mark or secrets.token_hex(8),
            token=secrets.token_urlsafe(32),
            runner=runner_source(),
        )
        plan = plan_run(wanted, caller, seen.facts)
        if plan.job is None or plan.problems:
            raise _refusal(plan, taken=asked.name in seen.facts.taken)
        context.audit(request, "start run", f"{asked.namespace}/{plan.name}")
        if mark:
            for obj in (plan.job, plan.secret):
                if obj is not None:
                    obj["metadata"].setdefault("annotations", {})[REQUEST_ANNOTATION] = mark
        notes = list(plan.notes)
        if asked.dry_run:
            stored = await api.create(JOBS, plan.job, asked.namespace, dry_run=True)
        else:
            stored = await submit(api, plan, asked.namespace, context.clock, note=notes.append)
    except ApiError as error:
        raise as_problem(error) from error
    made = run_json(view_run([stored], (), now=context.now()))
    return Json(made | {"notes": notes}, 200 if asked.dry_run else 201)


async def _around(context: Context, wanted: RunRequest) -> Around:
    """Nodes and tenants as the server knows them: what GPUs are where, and what a namespace's own runs get."""
    cluster = await context.ready()
    asks = wanted.gpu_type is not None or wanted.checkpoint is not None
    return Around(
        nodes=cluster.nodes.all(),
        pods=cluster.pods.all() if asks else [],
        tenants=tuple(await known_tenants(context)),
    )


def _check_text(asked: NewJob) -> None:
    """Raises Problem 422 for a variable that the text of a run's options cannot hold."""
    if any("=" in name for name in asked.env):
        raise Problem(422, "invalid", "env: a name with a = in it", field="env")


def _refusal(plan: RunPlan, *, taken: bool) -> Problem:
    """Every problem of a plan."""
    problems = plan.problems
    message = "; ".join(problem.message for problem in problems)
    hint = "; ".join(dict.fromkeys(problem.hint for problem in problems if problem.hint)) or None
    if taken and [problem.field for problem in problems] == ["name"]:
        return Problem(409, "exists", message, hint, "name")
    return Problem(422, "invalid", message, hint, problems[0].field if problems else None)


async def _run(context: Context, request: Request) -> RunView:
    """As the server knows it; one that was only just made, as the asker does. Raises Problem 404."""
    namespace, name = _key(request)
    cluster = await context.ready()
    found = cluster.jobs_of_run(namespace, name)
    user: User = request.state.user
    if not found and user.account:
        try:
            found = await _jobs(context, user, namespace, name)
        except ApiError:
            found = []
    if not found:
        raise _no_run(namespace, name)
    return _view(cluster, found, context.now())


async def _jobs(context: Context, user: User, namespace: str, name: str) -> list[Obj]:
    """A run's Jobs as the asker may list them. Raises Problem 404, ApiError."""
    api = context.acting(user)
    if is_dns_label(name) and len(name) <= RUN_NAME_MAX:
        found = (await api.list(JOBS, namespace, label_selector=f"{RUN_LABEL}={name}")).items
        if found:
            return found
    raise _no_run(namespace, name)


def _no_run(namespace: str, name: str) -> Problem:
    return Problem(404, "not_found", f"there is no run {namespace}/{name}", "`moor jobs` lists them")


def _view(cluster: Cluster, jobs: list[Obj], now: datetime) -> RunView:
    meta = jobs[0]["metadata"]
    pods = cluster.pods_of_run(meta.get("namespace") or "", labels_of(jobs[0]).get(RUN_LABEL) or meta["name"])
    nodes = {(pod.get("spec") or {}).get("nodeName") or "" for pod in pods}
    known = [node for name in nodes if name and (node := cluster.nodes.get(name)) is not None]
    kinds = {node["metadata"]["name"]: gpu_type(labels_of(node)) for node in known}
    return view_run(jobs, pods, now=now, node_types=kinds)


async def _may_read(context: Context, user: User, run: RunView) -> bool:
    try:
        return await context.auth.may(user, "get", JOBS.plural, group=JOBS.group, namespace=run.namespace)
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


def told_of(run: RunView, *, all: bool) -> Obj:
    """What one run's own answer has beside `run_json`; without `all`, only what everybody may know."""
    told: Obj = {"history": [_attempt(one, all=all) for one in run.attempts]}
    if all:
        told |= {"command": run.command, "requests": dict(run.requests)}
        told["timeLeftSeconds"] = None if run.time_left is None else int(run.time_left.total_seconds())
    return told


def _attempt(attempt: AttemptView, *, all: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "number": attempt.number,
        "state": attempt.state,
        "reason": attempt.reason,
        "cause": attempt.cause.value if attempt.cause else "",
        "created": _time(attempt.created),
        "ended": _time(attempt.ended),
        "pods": [_pod(pod, all=all) for pod in attempt.pods],
    }
    return told | ({"job": attempt.job, "message": attempt.message} if all else {})


def _pod(pod: PodView, *, all: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": pod.name,
        "phase": pod.phase,
        "node": pod.node,
        "started": _time(pod.started),
        "ended": _time(pod.ended),
        "exitCode": pod.exit_code,
        "reason": pod.reason,
    }
    private = {
        "message": pod.message,
        "memoryLimitBytes": pod.memory_limit_bytes,
        "peakMemoryBytes": pod.peak_memory_bytes,
    }
    return told | (private if all else {})


def _switch(request: Request, name: str) -> bool | None:
    """Raises Problem 400."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if text not in ("true", "1", "false", "0"):
        raise Problem(400, "bad_request", f"{name} is {text[:20]!r}", "use true or false", name)
    return text in ("true", "1")


def _key(request: Request) -> tuple[str, str]:
    return request.path_params["namespace"], request.path_params["name"]


def _time(moment: datetime | None) -> str | None:
    return rfc3339(moment) if moment else None
