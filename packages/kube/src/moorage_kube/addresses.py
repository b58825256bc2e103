"""Read hosts, paths and client addresses of requests strictly, before any decision uses them.

Two readers of one request must not see two different hosts or paths. So an odd value is refused, not repaired.
https://www.rfc-editor.org/rfc/rfc3986#section-3.2 (authority), #section-6.2.2 (paths)
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache

_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*")
_NAME_MAX = 253
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
_ODD = re.compile(r"//|\\|/\.{1,2}(?:/|$)|%2[fF]|%5[cC]|%2[eE]|%00")
_CUSTOMER_BITS = 64
PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


@dataclass(frozen=True, slots=True)
class Authority:
    """A host in lower case, and its port if the text has one. IPv6 is in brackets, as in RFC 5952."""

    host: str
    port: int | None = None


@lru_cache(maxsize=1024)
def parse_authority(text: str) -> Authority:
    """Read a Host header: `name`, `name:port`, `[v6]`, `[v6]:port`.

    Raises ValueError for all other text: user names, blanks, an empty host, a final dot, an empty port, or a
    port out of range.
    """
    lower = text.lower()
    host, bracket, rest = lower[1:].partition("]") if lower.startswith("[") else ("", "", "")
    if bracket:
        try:
            host = f"[{ipaddress.IPv6Address(host).compressed}]"
        except ValueError:
            raise ValueError(f"{text[:80]!r} is not a valid host") from None
        if "%" in host or (rest and not rest.startswith(":")):
            raise ValueError(f"{text[:80]!r} is not a valid host")
        colon, port = rest[:1], rest[1:]
    else:
        host, colon, port = lower.partition(":")
        if len(host) > _NAME_MAX or not host.isascii() or _NAME.fullmatch(host) is None:
            raise ValueError(f"{text[:80]!r} is not a valid host")
    if not colon:
        return Authority(host)
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise ValueError(f"invalid port in {text[:80]!r}: use 1 to 65535")
    return Authority(host, int(port))


@lru_cache(maxsize=1024)
def parse_origin(text: str) -> tuple[str, str, int]:
    """Return the (scheme, host, port) of an Origin header.

    Raises ValueError for `null` and for any other scheme.
    """
    scheme, separator, rest = text.lower().partition("://")
    if not separator or scheme not in ("http", "https"):
        raise ValueError(f"{text[:80]!r} is not a web origin")
    authority = parse_authority(rest)
    return scheme, authority.host, authority.port or PORTS[scheme]


def client_network(address: str) -> str:
    """Return the network to count a client by: an IPv4 address itself, the /64 of an IPv6 address.

    A customer has at least a whole /64 and can change the address within it at any time. Any other text is
    returned unchanged. https://www.rfc-editor.org/rfc/rfc6177
    """
    try:
        read = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(read, ipaddress.IPv4Address):
        return str(read)
    if read.ipv4_mapped is not None:
        return str(read.ipv4_mapped)
    return str(ipaddress.IPv6Network((read, _CUSTOMER_BITS), strict=False))


def plain_path(path: str) -> str:
    r"""Return the path as the most lenient server behind a proxy could read it.

    Use it for checks only, do not send it.

    `path` is the path of the request, without its query. The result has all escapes resolved once and `/` for
    `\`. It has no `;…` in its parts, no empty parts and no dots.

    Raises ValueError for a broken escape, a control character, or bytes that are not UTF-8.
    """
    if not path.startswith("/"):
        raise ValueError(f"{path[:80]!r} is not a valid path")
    if any(escape[1] is None for escape in _ESCAPE.finditer(path)):
        raise ValueError(f"{path[:80]!r} has a broken escape")
    parts = [part.partition(";")[0] for part in path.split("/")]
    raw = bytearray()
    text = "/".join(parts)
    at = 0
    for escape in _ESCAPE.finditer(text):
        raw += text[at : escape.start()].encode() + bytes.fromhex(escape[1])
        at = escape.end()
    raw += text[at:].encode()
    decoded = raw.decode("utf-8").replace("\\", "/")
    if any(ord(character) < 0x20 or ord(character) == 0x7F for character in decoded):
        raise ValueError(f"{path[:80]!r} has control characters")
    kept: list[str] = []
    last = ""
    for last in decoded.split("/"):
        name = last.partition(";")[0]
        if name == "..":
            del kept[-1:]
        elif name not in ("", "."):
            kept.append(name)
    ends = "/" if kept and last.partition(";")[0] in ("", ".", "..") else ""
    return "/" + "/".join(kept) + ends


def is_odd_path(path: str) -> bool:
    """Whether servers could read the path of a request in two ways.

    It has `//`, dots, a backslash, or escapes of these.
    """
    return _ODD.search(path) is not None
