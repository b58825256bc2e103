"""The error codes: a word for programs, with its HTTP status and meaning."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from moorage.api.fields import about


class ErrorCode(StrEnum):
    """The `code` of an error. `status` is its HTTP status, `meaning` explains it."""

    status: int
    meaning: str

    def __new__(cls, value: str, status: int, meaning: str) -> ErrorCode:
        code = str.__new__(cls, value)
        code._value_ = value
        code.status = status
        code.meaning = meaning
        return code

    BAD_REQUEST = "bad_request", 400, "The request cannot be read, or a parameter is invalid."
    AMBIGUOUS = "ambiguous", 400, "Several objects match the name."
    WHICH_NAMESPACE = "which_namespace", 400, "The user works in several namespaces, and named none."
    NO_SUCH_SIGNAL = "no_such_signal", 400, "The signal cannot be sent."
    FOREIGN_HOST = "foreign_host", 400, "The Host header names no address of this server."
    UNAUTHORIZED = "unauthorized", 401, "No valid token or session came with the request."
    FORBIDDEN = "forbidden", 403, "The cluster's rights do not allow it."
    READ_ONLY = "only_looking", 403, "This token may read, but not change anything."
    CROSS_SITE = "cross_site", 403, "The request came from a page of another site."
    LOGIN_REFUSED = "login_refused", 403, "The login was refused."
    DISABLED = "disabled", 403, "The account is disabled."
    BAD_CODE = "bad_code", 403, "The one-time code is unknown, used or expired."
    NO_SESSION = "no_session", 403, "The request needs a session; another token does not do."
    NO_LOCAL_ACCOUNTS = "no_local_accounts", 403, "People log in at the identity provider only."
    QUOTA_EXCEEDED = "quota_exceeded", 403, "The namespace's quota is used up."
    NOT_FOUND = "not_found", 404, "The object does not exist."
    NO_VOLUME = "no_volume", 404, "A volume that the container mounts does not exist."
    METHOD_NOT_ALLOWED = "method_not_allowed", 405, "The path does not take this method."
    EXISTS = "exists", 409, "Another object has the name."
    CONFLICT = "conflict", 409, "The object changed meanwhile, or its state does not allow the change."
    IN_USE = "in_use", 409, "Runs or pods use the object."
    NAME_TAKEN = "name_taken", 409, "Another container or Service has the name."
    RUNNING = "running", 409, "The container is running."
    NOT_RUNNING = "not_running", 409, "The container or workspace is not running."
    STARTED = "started", 409, "The exec was started before."
    NO_PASSWORD = "no_password", 409, "The account has no password here."
    GONE = "gone", 410, "The object was deleted while it was read."
    TOO_LARGE = "too_large", 413, "The body is too large."
    RESULT_TOO_LARGE = "result_too_large", 413, "The result of an item is too large: send the path of a file."
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", 415, "The body must be application/json."
    INVALID = "invalid", 422, "A field is invalid; `field` names it."
    KEY_REUSED = "key_reused", 422, "The Idempotency-Key was used before with a different request body."
    TOO_EARLY = "too_early", 425, "The operator has not recorded the pod of the step yet; ask again."
    TOO_MANY_REQUESTS = "too_many_requests", 429, "Asked too often; Retry-After says when to ask again."
    TOO_MANY_ATTEMPTS = "too_many_attempts", 429, "Too many failed logins; Retry-After says when to try again."
    INTERNAL_ERROR = "internal_error", 500, "The server failed; its log says why."
    CANNOT_ACT = "cannot_act", 501, "This server cannot act for its users."
    NOT_SUPPORTED = "not_supported", 501, "A route of Docker's API without a meaning on a cluster."
    NO_STDIN = "no_stdin", 501, "The container takes no input."
    STARTING = "starting", 503, "The server has not read the cluster yet."
    UNAVAILABLE = "unavailable", 503, "A part of the server is not available."
    KUBERNETES_UNAVAILABLE = "kubernetes_unavailable", 503, "The Kubernetes API gave no usable answer."
    STORAGE_FULL = "storage_full", 507, "The disk of the server is full."
    PROVIDER_AWAY = "provider_away", 503, "The identity provider does not answer."


class ErrorAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of every error."""

    code: Annotated[str, about("One word for programs; the reference lists all codes.")]
    message: Annotated[str, about("The failure as a sentence; the wording may change.")]
    hint: Annotated[str | None, about("How to fix it.")] = None
    field: Annotated[str | None, about("Parameter or field of the request that is at fault.")] = None


def error_code(value: str) -> ErrorCode | None:
    """The error code of a word; None if a newer server has added it."""
    return _CODES.get(value)


_CODES = {str(code): code for code in ErrorCode}
