"""Commands in running containers: Docker's `exec`, and the same over a WebSocket.

An exec lives in this server's memory from `POST …/exec` to a while after its end; it is its maker's alone.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from moorage.apimachinery.documents import parse_json
from moorage.apimachinery.resources import Obj
from moorage.decide.docker.containers import MAIN, container_id
from moorage.errors import ApiError, MoorageError, ServerError
from moorage.server.context import Context
from moorage.server.docker.containers import NAMESPACE_HEADER, Containers
from moorage.server.docker.routes import MULTIPLEXED, RAW_STREAM, frame, read_body, told
from moorage.server.inputs import number
from moorage.server.problems import Json, Problem

if TYPE_CHECKING:
    from moorage.apimachinery.serving import RawConnection
    from moorage.kube.exec import ExecProcess

KEPT = 1000  # execs that are remembered; the oldest go first
PIECE = 64 * 1024
PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255  # first byte of each message
CHANNEL_MAX = 1024 * 1024
CHARACTERS_MAX = 99_999  # of a terminal, either way


class Size(msgspec.Struct, rename="pascal"):
    """Of a terminal."""

    width: Annotated[int, msgspec.Meta(ge=1, le=CHARACTERS_MAX)]
    height: Annotated[int, msgspec.Meta(ge=1, le=CHARACTERS_MAX)]


class _ExecApi(Protocol):
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


@dataclass(slots=True, kw_only=True)
class Exec:
    """One command, made and perhaps started."""

    id: str
    user: str
    namespace: str
    pod: Obj
    command: list[str]
    stdin: bool
    tty: bool
    running: bool = False
    exit_code: int | None = None
    process: ExecProcess | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


def routes(context: Context) -> list[BaseRoute]:
    execs: dict[str, Exec] = {}
    detached: set[asyncio.Task[None]] = set()

    def mine(request: Request) -> Exec:
        found = execs.get(request.path_params["id"])
        if found is None or found.user != request.state.user.name:
            raise Problem(404, "not_found", f"No such exec instance: {request.path_params['id']}")
        return found

    async def create(request: Request) -> Response:
        """Make a command for a running container: `Cmd`, `Env`, `WorkingDir`, `Tty`, `AttachStdin`."""
        asked = request.headers.get(NAMESPACE_HEADER) or request.query_params.get("namespace") or ""
        try:
            there = await Containers.of(context, request.state.user, asked)
            pod = await running(there, request.path_params["id"])
        except ApiError as error:
            raise told(error) from error
        body = await read_body(request)
        made = Exec(
            id=secrets.token_hex(32),
            user=request.state.user.name,
            namespace=there.namespace,
            pod=pod,
            command=command_of(body),
            stdin=bool(body.get("AttachStdin")),
            tty=bool(body.get("Tty")),
        )
        while len(execs) >= KEPT:
            del execs[next((one.id for one in execs.values() if not one.running), next(iter(execs)))]
        execs[made.id] = made
        return Json({"Id": made.id}, 201)

    async def start(request: Request) -> Response:
        """Run it: its output over a connection of bytes, or as the answer's body; `Detach`: without."""
        found = mine(request)
        take = (request.scope.get("extensions") or {}).get("moorage.raw")
        if found.running or found.exit_code is not None:
            raise Problem(409, "started", f"the exec {found.id[:12]} was started before", "make another")
        api = cast(_ExecApi, context.acting(request.state.user))
        body = {} if take else await read_body(request)
        found.running = True
        try:
            found.process = await api.exec(
                found.pod["metadata"]["name"],
                found.namespace,
                found.command,
                container=MAIN,
                stdin=found.stdin or None,
                tty=found.tty,
            )
        except ApiError as error:
            found.running, found.exit_code = False, 126
            found.ended.set()
            raise told(error) from error
        media = RAW_STREAM if found.tty else MULTIPLEXED
        if take is not None:
            raw = take([(b"Content-Type", media.encode()), (b"Connection", b"Upgrade"), (b"Upgrade", b"tcp")])
            await _over(raw, found)
            return Response()
        if body.get("Detach"):
            task = asyncio.create_task(_to_nobody(found))
            detached.add(task)
            task.add_done_callback(detached.discard)
            return Response(status_code=200)
        return StreamingResponse(_output(found), media_type=media)

    async def inspect(request: Request) -> Response:
        """Whether it runs, and its exit code."""
        found = mine(request)
        if not found.running and found.exit_code is None and found.process is not None:
            await found.ended.wait()
        return Json(
            {
                "ID": found.id,
                "Running": found.running,
                "ExitCode": found.exit_code,
                "ContainerID": container_id(found.pod),
                "OpenStdin": found.stdin,
                "OpenStdout": True,
                "OpenStderr": not found.tty,
                "CanRemove": False,
                "Pid": 0,
                "ProcessConfig": {
                    "tty": found.tty,
                    "entrypoint": found.command[0],
                    "arguments": found.command[1:],
                    "privileged": False,
                },
            }
        )

    async def resize(request: Request) -> Response:
        """Tell the size of the terminal: `h`, `w`."""
        found = mine(request)
        height, width = (
            number(request.query_params.get(one, ""), one, minimum=1, maximum=CHARACTERS_MAX) for one in ("h", "w")
        )
        if found.process is not None and found.running and found.tty:
            await found.process.resize(width, height)
        return Response(status_code=200)

    async def by_websocket(websocket: WebSocket) -> None:
        await _by_websocket(context, websocket)

    pages: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
        ("POST", "/containers/{id}/exec", create),
        ("POST", "/exec/{id}/start", start),
        ("POST", "/exec/{id}/resize", resize),
        ("GET", "/exec/{id}/json", inspect),
    ]
    found: list[BaseRoute] = [WebSocketRoute("/api/v1/containers/{id}/exec", by_websocket)]
    for prefix in ("", "/v{version:float}"):
        found += [Route(f"{prefix}{path}", act, methods=[method]) for method, path, act in pages]
    return found


async def running(there: Containers, word: str) -> Obj:
    """Raises Problem 409 for a container that does not run."""
    pod = await there.get(word)
    if there.state(pod).status != "running":
        raise Problem(409, "not_running", f"Container {word} is not running", "docker start it first")
    return pod


def command_of(body: Any) -> list[str]:
    """The words to run; environment and folder go before them, for Kubernetes' exec has neither."""
    words = body.get("Cmd")
    if not isinstance(words, list) or not words or not all(isinstance(one, str) for one in words):
        raise Problem(400, "invalid", f"Cmd is {words!r}", "write a list of words, one at least", "Cmd")
    for name in ("User", "Privileged"):
        if body.get(name):
            raise Problem(
                400, "invalid", f"{name} is not available: a command has its container's rights", field=name
            )
    environment = body.get("Env") or []
    if not isinstance(environment, list) or not all(
        isinstance(one, str) and "=" in one[1:] for one in environment
    ):
        raise Problem(400, "invalid", f"Env is {environment!r}", "write a list of NAME=VALUE", "Env")
    made = ["env", *environment, *words] if environment else list(words)
    if folder := str(body.get("WorkingDir") or ""):
        made = ["sh", "-c", 'cd "$0" && exec "$@"', folder, *made]
    return made


async def _output(one: Exec) -> AsyncIterator[bytes]:
    process = one.process
    assert process is not None
    code = 137
    try:
        async with process:
            async for channel, data in process:
                yield data if one.tty else frame(channel, data)
            code = process.exit_code
    except ServerError:
        return
    finally:
        one.running, one.exit_code = False, code
        one.ended.set()


async def _to_nobody(one: Exec) -> None:
    with suppress(MoorageError):
        async for _ in _output(one):
            pass


async def _over(raw: RawConnection, one: Exec) -> None:
    """Bytes both ways until the command has ended or the client has gone."""
    feeding: asyncio.Task[None] | None = None
    output = _output(one)
    try:
        await raw.body()
        if one.stdin:
            feeding = asyncio.create_task(_feed(raw, one))
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


async def _feed(raw: RawConnection, one: Exec) -> None:
    process = one.process
    assert process is not None
    with suppress(ServerError):
        while data := await raw.reader.read(PIECE):
            await process.write(data)
        await process.close_stdin()


async def _by_websocket(context: Context, websocket: WebSocket) -> None:
    """Run `command` (repeated, a word each; `tty=true`) in a container. Messages are as Kubernetes' own:

    the first byte says what follows: 0 standard input, 1 output, 2 errors, 3 the end as JSON, 4 the terminal's
    size as `{"Width": …, "Height": …}`, 255 the end of the channel whose number follows.
    """
    query = websocket.query_params
    words, tty = query.getlist("command"), query.get("tty") == "true"
    asked = websocket.headers.get(NAMESPACE_HEADER) or query.get("namespace") or ""
    try:
        if not words:
            raise Problem(400, "invalid", "no command was given", "command=ls&command=-l")
        there = await Containers.of(context, websocket.state.user, asked)
        pod = await running(there, websocket.path_params["id"])
        api = cast(_ExecApi, there.api)
        name = pod["metadata"]["name"]
        process = await api.exec(name, there.namespace, words, container=MAIN, stdin=True, tty=tty)
    except (Problem, MoorageError) as error:
        problem = told(error) if isinstance(error, ApiError) else error
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
