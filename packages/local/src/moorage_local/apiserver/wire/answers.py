"""Complete answers, streams, errors, warnings, and the formats that the Accept header can request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, cast

import msgspec

from moorage_kube.clock import Clock
from moorage_kube.errors import ApiError
from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.kind import Kind
from moorage_local.apiserver.wire.requests import Request
from moorage_local.apiserver.wire.tables import Table, partial_object, to_table

WARNINGS_MAX, WARNING_MAX = 4096, 256  # characters of all warnings of an answer, and of each when they are more
JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
PIECE_BYTES = 128 * 1024  # of a list that is answered as a stream


class Answer:
    """Status, body and headers of a complete answer."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self,
        body: Any,
        status: int = 200,
        *,
        content_type: bytes = JSON,
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        self.body = body if isinstance(body, bytes) else msgspec.json.encode(body)
        self.status = status
        self.content_type = content_type
        self.headers = headers or []


class Stream:
    """An answer in pieces. `close` is awaited in the end, after an abort by either side too."""

    __slots__ = ("chunks", "content_type", "headers", "seconds")

    def __init__(self, chunks: AsyncIterator[bytes], *, content_type: bytes, seconds: float | None = None) -> None:
        self.chunks = chunks
        self.content_type = content_type
        self.seconds = seconds
        self.headers: list[tuple[bytes, bytes]] = []


def no_page() -> Answer:
    """The answer for an unknown path."""
    return Answer(b"404 page not found\n", 404, content_type=TEXT)


def refusal(error: ApiError) -> Answer:
    status = error.to_status()
    if not status["reason"]:
        del status["reason"]
    headers = []
    wait = (error.details or {}).get("retryAfterSeconds")
    if wait:
        headers.append((b"retry-after", str(wait).encode()))
    code = error.status if 400 <= error.status < 600 else 500
    return Answer(status, code, headers=headers)


def wants_table(request: Request) -> bool:
    """Whether Accept prefers a Table to plain JSON."""
    for part in request.header("accept").split(","):
        text = part.replace(" ", "")
        if not text.startswith("application/json"):
            continue
        if "as=Table" in text:
            return "v=v1" in text.split(";")
        if "as=" not in text:
            return False
    return False


def wants_metadata(request: Request) -> bool:
    """Whether Accept asks for objects with only their metadata."""
    for part in request.header("accept").split(","):
        text = part.replace(" ", "")
        if text.startswith("application/json"):
            return "as=PartialObjectMetadata" in text
    return False


def formatted(
    request: Request,
    clock: Clock,
    kind: Kind,
    what: Obj | Sequence[Obj],
    meta: Obj | None,
    *,
    status: int = 200,
) -> Answer:
    """Return an object (meta None) or a list in the format that Accept requests."""
    if meta is not None:
        items = cast(Sequence[Obj], what)
        form = ListForm(request, clock, kind, meta)
        return Answer(form.head + b",".join(map(form.encode, items)) + LIST_END, status)
    obj = cast(Obj, what)
    if wants_table(request):
        table_meta = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
        include = request.query.get("includeObject", "Metadata")
        return Answer(to_table(kind, [obj], table_meta, clock, include), status)
    return Answer(partial_object(obj) if wants_metadata(request) else obj, status)


LIST_END = b"]}"


class ListForm:
    """A list in the format that Accept requests, in pieces: `head`, items with commas in between, LIST_END."""

    def __init__(self, request: Request, clock: Clock, kind: Kind, meta: Obj) -> None:
        self._shape: Callable[[Obj], Any] = partial_object
        items = "items"
        if wants_table(request):
            table = Table(kind, clock, request.query.get("includeObject", "Metadata"))
            top = table.of([], meta)
            del top["rows"]
            items = "rows"
            self._shape = lambda obj: table.of([obj], meta)["rows"][0]
        elif wants_metadata(request):
            top = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta}
        else:
            if kind.custom:
                meta.setdefault("continue", "")
            self._shape = _whole if kind.custom else _typed
            top = {"kind": kind.list_kind, "apiVersion": kind.resource.api_version, "metadata": meta}
        self.head = msgspec.json.encode(top)[:-1] + f',"{items}":['.encode()

    def encode(self, obj: Obj) -> bytes:
        return msgspec.json.encode(self._shape(obj))


def _whole(obj: Obj) -> Obj:
    return obj


def _typed(obj: Obj) -> Obj:
    """Remove apiVersion and kind, as in the items of Go's typed lists: the list itself has them."""
    return {key: value for key, value in obj.items() if key not in ("kind", "apiVersion")}


async def pieces(form: ListForm, objects: Iterable[Obj]) -> AsyncIterator[bytes]:
    """Yield a list in pieces of PIECE_BYTES.

    Memory has only one piece at a time; other tasks run between two pieces.
    """
    piece, comma = bytearray(form.head), b""
    for obj in objects:
        piece += comma + form.encode(obj)
        comma = b","
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
            await asyncio.sleep(0)
    yield bytes(piece) + LIST_END


def warning_headers(warnings: Iterable[str]) -> list[tuple[bytes, bytes]]:
    return [(b"warning", f'299 - "{_quoted(text)}"'.encode()) for text in _fitting(warnings)]


def _fitting(warnings: Iterable[str]) -> list[str]:
    """Return as many warnings as the real API server sends: 4096 characters in total.

    Longer ones are cut to 256.

    https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/apiserver/pkg/endpoints/filters/warning.go
    """
    texts = list(warnings)
    if sum(map(len, texts)) <= WARNINGS_MAX:
        return texts
    short, room = [], WARNINGS_MAX
    for text in texts:
        text = text[:WARNING_MAX]
        if (room := room - len(text)) < 0:
            break
        short.append(text)
    return short


def _quoted(text: str) -> str:
    """Replace characters that a header cannot carry: a name in a user's manifest may hold any."""
    safe = "".join(
        character if " " <= character <= "~" else " " if character in "\r\n\t" else "?" for character in text
    )
    return safe.replace("\\", "\\\\").replace('"', '\\"')
