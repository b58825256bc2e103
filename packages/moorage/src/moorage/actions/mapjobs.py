"""Maps on a cluster: make a MapJob and its objects, wait for the server to accept it, remove it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from moorage.actions.atomic import AtomicCreate, all_or_none, set_owner
from moorage.actions.maps import name_taken
from moorage.actions.objects import is_of
from moorage.actions.runfacts import ClusterNodes, check_problems, env_words, read_facts
from moorage.api.errors import ErrorCode
from moorage.api.maps import MapLimit, MapPolicy, MapWorkers, NewMap
from moorage.cluster.serverurl import server_url
from moorage.decide.maps.mapjob import MapJobPlan, MapRequest, plan_mapjob
from moorage.decide.runs.request import Caller, RunRequest, has_code
from moorage.model.mapjob import ACCEPTED, BAD_LIMITS, FAILED, MAPJOBS, NAME_TAKEN, PARALLELISM_MAX, QUOTA_EXCEEDED
from moorage.model.names import REQUEST_ANNOTATION, is_dns_label
from moorage.queue.manager import Queue
from moorage.queue.store import Stored
from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.errors import (
    AlreadyExists,
    ApiError,
    MoorageError,
    NotFound,
    NotReady,
    Problems,
    QuotaExceeded,
    UsageError,
)
from moorage_kube.meta import condition, owner_reference
from moorage_kube.resources import CONFIGMAPS, SECRETS, Obj, Resource

ACCEPT_SECONDS = 60.0  # a server that has not taken the map up by then does not run
POLL_SECONDS = (0.1, 1.0)
INSTALL = "install Moorage's definitions: moor manifests | kubectl apply -f -"

Note = Callable[[str], None]


async def submit_map(
    api: Api,
    request: MapRequest,
    caller: Caller,
    *,
    cluster_nodes: Callable[[], Awaitable[ClusterNodes]],
    clock: Clock,
    note: Note,
    mark: str,
) -> Obj:
    """Make a map with its workers: plan, create, wait until the server accepts it; the MapJob as stored.

    The same request, by its `mark`, makes one map: if repeated, it waits for the map that it made. `note` gets
    the defaults that were filled in, and warnings. Raises the errors of `plan_map` and `create_map`, and
    UsageError for a mark that came with another body.
    """
    namespace, name = request.run.namespace, request.run.name or ""
    mapjob = await _find_marked(api, namespace, name, mark)
    if mapjob is None:
        try:
            plan = await plan_map(api, request, caller, cluster_nodes=cluster_nodes())
            plan.mapjob["metadata"]["annotations"][REQUEST_ANNOTATION] = mark
            for text in plan.notes:
                note(text)
            return await create_map(api, plan, namespace, clock, note=note)
        except UsageError as error:
            # the same request may have come to two servers at once
            mapjob = await _find_marked(api, namespace, name, mark) if error.code == ErrorCode.EXISTS else None
            if mapjob is None:
                raise
    await _wait_accepted(api, namespace, name, clock)
    return mapjob


async def _find_marked(api: Api, namespace: str, name: str, mark: str) -> Obj | None:
    """The MapJob that was created with this idempotency mark. Raises UsageError if the request body differs."""
    if not is_dns_label(name):
        return None
    try:
        mapjob = await api.get(MAPJOBS, name, namespace)
    except NotFound:
        return None
    try:
        return mapjob if is_of(mapjob, mark) else None
    except UsageError as error:
        raise UsageError(
            f"this request created the map {name!r} with other values",
            hint="choose a new request id for another map",
            code=ErrorCode.KEY_REUSED,
            field="request",
        ) from error


def request_of(namespace: str, body: NewMap, workers: MapWorkers) -> MapRequest:
    """The request of a client. Raises UsageError for an invalid variable name."""
    run = RunRequest(
        command=tuple(workers.command),
        namespace=namespace,
        name=body.name,
        gpus=workers.gpus,
        gpu_type=workers.gpu_type,
        gpu_resource=workers.gpu_resource,
        gpu_claim=workers.gpu_claim,
        cpu=None if workers.cpu is None else str(workers.cpu),
        memory=workers.memory,
        volumes=tuple(workers.volumes),
        datasets=tuple(workers.datasets),
        env=env_words(workers.env),
        secrets=tuple(workers.secrets),
        working_dir=workers.working_dir,
        image=workers.image,
        host_env=workers.host_env,
        priority_class=workers.priority_class,
        queue=workers.queue,
    )
    return MapRequest(
        run=run,
        parallelism=workers.parallelism,
        slots=workers.slots,
        limits=tuple(_limit_text(name, limit) for name, limit in body.limits.items()),
        policy=_changed_policy(body.policy),
        priority=body.priority,
        spot=workers.spot,
        restart_limit=workers.restart_limit,
        preflight_read=tuple(workers.preflight_read),
        preflight_write=tuple(workers.preflight_write),
        notify=tuple(workers.notify),
    )


def _limit_text(name: str, limit: MapLimit) -> str:
    capacity = "" if limit.capacity is None else f"={limit.capacity}"
    tokens = "" if limit.tokens == 1 else f":{limit.tokens}"
    return f"{name}{capacity}{tokens}"


def _changed_policy(policy: MapPolicy) -> dict[str, object]:
    """The policy fields that differ from the defaults, under their names in a MapJob."""
    defaults = msgspec.to_builtins(MapPolicy())
    return {name: value for name, value in msgspec.to_builtins(policy).items() if value != defaults[name]}


async def plan_map(
    api: Api,
    request: MapRequest,
    caller: Caller,
    *,
    cluster_nodes: Awaitable[ClusterNodes],
    pack: Callable[[], bytes | None] = lambda: None,
) -> MapJobPlan:
    """Read the input of the decision, and decide.

    `pack` returns the caller's directory, if it is sent to the pods; it is not called for a request that is
    refused. Raises Problems with all that is wrong with the request, AlreadyExists, NotReady, ApiError.
    """
    namespace, name = request.run.namespace, request.run.name or ""
    read, names = await asyncio.gather(
        read_facts(api, request.run, cluster_nodes=cluster_nodes, url=server_url(api)), _map_names(api, namespace)
    )
    facts = replace(read.facts, defaults=replace(read.facts.defaults, seconds=None))
    if name in names:
        raise _taken(namespace, name)
    plan = plan_mapjob(request, caller, facts)
    if not plan.problems and request.function is None and has_code(request.run) and not facts.process_runtime:
        plan = plan_mapjob(request, replace(caller, archive=pack()), facts)
    check_problems(plan.problems, name, facts)
    return plan


async def _map_names(api: Api, namespace: str) -> set[str]:
    try:
        return {obj["metadata"]["name"] for obj in (await api.list(MAPJOBS, namespace)).items}
    except NotFound as error:
        raise NotReady("this cluster has no kind MapJob", hint=INSTALL) from error


def _taken(namespace: str, name: str) -> Problems:
    error = name_taken(namespace, name)
    return Problems([(error.message, error.hint)], code=error.code, field=error.field)


async def check_map(api: Api, plan: MapJobPlan, namespace: str) -> None:
    """Let the API server check the MapJob in a dry run; nothing is stored. Raises ApiError."""
    await api.create(MAPJOBS, plan.mapjob, namespace, dry_run=True)


async def create_map(
    api: Api, plan: MapJobPlan, namespace: str, clock: Clock, *, note: Note = lambda _: None
) -> Obj:
    """Create the objects of the plan, and wait until the server has the map in its queue; the MapJob as stored.

    If a write is refused, or the caller is interrupted, the created objects are removed again. `note` gets
    warnings. Raises Problems for a taken name, MoorageError with the server's reason, NotReady for a server that
    does not answer in ACCEPT_SECONDS.
    """
    async with all_or_none(api, namespace) as batch:
        owned = []
        for resource, obj in ((SECRETS, plan.secret), (CONFIGMAPS, plan.config_map)):
            if obj is not None:
                owned.append((resource, await _create(api, batch, resource, obj, namespace, plan.name)))
        mapjob = await _create(api, batch, MAPJOBS, plan.mapjob, namespace, plan.name)
        for resource, obj in owned:
            try:
                await set_owner(api, resource, obj, owner_reference(mapjob))
            except ApiError as error:
                note(f"{obj['metadata']['name']} will not be deleted with the map: {error.message}")
        await _wait_accepted(api, namespace, plan.name, clock)
    return mapjob


async def _create(
    api: Api, batch: AtomicCreate, resource: Resource, obj: Obj, namespace: str, map_name: str
) -> Obj:
    """Create an object; replace an object without owner that an earlier map of the name left behind."""
    name = obj["metadata"]["name"]
    try:
        return await batch.create(resource, obj)
    except AlreadyExists as error:
        if resource is MAPJOBS:
            raise _taken(namespace, map_name) from error
        existing = await api.get(resource, name, namespace)
        if existing["metadata"].get("ownerReferences"):
            raise _taken(namespace, map_name) from error
        await api.delete(resource, name, namespace, uid=existing["metadata"].get("uid"))
        return await batch.create(resource, obj)
    except NotFound as error:
        if resource is not MAPJOBS:
            raise
        raise NotReady("this cluster has no kind MapJob", hint=INSTALL) from error


async def _wait_accepted(api: Api, namespace: str, name: str, clock: Clock) -> None:
    deadline, pause = clock.monotonic() + ACCEPT_SECONDS, POLL_SECONDS[0]
    while True:
        mapjob = await api.get(MAPJOBS, name, namespace)
        accepted = condition(mapjob, ACCEPTED) or {}
        if accepted.get("status") == "True":
            return
        if accepted.get("status") == "False":
            raise _refusal(name, str(accepted.get("reason") or ""), str(accepted.get("message") or ""))
        if clock.monotonic() > deadline:
            raise NotReady(
                f"the server did not accept the map {name} within {ACCEPT_SECONDS:g} s; the map was deleted",
                hint="check that `moor server` is running, and read its log",
            )
        await clock.sleep(pause)
        pause = min(pause * 1.5, POLL_SECONDS[1])


def _refusal(name: str, reason: str, message: str) -> MoorageError:
    """The error for a map that the server refuses, from the reason of the condition."""
    text, _, hint = message.partition("; ")
    if reason in (NAME_TAKEN, BAD_LIMITS):
        code, field = (ErrorCode.EXISTS, "name") if reason == NAME_TAKEN else (ErrorCode.INVALID, "limits")
        return Problems([(text, hint or None)], code=code, field=field)
    if reason == QUOTA_EXCEEDED:
        return QuotaExceeded(text, hint=hint or None, code=ErrorCode.QUOTA_EXCEEDED)
    return MoorageError(f"the server refused the map {name}: {message or reason}", code=ErrorCode.CONFLICT)


async def delete_map(
    api: Api, namespace: str, name: str, *, uid: str | None = None, forget: Callable[[], Awaitable[object]]
) -> None:
    """Delete a map's MapJob; Kubernetes then deletes its workers; its entry in the queue is deleted too.

    `uid`: only this MapJob. `forget`: deletes a map of the queue that has no MapJob. Raises NotFound, ApiError.
    """
    try:
        await api.delete(MAPJOBS, name, namespace, uid=uid, propagation="Background")
    except NotFound:
        await forget()


async def delete_stored(api: Api, queue: Queue, stored: Stored) -> None:
    """Delete a map that was read from the queue, together with its MapJob. Raises ApiError."""
    try:
        mapjob = await api.get(MAPJOBS, stored.name, stored.namespace)
    except NotFound:
        mapjob = {}
    if ((mapjob.get("status") or {}).get("queue") or {}).get("uid") != stored.uid:
        await queue.delete_map(stored.map.id)  # another map's, or none
        return

    async def forget() -> None:
        await queue.delete_map(stored.map.id)

    await delete_map(api, stored.namespace, stored.name, uid=mapjob["metadata"]["uid"], forget=forget)


async def set_workers(api: Api, namespace: str, name: str, workers: int) -> None:
    """Change the maximum number of workers of a map. Raises NotFound, and UsageError for an invalid number."""
    if not 1 <= workers <= PARALLELISM_MAX:
        raise UsageError(
            f"invalid number of workers {workers}: use 1 to {PARALLELISM_MAX:,}",
            code=ErrorCode.INVALID,
            field="parallelism",
        )
    try:
        await api.patch(MAPJOBS, name, {"spec": {"parallelism": workers}}, namespace)
    except NotFound as error:
        raise no_workers(namespace, name) from error


def no_workers(namespace: str, name: str) -> NotFound:
    """The error for a map without a MapJob."""
    return NotFound(
        f"map {name!r} in namespace {namespace} has no MapJob",
        hint="start workers where the map was made",
        code=ErrorCode.NOT_FOUND,
    )


async def check_workers(api: Api, namespace: str, name: str) -> None:
    """Raise MoorageError if the map's workers have failed for good: then no more results come.

    Raises ApiError if the MapJob cannot be read.
    """
    failed = condition(await api.get(MAPJOBS, name, namespace), FAILED) or {}
    if failed.get("status") == "True":
        reason = failed.get("message") or failed.get("reason")
        raise MoorageError(f"the map {name} has no workers any more: {reason}", code=ErrorCode.CONFLICT)
