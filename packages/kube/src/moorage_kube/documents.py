"""Read JSON and YAML from outside, within bounds.

All documents from outside are read here: a request's body, an answer of a webhook, a file, a pasted manifest, an
annotation. A document that is too long, too deep or too large is refused before anything is built of it, so that
none can end the process or block it for long:

- libyaml's composer and Python's decoders recurse once a level: levels are counted over the stream of parser
  events (YAML) and over the brackets (JSON), both without recursion.
- YAML's aliases multiply: the size of a document is counted with its aliases replaced.

YAML itself is read by `moorage_kube.yamldocuments`.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from moorage_kube.documentbounds import BYTES_MAX, NESTING_MAX, bytes_of, check_length
from moorage_kube.errors import DocumentError

_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKETS = re.compile(_STRINGS.pattern + rb"|[\[\]{}]", re.DOTALL)
_NOT_BRACKETS = bytes(code for code in range(256) if code not in b"[]{}")
_SQUARE = bytes.maketrans(b"{}", b"[]")


def parse_json(data: bytes | str, type: Any = Any, *, bytes_max: int = BYTES_MAX) -> Any:
    """Read one JSON document, as `type` if given (a type that `msgspec.json.decode` takes).

    At most NESTING_MAX levels deep. Raises DocumentError.
    """
    data = bytes_of(data)
    check_length(data, bytes_max)
    check_nesting(data)
    try:
        return msgspec.json.decode(data, type=type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DocumentError(str(error)) from None


def check_nesting(data: bytes) -> None:
    """Raise DocumentError for JSON that is nested more than NESTING_MAX levels deep."""
    if data.count(b"[") + data.count(b"{") > NESTING_MAX and _is_too_deep(data):
        raise DocumentError(f"the JSON is nested more than {NESTING_MAX} levels deep")


def without_depth(data: bytes) -> bytes:
    """Replace all values deeper than NESTING_MAX levels with null; invalid JSON stays invalid.

    For answers with objects of many users: an object that is too deep must not make the others unreadable.
    """
    parts, at, levels = [], 0, 0
    for bracket in _BRACKETS.finditer(data):
        mark = bracket[0][:1]
        if mark in (b"[", b"{"):
            levels += 1
            if levels == NESTING_MAX + 1:
                parts.append(data[at : bracket.start()])
        elif mark in (b"]", b"}"):
            if levels == NESTING_MAX + 1:
                parts.append(b"null")
                at = bracket.end()
            levels -= 1
    if levels <= NESTING_MAX:
        parts.append(data[at:])
    return b"".join(parts)


def _is_too_deep(data: bytes) -> bool:
    """Whether more brackets are open at once than the limit allows; brackets inside of strings do not count.

    Each round removes all innermost pairs at once. In invalid JSON, unmatched brackets count.
    """
    left = _STRINGS.sub(b"", data).translate(_SQUARE, _NOT_BRACKETS)
    for _ in range(NESTING_MAX):
        before, left = len(left), left.replace(b"[]", b"")
        if not left:
            return False
        if len(left) == before:
            break
    return left.count(b"[") > NESTING_MAX or b"[]" in left


def parse_document(data: bytes | str, *, bytes_max: int = BYTES_MAX) -> Any:
    """Read one JSON or YAML document, whichever it is. Raises DocumentError."""
    if data.lstrip()[:1] in (b"{", b"[", "{", "["):
        try:
            return parse_json(data, bytes_max=bytes_max)
        except DocumentError as error:
            from moorage_kube.yamldocuments import parse_yaml

            try:
                return parse_yaml(data, bytes_max=bytes_max)  # `{a: b}` is YAML
            except DocumentError:
                raise error from None
    from moorage_kube.yamldocuments import parse_yaml  # PyYAML is slow to import, and most documents are JSON

    return parse_yaml(data, bytes_max=bytes_max)
