"""An endpoint of the REST API: a handler that any code can call, and its HTTP route.

The handler is a function of a module: it takes a `Call` and returns an answer. The request is
decoded to typed values before, so a test calls the handler with values, and OpenAPI is made from the
table.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moorage.server.idempotency import request_mark
from moorage.server.identity.auth import User
from moorage.server.inputs import check_json, decode, decode_query, read_bytes
from moorage.server.problems import Json, as_problem
from moorage_kube.api import Api
from moorage_kube.errors import ApiError

if TYPE_CHECKING:
    from moorage.server.context import Context

BODY_BYTES = 16 * 1024
NOBODY = User("")  # the user of a path that is open to all
B = TypeVar("B")
P = TypeVar("P")
Q = TypeVar("Q")


class Call(Struct, Generic[B, Q], frozen=True, kw_only=True):
    """One request, decoded.

    `mark` is of its Idempotency-Key, empty without one. Use `request` for streams and sockets only.
    """

    context: Context
    user: User
    body: B
    query: Q
    path: Mapping[str, Any]
    mark: str = ""
    request: Request

    @property
    def namespace(self) -> str:
        return str(self.path["namespace"])

    @property
    def name(self) -> str:
        return str(self.path["name"])

    @property
    def api(self) -> Api:
        """The Kubernetes API as the caller. Raises Problem 403 for a user who may only read."""
        return self.context.acting(self.user)

    def audit(self, verb: str, what: str) -> None:
        """Add a description to the audit entry of a request; without it the entry has only the path."""
        self.request.state.audit = f"{verb} {what}"


Handler = Callable[[Call[B, Q]], Awaitable[Any]]


class Described(Struct, frozen=True, kw_only=True):
    """The parameters and the answer of a route, for OpenAPI. Without `answer` and `media_type` it answers
    204.
    """

    query: type | None = None
    body: type | None = None
    answer: Any = None  # a type
    status: int = 200
    once: bool = False
    media_type: str = ""


class Endpoint(Struct, Generic[B, Q], frozen=True, kw_only=True):
    """A route. Its handler returns a body of type `answer` (None: 204), a pair (status, body), or a Response.

    `body` and `query` are None if the request has none. `once`: the request may have an Idempotency-Key.
    """

    method: str
    path: str
    handler: Handler[B, Q]
    body: type[B] | None = None
    query: type[Q] | None = None
    answer: type | None = None
    status: int = 200
    once: bool = False
    optional_body: bool = False  # a request without a content type has the body's defaults
    body_bytes: int = BODY_BYTES
    any_media_type: bool = False  # the body is JSON with any content type: cookies give no right to send it
    media_type: str = ""  # of an answer that is no JSON

    @property
    def described(self) -> Described:
        return Described(
            query=self.query,
            body=self.body,
            answer=self.answer,
            status=self.status,
            once=self.once,
            media_type=self.media_type,
        )

    def route(self, context: Context) -> Route:
        @functools.wraps(self.handler)
        async def endpoint(request: Request) -> Response:
            return await self.respond(context, request)

        return DescribedRoute(self.path, endpoint, self.method, self.described)

    async def respond(self, context: Context, request: Request) -> Response:
        """Decode the request, call the handler, encode the answer.

        An ApiError means: the cluster refused the caller.
        """
        call: Call[Any, Any] = Call(
            context=context,
            user=getattr(request.state, "user", NOBODY),
            body=(body := await self._body(request)),
            query=None if self.query is None else decode_query(request.query_params.multi_items(), self.query),
            path=request.path_params,
            mark=request_mark(request, body) if self.once else "",
            request=request,
        )
        try:
            async with context.turns.turn(call.mark):
                answer = await self.handler(call)
        except ApiError as error:
            raise as_problem(error) from error
        return encode(answer, self.status)

    async def _body(self, request: Request) -> Any:
        if self.body is None:
            return None
        if self.optional_body and "content-type" not in request.headers:
            return decode(b"{}", self.body)
        if not self.any_media_type:
            check_json(request)
        return decode(await read_bytes(request, self.body_bytes) or b"{}", self.body)


class DescribedRoute(Route):
    """A route with a description of its parameters and answer."""

    def __init__(
        self, path: str, endpoint: Callable[[Request], Awaitable[Response]], method: str, described: Described
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.method = method
        self.described = described


def bound(
    handler: Callable[[P, Request], Awaitable[Response]], part: P
) -> Callable[[Request], Awaitable[Response]]:
    """A handler for Starlette, for a page or another answer that is not JSON."""

    @functools.wraps(handler)
    async def endpoint(request: Request) -> Response:
        return await handler(part, request)

    return endpoint


def encode(answer: Any, status: int = 200) -> Response:
    """The result of a handler as a response."""
    if isinstance(answer, Response):
        return answer
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], int):
        status, answer = answer
    if answer is None:
        return Response(status_code=204)
    return Json(answer, status)
