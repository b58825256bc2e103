"""Containers, in Docker's words: under /api/v1/containers, and under the paths of Docker's own clients.

Both take the same bodies and give the same answers; errors have Docker's `message` beside our `code`.
https://docs.docker.com/reference/api/engine/version/v1.41/
"""

from __future__ import annotations

import asyncio
import json
import logging
import platform
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from moorage import __version__
from moorage.apimachinery.documents import parse_json
from moorage.apimachinery.resources import Obj
from moorage.decide.docker.containers import (
    API_VERSION,
    MAIN,
    MIN_API_VERSION,
    config_of,
    container_id,
    container_name,
    is_ended,
    is_gated,
    is_removed_at_end,
)
from moorage.decide.docker.views import inspect, matches, summary
from moorage.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    DocumentError,
    Forbidden,
    Invalid,
    NotFound,
)
from moorage.server.context import Context
from moorage.server.docker.containers import NAMESPACE_HEADER, Containers
from moorage.server.inputs import number, read_bytes, read_object
from moorage.server.problems import Json, Problem

log = logging.getLogger(__name__)

BODY_MAX = 256 * 1024
FILTERS_MAX = 16 * 1024
PAGE_MAX = 500
STDOUT, STDERR = 1, 2
RAW_STREAM = "application/vnd.docker.raw-stream"
MULTIPLEXED = "application/vnd.docker.multiplexed-stream"

Handler = Callable[[Request, Containers], Awaitable[Response]]


def routes(context: Context) -> list[BaseRoute]:
    def handled(act: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            asked = request.headers.get(NAMESPACE_HEADER) or request.query_params.get("namespace") or ""
            try:
                mine = await Containers.of(context, request.state.user, asked)
                return await act(request, mine)
            except ApiError as error:
                raise told(error) from error

        handle.__doc__ = act.__doc__
        return handle

    verbs: list[tuple[str, str, Handler]] = [
        ("GET", "/{id}/json", _inspect),
        ("GET", "/{id}/logs", _logs),
        ("POST", "/{id}/start", _start),
        ("POST", "/{id}/stop", _stop),
        ("POST", "/{id}/kill", _kill),
        ("POST", "/{id}/restart", _restart),
        ("POST", "/{id}/wait", _wait),
        ("POST", "/{id}/attach", _attach),
        ("DELETE", "/{id}", _remove),
    ]
    ours = [("GET", "", _list), ("POST", "", _create), ("GET", "/{id}", _inspect), *verbs]
    dockers = [("GET", "/json", _list), ("POST", "/create", _create), *verbs]
    found: list[BaseRoute] = []
    for method, path, act in ours:
        found.append(Route(f"/api/v1/containers{path}", handled(act), methods=[method]))
    for prefix in ("", "/v{version:float}"):
        for method, path, act in dockers:
            found.append(Route(f"{prefix}/containers{path}", handled(act), methods=[method]))
        found += [
            Route(f"{prefix}/_ping", _ping, methods=["GET", "HEAD"]),
            Route(f"{prefix}/version", _version, methods=["GET"]),
            Route(f"{prefix}/info", _info, methods=["GET"]),
            Route(f"{prefix}/images/create", _pull, methods=["POST"]),
        ]
    return found


def told(error: ApiError) -> Problem:
    """What the Kubernetes API said, for who knows Docker alone."""
    if isinstance(error, Forbidden):
        return Problem(
            403, "forbidden", error.message, "ask whoever runs this cluster, or choose another namespace"
        )
    if isinstance(error, NotFound):
        return Problem(404, "not_found", error.message, error.hint)
    if isinstance(error, BadRequest | Invalid):
        return Problem(400, "invalid", error.message, error.hint)
    if isinstance(error, Conflict | AlreadyExists):
        return Problem(409, "conflict", error.message, error.hint)
    return Problem(503, "kubernetes_unavailable", error.message, error.hint or "try again in a moment")


async def _ping(request: Request) -> Response:
    """Docker's clients ask this first."""
    return PlainTextResponse(
        "" if request.method == "HEAD" else "OK",
        headers={"api-version": API_VERSION, "docker-experimental": "false", "ostype": "linux"},
    )


async def _version(_request: Request) -> Response:
    """Docker's clients agree on a version by this."""
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


async def _info(_request: Request) -> Response:
    """What `docker info` shows."""
    return Json({"Name": "moorage", "ServerVersion": __version__, "OSType": "linux", "Driver": "kubernetes"})


async def _pull(request: Request) -> Response:
    """`docker pull`: nothing to be done, nodes pull what their pods need."""
    image = request.query_params.get("fromImage") or ""
    line = json.dumps({"status": f"{image}: the node that runs it will pull it"})
    return Response(f"{line}\r\n", media_type="application/json")


async def _list(request: Request, mine: Containers) -> Response:
    """Containers, newest first; those that have ended and those not yet started with `all=true`."""
    query = request.query_params
    now = mine.context.now()
    services = await mine.services()
    rows: list[Obj] = []
    doomed: list[Obj] = []
    filters = _filters(query.get("filters"))
    everything = _is_true(query.get("all")) or bool(filters.get("status") or filters.get("exited"))
    for pod in await mine.listed():
        if is_ended(pod) and is_removed_at_end(pod):
            doomed.append(pod)
        elif everything or mine.state(pod).is_live:
            row = summary(pod, services.get(container_name(pod)), now)
            try:
                if matches(row, filters):
                    rows.append(row)
            except ValueError as error:
                raise Problem(400, "bad_request", str(error), field="filters") from error
    await asyncio.gather(*(mine.sweep(pod) for pod in doomed))
    if after := query.get("after"):
        ids = [row["Id"] for row in rows]
        rows = rows[ids.index(after) + 1 :] if after in ids else []
    limit = _number(query.get("limit"), "limit", PAGE_MAX)
    more = {"x-next-after": rows[limit - 1]["Id"]} if limit and len(rows) > limit else None
    return Json(rows[:limit] if limit else rows, headers=more)


async def _create(request: Request, mine: Containers) -> Response:
    """Make a container, not yet started. `Idempotency-Key`: asking twice is as once; `dryRun=true`: only tried."""
    body = await read_body(request)
    pod, warnings = await mine.create(
        body,
        request.query_params.get("name") or None,
        key=request.headers.get("idempotency-key", ""),
        dry_run=_is_true(request.query_params.get("dryRun")),
    )
    return Json({"Id": container_id(pod), "Warnings": list(warnings), "Name": container_name(pod)}, 201)


async def _inspect(request: Request, mine: Containers) -> Response:
    """All there is to know of a container."""
    pod = await mine.get(request.path_params["id"])
    services = await mine.services()
    return Json(inspect(pod, services.get(container_name(pod)), mine.context.now()))


async def _start(request: Request, mine: Containers) -> Response:
    """Start a container; one that has ended starts anew. 304: it runs already."""
    return Response(status_code=204 if await mine.start(request.path_params["id"]) else 304)


async def _stop(request: Request, mine: Containers) -> Response:
    """Stop a container, with the grace period it was made with. 304: it does not run."""
    return Response(status_code=204 if await mine.stop(request.path_params["id"]) else 304)


async def _kill(request: Request, mine: Containers) -> Response:
    """As `stop`; other signals than KILL, TERM and INT cannot be sent."""
    signal = (request.query_params.get("signal") or "KILL").upper().removeprefix("SIG")
    if signal not in ("KILL", "TERM", "INT", "9", "15", "2"):
        raise Problem(
            400, "no_such_signal", f"the signal {signal} cannot be sent", "use KILL, TERM or INT", "signal"
        )
    if not await mine.stop(request.path_params["id"]):
        raise Problem(409, "not_running", f"container {request.path_params['id']} is not running")
    return Response(status_code=204)


async def _restart(request: Request, mine: Containers) -> Response:
    """Stop, then start."""
    word = request.path_params["id"]
    await mine.stop(word)
    await mine.start(word)
    return Response(status_code=204)


async def _remove(request: Request, mine: Containers) -> Response:
    """Remove a container, and its Service; volumes stay."""
    await mine.remove(request.path_params["id"], force=_is_true(request.query_params.get("force")))
    return Response(status_code=204)


async def _wait(request: Request, mine: Containers) -> Response:
    """The exit code, once it has ended (or, `condition=removed`, once it is gone). The head is sent at once."""
    condition = request.query_params.get("condition") or "not-running"
    if condition not in ("not-running", "next-exit", "removed"):
        raise Problem(400, "bad_request", f"condition is {condition!r}", "use not-running, next-exit or removed")
    pod = await mine.get(request.path_params["id"])

    async def end() -> AsyncIterator[bytes]:
        yield b""
        code = 0
        if condition == "next-exit" or not is_gated(pod) or condition == "removed":
            last = await mine.ended(pod)
            code = mine.state(last).exit_code if last is not None else 0
            if last is not None and (condition == "removed" or is_removed_at_end(last)):
                await mine.sweep(last)
        yield msgspec.json.encode({"StatusCode": code, "Error": None})

    return StreamingResponse(end(), media_type="application/json")


async def _logs(request: Request, mine: Containers) -> Response:
    """What the container printed. Kubernetes keeps stdout and stderr in one: all of it is told as stdout."""
    pod = await mine.get(request.path_params["id"])
    query = request.query_params
    if query.get("stdout") is not None and not _is_true(query.get("stdout")):
        return Response(b"", media_type=RAW_STREAM)
    ours = request.url.path.startswith("/api/")
    framed = not ours and not config_of(pod).get("Tty")
    tail = query.get("tail") or "all"
    since = _number(query.get("since", "").partition(".")[0] or None, "since", 2**40)
    follow = _is_true(query.get("follow"))
    lines: AsyncIterator[bytes] = _printed(
        mine,
        pod,
        follow=follow,
        tail=None if tail == "all" else _number(tail, "tail", 10**7),
        since=max(1, int(mine.context.now().timestamp()) - since) if since else None,
        timestamps=_is_true(query.get("timestamps")),
    )
    if not follow:  # what is wrong is told while it can be
        await anext(lines)
        lines = _after(await anext(lines, b""), lines)
    return StreamingResponse(
        (frame(STDOUT, chunk) async for chunk in lines) if framed else lines,
        media_type="text/plain; charset=utf-8" if ours else MULTIPLEXED if framed else RAW_STREAM,
    )


async def _after(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


async def _printed(
    mine: Containers, pod: Obj, *, follow: bool, tail: int | None, since: int | None, timestamps: bool
) -> AsyncGenerator[bytes, None]:
    """The log, from when there is one."""
    with mine.following(pod):
        yield b""
        async for chunk in _read(mine, pod, follow=follow, tail=tail, since=since, timestamps=timestamps):
            yield chunk


async def _read(
    mine: Containers, pod: Obj, *, follow: bool, tail: int | None, since: int | None, timestamps: bool
) -> AsyncIterator[bytes]:
    if follow:
        found = await mine.begun(pod)
    else:
        found = pod if is_ended(pod) or mine.state(pod).status in ("running", "restarting") else None
    if found is None:
        return
    said = mine.api.logs(
        found["metadata"]["name"],
        mine.namespace,
        container=MAIN,
        follow=follow,
        tail_lines=tail,
        since_seconds=since,
        timestamps=timestamps,
    )
    try:
        async for chunk in said:
            yield chunk
    except ApiError as error:
        if not follow:
            raise
        log.warning(
            "a log could not be followed", extra={"pod": found["metadata"]["name"], "error": error.message}
        )


async def _attach(request: Request, mine: Containers) -> Response:
    """What the container prints from now on, or, `logs=true`, from its start; over a connection of bytes."""
    pod = await mine.get(request.path_params["id"])
    query = request.query_params
    take = (request.scope.get("extensions") or {}).get("moorage.raw")
    framed = not config_of(pod).get("Tty")
    if _is_true(query.get("stdin")) and config_of(pod).get("OpenStdin"):
        raise Problem(
            501,
            "no_stdin",
            "what you type cannot be passed on to the container's own process",
            "start it with `docker run -d`, then `docker exec -it`",
        )
    earlier = is_gated(pod) or _is_true(query.get("logs"))
    lines = _printed(mine, pod, follow=True, tail=None if earlier else 0, since=None, timestamps=False)
    if take is None:
        return StreamingResponse(
            (frame(STDOUT, chunk) async for chunk in lines) if framed else lines,
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
        await raw.body()
        async for chunk in lines:
            if chunk:
                await raw.write(frame(STDOUT, chunk) if framed else chunk)
    except (ConnectionError, asyncio.IncompleteReadError, ApiError):
        return Response()  # it has gone, or the pod has; nothing is left to be told
    finally:
        raw.close()
    return Response()


def frame(stream: int, data: bytes) -> bytes:
    """Bytes of one stream among several, as Docker's clients take them apart: 8 bytes of head, then the bytes."""
    return struct.pack(">BxxxL", stream, len(data)) + data if data else b""


async def read_body(request: Request) -> Mapping[str, Any]:
    """A JSON object. Raises Problem 413 and 400."""
    return read_object(await read_bytes(request, BODY_MAX))


def _filters(text: str | None) -> dict[str, list[str]]:
    """`{"label": ["a=b"]}`, or as older clients write it `{"label": {"a=b": true}}`."""
    if not text:
        return {}
    try:
        found = parse_json(text, dict[str, dict[str, Any] | list[str]], bytes_max=FILTERS_MAX)
    except DocumentError as error:
        raise Problem(
            400,
            "bad_request",
            f"invalid filters {text[:80]!r}: use a JSON object of lists ({error.message})",
            'such as {"label": ["team=vision"]}',
            "filters",
        ) from error
    return {key: list(value) for key, value in found.items()}


def _is_true(text: str | None) -> bool:
    return (text or "").lower() in ("1", "true", "t", "yes")


def _number(text: str | None, where: str, most: int) -> int:
    """0 where none is given, and for Docker's -1: no limit. Raises Problem 400."""
    return 0 if text is None else max(0, number(text, where, minimum=-1, maximum=most))
