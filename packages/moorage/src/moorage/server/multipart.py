"""Read forms with files (multipart/form-data) as they arrive: a part of a form is never held as a whole.

https://www.rfc-editor.org/rfc/rfc7578
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from moorage.server.problems import Problem

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

PARTS = 1000


class Part(Struct, frozen=True):
    """A field of a form. `filename`: None for a field without a file; empty for a field that has none yet.

    `content` is readable until the next part is asked for.
    """

    name: str
    filename: str | None
    content: AsyncIterator[bytes]

    async def text(self, most: int) -> str:
        """The content of a text field. Raises Problem 413 above `most` bytes, 400 if it is not UTF-8."""
        data = bytearray()
        async for piece in self.content:
            data += piece
            if len(data) > most:
                raise Problem(413, "too_large", f"the field {self.name[:60]!r} has more than {most} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise _unreadable("a text is not UTF-8") from error


def is_multipart(request: Request) -> bool:
    return _content_type(request)[0] == b"multipart/form-data"


async def read_parts(request: Request, most: int) -> AsyncIterator[Part]:
    """Yield the parts of a form in their order. Raises Problem 413 above `most` bytes, 400 for a damaged body."""
    events, count = _events(request, most), 0
    async for event in events:
        if isinstance(event, _Head):
            count += 1
            if count > PARTS:
                raise Problem(413, "too_large", f"the form has more than {PARTS} fields and files")
            content = _content(events)
            yield Part(event.name, event.filename, content)
            async for _ in content:
                pass  # the caller did not read all of it


class _Head(Struct, frozen=True):
    """The names of a part and of its file, before its content."""

    name: str
    filename: str | None


_Event = _Head | bytes | None
"""The head of a part, a piece of its content, or its end."""


class _Heads:
    """Reads the names of a part from the callbacks of a parser, and queues all events."""

    def __init__(self) -> None:
        self.ready: deque[_Event] = deque()
        self.is_whole = False
        self._field, self._value = b"", b""
        self._names: dict[bytes, bytes] = {}

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._names.clear,
            "on_header_field": self._add_to_field,
            "on_header_value": self._add_to_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_head,
            "on_part_data": lambda data, start, end: self.ready.append(data[start:end]),
            "on_part_end": lambda: self.ready.append(None),
            "on_end": self._end,
        }

    def _add_to_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _add_to_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._names.update(parse_options_header(self._value)[1])
        self._field, self._value = b"", b""

    def _end_head(self) -> None:
        name, filename = (self._text(key) for key in (b"name", b"filename"))
        if name is None:
            raise _unreadable("a field has no name")
        self.ready.append(_Head(name, filename))

    def _end(self) -> None:
        self.is_whole = True

    def _text(self, key: bytes) -> str | None:
        """A name. Browsers write a quotation mark in it as %22, and line ends as %0D%0A."""
        if (value := self._names.get(key)) is None:
            return None
        return value.decode(errors="replace").replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")


async def _events(request: Request, most: int) -> AsyncIterator[_Event]:
    boundary = _content_type(request)[1].get(b"boundary")
    if not boundary:
        raise _unreadable("it has no boundary")
    heads, left = _Heads(), most
    with suppress(ClientDisconnect):
        try:
            parser = MultipartParser(boundary, heads.callbacks())
            async for piece in request.stream():
                left -= len(piece)
                if left < 0:
                    raise Problem(413, "too_large", f"the upload has more than {most} bytes", "send less at once")
                parser.write(piece)
                while heads.ready:
                    yield heads.ready.popleft()
        except FormParserError as error:
            raise _unreadable(str(error)) from error
    if not heads.is_whole:
        raise _unreadable("it was not sent to its end")


async def _content(events: AsyncIterator[_Event]) -> AsyncIterator[bytes]:
    async for event in events:
        if not isinstance(event, bytes):
            return
        yield event


def _content_type(request: Request) -> tuple[bytes, dict[bytes, bytes]]:
    return parse_options_header(request.headers.get("content-type"))


def _unreadable(why: str) -> Problem:
    return Problem(400, "bad_request", f"the form cannot be read: {why}")
