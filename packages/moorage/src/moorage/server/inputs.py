"""Read inputs of a request within bounds: bodies, and whole numbers of the query and the path.

All routes that read from outside use these. An input that is too long, too deep, out of range or not
a number is one clear refusal, never a failure of the server.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

import msgspec
from starlette.requests import Request

from moorage.server.problems import Problem
from moorage_kube.bodies import BodyTooLong, ClientLeft, read_body
from moorage_kube.documents import check_nesting, parse_json
from moorage_kube.errors import DocumentError, NumberError
from moorage_kube.integers import INT64_MAX, parse_integer

T = TypeVar("T")


async def read_bytes(request: Request, most: int) -> bytes:
    """Read the whole body; stop as soon as it exceeds `most` bytes. Raises Problem 413."""
    try:
        return await read_body(request.receive, most)
    except BodyTooLong as error:
        raise Problem(413, "too_large", str(error), "send less at once") from error
    except ClientLeft:
        raise Problem(400, "bad_request", "the request was not sent to its end") from None


async def read_as(request: Request, kind: type[T], most: int, *, hint: str | None = None) -> T:
    """Read the JSON body as `kind`; an empty body counts as an empty object. Raises Problem 400, 413 and 422."""
    return decode(await read_bytes(request, most) or b"{}", kind, hint=hint)


def decode(body: bytes, kind: type[T], *, hint: str | None = None) -> T:
    """Decode untrusted JSON as `kind`, at most NESTING_MAX levels deep. Raises Problem 400 and 422."""
    try:
        parse_json(body, msgspec.Raw, bytes_max=len(body))
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        message, field = _fault(error)
        raise Problem(422, "invalid", message, hint, field) from error
    except (DocumentError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "bad_request", f"the body cannot be read: {error}", hint) from error


def as_struct(value: Mapping[str, Any], kind: type[T]) -> T:
    """Convert the fields of a form to the request body `kind`. Raises Problem 422."""
    try:
        return msgspec.convert(dict(value), kind)
    except msgspec.ValidationError as error:
        message, field = _fault(error)
        raise Problem(422, "invalid", message, field=field) from error


def _fault(error: msgspec.ValidationError) -> tuple[str, str | None]:
    """The error as a sentence, and the path of the field."""
    message, _, path = str(error).partition(" - at `$")
    return message, path.strip("`.") or None


def check_json(request: Request) -> None:
    """Raise Problem 415 for a content type that a form on another site could send."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Problem(415, "unsupported_media_type", "the body must be application/json")


def decode_query(pairs: Iterable[tuple[str, str]], kind: type[T]) -> T:
    """Decode the parameters of a query as `kind`. Raises Problem 400 that names the parameter.

    If a parameter comes twice, the last value counts; a tuple field gets all values.
    """
    values: dict[str, Any] = {}
    struct = cast("type[msgspec.Struct]", kind)
    several = _several(struct)
    for name, text in pairs:
        if name in several:
            values.setdefault(name, []).append(text)
        else:
            values[name] = text
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        message, field = _fault(error)
        raise Problem(400, "bad_request", message, field=field) from error


@functools.cache
def _several(kind: type[msgspec.Struct]) -> frozenset[str]:
    """The names of query parameters that may come more than once."""
    return frozenset(
        field.encode_name
        for field in msgspec.structs.fields(kind)
        if get_origin(_without_metadata(field.type)) is tuple
    )


def _without_metadata(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def check_depth(value: bytes | msgspec.Raw, where: str) -> None:
    """Raise Problem 422 for a value that is nested too deeply."""
    try:
        check_nesting(bytes(value))
    except DocumentError as error:
        raise Problem(
            422, "invalid", f"{where}: {error.message}", "put it into a file and send the path", where
        ) from error


def whole_number(request: Request, name: str, *, minimum: int = 0, maximum: int = INT64_MAX) -> int | None:
    """A whole number from the query; None if the parameter is absent. Raises Problem 400."""
    text = request.query_params.get(name)
    return None if text is None else number(text, name, minimum=minimum, maximum=maximum)


def number(text: str, name: str, *, minimum: int = 0, maximum: int = INT64_MAX) -> int:
    """Parse a whole number of a request. Raises Problem 400."""
    try:
        return parse_integer(text, minimum=minimum, maximum=maximum, name=name)
    except NumberError as error:
        raise Problem(400, "bad_request", error.message, error.hint, name) from error


def read_object(body: bytes) -> dict[str, Any]:
    """Decode a JSON object with any content. Raises Problem 400."""
    value = decode(body or b"{}", object)
    if not isinstance(value, dict):
        raise Problem(400, "bad_request", "the body must be a JSON object")
    return value
