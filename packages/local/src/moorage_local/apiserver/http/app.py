"""The pipeline over HTTP: an ASGI application that answers like a kube-apiserver.

https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from urllib.parse import unquote

from moorage_kube.errors import ApiError, BadRequest, ServerError, Unauthorized
from moorage_local.apiserver.auth.users import ANONYMOUS, User, certificate_user, impersonate
from moorage_local.apiserver.http.pages import COPIES_PATH, answer_copy, answer_page
from moorage_local.apiserver.http.resources import answer_resource
from moorage_local.apiserver.operations import Operations
from moorage_local.apiserver.subresources import streams
from moorage_local.apiserver.wire.answers import Answer, Stream, refusal, warning_headers
from moorage_local.apiserver.wire.requests import Disconnected, Request
from moorage_local.apiserver.wire.websocket import Receive, Scope, Send

log = logging.getLogger(__name__)


class HttpApp:
    """An ASGI 3 application. One instance serves all connections."""

    def __init__(self, server: Operations) -> None:
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        request = Request(scope, receive)
        warnings: list[str] = []
        async with contextlib.AsyncExitStack() as held:  # the user's share, until all is sent
            await self._serve(request, warnings, send, held)

    async def _serve(
        self, request: Request, warnings: list[str], send: Send, held: contextlib.AsyncExitStack
    ) -> None:
        answer: Answer | Stream
        try:
            answer = await self._answer(request, warnings, held)
        except Disconnected:
            return
        except ApiError as error:
            answer = refusal(error)
        except asyncio.CancelledError:
            raise
        except Exception:  # a defect answers 500 and is logged; the connection and the server live on
            log.exception("request failed", extra={"method": request.method, "path": request.path})
            answer = refusal(ServerError("Internal error occurred: see the API server's log"))
        headers = [
            (b"content-type", answer.content_type),
            (b"cache-control", b"no-cache, private"),
            *answer.headers,
            *warning_headers(warnings),
        ]
        if isinstance(answer, Answer):
            headers.append((b"content-length", str(len(answer.body)).encode()))
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            body = b"" if request.method == "HEAD" else answer.body
            await send({"type": "http.response.body", "body": body})
        else:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _stream(answer, request, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket to a pod; a refusal is answered like that of any other request."""
        request = Request({**scope, "method": "GET"}, receive)
        await receive()  # websocket.connect
        try:
            await streams.serve(self._server, self._user(request), scope, receive, send)
            return
        except ApiError as error:
            refused = refusal(error)
        except OSError:
            return  # the client hung up
        except Exception:  # after any error this client gets an answer, and others are not affected
            log.exception("request failed", extra={"method": "websocket", "path": request.path})
            refused = refusal(ServerError("Internal error occurred: see the API server's log"))
        headers = [(b"content-type", refused.content_type), *refused.headers]
        headers.append((b"content-length", str(len(refused.body)).encode()))
        with contextlib.suppress(OSError, RuntimeError):  # accepted already, or disconnected
            await send({"type": "websocket.http.response.start", "status": refused.status, "headers": headers})
            await send({"type": "websocket.http.response.body", "body": refused.body})

    async def _answer(
        self, request: Request, warnings: list[str], held: contextlib.AsyncExitStack
    ) -> Answer | Stream:
        path = request.path.rstrip("/") or "/"
        user = self._user(request)
        parts = [unquote(part) for part in path.split("/")[1:]]
        if len(parts) >= 3 and parts[0] in ("api", "apis"):
            core = parts[0] == "api"
            group, version, rest = ("", parts[1], parts[2:]) if core else (parts[1], parts[2], parts[3:])
            if rest:
                return await answer_resource(self._server, request, user, group, version, rest, warnings, held)
        if path == COPIES_PATH and request.method == "POST":
            return await answer_copy(self._server, request, user)
        return answer_page(self._server, request, user, path)

    def _user(self, request: Request) -> User:
        header = request.header("authorization")
        scheme, _, token = header.partition(" ")
        shown = request.client_certificate
        user = certificate_user(shown) if shown else None
        if user is not None:
            pass  # as in the real server, a client certificate decides the user
        elif header:
            if scheme.lower() == "bearer" and token.strip():
                user = self._server.authenticate(token.strip())
            if user is None:
                raise Unauthorized("Unauthorized")
        else:
            user = ANONYMOUS
        if name := request.header("impersonate-user"):
            groups = tuple(request.headers.get("impersonate-group", ()))
            extra = {
                unquote(key.removeprefix("impersonate-extra-")): tuple(values)
                for key, values in request.headers.items()
                if key.startswith("impersonate-extra-")
            }
            return impersonate(user, name, groups, extra, self._server.authorizer)
        if any(key.startswith("impersonate-") for key in request.headers):
            raise BadRequest("requested impersonation of groups or extra without impersonating a user")
        return user


async def _stream(answer: Stream, request: Request, send: Send) -> None:
    """Send chunks until the source ends, the client disconnects or the time limit is reached."""

    async def pump() -> None:
        async for chunk in answer.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})

    pumping = asyncio.ensure_future(pump())
    leaving = asyncio.ensure_future(request.gone())
    try:
        await send({"type": "http.response.body", "body": b"", "more_body": True})  # headers go out now
        await asyncio.wait({pumping, leaving}, timeout=answer.seconds, return_when=asyncio.FIRST_COMPLETED)
        if pumping.done() and (error := pumping.exception()) is not None and not isinstance(error, OSError):
            log.warning("stream broke", extra={"path": request.path, "error": str(error)})
    finally:
        for task in (pumping, leaving):
            task.cancel()
        await asyncio.gather(pumping, leaving, return_exceptions=True)
        closing = getattr(answer.chunks, "aclose", None)
        if closing is not None:
            await closing()
    with contextlib.suppress(OSError):
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
