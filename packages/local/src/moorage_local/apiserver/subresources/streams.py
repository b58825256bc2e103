"""Serve `pods/exec`, `pods/attach` and `pods/portforward` over WebSockets.

The subprotocols are those of Kubernetes: the first byte of a message is a channel number. Clients that use SPDY
over plain HTTP are not supported; kubectl tries WebSockets first since 1.31.
https://github.com/kubernetes/enhancements/tree/master/keps/sig-api-machinery/4006-transition-spdy-to-websockets
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any
from urllib.parse import parse_qs, unquote

from moorage_kube.documents import parse_json
from moorage_kube.errors import ApiError, BadRequest, NotFound, ServerError
from moorage_kube.resources import PODS, Obj
from moorage_local.apiserver.auth.users import User
from moorage_local.apiserver.core import Core, Running
from moorage_local.apiserver.pipeline.calls import Call
from moorage_local.apiserver.subresources.admitting import admit, session_options
from moorage_local.apiserver.subresources.containers import container_of
from moorage_local.apiserver.subresources.portforward import serve_ports
from moorage_local.apiserver.wire.websocket import Receive, Scope, Send, Socket
from moorage_local.podspecs import container_statuses_of

log = logging.getLogger(__name__)

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")  # best first; v5 can say that standard input ends


def asked_for(path: str) -> tuple[str, str, str] | None:
    """Return (namespace, pod, subresource) of a path that this module serves; None for other paths."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if len(parts) != 7 or parts[:3] != ["api", "v1", "namespaces"] or parts[4] != "pods":
        return None
    return (parts[3], parts[5], parts[6]) if parts[6] in ("exec", "attach", "portforward") else None


def authorise(
    core: Core,
    user: User,
    namespace: str,
    name: str,
    subresource: str,
    verbs: Sequence[str] = ("get", "create"),
) -> Obj:
    """Return the pod, if the user may do all of `verbs` with the subresource. Raises Forbidden, NotFound.

    A WebSocket begins with a GET but acts like a POST, so the real server checks both verbs since 1.35.
    """
    kind, call = core.kind_of(PODS), Call(user=user)
    for verb in verbs:
        core.pipeline.authorise(call, verb, kind, namespace, name, subresource)
    return core.pipeline.view(kind, core.pipeline.read(kind, name, namespace))


def check(pod: Obj, subresource: str, query: Mapping[str, Sequence[str]]) -> str:
    """Check the request and return its container, or "" for ports. Raises BadRequest, NotFound."""
    name = pod["metadata"]["name"]
    container = "" if subresource == "portforward" else container_of(pod, (query.get("container") or [""])[0])
    if not pod["spec"].get("nodeName"):
        raise BadRequest(f"pod {name} does not have a host assigned")
    if subresource == "portforward":
        phase = (pod.get("status") or {}).get("phase")
        if phase != "Running":
            raise BadRequest(f"unable to forward port because pod is not running. Current status={phase}")
        return ""
    if subresource == "exec" and not (query.get("command") or [""])[0]:
        raise BadRequest("you must specify at least 1 command for the container")
    for container_status in container_statuses_of(pod.get("status")):
        if container_status["name"] == container and (container_status.get("state") or {}).get("running"):
            return container
    raise NotFound(f'unable to upgrade connection: container not found ("{container}")')


def final_status(code: int) -> Obj:
    """The last message of the error channel."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


async def serve(core: Core, user: User, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one WebSocket from its handshake to its end. Raises ApiError before the WebSocket is accepted."""
    target = asked_for(scope["path"])
    if target is None:
        raise NotFound("the server could not find the requested resource", details={})
    namespace, name, subresource = target
    query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    pod = authorise(core, user, namespace, name, subresource)
    container = check(pod, subresource, query)
    options = session_options(subresource, query)
    await admit(core, Call(user=user), "CONNECT", options, namespace=namespace, name=name, subresource=subresource)
    offered = [str(subprotocol) for subprotocol in scope.get("subprotocols") or ()]
    if subresource == "portforward":
        await serve_ports(core.port_source, pod, query, offered, receive, send)
        return
    protocol = next((protocol for protocol in PROTOCOLS if protocol in offered), None)
    if protocol is None:
        raise BadRequest(f"unsupported WebSocket subprotocol: use one of {', '.join(PROTOCOLS)}")
    wants = {
        name: (query.get(name) or ["false"])[0] in ("true", "1") for name in ("stdin", "stdout", "stderr", "tty")
    }
    if subresource == "exec":
        if core.exec_source is None:
            raise ServerError("this API server runs without node agents", status=501)
        try:
            running = await core.exec_source(
                pod, container, query["command"], stdin=wants["stdin"], tty=wants["tty"]
            )
        except OSError as error:
            raise ServerError(f"the command cannot be started: {error}") from error
        try:
            await _run(Socket(receive, send), running, protocol, wants)
        finally:
            await running.close()
        return
    await _attach(core, pod, container, Socket(receive, send), protocol)


async def _accept(socket: Socket, protocol: str) -> None:
    await socket.accept(protocol)
    await socket.send(STDOUT, b"")  # as the real server: the client knows that it is heard


async def _run(socket: Socket, running: Running, protocol: str, wants: MutableMapping[str, bool]) -> None:
    await _accept(socket, protocol)

    async def take() -> None:
        while (message := await socket.message()) is not None:
            channel, data = (message[0], message[1:]) if message else (CLOSE, b"")
            if channel == STDIN and wants["stdin"]:
                await running.write(data)
            elif channel == RESIZE:
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    width, height = (_side(parse_json(data)[key]) for key in ("Width", "Height"))
                    running.resize(width, height)
            elif channel == CLOSE and data[:1] == bytes([STDIN]):
                await running.close_input()

    async def give() -> None:
        async with contextlib.aclosing(running.output()) as pieces:
            async for stream, data in pieces:
                if wants["stderr" if stream == STDERR else "stdout"]:
                    await socket.send(stream, data)
        await socket.send(ERROR, json.dumps(final_status(await running.exit_code())).encode())

    taking, giving = asyncio.ensure_future(take()), asyncio.ensure_future(give())
    try:
        await asyncio.wait({taking, giving}, return_when=asyncio.FIRST_COMPLETED)
        if giving.done():
            await socket.close()
    finally:
        for task in (taking, giving):
            task.cancel()
        results = await asyncio.gather(taking, giving, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, OSError):
                log.warning("a command's stream broke", extra={"error": f"{type(result).__name__}: {result}"})


def _side(value: Any) -> int:
    """Return the columns or rows of a terminal, within the kernel's 16 bits. Raises TypeError."""
    if type(value) is not int:
        raise TypeError(f"a terminal's side is an integer, not {value!r}")
    return max(0, min(value, (1 << 16) - 1))


async def _attach(core: Core, pod: Obj, container: str, socket: Socket, protocol: str) -> None:
    """Send the output of the container from now on, read from its log: input cannot reach a process that runs
    already.
    """
    if core.log_source is None:
        raise ServerError("this API server runs without node agents", status=501)
    chunks = core.log_source(pod, container, follow=True, tail_lines=0)
    await _accept(socket, protocol)

    async def give() -> None:
        async for chunk in chunks:
            await socket.send(STDOUT, chunk)
        await socket.send(ERROR, json.dumps(final_status(0)).encode())

    async def leave() -> None:
        while await socket.message() is not None:
            continue

    giving, leaving = asyncio.ensure_future(give()), asyncio.ensure_future(leave())
    try:
        await asyncio.wait({giving, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if giving.done():
            error = giving.exception()
            if isinstance(error, ApiError):
                await socket.send(ERROR, json.dumps(error.to_status()).encode())
            await socket.close()
    finally:
        for task in (giving, leaving):
            task.cancel()
        await asyncio.gather(giving, leaving, return_exceptions=True)
        closing = getattr(chunks, "aclose", None)
        if closing is not None:
            await closing()
