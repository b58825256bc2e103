"""Read forms with files (multipart/form-data) as they arrive: a part of a form is never held as a whole.

https://www.rfc-editor.org/rfc/rfc7578
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from msgspec import Struct
from starlette.requests import ClientDisconnect, Request

from moorage.server.problems import Problem

HEADERS_BYTES = 16 * 1024
BOUNDARY_CHARACTERS = 70
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
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "multipart/form-data"


async def read_parts(request: Request, most: int) -> AsyncIterator[Part]:
    """Yield the parts of a form in their order. Raises Problem 413 above `most` bytes, 400 for a damaged body."""
    reader = _Reader(request, most, b"\r\n--" + _boundary(request))
    async for _ in reader.until_boundary():
        pass  # a preamble has no meaning
    for _ in range(PARTS):
        if await reader.take(2) != b"\r\n":
            return  # "--": the end of the form
        name, filename = await reader.headers()
        content = reader.until_boundary()
        yield Part(name, filename, content)
        async for _ in content:
            pass  # the caller did not read all of it
    raise Problem(413, "too_large", f"the form has more than {PARTS} fields and files")


class _Reader:
    """The body of a request: never holds more than a piece of it and a boundary."""

    def __init__(self, request: Request, most: int, boundary: bytes) -> None:
        self._stream = request.stream()
        self._most = most
        self._left = most
        self._boundary = boundary
        self._data = bytearray(b"\r\n")  # the first boundary has no line before it

    async def _more(self) -> None:
        """Read a piece. Raises Problem."""
        piece = b""
        with contextlib.suppress(StopAsyncIteration, ClientDisconnect):
            while not piece:
                piece = await anext(self._stream)
        if not piece:
            raise _unreadable("it was not sent to its end")
        self._left -= len(piece)
        if self._left < 0:
            raise Problem(413, "too_large", f"the upload has more than {self._most} bytes", "send less at once")
        self._data += piece

    async def take(self, size: int) -> bytes:
        while len(self._data) < size:
            await self._more()
        taken = bytes(self._data[:size])
        del self._data[:size]
        return taken

    async def until_boundary(self) -> AsyncIterator[bytes]:
        """The bytes before the next boundary, which is taken too."""
        while (end := self._data.find(self._boundary)) < 0:
            if (ready := len(self._data) - len(self._boundary)) > 0:
                yield await self.take(ready)
            await self._more()
        if end:
            yield await self.take(end)
        await self.take(len(self._boundary))

    async def headers(self) -> tuple[str, str | None]:
        """The name of a part and of its file."""
        while (end := self._data.find(b"\r\n\r\n")) < 0:
            if len(self._data) > HEADERS_BYTES:
                raise _unreadable("the head of a field is too long")
            await self._more()
        head = (await self.take(end + 4)).decode(errors="replace")
        for line in head.split("\r\n"):
            key, _, value = line.partition(":")
            if key.strip().lower() == "content-disposition" and (name := _parameter(value, "name")) is not None:
                return name, _parameter(value, "filename")
        raise _unreadable("a field has no name")


def _boundary(request: Request) -> bytes:
    _, _, text = request.headers.get("content-type", "").partition("boundary=")
    boundary = text.partition(";")[0].strip().strip('"')
    if not boundary or len(boundary) > BOUNDARY_CHARACTERS or not boundary.isascii():
        raise _unreadable("it has no boundary")
    return boundary.encode()


def _parameter(value: str, name: str) -> str | None:
    """A quoted parameter of a header. Browsers write a quotation mark in it as %22, and line ends as %0D%0A."""
    _, begin, rest = value.partition(f'; {name}="')
    if not begin:
        return None
    return rest.partition('"')[0].replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")


def _unreadable(why: str) -> Problem:
    return Problem(400, "bad_request", f"the form cannot be read: {why}")
