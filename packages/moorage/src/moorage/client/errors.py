"""Decode error answers of our server into our own exception classes. Only this module does so."""

from __future__ import annotations

import errno
import re
from urllib.parse import urlsplit

import msgspec

from moorage.api.errors import ErrorAnswer, ErrorCode
from moorage_kube.errors import AlreadyExists, ApiError, ServerError, TooManyRequests, api_error

TRANSIENT = (0, 502, 503, 504)
LOOPBACK = ("127.0.0.1", "::1", "localhost")
CHECK_ADDRESS = "check the address"


def decode_error(status: int, data: bytes | None) -> ApiError:
    """Return the error of an answer: its class by status and code.

    `code`, `field` and `hint` as the server sent them.

    A body of another shape, such as a proxy's page, gives an error with only the status.
    """
    try:
        answer = msgspec.json.decode(data or b"{}", type=ErrorAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer = ErrorAnswer(code="", message="")
    message = answer.message or f"Moorage's server answered HTTP {status}"
    reason = AlreadyExists.reason if answer.code == ErrorCode.EXISTS else ""
    error = api_error(status, {"message": message, "reason": reason})
    error.hint, error.code, error.field = answer.hint, answer.code, answer.field
    return error


def no_answer(url: str, error: BaseException) -> ServerError:
    """Return the error for an unreachable server or a broken connection."""
    reason = re.sub(r" ssl:\S+", "", str(error)) or type(error).__name__  # aiohttp says so of plain http too
    is_here = urlsplit(url).hostname in LOOPBACK
    hint = "if it is the server of `moor up`: run `moor status`, then `moor up`" if is_here else CHECK_ADDRESS
    return ServerError(f"Moorage's server at {url} does not answer: {reason}", status=0, hint=hint)


def is_refused(error: ApiError) -> bool:
    """Whether no program listens at the address."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ECONNREFUSED


def is_transient(error: ApiError) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, ServerError):
        return error.status in TRANSIENT and not _is_wrong_address(error)
    return isinstance(error, TooManyRequests)


def _is_wrong_address(error: BaseException | None) -> bool:
    """Whether the host does not exist, or its certificate is refused."""
    import socket
    import ssl

    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        if isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME:
            return True
        error = error.__cause__
    return False
