"""Every error raised on purpose.

    MoorageError                 has `message`, an optional `hint`, and the `code` and `field` of an answer
    ├── UsageError               the command line or a request is wrong; exit code 2
    │   └── Problems             several things are wrong at once
    ├── QuantityError            a text that is not a Kubernetes quantity
    ├── SelectorError            a text that is not a label or field selector
    ├── InvalidName              a name that Kubernetes would refuse
    ├── DocumentError            invalid JSON or YAML, or more than the limits allow
    ├── NumberError              a text that is not a whole number, or one out of range
    ├── QuotaExceeded            a namespace's quota is used up
    ├── NotReady                 something needed is not up (yet)
    ├── AlreadyRunning           a second `moor up` on one data folder
    ├── DataFolderError          a data folder that cannot be used: version, owner, space
    ├── PortTaken                a port that another program uses
    ├── StorageError             the store could not read or write
    │   ├── StorageFull          no room left on the disk
    │   └── StorageDamaged       a file is damaged, or holds less than was acknowledged
    └── ApiError                 the Kubernetes API refused; has `status` and `reason`
        ├── BadRequest      400  ├── Conflict       409 reason Conflict
        ├── Unauthorized    401  ├── AlreadyExists  409 reason AlreadyExists
        ├── Forbidden       403  ├── Expired        410 watch or continue token too old
        ├── NotFound        404  ├── Invalid        422
        ├── MethodNotAllowed 405 ├── TooManyRequests 429
        ├── TooLarge        413  ├── ServerError    5xx, and when no answer came (status 0)
        ├── LeaseLost            └── UnsupportedMediaType 415

A message has the action that failed, the value seen and the limit; the hint says how to fix it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar


class MoorageError(Exception):
    """Base class of all errors that our code raises on purpose.

    `code` is a word of `moorage.api.errors.ErrorCode`; "" if the class of the error decides it. `field` is the
    parameter or body field at fault.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None, code: str = "", field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
        self.field = field


class UsageError(MoorageError):
    """The command line or a request is wrong."""

    exit_code: ClassVar[int] = 2


class Problems(UsageError):
    """Several things are wrong at once; the command line prints each on a separate line.

    `problems` are (message, hint). `fields`: the field of each, for a form; empty if not known.
    """

    def __init__(
        self,
        problems: Sequence[tuple[str, str | None]],
        *,
        code: str = "",
        field: str | None = None,
        fields: Sequence[str] = (),
    ) -> None:
        hints = dict.fromkeys(hint for _, hint in problems if hint)
        message = "; ".join(message for message, _ in problems)
        super().__init__(message, hint="; ".join(hints) or None, code=code, field=field)
        self.problems = list(problems)
        self.fields = tuple(fields)


class QuotaExceeded(MoorageError):
    """A namespace's quota is used up."""


class QuantityError(UsageError, ValueError):
    """The string is not a Kubernetes quantity."""


class SelectorError(UsageError, ValueError):
    """The string is not a label selector or field selector."""


class InvalidName(UsageError, ValueError):
    """Kubernetes would refuse the name."""


class DocumentError(UsageError, ValueError):
    """The JSON or YAML is invalid, or exceeds a limit.

    `line` counts from 1; None if it is not known, as in JSON.
    """

    def __init__(self, message: str, *, line: int | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.line = line

    @property
    def located(self) -> str:
        """Return the message, with the line number in front of it if it is known."""
        return self.message if self.line is None else f"line {self.line}: {self.message}"


class NumberError(UsageError, ValueError):
    """The string is not a whole number, or the number is out of range."""


class NotReady(MoorageError):
    """A required service, pod or kind is missing or not ready (yet)."""


class AlreadyRunning(MoorageError):
    """Another `moor up` already uses the data folder."""


class DataFolderError(MoorageError):
    """The data folder cannot be used."""


class PortTaken(MoorageError):
    """A port that another program listens on."""


class StorageError(MoorageError):
    """The store could not read or write."""


class StorageFull(StorageError):
    """The disk of the store is full."""


class StorageDamaged(StorageError):
    """A file is damaged or lacks changes that it acknowledged: no server starts with it."""


class ApiError(MoorageError):
    """The Kubernetes API refused a request or gave no usable answer.

    `status` is the HTTP status code (0 if no answer came). `reason` is the CamelCase word of `metav1.Status`, and
    `details` are its details, if any.
    """

    status: int = 500
    reason: str = "InternalError"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        reason: str | None = None,
        details: dict[str, Any] | None = None,
        hint: str | None = None,
        code: str = "",
        field: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, code=code, field=field)
        if status is not None:
            self.status = status
        if reason is not None:
            self.reason = reason
        self.details = details

    def to_status(self) -> dict[str, Any]:
        """The error as a `metav1.Status` object."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.status,
        }
        if self.details is not None:
            body["details"] = self.details
        return body


class BadRequest(ApiError):
    status = 400
    reason = "BadRequest"


class Unauthorized(ApiError):
    status = 401
    reason = "Unauthorized"


class Forbidden(ApiError):
    status = 403
    reason = "Forbidden"

    @property
    def is_of_ending_namespace(self) -> bool:
        """Whether the server refused a creation because the namespace is being deleted."""
        causes = (self.details or {}).get("causes") or ()
        return any(cause.get("reason") == "NamespaceTerminating" for cause in causes)


class NotFound(ApiError):
    status = 404
    reason = "NotFound"


class MethodNotAllowed(ApiError):
    status = 405
    reason = "MethodNotAllowed"


class Conflict(ApiError):
    """The object changed since it was read, or a precondition does not hold."""

    status = 409
    reason = "Conflict"


class AlreadyExists(ApiError):
    status = 409
    reason = "AlreadyExists"


class Expired(ApiError):
    """A watch or a `continue` token points before the oldest stored event."""

    status = 410
    reason = "Expired"


class TooLarge(ApiError):
    status = 413
    reason = "RequestEntityTooLarge"


class UnsupportedMediaType(ApiError):
    status = 415
    reason = "UnsupportedMediaType"


class Invalid(ApiError):
    """The object breaks its schema or a rule; `details["causes"]` lists every field."""

    status = 422
    reason = "Invalid"


class TooManyRequests(ApiError):
    status = 429
    reason = "TooManyRequests"


class ServerError(ApiError):
    status = 500
    reason = "InternalError"


class LeaseLost(ApiError):
    """A write was not sent, because another process may be the leader now."""

    status = 0
    reason = "LeaseLost"


def api_error(status: int, body: dict[str, Any] | None, fallback: str = "") -> ApiError:
    """Return the error for an HTTP answer; `body` is its `metav1.Status`, or None."""
    body = body or {}
    reason = str(body.get("reason") or "")
    message = str(body.get("message") or fallback or f"the API answered HTTP {status}")
    details = body.get("details")
    kind: type[ApiError]
    if status == 409:
        kind = AlreadyExists if reason == "AlreadyExists" else Conflict
    elif status >= 500 or status == 0:
        kind = ServerError
    else:
        kind = _BY_STATUS.get(status, ApiError)
    return kind(message, status=status, reason=reason or kind.reason, details=details)


_BY_STATUS: dict[int, type[ApiError]] = {
    kind.status: kind
    for kind in (
        BadRequest,
        Unauthorized,
        Forbidden,
        NotFound,
        MethodNotAllowed,
        Expired,
        TooLarge,
        UnsupportedMediaType,
        Invalid,
        TooManyRequests,
    )
}
