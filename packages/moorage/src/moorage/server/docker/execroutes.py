"""Commands in running containers: Docker's `exec`, and the same over a WebSocket.

An exec exists from `POST …/exec` until some time after its end, on all servers of one database. Only the user
who created it may use it.
"""

from __future__ import annotations

import asyncio
import functools
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from moorage.api.errors import ErrorCode
from moorage.decide.docker.containers import MAIN, container_id, is_gated
from moorage.server.context import Context
from moorage.server.docker.containers import NAMESPACE_HEADER, Containers
from moorage.server.docker.endpoint import (
    HEAD_SECONDS,
    OURS,
    DockerCall,
    DockerEndpoint,
    TakenOver,
    docker_problem,
)
from moorage.server.docker.execs import NOT_STARTED, Exec, Execs, Running
from moorage.server.docker.routes import MULTIPLEXED, RAW_STREAM, read_body
from moorage.server.inputs import number, read_object
from moorage.server.problems import Json, Problem
from moorage_kube.documents import parse_json
from moorage_kube.errors import ApiError, MoorageError, ServerError
from moorage_kube.resources import Obj

if TYPE_CHECKING:
    from moorage_kube.remote.exec import ExecProcess
    from moorage_kube.serving import RawConnection

STARTED_SECONDS = 45.0  # patience for a container that starts; Docker's Python package waits 60 s
PIECE = 64 * 1024
PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255  # first byte of each message
CHANNEL_MAX = 1024 * 1024
CHARACTERS_MAX = 99_999  # of a terminal, either way


class Size(msgspec.Struct, rename="pascal"):
    """Of a terminal."""

    width: Annotated[int, msgspec.Meta(ge=1, le=CHARACTERS_MAX)]
    height: Annotated[int, msgspec.Meta(ge=1, le=CHARACTERS_MAX)]


class ExecApi(Protocol):
    async def exec(
        self,
        pod: str,
        namespace: str,
        command: Sequence[str],
        *,
        container: str | None = None,
        stdin: bytes | bool | None = None,
        tty: bool = False,
    ) -> ExecProcess: ...


async def create(call: DockerCall) -> Response:
    """Create a command for a running container: `Cmd`, `Env`, `WorkingDir`, `Tty`, `AttachStdin`."""
    containers = await call.containers()
    pod = await running(containers, call.id)
    body = await read_body(call.request)
    exec_ = Exec(
        id=secrets.token_hex(32),
        user=call.user.name,
        namespace=containers.namespace,
        pod=pod["metadata"]["name"],
        container=container_id(pod),
        command=command_of(body),
        stdin=bool(body.get("AttachStdin")),
        tty=bool(body.get("Tty")),
    )
    await call.context.part(Execs).add(exec_)
    return Json({"Id": exec_.id}, 201)


async def start(call: DockerCall) -> Response:
    """Run the command and stream its output; with `Detach` do not return the output."""
    execs = call.context.part(Execs)
    exec_ = await execs.of(call.id, call.user.name)
    take = (call.request.scope.get("extensions") or {}).get("moorage.raw")
    api = cast(ExecApi, call.context.acting(call.user))
    body = (
        {"Tty": exec_.tty} if take else await read_body(call.request)
    )  # `_over` reads that of a taken connection
    exec_ = await execs.claim(exec_.id, call.user.name)
    try:
        process = await api.exec(
            exec_.pod,
            exec_.namespace,
            exec_.command,
            container=MAIN,
            stdin=exec_.stdin or None,
            tty=exec_.tty,
        )
    except BaseException:
        await execs.end(exec_.id, NOT_STARTED)
        raise
    running = execs.hold(exec_, process)
    if body.get("Detach"):
        execs.detach(running)
        return Response(status_code=200)
    running.framed = not body.get("Tty")  # as in Docker, not the `Tty` of its creation
    output = execs.output_of(running)
    await anext(output)
    media = MULTIPLEXED if running.framed else RAW_STREAM
    if take is not None:
        raw = take([(b"Content-Type", media.encode()), (b"Connection", b"Upgrade"), (b"Upgrade", b"tcp")])
        await call.context.clock.sleep(HEAD_SECONDS)
        await _over(raw, running, output)
        return TakenOver(call.request)
    return StreamingResponse(output, media_type=media)


async def show(call: DockerCall) -> Response:
    """Show whether the command runs, and its exit code."""
    exec_ = await call.context.part(Execs).of(call.id, call.user.name)
    return Json(
        {
            "ID": exec_.id,
            "Running": exec_.running,
            "ExitCode": exec_.exit_code,
            "ContainerID": exec_.container,
            "OpenStdin": exec_.stdin,
            "OpenStdout": True,
            "OpenStderr": not exec_.tty,
            "CanRemove": False,
            "Pid": 0,
            "ProcessConfig": {
                "tty": exec_.tty,
                "entrypoint": exec_.command[0],
                "arguments": exec_.command[1:],
                "privileged": False,
            },
        }
    )


async def resize(call: DockerCall) -> Response:
    """Set the size of the terminal: `h`, `w`."""
    exec_ = await call.context.part(Execs).of(call.id, call.user.name)
    height, width = (
        number(call.query.get(name, ""), name, minimum=1, maximum=CHARACTERS_MAX) for name in ("h", "w")
    )
    await call.context.part(Execs).resize(exec_, width, height)
    return Response(status_code=200)


ENDPOINTS = (
    DockerEndpoint(method="POST", handler=create, dockers="/containers/{id}/exec"),
    DockerEndpoint(method="POST", handler=start, dockers="/exec/{id}/start"),
    DockerEndpoint(method="POST", handler=resize, dockers="/exec/{id}/resize"),
    DockerEndpoint(method="GET", handler=show, dockers="/exec/{id}/json"),
)


def websocket_route(context: Context) -> BaseRoute:
    """The route that runs a command over a WebSocket."""
    return WebSocketRoute(f"{OURS}/containers/{{id}}/exec", functools.partial(by_websocket, context))


async def running(there: Containers, word: str) -> Obj:
    """The pod of a running container; waits while it is about to run. Raises Problem 409 if it does not run."""
    pod = await there.get(word)
    if not is_gated(pod):
        pod = await there.started(pod, STARTED_SECONDS)
    state = there.state(pod)
    if state.status != "running":
        now = f" ({state.text})" if state.text else ""
        raise Problem(409, ErrorCode.NOT_RUNNING, f"Container {word} is not running{now}", "docker start it first")
    return pod


def command_of(body: Any) -> list[str]:
    """The command to run, with a prefix for environment and folder: Kubernetes' exec has no such options."""
    words = body.get("Cmd")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise Problem(400, ErrorCode.INVALID, f"Cmd is {words!r}", "write a list of words, one at least", "Cmd")
    for name in ("User", "Privileged"):
        if body.get(name):
            raise Problem(
                400,
                ErrorCode.INVALID,
                f"{name} is not available: a command has its container's rights",
                field=name,
            )
    environment = body.get("Env") or []
    if not isinstance(environment, list) or not all(
        isinstance(variable, str) and "=" in variable[1:] for variable in environment
    ):
        raise Problem(400, ErrorCode.INVALID, f"Env is {environment!r}", "write a list of NAME=VALUE", "Env")
    made = ["env", *environment, *words] if environment else list(words)
    if folder := str(body.get("WorkingDir") or ""):
        made = ["sh", "-c", 'cd "$0" && exec "$@"', folder, *made]
    return made


async def _over(raw: RawConnection, running: Running, output: AsyncIterator[bytes]) -> None:
    """Copy bytes both ways until the command has ended or the client has disconnected."""
    feeding: asyncio.Task[None] | None = None
    try:
        body = await raw.body()
        with suppress(Problem):  # an unreadable body counts as empty
            running.framed = not read_object(body).get("Tty")
        if running.exec.stdin:
            feeding = asyncio.create_task(_feed(raw, running.process))
        async for data in output:
            await raw.write(data)
    except (ConnectionError, asyncio.IncompleteReadError, ApiError):
        return
    finally:
        if feeding is not None:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
        await cast(Any, output).aclose()
        raw.close()


async def _feed(raw: RawConnection, process: ExecProcess) -> None:
    with suppress(ServerError):
        while data := await raw.reader.read(PIECE):
            await process.write(data)
        await process.close_stdin()


async def by_websocket(context: Context, websocket: WebSocket) -> None:
    """Run `command` (repeated, a word each; `tty=true`) in a container. Messages are as Kubernetes' own:

    the first byte is the channel: 0 standard input, 1 output, 2 errors, 3 the end as JSON, 4 the
    terminal's size as `{"Width": …, "Height": …}`, 255 the end of the channel with the number that
    follows.
    """
    query = websocket.query_params
    words, tty = query.getlist("command"), query.get("tty") == "true"
    asked = websocket.headers.get(NAMESPACE_HEADER) or query.get("namespace") or ""
    try:
        if not words:
            raise Problem(400, ErrorCode.INVALID, "no command given", "command=ls&command=-l")
        there = await Containers.of(context, websocket.state.user, asked)
        pod = await running(there, websocket.path_params["id"])
        api = cast(ExecApi, there.api)
        name = pod["metadata"]["name"]
        process = await api.exec(name, there.namespace, words, container=MAIN, stdin=True, tty=tty)
    except (Problem, MoorageError) as error:
        problem = docker_problem(error) if isinstance(error, ApiError) else error
        await websocket.accept(PROTOCOL if PROTOCOL in websocket.scope.get("subprotocols", ()) else None)
        await websocket.send_bytes(bytes([STATUS]) + json.dumps({"message": str(problem)}).encode())
        await websocket.close(1008)
        return
    await websocket.accept(PROTOCOL if PROTOCOL in websocket.scope.get("subprotocols", ()) else None)
    async with process:
        hearing = asyncio.create_task(_hear(websocket, process))
        try:
            async for channel, data in process:
                await websocket.send_bytes(bytes([channel]) + data)
            await websocket.send_bytes(bytes([STATUS]) + json.dumps({"exitCode": process.exit_code}).encode())
            await websocket.close()
        except (ServerError, WebSocketDisconnect, RuntimeError):
            with suppress(RuntimeError):
                await websocket.close(1011)
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)


async def _hear(websocket: WebSocket, process: ExecProcess) -> None:
    try:
        while True:
            data = await websocket.receive_bytes()
            if not data or len(data) > CHANNEL_MAX:
                continue
            if data[0] == STDIN:
                await process.write(data[1:])
            elif data[0] == RESIZE:
                size = parse_json(data[1:], Size, bytes_max=CHANNEL_MAX)
                await process.resize(size.width, size.height)
            elif data[0] == CLOSE:
                await process.close_stdin()
    except (WebSocketDisconnect, ServerError, ValueError, KeyError, TypeError):
        await process.close()
