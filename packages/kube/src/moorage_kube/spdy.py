"""The part of SPDY/3.1 that `kubectl port-forward` uses inside a WebSocket. Pure.

It has no flow control, like the client's library (moby/spdystream).
https://www.chromium.org/spdy/spdy-protocol/spdy-protocol-draft3-1/
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

VERSION = 3
SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY = 1, 2, 3, 6, 7
FIN = 0x01
PROTOCOL_ERROR, REFUSED_STREAM, CANCEL = 1, 3, 5
FRAME_MAX = 1 << 20  # bytes of one frame that is accepted; the client's library writes at most 64 KiB
HEADERS_MAX = 64 * 1024  # bytes of a header block, decompressed

_WORDS = (
    "options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|accept-language|accept-ranges|age|"
    "allow|authorization|cache-control|connection|content-base|content-encoding|content-language|content-length|"
    "content-location|content-md5|content-range|content-type|date|etag|expect|expires|from|host|if-match|"
    "if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|location|max-forwards|pragma|"
    "proxy-authenticate|proxy-authorization|range|referer|retry-after|server|te|trailer|transfer-encoding|upgrade|"
    "user-agent|vary|via|warning|www-authenticate|method|get|status|200 OK|version|HTTP/1.1|url|public|set-cookie|"
    "keep-alive|origin"
)
_REST = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritat"
    "ive Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found5"
    "00 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct N"
    "ov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,applic"
    "ation/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf"
    "-8charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY = (
    b"".join(struct.pack(">I", len(word)) + word.encode() for word in _WORDS.split("|")) + _REST.encode()
)  # both sides of the compression begin with it


class SpdyError(Exception):
    """The data received is not SPDY/3.1; the connection cannot continue."""


@dataclass(frozen=True, slots=True)
class Opened:
    """SYN_STREAM: the client opens a stream."""

    stream: int
    headers: Mapping[str, str]
    fin: bool


@dataclass(frozen=True, slots=True)
class Data:
    stream: int
    data: bytes
    fin: bool


@dataclass(frozen=True, slots=True)
class Reset:
    stream: int


@dataclass(frozen=True, slots=True)
class Ping:
    number: int


Frame = Opened | Data | Reset | Ping


class Reader:
    """Parses frames from bytes as they arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are now complete, without those of types not needed here. Raises SpdyError."""
        self._buffer += data
        while len(self._buffer) >= 8:
            first, second = struct.unpack_from(">II", self._buffer)
            flags, size = second >> 24, second & 0xFFFFFF
            if size > FRAME_MAX:
                raise SpdyError(f"a frame of {size} bytes")
            if len(self._buffer) < 8 + size:
                return
            body = bytes(self._buffer[8 : 8 + size])
            del self._buffer[: 8 + size]
            if not first >> 31:
                yield Data(first, body, bool(flags & FIN))
                continue
            if first >> 16 & 0x7FFF != VERSION:
                raise SpdyError(f"version {first >> 16 & 0x7FFF}")
            frame = self._control(first & 0xFFFF, flags, body)
            if frame is not None:
                yield frame

    def _control(self, kind: int, flags: int, body: bytes) -> Frame | None:
        try:
            if kind == SYN_STREAM:
                (stream,) = struct.unpack_from(">I", body)
                return Opened(stream & 0x7FFFFFFF, self._headers(body[10:]), bool(flags & FIN))
            if kind == RST_STREAM:
                return Reset(struct.unpack_from(">I", body)[0] & 0x7FFFFFFF)
            if kind == PING:
                return Ping(struct.unpack_from(">I", body)[0])
        except struct.error:
            raise SpdyError(f"a frame of type {kind} that is too short") from None
        return None

    def _headers(self, block: bytes) -> dict[str, str]:
        try:
            plain = self._inflate.decompress(block, HEADERS_MAX)
        except zlib.error as error:
            raise SpdyError(f"headers that cannot be read: {error}") from None
        if self._inflate.unconsumed_tail:
            raise SpdyError(f"headers of more than {HEADERS_MAX} bytes")
        (count,) = struct.unpack_from(">I", plain)
        at, words = 4, []
        for _ in range(2 * min(count, 1000)):
            (size,) = struct.unpack_from(">I", plain, at)
            words.append(plain[at + 4 : at + 4 + size].decode("latin-1"))
            at += 4 + size
        return dict(zip((word.lower() for word in words[::2]), words[1::2], strict=True))


class Writer:
    """Makes frames."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def opened(self, stream: int, headers: Mapping[str, str] | None = None) -> bytes:
        """Return a SYN_STREAM frame, as a client sends it."""
        return _control(SYN_STREAM, struct.pack(">IIH", stream, 0, 0) + self._block(headers or {}))

    def reply(self, stream: int) -> bytes:
        """Return a SYN_REPLY frame: the stream is accepted."""
        return _control(SYN_REPLY, struct.pack(">I", stream) + self._block({}))

    def data(self, stream: int, data: bytes, *, fin: bool = False) -> bytes:
        return struct.pack(">II", stream, (FIN if fin else 0) << 24 | len(data)) + data

    def reset(self, stream: int, why: int = CANCEL) -> bytes:
        return _control(RST_STREAM, struct.pack(">II", stream, why))

    def ping(self, number: int) -> bytes:
        return _control(PING, struct.pack(">I", number))

    def _block(self, headers: Mapping[str, str]) -> bytes:
        plain = struct.pack(">I", len(headers))
        for name, value in headers.items():
            for text in (name.lower().encode(), value.encode()):
                plain += struct.pack(">I", len(text)) + text
        return self._deflate.compress(plain) + self._deflate.flush(zlib.Z_SYNC_FLUSH)


def _control(kind: int, body: bytes, flags: int = 0) -> bytes:
    return struct.pack(">II", 1 << 31 | VERSION << 16 | kind, flags << 24 | len(body)) + body
