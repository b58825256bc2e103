"""The shape of all errors that this server returns: `{code, message, hint?, field?}`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from moorage.api.errors import ErrorAnswer, ErrorCode, error_code
from moorage_kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    MoorageError,
    NotFound,
    QuotaExceeded,
    UsageError,
)

if TYPE_CHECKING:
    from moorage.model.machine import Fault

log = logging.getLogger(__name__)


class Problem(Exception):
    """An error response. `code` is for programs; `field` is the invalid parameter or body field."""

    headers: dict[str, str] | None = None  # sent with it

    def __init__(
        self, status: int, code: str, message: str, hint: str | None = None, field: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint
        self.field = field


def refuse(faults: Sequence[Fault]) -> None:
    """Raise Problem 422 with all faults of an object; do nothing if there are none."""
    if faults:
        message = "; ".join(f"{fault.field}: {fault.message}" for fault in faults)
        raise Problem(422, "invalid", message, field=faults[0].field)


CODES = {code.status: code for code in reversed(ErrorCode)}  # the first of each status


def as_problem(error: ApiError) -> Problem:
    """An error of the Kubernetes API or of an action as a problem of the caller's request, not a failure of
    the server.
    """
    if (code := error_code(error.code)) is not None:
        return Problem(code.status, code, error.message, error.hint, error.field)
    hint = error.hint
    if isinstance(error, Forbidden):
        return Problem(403, ErrorCode.FORBIDDEN, error.message, hint)
    if isinstance(error, NotFound):
        return Problem(404, ErrorCode.NOT_FOUND, error.message, hint)
    if isinstance(error, AlreadyExists):
        return Problem(409, ErrorCode.EXISTS, error.message, hint or "choose another name", error.field)
    if isinstance(error, Conflict):
        return Problem(409, ErrorCode.CONFLICT, error.message, hint or "try again", error.field)
    if isinstance(error, (Invalid, BadRequest)):
        causes = (error.details or {}).get("causes") or [{}]
        return Problem(422, ErrorCode.INVALID, error.message, hint, causes[0].get("field") or None)
    return Problem(503, ErrorCode.KUBERNETES_UNAVAILABLE, error.message, hint or "try again in a moment")


class Json(Response):
    """A response with a body that msgspec encodes."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def answer(problem: Problem, headers: dict[str, str] | None = None) -> Response:
    """Convert a problem to a response."""
    body = ErrorAnswer(
        code=problem.code, message=problem.message, hint=problem.hint or None, field=problem.field or None
    )
    return Json(body, problem.status, headers)


def problem_of(error: Exception) -> Problem:
    """The problem that the caller gets for an error. Unexpected errors are only `internal_error`."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        code = CODES.get(error.status_code, "error")
        return Problem(error.status_code, code, error.detail or code.replace("_", " "))
    if isinstance(error, MoorageError) and (known := error_code(error.code)) is not None:
        return Problem(known.status, known, error.message, error.hint, error.field)
    if isinstance(error, NotFound):
        return Problem(404, "not_found", error.message, error.hint)
    if isinstance(error, ApiError):
        return Problem(
            503,
            "kubernetes_unavailable",
            f"the Kubernetes API refused or gave no answer: {error.message}",
            error.hint or "try again in a moment",
        )
    if isinstance(error, QuotaExceeded):
        return Problem(403, "quota_exceeded", error.message, error.hint)
    if isinstance(error, UsageError):
        return Problem(400, "bad_request", error.message, error.hint)
    if isinstance(error, MoorageError):
        return Problem(503, "unavailable", error.message, error.hint)
    return Problem(500, "internal_error", "the server failed on this request", "its log says why")


def raised(request: Request, error: Exception) -> tuple[Problem, dict[str, str]]:
    """The problem of an error in a route, and the headers to send with it. Failures of the server are
    logged.

    Unexpected errors are logged by the ASGI server, which gets them from Starlette.
    """
    problem = problem_of(error)
    if problem.status > 500:
        log.warning(
            "request failed",
            extra={"path": request.url.path, "status": problem.status, "error": problem.message},
        )
    return problem, dict(getattr(error, "headers", None) or {})


async def on_error(request: Request, error: Exception) -> Response:
    """Starlette's handler for all errors of a route, for routes of programs."""
    problem, headers = raised(request, error)
    return answer(problem, headers or None)


class BrokenAnswers:
    """An ASGI layer that logs answers that end too early because the database or Kubernetes is down.

    The client sees the connection close before the end of the answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except RuntimeError as error:  # of Starlette: handlers cannot answer once an answer has begun
            if not isinstance(error.__cause__, MoorageError):
                raise
            log.warning("answer broke off", extra={"path": scope["path"], "error": error.__cause__.message})
