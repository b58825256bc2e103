"""A route of Docker's API: a handler that any code can call, and its paths for clients."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator

from msgspec import Struct
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from moorage.api.errors import ErrorCode
from moorage.server.context import Context
from moorage.server.docker.containers import NAMESPACE_HEADER, Containers
from moorage.server.endpoint import Described, DescribedRoute
from moorage.server.identity.auth import User
from moorage.server.problems import Problem
from moorage_kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    UsageError,
)

OURS = "/api/v1"
NOTHING = Described()
DOCKERS = ("", "/v{version:float}")  # Docker's clients put the version of its API in front, or nothing


class DockerCall(Struct, frozen=True, kw_only=True):
    """One request of a client of Docker's API."""

    context: Context
    request: Request

    @property
    def user(self) -> User:
        user: User = self.request.state.user
        return user

    @property
    def query(self) -> QueryParams:
        return self.request.query_params

    @property
    def id(self) -> str:
        """The ID of the container or exec in the path, in full or as a prefix."""
        return str(self.request.path_params["id"])

    async def containers(self) -> Containers:
        """The containers of the user, in the namespace that the request names or implies. Raises Problem 400."""
        namespace = self.request.headers.get(NAMESPACE_HEADER) or self.query.get("namespace") or ""
        return await Containers.of(self.context, self.user, namespace)


class TakenOver(Response):
    """The response after an upgrade. It sends nothing: the upgrade has already sent the head of the answer."""

    def __init__(self, request: Request) -> None:
        super().__init__(status_code=101)
        request.state.answered = 101  # for the audit log

    async def __call__(self, _scope: Scope, _receive: Receive, _send: Send) -> None:
        return


HEAD_SECONDS = 0.1
"""Between the head of an upgraded answer and the first output: the Python package docker reads the head through a
buffer and drops what comes in the same packet. https://github.com/docker/docker-py (`_get_raw_response_socket`)"""

Handler = Callable[[DockerCall], Awaitable[Response]]


class DockerEndpoint(Struct, frozen=True, kw_only=True):
    """A row of the table. `ours` is its path under /api/v1, `dockers` that in Docker's API; empty: none.

    `described`: the parameters and the answer of `ours`, in Docker's words.
    """

    method: str
    handler: Handler
    ours: str = ""
    dockers: str = ""
    described: Described = NOTHING
    supported: bool = True
    unversioned: bool = True  # False: the path without a version is a web page

    def routes(self, context: Context) -> Iterator[Route]:
        @functools.wraps(self.handler)
        async def endpoint(request: Request) -> Response:
            try:
                return await self.handler(DockerCall(context=context, request=request))
            except ApiError as error:
                raise docker_problem(error) from error
            except UsageError as error:
                raise Problem(400, ErrorCode.INVALID, error.message, error.hint, error.field) from error

        @functools.wraps(self.handler)
        async def with_hints(request: Request) -> Response:
            try:
                return await endpoint(request)
            except Problem as problem:  # Docker's clients show only the message
                if problem.hint:
                    problem.message += f" (hint: {problem.hint})"
                raise

        if self.ours:
            yield DescribedRoute(OURS + self.ours, endpoint, self.method, self.described)
        if self.dockers:
            for prefix in DOCKERS if self.unversioned else DOCKERS[1:]:
                yield Route(
                    prefix + self.dockers, with_hints, methods=[self.method], include_in_schema=self.supported
                )


def docker_problem(error: ApiError) -> Problem:
    """An error of the Kubernetes API, for users who know only Docker."""
    if isinstance(error, Forbidden):
        hint = "ask an administrator of this cluster, or choose another namespace"
        return Problem(403, ErrorCode.FORBIDDEN, error.message, hint)
    if isinstance(error, NotFound):
        return Problem(404, ErrorCode.NOT_FOUND, error.message, error.hint)
    if isinstance(error, BadRequest | Invalid):
        return Problem(400, ErrorCode.INVALID, error.message, error.hint)
    if isinstance(error, Conflict | AlreadyExists):
        return Problem(409, ErrorCode.CONFLICT, error.message, error.hint)
    return Problem(503, ErrorCode.KUBERNETES_UNAVAILABLE, error.message, error.hint or "try again in a moment")
