"""The meaning of values of an expression, as in Go: equality, order, arithmetic, text and JSON.

Integers have 64 bits and wrap around; numbers read from JSON are floats.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeGuard

from msgspec import Struct

from moorage.decide.evaluation import Budget, TextError
from moorage_workflows.decide.workflows.text.durations import format_go_duration
from moorage_workflows.decide.workflows.text.limits import DEPTH
from moorage_workflows.decide.workflows.text.moments import format_moment, rfc3339

_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_FLOAT = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:inf|infinity)|nan", re.IGNORECASE
)
_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


class Duration(Struct, frozen=True, order=True):
    """A duration in nanoseconds."""

    nanoseconds: int

    @property
    def timedelta(self) -> timedelta:
        """The same, without the part below a microsecond."""
        return timedelta(microseconds=self.nanoseconds // 1000)


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a list in an expression."""
    return isinstance(value, (list, tuple))


def is_map(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    """Whether a value is a map in an expression."""
    return isinstance(value, Mapping)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value is a number. A bool is not a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether the type of a value is integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def type_name(value: Any) -> str:
    """Return the name of a value's type, as `type` in expr-lang does."""
    match value:
        case None:
            return "nil"
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float"
        case str():
            return "string"
        case bytes() | list() | tuple():
            return "array"
        case Mapping():
            return "map"
        case datetime():
            return "time.Time"
        case Duration():
            return "time.Duration"
    return "func" if callable(value) else "unknown"


def wrapped(value: int) -> int:
    """Return the value wrapped to a signed 64-bit integer."""
    return (value + 2**63) % 2**64 - 2**63


def whole(value: Any) -> int:
    """Cut a number to a whole number, for an index or a count. Raises TextError for other types."""
    if is_integer(value):
        return wrapped(value)
    if isinstance(value, float) and math.isfinite(value):
        return wrapped(int(value))
    raise TextError(f"{shown(value)} is not a whole number")


def to_integer(value: Any) -> int:
    """Convert a number or a string of decimal digits as `int(value)` does. Raises TextError."""
    if isinstance(value, str):
        if not _INTEGER.fullmatch(value) or not -(2**63) <= int(value) < 2**63:
            raise TextError(f"int: {shown(value)} is not a whole number; use digits, such as 42")
        return int(value)
    if isinstance(value, Duration):
        return value.nanoseconds
    return whole(value)


def to_float(value: Any) -> float:
    """Convert a number or a string as `float(value)` does. Raises TextError."""
    if isinstance(value, str):
        if not _FLOAT.fullmatch(value):
            raise TextError(f"float: {shown(value)} is not a number; use digits, such as 4.2")
        return float(value)
    if not is_number(value):
        raise TextError(f"float: {shown(value)} is not a number")
    return float(value)


def equal(left: Any, right: Any, budget: Budget, depth: int = 0) -> bool:
    """`==`: numbers of any type by value, lists and maps by their parts; other types differ."""
    budget.spend()
    if depth > DEPTH:
        raise TextError(f"a value is nested more than {DEPTH} deep")
    if is_number(left) and is_number(right):
        return left == right
    if is_list(left) and is_list(right):
        return len(left) == len(right) and all(
            equal(mine, other, budget, depth + 1) for mine, other in zip(left, right, strict=True)
        )
    if is_map(left) and is_map(right):
        return len(left) == len(right) and all(
            key in right and equal(value, right[key], budget, depth + 1) for key, value in left.items()
        )
    if isinstance(left, str) and isinstance(right, str):
        budget.spend(len(left) // 256)
        return left == right
    return type(left) is type(right) and not callable(left) and bool(left == right)


def less(left: Any, right: Any) -> bool:
    """Compare two numbers, strings, times or durations with `<`. Raises TextError for other types."""
    if is_number(left) and is_number(right):
        return left < right
    if isinstance(left, str) and isinstance(right, str):
        return left < right  # code points have the order of their bytes in UTF-8
    if isinstance(left, datetime) and isinstance(right, datetime):
        return left < right
    if isinstance(left, Duration) and isinstance(right, Duration):
        return left < right
    raise TextError(f"{shown(left)} and {shown(right)} have no order; compare two numbers or two strings")


def add(left: Any, right: Any, budget: Budget) -> Any:
    """`+` of numbers, strings, lists no, moments and durations. Raises TextError for anything else."""
    if isinstance(left, str) and isinstance(right, str):
        budget.string(len(left) + len(right))
        return left + right
    if is_number(left) and is_number(right):
        return wrapped(left + right) if isinstance(left, int) and isinstance(right, int) else float(left) + right
    if isinstance(left, Duration) and isinstance(right, Duration):
        return Duration(wrapped(left.nanoseconds + right.nanoseconds))
    if isinstance(left, datetime) and isinstance(right, Duration):
        return shifted(left, right.timedelta)
    if isinstance(left, Duration) and isinstance(right, datetime):
        return shifted(right, left.timedelta)
    raise _mismatch("+", left, right)


def subtract(left: Any, right: Any) -> Any:
    """`-` of numbers, times and durations. Raises TextError for other types."""
    if is_number(left) and is_number(right):
        return wrapped(left - right) if isinstance(left, int) and isinstance(right, int) else float(left) - right
    if isinstance(left, Duration) and isinstance(right, Duration):
        return Duration(wrapped(left.nanoseconds - right.nanoseconds))
    if isinstance(left, datetime) and isinstance(right, datetime):
        return Duration((left - right) // timedelta(microseconds=1) * 1000)
    if isinstance(left, datetime) and isinstance(right, Duration):
        return shifted(left, -right.timedelta)
    raise _mismatch("-", left, right)


def multiply(left: Any, right: Any) -> Any:
    """`*` of numbers, or of a duration and a number."""
    if is_number(left) and is_number(right):
        return wrapped(left * right) if isinstance(left, int) and isinstance(right, int) else _product(left, right)
    if isinstance(right, Duration):
        left, right = right, left
    if isinstance(left, Duration) and is_number(right):
        return Duration(whole(left.nanoseconds * right))
    raise _mismatch("*", left, right)


def divide(left: Any, right: Any) -> float:
    """`/`: always a float. As in Go, division by zero gives infinity or not-a-number."""
    if not is_number(left) or not is_number(right):
        raise _mismatch("/", left, right)
    if right == 0:
        return (
            math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1, right)
        )
    return float(left) / float(right)


def remainder(left: Any, right: Any) -> int:
    """`%` of whole numbers; the result has the sign of the left number. Raises TextError for zero."""
    if not is_integer(left) or not is_integer(right):
        raise _mismatch("%", left, right)
    if right == 0:
        raise TextError(f"{left} % 0: a number cannot be divided by zero")
    return int(math.copysign(1, left)) * (abs(left) % abs(right))


def power(left: Any, right: Any) -> float:
    """`**`: always a float."""
    if not is_number(left) or not is_number(right):
        raise _mismatch("**", left, right)
    try:
        return math.pow(left, right)
    except OverflowError:
        return -math.inf if left < 0 and right % 2 else math.inf
    except ValueError:
        return math.inf if left == 0 else math.nan


def shifted(moment: datetime, span: timedelta) -> datetime:
    """Add a duration to a time. Raises TextError outside the years 1 to 9999."""
    try:
        return moment + span
    except OverflowError as exc:
        raise TextError(f"the date {moment.isoformat()} plus {span} is outside the years 1 to 9999") from exc


def _product(left: float, right: float) -> float:
    return float(left) * float(right)


def _mismatch(sign: str, left: Any, right: Any) -> TextError:
    return TextError(
        f"{shown(left)} {sign} {shown(right)}: {type_name(left)} and {type_name(right)} do not go together",
        hint="convert them, such as int(inputs.parameters.x)",
    )


def shown(value: Any) -> str:
    """Return a value, shortened, for a message."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if value is None or isinstance(value, (bool, int, float)):
        return go_text(value, Budget())
    return f"a value of type {type_name(value)}"


def go_text(value: Any, budget: Budget) -> str:
    """Return a value as Go's `%v` prints it: `[1 2]`, `map[a:1]`, `<nil>`."""
    parts: list[str] = []
    _print(value, parts, budget, 0)
    return "".join(parts)


def _print(value: Any, parts: list[str], budget: Budget, depth: int) -> None:
    if depth > DEPTH:
        raise TextError(f"a value is nested more than {DEPTH} deep")
    match value:
        case None:
            text = "<nil>"
        case bool():
            text = "true" if value else "false"
        case int():
            text = str(value)
        case float():
            text = go_float(value)
        case str():
            text = value
        case datetime():
            text = format_moment(value, "2006-01-02 15:04:05.999999999 -0700 MST")
        case Duration(nanoseconds):
            text = format_go_duration(nanoseconds)
        case bytes():
            text = "[" + " ".join(str(byte) for byte in value) + "]"
        case list() | tuple():
            parts.append("[")
            for index, element in enumerate(value):
                if index:
                    parts.append(" ")
                _print(element, parts, budget, depth + 1)
            text = "]"
        case Mapping():
            parts.append("map[")
            for index, (key, element) in enumerate(_sorted_items(value)):
                parts.append(f"{' ' if index else ''}{key}:")
                _print(element, parts, budget, depth + 1)
            text = "]"
        case _:
            raise TextError(f"{shown(value)} has no text")
    budget.string(len(text))
    parts.append(text)


def go_float(value: float, *, low: float = 1e-4) -> str:
    """Return a float as Go's `%v` prints it: shortest digits; with an exponent below 0.0001 and from 1e21."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    if low <= abs(value) < 1e21:
        text = repr(value)
        if "e" in text:
            text = format(_exact(text), "f")
        return text[:-2] if text.endswith(".0") else text
    mantissa, _, exponent = format(_exact(repr(value)).normalize(), "e").lower().partition("e")
    power_of_ten = int(exponent or "0")
    return f"{mantissa}e{'-' if power_of_ten < 0 else '+'}{abs(power_of_ten):02d}"


def _exact(text: str) -> Any:
    from decimal import Decimal

    return Decimal(text)


def json_text(value: Any, budget: Budget, *, indent: int = 0, escapes_html: bool = True) -> str:
    """The value as Go writes JSON: sorted keys, compact unless indented; `<`, `>` and `&` are escaped.

    Bytes are base64, moments RFC 3339, durations nanoseconds. Raises TextError for values that JSON cannot
    hold.
    """
    parts: list[str] = []
    _write(value, parts, budget, 0, indent, escapes_html)
    return "".join(parts)


def _write(value: Any, parts: list[str], budget: Budget, depth: int, indent: int, escapes_html: bool) -> None:
    if depth > DEPTH:
        raise TextError(f"a value is nested more than {DEPTH} deep")
    match value:
        case None:
            text = "null"
        case bool():
            text = "true" if value else "false"
        case int():
            text = str(value)
        case float():
            text = _json_float(value)
        case str():
            text = json.dumps(value, ensure_ascii=False)
            if escapes_html:
                text = text.translate(_HTML)
        case bytes():
            text = json.dumps(base64_text(value))
        case datetime():
            text = f'"{rfc3339(value)}"'
        case Duration(nanoseconds):
            text = str(nanoseconds)
        case list() | tuple():
            text = _write_all(
                "[", "]", [("", element) for element in value], parts, budget, depth, indent, escapes_html
            )
        case Mapping():
            pairs = [
                (json_text(str(key), budget, escapes_html=escapes_html), element)
                for key, element in _sorted_items(value)
            ]
            text = _write_all("{", "}", pairs, parts, budget, depth, indent, escapes_html)
        case _:
            raise TextError(f"{shown(value)} cannot be written as JSON")
    budget.spend(3)  # an element takes as long to write as four to visit
    budget.string(len(text))
    parts.append(text)


def _write_all(
    start: str,
    end: str,
    pairs: list[tuple[str, Any]],
    parts: list[str],
    budget: Budget,
    depth: int,
    indent: int,
    escapes_html: bool,
) -> str:
    """Write the elements of a list or map; return the closing text."""
    if not pairs:
        return start + end
    line = "\n" + " " * indent * (depth + 1) if indent else ""
    for index, (key, element) in enumerate(pairs):
        parts.append((start if not index else ",") + line + (f"{key}:{' ' if indent else ''}" if key else ""))
        _write(element, parts, budget, depth + 1, indent, escapes_html)
    return ("\n" + " " * indent * depth if indent else "") + end


def _json_float(value: float) -> str:
    if not math.isfinite(value):
        raise TextError(f"{go_float(value)} cannot be written as JSON")
    text = go_float(value, low=1e-6)
    return re.sub(r"e-0([0-9])$", r"e-\1", text)


def read_json(text: str, budget: Budget) -> Any:
    """Parse JSON as Go does: every number becomes a float. Raises TextError with the text."""
    budget.string(len(text))
    try:
        return json.loads(text, parse_int=float, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise TextError(f"{shown(text)} is not JSON: {exc}") from exc


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def base64_text(data: bytes) -> str:
    """Encode bytes in base64 with the standard alphabet and padding."""
    import base64

    return base64.b64encode(data).decode()


def _sorted_items(value: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return sorted(value.items(), key=lambda item: str(item[0]))
