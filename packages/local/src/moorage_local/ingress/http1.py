"""Read the heads of HTTP/1.1 messages strictly, and write them again for the other side. Pure.

A head that two programs could read differently is refused, never passed on: request smuggling depends on it.
https://www.rfc-editor.org/rfc/rfc9112
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from moorage_kube.addresses import parse_authority, plain_path

HEAD_MAX = 32 * 1024  # bytes of a request's head; nginx allows 4 × 8 KiB
FIELDS_MAX = 128
CHUNK_LINE_MAX = 1024  # bytes of a chunk's size and extensions
TRAILERS_MAX = 8 * 1024

Fields = tuple[tuple[bytes, bytes], ...]  # name as sent, value

HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"),
    )
)
FORWARDED = frozenset(
    (
        *(b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-port"),
        *(b"x-forwarded-prefix", b"x-forwarded-server", b"x-real-ip"),
    )
)
"""What only a proxy may say; a client's own is not believed."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e]+) HTTP/1\.([01])")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):([\t\x20-\x7e\x80-\xff]*)")  # blanks around the value are cut afterwards
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")


class BadHead(Exception):
    """The head of a request or answer is not forwarded.

    The error has the status to send and a sentence with the reason.
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The head of a request. `length` is None if the body is chunked.

    `host` is in lower case, without a port; `target` is in origin form.
    """

    method: bytes
    target: bytes
    minor: int  # of HTTP/1.x
    fields: Fields
    authority: bytes
    host: str
    length: int | None
    keep_alive: bool
    websocket: bool
    expects_continue: bool

    @property
    def path(self) -> str:
        """The path to compare with rules: escapes, dots and doubled slashes resolved."""
        path = self.target.partition(b"?")[0].decode("ascii")
        return plain_path(path) if path.startswith("/") else path

    @property
    def has_body(self) -> bool:
        return self.length != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The head of an answer. `length` is None if the body ends with the connection, or if it is `chunked`."""

    status: int
    reason: bytes
    fields: Fields
    length: int | None
    chunked: bool
    keep_alive: bool


def parse_request(head: bytes) -> Request:
    """Parse the head of a request, without the empty line at its end. Raises BadHead."""
    # a line that is not exactly HTTP/1.1 is refused, so that the backend cannot read it in another way
    first, *lines = head.split(b"\r\n")
    match = _REQUEST.fullmatch(first)
    if match is None:
        raise BadHead(400, "the request line is not HTTP/1.1")
    method, target, minor = match[1], match[2], int(match[3])
    fields = _fields(lines, 400)
    # one host only: the table and the backend must see the same
    hosts = _values(fields, b"host")
    if len(hosts) != 1 and (hosts or minor):
        raise BadHead(400, "a request names exactly one Host")
    authority = hosts[0] if hosts else b""
    if not target.startswith(b"/") and target != b"*":
        target, authority = _absolute(target)
    try:
        host = parse_authority(authority.decode("ascii")).host if authority else ""
    except ValueError as error:
        raise BadHead(400, "the Host is not a valid host") from error
    # rules compare the plain path
    if target.startswith(b"/"):
        try:
            plain_path(target.partition(b"?")[0].decode("ascii"))
        except ValueError as error:
            raise BadHead(400, "the path has a broken escape or control characters") from error
    # a body whose end is not certain could hide a second request
    length = _length(fields, 400)
    if length is None and not minor:
        raise BadHead(400, "HTTP/1.0 does not allow Transfer-Encoding")
    # only WebSockets are upgraded: other protocols would bypass the proxy's checks
    connection = _tokens(fields, b"connection")
    upgrade = b"upgrade" in connection and [protocol.lower() for protocol in _values(fields, b"upgrade")] == [
        b"websocket"
    ]
    if upgrade and (length != 0 or method != b"GET"):
        raise BadHead(400, "a WebSocket begins with a GET without a body")
    return Request(
        method=method,
        target=target,
        minor=minor,
        fields=fields,
        authority=authority,
        host=host,
        length=length,
        keep_alive=bool(minor) and b"close" not in connection,
        websocket=bool(upgrade and minor),
        expects_continue=bool(minor) and b"100-continue" in _tokens(fields, b"expect"),
    )


def parse_answer(head: bytes, method: bytes) -> Answer:
    """Parse the head of the answer to a request with this method. Raises BadHead with status 502."""
    first, *lines = head.split(b"\r\n")
    match = _STATUS.fullmatch(first)
    if match is None:
        raise BadHead(502, "the backend's answer is not HTTP/1.1")
    minor, status = int(match[1]), int(match[2])
    fields = _fields(lines, 502)
    chunked, length = False, None
    if method == b"HEAD" or status < 200 or status in (204, 304):
        length = 0
    else:
        sized = bool(_values(fields, b"content-length"))
        framed = _length(fields, 502)
        chunked = framed is None
        length = framed if sized else None
    connection = _tokens(fields, b"connection")
    return Answer(
        status=status,
        reason=match[3] or b"",
        fields=fields,
        length=length,
        chunked=chunked,
        keep_alive=bool(minor) and b"close" not in connection and (length is not None or chunked),
    )


def request_head(request: Request, *, client: str, port: int) -> bytes:
    """The head for the backend: without hop-by-hop headers, with those that a proxy adds."""
    kept = end_to_end(request.fields, also=FORWARDED | {b"expect", b"host"})
    fields = [(b"Host", request.authority), *kept]
    fields += [
        (b"X-Forwarded-For", client.encode()),
        (b"X-Forwarded-Host", request.authority),
        (b"X-Forwarded-Port", str(port).encode()),
        (b"X-Forwarded-Proto", b"http"),
        (b"X-Real-IP", client.encode()),
    ]
    if request.websocket:
        fields += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    elif request.length is None:
        fields.append((b"Transfer-Encoding", b"chunked"))
    return _head(b"%b %b HTTP/1.1" % (request.method, request.target), fields)


def answer_head(answer: Answer, *, chunked: bool, close: bool, upgrade: bool = False) -> bytes:
    """The head for the client.

    `chunked`: the framing of the body for the client, which may differ from the backend's.
    """
    fields = list(end_to_end(answer.fields))
    if upgrade:
        fields += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    else:
        if chunked:
            fields.append((b"Transfer-Encoding", b"chunked"))
        if close:
            fields.append((b"Connection", b"close"))
    return _head(b"HTTP/1.1 %d %b" % (answer.status, answer.reason), fields)


def end_to_end(fields: Fields, also: frozenset[bytes] = frozenset()) -> Iterable[tuple[bytes, bytes]]:
    """Yield the end-to-end fields. `_` in a name counts as `-`, because some programs read it so."""
    dropped = HOP_BY_HOP | also
    named = _tokens(fields, b"connection") - {b"host", b"content-length"}
    for name, value in fields:
        lower = name.lower()
        plain = lower.replace(b"_", b"-")
        disguised = plain != lower and plain in (b"content-length", b"host")
        if lower not in named and plain not in dropped and not disguised:
            yield name, value


def chunk_size(line: bytes) -> int:
    """Return the size in the first line of a chunk (without its line end). Raises BadHead."""
    match = _CHUNK.fullmatch(line)
    if match is None:
        raise BadHead(400, "a chunk of the body has no proper size")
    return int(match[1], 16)


def _fields(lines: Sequence[bytes], status: int) -> Fields:
    if len(lines) > FIELDS_MAX:
        raise BadHead(431 if status == 400 else status, f"more than {FIELDS_MAX} header fields")
    out = []
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise BadHead(status, "invalid header field")
        out.append((match[1], match[2].strip(b" \t")))
    return tuple(out)


def _values(fields: Fields, name: bytes) -> list[bytes]:
    return [value for field, value in fields if field.lower() == name]


def _tokens(fields: Fields, name: bytes) -> set[bytes]:
    return {token.strip().lower() for value in _values(fields, name) for token in value.split(b",")} - {b""}


def _length(fields: Fields, status: int) -> int | None:
    """Return the length of the body in bytes: 0 without a header, None if it is chunked. Raises BadHead."""
    sizes, codings = _values(fields, b"content-length"), _values(fields, b"transfer-encoding")
    if sizes and codings:
        raise BadHead(status, "both Content-Length and Transfer-Encoding")
    if codings:
        if len(codings) != 1 or codings[0].lower() != b"chunked":
            raise BadHead(501 if status == 400 else status, "a Transfer-Encoding other than chunked")
        return None
    if not sizes:
        return 0
    if len(sizes) != 1 or not re.fullmatch(rb"[0-9]{1,18}", sizes[0]):
        raise BadHead(status, "a Content-Length must be one number")
    return int(sizes[0])


def _absolute(target: bytes) -> tuple[bytes, bytes]:
    """Return (origin form, authority) of `http://host/path`. Raises BadHead for other forms."""
    try:
        parts = urlsplit(target.decode("ascii"))
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise BadHead(400, "the request's target is neither a path nor an address")
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.path or '/'}{query}".encode(), parts.netloc.encode()


def _head(first: bytes, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"\r\n".join([first, *(b"%b: %b" % field for field in fields), b"", b""])
