"""The built-in types: reading an object as the real server's Go types would.

`builtin.json` (made by `distil`) holds every type; a type is compiled to a function when first used. Reading
drops nulls, empty lists and empty maps, writes quantities and times in their canonical form, reports unknown
fields and refuses values of a wrong type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec

from moorage_kube.clock import parse_rfc3339, rfc3339, rfc3339_micro
from moorage_kube.errors import QuantityError
from moorage_kube.quantity import parse_quantity
from moorage_kube.resources import Obj

OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_TIME = re.compile(r"\d{4}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-6]\dZ")
_MICRO = re.compile(r"\d{4}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-6]\d\.\d{6}Z")
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/=\r\n]")
_MICRO_DIGITS = re.compile(r"[^.]*\.\d{6}([Zz]|[+-]\d\d:\d\d)")
QUANTITY_FORM = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"

TypeCode = Any  # see `distil`


@cache
def builtin() -> dict[str, Any]:
    """The content of `builtin.json`: kubernetes, types, resources."""
    content: dict[str, Any] = msgspec.json.decode((Path(__file__).parent / "builtin.json").read_bytes())
    return content


class WrongType(Exception):
    """A value that does not fit its Go type; becomes a 400."""


@dataclass(slots=True)
class Reading:
    """The findings of one reading. `unknown` holds the paths of unknown fields."""

    path: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    unsupported: list[tuple[str, str, list[str]]] = field(default_factory=list)  # path, value, supported

    def at(self, name: str) -> str:
        return join_path([*self.path, name])


def join_path(parts: list[str]) -> str:
    return ".".join(parts).replace(".[", "[")


Reader = Callable[[Any, Reading], Any]


def read(type_name: str, obj: Obj, reading: Reading) -> Obj:
    """Read an object of a named type. Raises WrongType."""
    decoded: Obj = struct_reader(type_name)(obj, reading)
    return decoded


@cache
def struct_reader(type_name: str) -> Reader:
    entry = builtin()["types"][type_name]
    if entry.get("any"):
        return _any
    short = type_name.rsplit(".", 1)[-1]
    readers: dict[str, Reader] = {name: reader(code) for name, code in entry["f"].items()}

    def read_struct(value: Any, reading: Reading) -> Any:
        if type(value) is not dict:
            raise WrongType(f"json: cannot unmarshal {_go(value)} into Go value of type {short}")
        out = {}
        path = reading.path
        for name, field_value in value.items():
            if field_value is None:
                continue
            read_one = readers.get(name)
            if read_one is None:
                reading.unknown.append(reading.at(name))
                continue
            path.append(name)
            try:
                got = read_one(field_value, reading)
            except _Mismatch as error:
                where = join_path([part for part in path if not part.startswith("[")])
                raise WrongType(
                    f"json: cannot unmarshal {error.described} into Go struct field {short}.{where}"
                    f" of type {error.wanted}"
                ) from None
            path.pop()
            if got is not None:
                out[name] = got
        return out

    return read_struct


class _Mismatch(Exception):
    def __init__(self, wanted: str, value: Any) -> None:
        self.wanted = wanted
        is_number = type(value) in (int, float) and wanted in ("int32", "int64")
        self.described = f"number {value!s:.40}" if is_number else _go(value)


def reader(code: TypeCode) -> Reader:
    """Return the reading function of a type code.

    It returns None for values that the real server would leave out.
    """
    if isinstance(code, str):
        if code.startswith("#"):
            return _reference(code[1:])
        return _SCALARS[code]
    match code[0]:
        case "l":
            return _list_reader(reader(code[1]), _go_type(code))
        case "m":
            return _map_reader(reader(code[1]), _go_type(code))
        case "e":
            return _enum_reader(list(code[1]))
    return reader(code[1])


def _reference(name: str) -> Reader:
    read_struct: Reader | None = None

    def read_reference(value: Any, reading: Reading) -> Any:
        nonlocal read_struct
        if read_struct is None:
            read_struct = struct_reader(name)
        return read_struct(value, reading)

    return read_reference


def _go_type(code: TypeCode) -> str:
    """The Go type of a code, as Go's decoder names it: `[]v1.Container`."""
    if isinstance(code, str):
        if code.startswith("#"):
            return ".".join(code.rsplit(".", 2)[-2:])
        return _GO_SCALARS.get(code, "string")
    match code[0]:
        case "l":
            return f"[]{_go_type(code[1])}"
        case "m":
            return f"map[string]{_go_type(code[1])}"
        case "e":
            return "string"
    return _go_type(code[1])


_GO_SCALARS = {
    "b": "bool",
    "i": "int64",
    "j": "int32",
    "n": "float64",
    "y": "[]uint8",
    "q": "resource.Quantity",
    "x": "intstr.IntOrString",
}


def _list_reader(read_item: Reader, go_type: str) -> Reader:
    def read_list(value: Any, reading: Reading) -> Any:
        if type(value) is not list:
            raise _Mismatch(go_type, value)
        out = []
        path = reading.path
        for at, item in enumerate(value):
            path.append(f"[{at}]")
            out.append(read_item(item if item is not None else {}, reading))
            path.pop()
        return out or None

    return read_list


def _map_reader(read_item: Reader, go_type: str) -> Reader:
    def read_map(value: Any, reading: Reading) -> Any:
        if type(value) is not dict:
            raise _Mismatch(go_type, value)
        out = {}
        path = reading.path
        for key, item in value.items():
            if item is None:
                continue
            path.append(key)
            try:
                out[key] = read_item(item, reading)
            except _Mismatch:
                path.pop()
                raise
            path.pop()
        return out or None

    return read_map


def _enum_reader(allowed: list[str]) -> Reader:
    def read_enum(value: Any, reading: Reading) -> Any:
        if type(value) is not str:
            raise _Mismatch("string", value)
        if value and value not in allowed:
            reading.unsupported.append((join_path(reading.path), value, allowed))
        return value

    return read_enum


def _string(value: Any, _: Reading) -> Any:
    if type(value) is not str:
        raise _Mismatch("string", value)
    return value


def _int64(value: Any, _: Reading) -> Any:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise _Mismatch("int64", value)
    return value


def _int32(value: Any, _: Reading) -> Any:
    if type(value) is not int or not -(1 << 31) <= value < 1 << 31:
        raise _Mismatch("int32", value)
    return value


def _boolean(value: Any, _: Reading) -> Any:
    if type(value) is not bool:
        raise _Mismatch("bool", value)
    return value


def _number(value: Any, _: Reading) -> Any:
    if type(value) not in (int, float):
        raise _Mismatch("float64", value)
    return value


def _bytes(value: Any, _: Reading) -> Any:
    if type(value) is not str:
        raise _Mismatch("[]uint8", value)
    import base64
    import binascii

    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        at = _NOT_BASE64.search(value)
        raise WrongType(f"illegal base64 data at input byte {at.start() if at else len(value)}") from None
    return value


def _int_or_string(value: Any, _: Reading) -> Any:
    if type(value) not in (int, str) or (type(value) is int and not -(1 << 31) <= value < 1 << 31):
        raise _Mismatch("intstr.IntOrString", value)
    return value


def _quantity(value: Any, _: Reading) -> Any:
    if type(value) not in (str, int, float):
        raise WrongType(QUANTITY_FORM)
    try:
        return canonical_quantity(str(value))
    except QuantityError:
        raise WrongType(QUANTITY_FORM) from None


def _time(value: Any, _: Reading) -> Any:
    return _moment(value, _TIME, rfc3339)


def _micro_time(value: Any, _: Reading) -> Any:
    if type(value) is str and value and not _MICRO_DIGITS.fullmatch(value):
        rest = value.partition(".")[2]
        raise WrongType(
            f'parsing time "{value}" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "{rest and "." + rest}"'
            ' as ".000000"'
        )
    return _moment(value, _MICRO, rfc3339_micro)


def _moment(value: Any, canonical: re.Pattern[str], write: Callable[[datetime], str]) -> Any:
    if type(value) is not str:
        raise _Mismatch("Time", value)
    if canonical.fullmatch(value):
        return value
    if not value:
        return None
    try:
        return write(parse_rfc3339(value))
    except ValueError as error:
        raise WrongType(f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": {error}') from None


def _any(value: Any, _: Reading) -> Any:
    return value


_SCALARS: dict[str, Reader] = {
    "s": _string,
    "i": _int64,
    "j": _int32,
    "b": _boolean,
    "n": _number,
    "y": _bytes,
    "q": _quantity,
    "t": _time,
    "u": _micro_time,
    "x": _int_or_string,
    "a": _any,
}


def _go(value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case str():
            return "string"
        case int():
            return "number"
        case float():
            return f"number {value}"
        case list():
            return "array"
    return "object"


_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}


@lru_cache(maxsize=4096)
def canonical_quantity(text: str) -> str:
    """Format a quantity as the real server does: no fraction, the largest suffix of the same family that fits.

    "0.5" → "500m", "1.5Gi" → "1536Mi", "1000m" → "1", "1312.5Ki" → "1344k". Raises QuantityError.
    """
    value = parse_quantity(text)
    if text.endswith("i") and abs(value) >= 1024:
        count = -((-value).__floor__()) if value > 0 else value.__floor__()
        power = 0
        while count % 1024 == 0 and power < len(_BINARY) - 1:
            count //= 1024
            power += 1
        if power:
            return f"{count}{_BINARY[power]}"
        value = Fraction(count)  # written without a suffix, and read from the storage as a decimal
    nano = value * 10**9
    count = -((-nano).__floor__()) if value > 0 else nano.__floor__()
    if count == 0:
        return "0"
    exponent = -9
    while count % 1000 == 0 and exponent < 18:
        count //= 1000
        exponent += 3
    if re.search(r"\d[eE][+-]?\d", text):
        return f"{count}e{exponent}" if exponent else str(count)
    return f"{count}{_DECIMAL[exponent]}"


@dataclass(frozen=True, slots=True)
class FieldInfo:
    """The properties of a field that strategic merge and server-side apply need."""

    code: TypeCode
    strategies: frozenset[str]
    merge_key: str | None
    list_type: str | None
    list_keys: tuple[str, ...]


@cache
def field_info(type_name: str, name: str) -> FieldInfo | None:
    """A field of a named type, or None when there is no such field."""
    code = builtin()["types"].get(type_name, {}).get("f", {}).get(name)
    return None if code is None else _info(code)


def _info(code: TypeCode) -> FieldInfo:
    more: Mapping[str, Any] = code[2] if isinstance(code, list) and code[0] in ("l", "o") else {}
    return FieldInfo(
        code,
        frozenset(more.get("how", "").split(",")) - {""},
        more.get("key"),
        more.get("type"),
        tuple(more.get("keys", ())),
    )


def item_type(code: TypeCode) -> str | None:
    """The named type of a reference, of a list's items or of a map's values; None for plain values."""
    while isinstance(code, list) and code[0] in ("l", "m", "o"):
        code = code[1]
    return code[1:] if isinstance(code, str) and code.startswith("#") else None


def type_names() -> Iterator[str]:
    yield from builtin()["types"]
