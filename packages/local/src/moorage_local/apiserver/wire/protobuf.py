"""Decode objects that clients send in protobuf. Answers are always JSON, which all clients also accept.

`kubectl create namespace`, `kubectl create token` and Go programs send their typed objects in protobuf. Only
built-in types have a protobuf form.
https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from moorage_kube.clock import rfc3339, rfc3339_micro
from moorage_kube.errors import BadRequest
from moorage_kube.resources import Obj
from moorage_local.apiserver.types.schema import builtin

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DEPTH = 100  # messages within messages; no API type comes near it

Field = tuple[int, int, Any]  # number, wire type, raw value


@cache
def _numbers() -> dict[str, dict[str, str]]:
    text: dict[str, dict[str, str]] = msgspec.json.decode((Path(__file__).parent / "protobuf.json").read_bytes())
    return text


@cache
def _type_of(api_version: str, kind: str) -> str | None:
    group, _, version = api_version.rpartition("/")
    for name, entry in builtin()["types"].items():
        if [group, version, kind] in entry.get("k", ()):
            return str(name)
    return None


def decode(data: bytes) -> Obj:
    """Return the object in a Kubernetes envelope. Raises BadRequest."""
    if not data.startswith(MAGIC):
        raise BadRequest(
            "the object provided is unrecognized: provided data does not appear to be a protobuf message, expected"
            " prefix [107 56 115 0]"
        )
    try:
        api_version = kind = ""
        raw = b""
        for number, _, value in _fields(data[len(MAGIC) :]):
            if number == 1:
                head = {at: part.decode() for at, _, part in _fields(value)}
                api_version, kind = head.get(1, ""), head.get(2, "")
            elif number == 2:
                raw = value
        name = _type_of(api_version, kind)
        if name is None or name not in _numbers():
            raise BadRequest(f'no kind "{kind}" is registered for version "{api_version}" in protobuf')
        return {"apiVersion": api_version, "kind": kind, **_message(raw, name, name, 0)}
    except (ValueError, IndexError, KeyError, AttributeError, TypeError, struct.error) as error:
        raise BadRequest(f"the object provided is unrecognized: malformed protobuf: {error}") from None


def _message(data: bytes, numbers_of: str, types_of: str, depth: int) -> Obj:
    """Read a message; an inlined struct has its own numbers and the types of the struct around it."""
    if depth > _DEPTH:
        raise ValueError("messages are nested too deep")
    numbers = _numbers()[numbers_of]
    types = builtin()["types"][types_of].get("f", {})
    out: Obj = {}
    for number, wire, value in _fields(data):
        name = numbers.get(str(number))
        if name is None:
            continue
        if name.startswith(">"):
            out |= _message(value, name[1:], types_of, depth + 1)
            continue
        pointer = name.startswith("*")
        name = name.removeprefix("*")
        code = types.get(name)
        if code is None:
            continue
        while code[0] == "o":
            code = code[1]
        if code[0] == "l":
            out.setdefault(name, []).extend(_items(value, wire, code[1], depth))
        elif code[0] == "m":
            key, decoded = _entry(value, code[1], depth)
            out.setdefault(name, {})[key] = decoded
        else:
            decoded = _value(value, wire, code, depth)
            if decoded is not None and (pointer or decoded not in ("", 0, False)):
                out[name] = decoded
    return out


def _items(value: Any, wire: int, code: Any, depth: int) -> Iterator[Any]:
    """Yield one item of a list, or several packed numbers."""
    if code in ("i", "j", "b") and wire == 2:
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            yield bool(number) if code == "b" else _signed(number)
        return
    yield _value(value, wire, code, depth)


def _entry(value: bytes, code: Any, depth: int) -> tuple[str, Any]:
    key, decoded = "", None
    for number, wire, part in _fields(value):
        if number == 1:
            key = part.decode()
        elif number == 2:
            if isinstance(code, list) and code[0] == "l":
                decoded = [item.decode() for _, _, item in _fields(part)]
            else:
                decoded = _value(part, wire, code, depth)
    return key, "" if decoded is None else decoded


def _value(value: Any, wire: int, code: Any, depth: int) -> Any:
    """Read one value of a type code; None for values that JSON leaves out."""
    if isinstance(code, list):  # an enumeration
        return value.decode()
    if code.startswith("#"):
        name = code[1:]
        if builtin()["types"][name].get("any"):
            return _raw(value)
        return _message(value, name, name, depth + 1)
    match code:
        case "s":
            return value.decode() if wire == 2 else _duration(value)
        case "i" | "j":
            return _signed(value)
        case "b":
            return bool(value)
        case "n":
            return struct.unpack("<d", value)[0]
        case "y":
            return base64.b64encode(value).decode()
        case "q":
            return next((part.decode() for number, _, part in _fields(value) if number == 1), "0")
        case "t" | "u":
            return _moment(value, rfc3339 if code == "t" else rfc3339_micro)
        case "x":
            parts = {number: part for number, _, part in _fields(value)}
            return parts.get(3, b"").decode() if parts.get(1) else _signed(parts.get(2, 0))
    return _raw(value)


def _raw(value: bytes) -> Any:
    """Decode JSON inside protobuf: RawExtension, FieldsV1, JSON."""
    for number, _, part in _fields(value):
        if number == 1 and part:
            return msgspec.json.decode(part)
    return None


def _moment(value: bytes, write: Any) -> str | None:
    parts = {number: part for number, _, part in _fields(value)}
    if not parts:
        return None
    moment = _EPOCH + timedelta(seconds=_signed(parts.get(1, 0)), microseconds=_signed(parts.get(2, 0)) // 1000)
    return str(write(moment))


def _duration(value: Any) -> str:
    return f"{_signed(value) / 10**9:g}s"


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & (2**64 - 1), at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message in the order of its bytes. Raises ValueError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        match wire:
            case 0:
                value: Any
                value, at = _varint(data, at)
            case 1:
                value, at = data[at : at + 8], at + 8
            case 2:
                length, at = _varint(data, at)
                value, at = data[at : at + length], at + length
            case 5:
                value, at = data[at : at + 4], at + 4
            case _:
                raise ValueError(f"wire type {wire} is not known")
        if at > len(data):
            raise ValueError("the message ends in the middle of a field")
        yield number, wire, value
