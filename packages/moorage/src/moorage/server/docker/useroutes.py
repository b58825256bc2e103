"""The use and the processes of a container, and the removal of ended containers, in Docker's words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import cast

from starlette.responses import Response, StreamingResponse

from moorage.api.errors import ErrorCode
from moorage.decide.docker.containers import MAIN, container_id, is_ended, is_gated
from moorage.decide.docker.host import show_processes, show_stats
from moorage.decide.docker.views import inspect, matches, summary
from moorage.model.names import OWNER_ANNOTATION
from moorage.server.docker.containers import Containers
from moorage.server.docker.endpoint import DockerCall, DockerEndpoint
from moorage.server.docker.execroutes import ExecApi, running
from moorage.server.docker.routes import ONE, is_true, read_filters
from moorage.server.poduse import FRESH
from moorage.server.problems import Json, Problem
from moorage_kube.meta import annotations_of
from moorage_kube.resources import Obj

STATS_SECONDS = 5.0  # between two answers of a stream; the server measures less often
PROCESSES_MAX = 1024 * 1024  # bytes of the output of ps
TREE_FIRST = 'ps -eww -o pid=,ppid=,args=; echo; exec "$@"'  # on a local cluster, ps sees the whole machine


async def stats(call: DockerCall) -> Response:
    """Show the measured use of CPU and memory; with `stream` again every few seconds, while the container runs."""
    mine = await call.containers()
    pod = await mine.get(call.id)
    if not is_true(call.query.get("stream", "true")):
        return Json(await _stats(mine, pod))

    async def answers() -> AsyncIterator[bytes]:
        current: Obj | None = pod
        while current is not None and not is_ended(current):
            yield json.dumps(await _stats(mine, current)).encode() + b"\n"
            await mine.context.clock.sleep(STATS_SECONDS)
            current = (await mine.context.ready()).pods.get(pod["metadata"]["name"], mine.namespace)

    return StreamingResponse(answers(), media_type="application/json")


async def _stats(mine: Containers, pod: Obj) -> Obj:
    context, uid = mine.context, pod["metadata"]["uid"]
    latest = await asyncio.to_thread(context.samples.latest, [uid], since=context.now() - FRESH)
    reading, shown = latest.get(uid), inspect(pod, None, context.now())
    return show_stats(
        shown,
        at=reading.at if reading else None,
        cpu_milli=reading.cpu_milli if reading else None,
        memory_bytes=reading.memory_bytes if reading else None,
        memory_limit=shown["HostConfig"].get("Memory", 0),
        cpus=max(1, -(-shown["HostConfig"].get("NanoCpus", 0) // 10**9)),
    )


async def top(call: DockerCall) -> Response:
    """List the processes of a container, by `ps` in the container."""
    mine = await call.containers()
    pod = await running(mine, call.id)
    words = ["ps", *(call.query.get("ps_args") or "-ef").split()]
    on_processes = (await call.context.ready()).on_processes()
    if on_processes:
        words = ["sh", "-c", TREE_FIRST, "sh", *words]
    process = await cast(ExecApi, mine.api).exec(pod["metadata"]["name"], mine.namespace, words, container=MAIN)
    printed = b""
    async with process:
        async for _, data in process:
            printed = (printed + data)[:PROCESSES_MAX]
    if process.exit_code:
        message = f"ps in the container failed: {printed.decode(errors='replace').strip()[:200]}"
        raise Problem(409, ErrorCode.CONFLICT, message, "use an image with ps")
    try:
        return Json(
            show_processes(printed.decode(errors="replace"), uid=pod["metadata"]["uid"] if on_processes else "")
        )
    except ValueError as error:
        raise Problem(400, ErrorCode.BAD_REQUEST, str(error), field="ps_args") from error


async def prune(call: DockerCall) -> Response:
    """Remove the user's own containers that have ended or were not started; those of others in the team stay."""
    mine, filters = await call.containers(), read_filters(call.query.get("filters"))
    now, removed = mine.context.now(), []
    for pod in await mine.listed():
        if annotations_of(pod).get(OWNER_ANNOTATION) != call.user.name or not (is_ended(pod) or is_gated(pod)):
            continue
        try:
            if matches(summary(pod, None, now), filters):
                with suppress(Problem):  # removed or started by another request
                    await mine.remove(container_id(pod), force=False)
                    removed.append(container_id(pod))
        except ValueError as error:
            raise Problem(400, ErrorCode.BAD_REQUEST, str(error), field="filters") from error
    return Json({"ContainersDeleted": removed, "SpaceReclaimed": 0})


ENDPOINTS = (
    DockerEndpoint(method="GET", handler=stats, dockers=f"{ONE}/stats"),
    DockerEndpoint(method="GET", handler=top, dockers=f"{ONE}/top"),
    DockerEndpoint(method="POST", handler=prune, dockers="/containers/prune"),
)
