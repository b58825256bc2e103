"""Containers, in Docker's words: under /api/v1/containers, and under the paths of Docker's own clients.

Both take the same bodies and give the same answers; errors have Docker's `message` and our `code`.
https://docs.docker.com/reference/api/engine/version/v1.41/
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import nullcontext
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from moorage import __version__
from moorage.api.containers import (
    ContainerCreated,
    ContainerCreation,
    ContainerExit,
    ContainerExitError,
    ContainerLogs,
    ContainerPage,
    NewContainer,
)
from moorage.api.errors import ErrorCode
from moorage.api.fields import Force
from moorage.decide.docker.containers import (
    API_VERSION,
    MAIN,
    MIN_API_VERSION,
    NEVER_STARTED,
    config_of,
    container_id,
    container_name,
    is_ended,
    is_gated,
    is_removed_at_end,
    never_starts,
)
from moorage.decide.docker.views import inspect, matches, summary
from moorage.server.docker.containers import HOST_ENV_HEADER, Containers
from moorage.server.docker.endpoint import HEAD_SECONDS, DockerCall, DockerEndpoint, TakenOver
from moorage.server.docker.streams import frame_lines
from moorage.server.endpoint import Described
from moorage.server.inputs import number, read_bytes, read_object
from moorage.server.problems import Json, Problem
from moorage_kube.documents import parse_json
from moorage_kube.errors import ApiError, DocumentError
from moorage_kube.moments import parse_rfc3339
from moorage_kube.resources import Obj

log = logging.getLogger(__name__)

BODY_MAX = 256 * 1024
FILTERS_MAX = 16 * 1024
START_SECONDS = 10.0  # patience of `start` for a container that starts; of `exec`: STARTED_SECONDS
PAGE_MAX = 500
STDOUT, STDERR = 1, 2
ONE = "/containers/{id}"
RAW_STREAM = "application/vnd.docker.raw-stream"
MULTIPLEXED = "application/vnd.docker.multiplexed-stream"


async def ping(call: DockerCall) -> Response:
    """Answer the ping, which is the first request of Docker's clients."""
    return PlainTextResponse(
        "" if call.request.method == "HEAD" else "OK",
        headers={"api-version": API_VERSION, "docker-experimental": "false", "ostype": "linux"},
    )


async def version(_call: DockerCall) -> Response:
    """Return the versions from which Docker's clients choose a version of the API."""
    return Json(
        {
            "Platform": {"Name": "Moorage"},
            "Components": [{"Name": "Moorage", "Version": __version__, "Details": {}}],
            "Version": __version__,
            "ApiVersion": API_VERSION,
            "MinAPIVersion": MIN_API_VERSION,
            "Os": "linux",
            "Arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
            "KernelVersion": "",
            "GoVersion": "",
            "GitCommit": "",
        }
    )


async def list_containers(call: DockerCall) -> Response:
    """List containers, newest first; with `all=true` also those that ended and those not yet started."""
    mine = await call.containers()
    query = call.query
    now = mine.context.now()
    services = await mine.services()
    rows: list[Obj] = []
    doomed: list[Obj] = []
    filters = read_filters(query.get("filters"))
    everything = is_true(query.get("all")) or bool(filters.get("status") or filters.get("exited"))
    for pod in await mine.listed():
        if is_ended(pod) and is_removed_at_end(pod):
            doomed.append(pod)
        elif everything or mine.state(pod).is_live:
            row = summary(pod, services.get(container_name(pod)), now)
            try:
                if matches(row, filters):
                    rows.append(row)
            except ValueError as error:
                raise Problem(400, ErrorCode.BAD_REQUEST, str(error), field="filters") from error
    await asyncio.gather(*(mine.sweep(pod) for pod in doomed))
    if after := query.get("after"):
        ids = [row["Id"] for row in rows]
        rows = rows[ids.index(after) + 1 :] if after in ids else []
    limit = _number(query.get("limit"), "limit", PAGE_MAX)
    more = {"x-next-after": rows[limit - 1]["Id"]} if limit and len(rows) > limit else None
    return Json(rows[:limit] if limit else rows, headers=more)


async def create(call: DockerCall) -> Response:
    """Create a container without starting it. A repeat with the same `Idempotency-Key` creates nothing."""
    mine = await call.containers()
    body = await read_body(call.request)
    pod, warnings = await mine.create(
        body,
        call.query.get("name") or None,
        platform=call.query.get("platform") or "",
        key=call.request.headers.get("idempotency-key", ""),
        dry_run=is_true(call.query.get("dryRun")),
        host_env=is_true(call.request.headers.get(HOST_ENV_HEADER)),
    )
    return Json(ContainerCreated(id=container_id(pod), warnings=warnings, name=container_name(pod)), 201)


async def show(call: DockerCall) -> Response:
    """Show all details of a container."""
    mine = await call.containers()
    pod = await mine.get(call.id)
    services = await mine.services()
    return Json(inspect(pod, services.get(container_name(pod)), mine.context.now()))


async def start(call: DockerCall) -> Response:
    """Start a container, also one that has ended. 304: it already runs.

    As with Docker, the container runs when the answer comes, unless its start takes longer than START_SECONDS.
    """
    mine = await call.containers()
    pod = await mine.start(call.id)
    if pod is not None:
        await mine.started(pod, START_SECONDS)
    return Response(status_code=304 if pod is None else 204)


async def stop(call: DockerCall) -> Response:
    """Stop a container with the grace period from its creation. 304: it does not run."""
    mine = await call.containers()
    return Response(status_code=204 if await mine.stop(call.id) else 304)


async def kill(call: DockerCall) -> Response:
    """Stop a container. Only the signals KILL, TERM and INT can be sent."""
    mine = await call.containers()
    signal = (call.query.get("signal") or "KILL").upper().removeprefix("SIG")
    if signal not in ("KILL", "TERM", "INT", "9", "15", "2"):
        raise Problem(
            400, ErrorCode.NO_SUCH_SIGNAL, f"the signal {signal} cannot be sent", "use KILL, TERM or INT", "signal"
        )
    if not await mine.stop(call.id):
        raise Problem(409, ErrorCode.NOT_RUNNING, f"container {call.id} is not running")
    return Response(status_code=204)


async def restart(call: DockerCall) -> Response:
    """Restart a container."""
    mine = await call.containers()
    word = call.id
    await mine.stop(word)
    if (pod := await mine.start(word)) is not None:
        await mine.started(pod, START_SECONDS)
    return Response(status_code=204)


async def remove(call: DockerCall) -> Response:
    """Remove a container, and its Service; volumes stay."""
    mine = await call.containers()
    await mine.remove(call.id, force=is_true(call.query.get("force")))
    return Response(status_code=204)


async def wait(call: DockerCall) -> Response:
    """Wait until a container ends, or with `condition=removed` is removed; return its exit code."""
    mine = await call.containers()
    condition = call.query.get("condition") or "not-running"
    if condition not in ("not-running", "next-exit", "removed"):
        raise Problem(
            400, ErrorCode.BAD_REQUEST, f"condition is {condition!r}", "use not-running, next-exit or removed"
        )
    pod = await mine.get(call.id)

    async def end() -> AsyncIterator[bytes]:
        yield b""
        code, error = 0, None
        if condition == "next-exit" or not is_gated(pod) or condition == "removed":
            last = await mine.ended(pod)
            code = mine.state(last).exit_code if last is not None else 0
            if last is not None and (why := never_starts(last)):
                code, error = NEVER_STARTED, ContainerExitError(message=why)
            if last is not None and (condition == "removed" or is_removed_at_end(last)):
                await mine.sweep(last)
        yield msgspec.json.encode(ContainerExit(status_code=code, error=error))

    return StreamingResponse(end(), media_type="application/json")


class _Wanted(Struct, frozen=True, kw_only=True):
    """The part of a log that a client asks for."""

    follow: bool
    tail: int | None = None  # lines from the end
    since: int | None = None  # seconds ago
    until: int = 0  # seconds since 1970; 0: no end
    timestamps: bool = False


async def logs(call: DockerCall) -> Response:
    """Show the output of a container. Kubernetes joins stdout and stderr: all output is marked as stdout, or as
    stderr if only stderr is asked for.
    """
    mine = await call.containers()
    pod = await mine.get(call.id)
    query = call.query
    ours = call.request.url.path.startswith("/api/")
    # Docker's Python package reads only stderr to report a failed run: it gets all output
    stream = STDOUT if ours or is_true(query.get("stdout")) else STDERR
    if stream == STDERR and not is_true(query.get("stderr")):
        raise Problem(
            400,
            ErrorCode.BAD_REQUEST,
            "the request asks for neither stdout nor stderr",
            "set stdout=1 or stderr=1",
            "stdout",
        )
    framed = not ours and not config_of(pod).get("Tty")
    tail = query.get("tail") or "all"
    since = _number(query.get("since", "").partition(".")[0] or None, "since", 2**40)
    until = _number(query.get("until", "").partition(".")[0] or None, "until", 2**40)
    follow = is_true(query.get("follow"))
    wanted = _Wanted(
        follow=follow,
        tail=None if tail == "all" else _number(tail, "tail", 10**7),
        since=max(1, int(mine.context.now().timestamp()) - since) if since else None,
        until=until or 0,
        timestamps=is_true(query.get("timestamps")),
    )
    lines: AsyncIterator[bytes] = _printed(mine, pod, wanted)
    if not follow:  # errors are sent before the answer begins
        await anext(lines)
        lines = _after(await anext(lines, b""), lines)
    return StreamingResponse(
        (frame_lines(stream, chunk) async for chunk in lines) if framed else lines,
        media_type="text/plain; charset=utf-8" if ours else MULTIPLEXED if framed else RAW_STREAM,
    )


async def _after(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


async def _printed(mine: Containers, pod: Obj, wanted: _Wanted) -> AsyncGenerator[bytes, None]:
    """The log of a container. With `follow` it waits until the container has started."""
    async with mine.following(pod) if wanted.follow else nullcontext():  # without `follow` it ends at once
        yield b""
        async for chunk in _read(mine, pod, wanted):
            yield chunk


async def _read(mine: Containers, pod: Obj, wanted: _Wanted) -> AsyncIterator[bytes]:
    if wanted.follow:
        begun = await mine.begun(pod)
    else:
        begun = pod if is_ended(pod) or mine.state(pod).status in ("running", "restarting") else None
    if begun is None:
        return
    lines = mine.api.logs(
        begun["metadata"]["name"],
        mine.namespace,
        container=MAIN,
        follow=wanted.follow,
        tail_lines=wanted.tail,
        since_seconds=wanted.since,
        timestamps=wanted.timestamps or bool(wanted.until),
    )
    try:
        async for chunk in _before(wanted, lines) if wanted.until else lines:
            yield chunk
    except ApiError as error:
        if not wanted.follow:
            raise
        log.warning(
            "a log could not be followed", extra={"pod": begun["metadata"]["name"], "error": error.message}
        )


async def _before(wanted: _Wanted, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines before `until`, from lines with timestamps."""
    rest = b""
    async for chunk in lines:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            moment, _, text = line.partition(b" ")
            if parse_rfc3339(moment.decode()).timestamp() >= wanted.until:
                return
            yield (line if wanted.timestamps else text) + b"\n"


async def attach(call: DockerCall) -> Response:
    """Stream the output of a container from now on, or from its start with `logs=true`."""
    mine = await call.containers()
    pod = await mine.get(call.id)
    query = call.query
    take = (call.request.scope.get("extensions") or {}).get("moorage.raw")
    framed = not config_of(pod).get("Tty")
    if is_true(query.get("stdin")) and config_of(pod).get("OpenStdin"):
        raise Problem(
            501,
            ErrorCode.NO_STDIN,
            "standard input cannot be sent to the container's main process",
            "start it with `docker run -d`, then `docker exec -it`",
        )
    earlier = is_gated(pod) or is_true(query.get("logs"))
    lines = _printed(mine, pod, _Wanted(follow=True, tail=None if earlier else 0))
    if take is None:
        return StreamingResponse(
            (frame_lines(STDOUT, chunk) async for chunk in lines) if framed else lines,
            media_type=MULTIPLEXED if framed else RAW_STREAM,
        )
    raw = take(
        [
            (b"Content-Type", (MULTIPLEXED if framed else RAW_STREAM).encode()),
            (b"Connection", b"Upgrade"),
            (b"Upgrade", b"tcp"),
        ]
    )
    try:
        await call.context.clock.sleep(HEAD_SECONDS)
        await raw.body()
        async for chunk in lines:
            if chunk:
                await raw.write(frame_lines(STDOUT, chunk) if framed else chunk)
    except (ConnectionError, asyncio.IncompleteReadError, ApiError):
        pass  # the client or the pod is away: there is no answer to send
    finally:
        raw.close()
    return TakenOver(call.request)


ENDPOINTS = (
    DockerEndpoint(
        method="GET",
        handler=list_containers,
        ours="/containers",
        dockers="/containers/json",
        described=Described(query=ContainerPage, answer=list[dict[str, Any]]),
    ),
    DockerEndpoint(
        method="POST",
        handler=create,
        ours="/containers",
        dockers="/containers/create",
        described=Described(
            query=ContainerCreation, body=NewContainer, answer=ContainerCreated, status=201, once=True
        ),
    ),
    DockerEndpoint(
        method="GET", handler=show, ours="/containers/{id}", described=Described(answer=dict[str, Any])
    ),
    DockerEndpoint(
        method="GET",
        handler=show,
        ours=f"{ONE}/json",
        dockers=f"{ONE}/json",
        described=Described(answer=dict[str, Any]),
    ),
    DockerEndpoint(
        method="GET",
        handler=logs,
        ours=f"{ONE}/logs",
        dockers=f"{ONE}/logs",
        described=Described(query=ContainerLogs, media_type="text/plain"),
    ),
    DockerEndpoint(method="POST", handler=start, ours=f"{ONE}/start", dockers=f"{ONE}/start"),
    DockerEndpoint(method="POST", handler=stop, ours=f"{ONE}/stop", dockers=f"{ONE}/stop"),
    DockerEndpoint(method="POST", handler=kill, ours=f"{ONE}/kill", dockers=f"{ONE}/kill"),
    DockerEndpoint(method="POST", handler=restart, ours=f"{ONE}/restart", dockers=f"{ONE}/restart"),
    DockerEndpoint(
        method="POST",
        handler=wait,
        ours=f"{ONE}/wait",
        dockers=f"{ONE}/wait",
        described=Described(answer=ContainerExit),
    ),
    DockerEndpoint(
        method="POST",
        handler=attach,
        ours=f"{ONE}/attach",
        dockers=f"{ONE}/attach",
        described=Described(media_type=RAW_STREAM),
    ),
    DockerEndpoint(method="DELETE", handler=remove, ours=ONE, dockers=ONE, described=Described(query=Force)),
    DockerEndpoint(method="GET", handler=ping, dockers="/_ping"),
    DockerEndpoint(method="GET", handler=version, dockers="/version"),
)


async def read_body(request: Request) -> Mapping[str, Any]:
    """Read the body as a JSON object. Raises Problem 413 and 400."""
    return read_object(await read_bytes(request, BODY_MAX))


def read_filters(text: str | None) -> dict[str, list[str]]:
    """Parse filters: `{"label": ["a=b"]}`, or the form of older clients: `{"label": {"a=b": true}}`."""
    if not text:
        return {}
    try:
        filters = parse_json(text, dict[str, dict[str, Any] | list[str]], bytes_max=FILTERS_MAX)
    except DocumentError as error:
        raise Problem(
            400,
            ErrorCode.BAD_REQUEST,
            f"invalid filters {text[:80]!r}: use a JSON object of lists ({error.message})",
            'such as {"label": ["team=vision"]}',
            "filters",
        ) from error
    return {key: list(value) for key, value in filters.items()}


def is_true(text: str | None) -> bool:
    return (text or "").lower() in ("1", "true", "t", "yes")


def _number(text: str | None, where: str, most: int) -> int:
    """Parse a number of at most `most`; 0 (no limit) if it is absent, or Docker's -1. Raises Problem 400."""
    return 0 if text is None else max(0, number(text, where, minimum=-1, maximum=most))
