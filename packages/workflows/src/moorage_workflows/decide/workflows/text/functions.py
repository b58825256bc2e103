"""The named functions of expr-lang, except those with predicates, and the four functions that Argo adds.

https://expr-lang.org/docs/language-definition, https://argo-workflows.readthedocs.io/en/latest/variables/
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Sequence
from datetime import datetime, tzinfo
from functools import cmp_to_key
from typing import Any

from msgspec import Struct

from moorage.decide.evaluation import Budget, TextError
from moorage_workflows.decide.workflows.text import moments, values
from moorage_workflows.decide.workflows.text.durations import go_nanoseconds
from moorage_workflows.decide.workflows.text.jsonpath import query
from moorage_workflows.decide.workflows.text.limits import DEPTH
from moorage_workflows.decide.workflows.text.values import Duration, is_list, is_map, is_number, shown

DATE_LAYOUTS = (
    "2006-01-02",
    "15:04:05",
    "2006-01-02 15:04:05",
    moments.RFC3339,
    moments.RFC822,
    moments.RFC850,
    moments.RFC1123,
)


class Call(Struct, frozen=True):
    """The context of a function call, in addition to its arguments. `now`: None where there is no clock."""

    budget: Budget
    now: datetime | None


Function = Callable[[Call, Sequence[Any]], Any]


class Signature(Struct, frozen=True):
    """A function and its number of arguments. `most`: None without a limit."""

    function: Function
    least: int
    most: int | None


def text(value: Any, name: str) -> str:
    """Return an argument that must be a string. Raises TextError with the name of the function."""
    if not isinstance(value, str):
        raise TextError(
            f"{name}: {shown(value)} is not a string", hint=f"convert it first, such as {name}(string(x))"
        )
    return value


def items(value: Any, name: str) -> Sequence[Any]:
    """Return an argument that must be a list. Raises TextError with the name of the function."""
    if not is_list(value):
        raise TextError(f"{name}: {shown(value)} is not a list")
    return value


def _map(value: Any, name: str) -> Any:
    if not is_map(value):
        raise TextError(f"{name}: {shown(value)} is not a map")
    return value


def moment_now(call: Call, name: str) -> datetime:
    """Return the time of the evaluation.

    Raises TextError if the evaluation has none: its result must not change.
    """
    if call.now is None:
        raise TextError(
            f"{name}: the current time is not available here: a repeated decision must have the same result",
            hint="use workflow.creationTimestamp or workflow.scheduledTime",
        )
    return call.now


def byte_slice(value: str, start: int, stop: int) -> str:
    """Return a slice of a string by UTF-8 bytes, as in Go. A cut character becomes U+FFFD."""
    if value.isascii():
        return value[start:stop]
    return value.encode("utf-8", "surrogatepass")[start:stop].decode("utf-8", "replace")


def byte_length(value: str) -> int:
    """Return the length of a string in UTF-8 bytes."""
    return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))


def split(value: str, separator: str, count: int, budget: Budget, *, keep: bool = False) -> list[str]:
    """Split as Go's SplitN. An empty separator splits into characters.

    `count`: the maximum number of parts; 0 gives none, a negative number has no limit.
    """
    budget.string(len(value))
    if count == 0:
        return []
    if separator == "":
        budget.items(len(value))
        if 0 < count < len(value):
            return [*value[: count - 1], value[count - 1 :]]
        return list(value)
    budget.items(value.count(separator) + 1)
    parts = value.split(separator, count - 1 if count > 0 else -1)
    return [part + separator for part in parts[:-1]] + parts[-1:] if keep else parts


def replace(value: str, old: str, new: str, count: int, budget: Budget) -> str:
    """Replace `old` by `new` at most `count` times; every time if `count` is negative."""
    times = value.count(old)
    if count >= 0:
        times = min(times, count)
    budget.string(len(value) + times * max(len(new) - len(old), 0))
    return value.replace(old, new, count)


def repeat(value: str, count: int, budget: Budget) -> str:
    """Repeat a string. Raises TextError for a negative count."""
    if count < 0:
        raise TextError(f"repeat: the count is {count}; use 0 or more")
    budget.string(len(value) * count)
    return value * count


def join(parts: Sequence[str], separator: str, budget: Budget) -> str:
    """Join strings."""
    budget.string(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


def trimmed(value: str, characters: str | None = None) -> str:
    """Remove white space, or these characters, from both ends. White space is defined as in Go."""
    return value.strip(characters) if characters is not None else value.strip(_SPACE)


_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


def flattened(value: Sequence[Any], budget: Budget, depth: int = 0) -> list[Any]:
    """Return the elements of a list and of the lists in it, as one list."""
    if depth > DEPTH:
        raise TextError(f"flatten: a list is nested more than {DEPTH} deep")
    flat: list[Any] = []
    for element in value:
        budget.spend()
        if is_list(element):
            flat += flattened(element, budget, depth + 1)
        else:
            flat.append(element)
    budget.items(len(flat))
    return flat


def sorted_list(value: Sequence[Any], keys: Sequence[Any], *, descending: bool, budget: Budget) -> list[Any]:
    """Sort a list by keys of the same length; the sort is stable.

    Raises TextError for keys that cannot be compared.
    """
    sizes = sum(len(key) // 256 for key in keys if isinstance(key, str))
    budget.spend((len(value) + sizes) * max(len(value).bit_length(), 1))

    def compare(left: int, right: int) -> int:
        if values.less(keys[left], keys[right]):
            return -1
        return 1 if values.less(keys[right], keys[left]) else 0

    order = sorted(range(len(value)), key=cmp_to_key(compare), reverse=descending)
    return [value[index] for index in order]


def is_descending(order: Any, name: str) -> bool:
    """Whether a sort order is "desc". Raises TextError for values other than "asc" and "desc"."""
    if order not in ("asc", "desc"):
        raise TextError(f"{name}: unknown order {shown(order)}; use 'asc' or 'desc'")
    return bool(order == "desc")


def total(numbers: Sequence[Any], budget: Budget) -> int | float:
    """Return the sum of numbers. Raises TextError for other values."""
    result: Any = 0
    for number in numbers:
        result = values.add(result, number, budget)
    if not is_number(result):
        raise TextError(f"sum: {shown(result)} is not a number")
    return result


def _numbers(name: str, arguments: Sequence[Any], budget: Budget) -> list[int | float]:
    flat = flattened(arguments, budget)
    for number in flat:
        if not is_number(number):
            raise TextError(f"{name}: {shown(number)} is not a number")
    return flat


def _len(_call: Call, arguments: Sequence[Any]) -> int:
    value = arguments[0]
    if isinstance(value, (str, bytes)) or is_list(value) or is_map(value):
        return len(value)
    raise TextError(f"len: {shown(value)} has no length; use a string, a list or a map")


def _abs(_call: Call, arguments: Sequence[Any]) -> int | float:
    value = arguments[0]
    if not is_number(value):
        raise TextError(f"abs: {shown(value)} is not a number")
    return values.wrapped(abs(value)) if isinstance(value, int) else abs(value)


def _rounding(name: str, rounding: Callable[[float], float]) -> Function:
    def rounded(_call: Call, arguments: Sequence[Any]) -> float:
        value = arguments[0]
        if not is_number(value):
            raise TextError(f"{name}: {shown(value)} is not a number")
        number = float(value)
        return float(rounding(number)) if math.isfinite(number) else number

    return rounded


def half_away(number: float) -> float:
    """Round to a whole number; halves are rounded away from zero."""
    whole = math.floor(abs(number))
    return math.copysign(whole + (abs(number) - whole >= 0.5), number)


def _trim(_call: Call, arguments: Sequence[Any]) -> str:
    value = text(arguments[0], "trim")
    return trimmed(value, text(arguments[1], "trim") if len(arguments) > 1 else None)


def _trim_prefix(_call: Call, arguments: Sequence[Any]) -> str:
    return text(arguments[0], "trimPrefix").removeprefix(
        text(arguments[1], "trimPrefix") if len(arguments) > 1 else " "
    )


def _trim_suffix(_call: Call, arguments: Sequence[Any]) -> str:
    return text(arguments[0], "trimSuffix").removesuffix(
        text(arguments[1], "trimSuffix") if len(arguments) > 1 else " "
    )


def _upper(_call: Call, arguments: Sequence[Any]) -> str:
    return text(arguments[0], "upper").upper()


def _lower(_call: Call, arguments: Sequence[Any]) -> str:
    return text(arguments[0], "lower").lower()


def _splitting(name: str, *, keep: bool) -> Function:
    def splitted(call: Call, arguments: Sequence[Any]) -> list[str]:
        count = values.whole(arguments[2]) if len(arguments) > 2 else -1
        return split(text(arguments[0], name), text(arguments[1], name), count, call.budget, keep=keep)

    return splitted


def _replace(call: Call, arguments: Sequence[Any]) -> str:
    value, old, new = (text(argument, "replace") for argument in arguments[:3])
    count = values.whole(arguments[3]) if len(arguments) > 3 else -1
    return replace(value, old, new, count, call.budget)


def _repeat(call: Call, arguments: Sequence[Any]) -> str:
    return repeat(text(arguments[0], "repeat"), values.whole(arguments[1]), call.budget)


def _join(call: Call, arguments: Sequence[Any]) -> str:
    parts = [text(part, "join") for part in items(arguments[0], "join")]
    return join(parts, text(arguments[1], "join") if len(arguments) > 1 else "", call.budget)


def _index_of(_call: Call, arguments: Sequence[Any]) -> int:
    value, part = text(arguments[0], "indexOf"), text(arguments[1], "indexOf")
    index = value.find(part)
    return index if index < 0 else byte_length(value[:index])


def _last_index_of(_call: Call, arguments: Sequence[Any]) -> int:
    value, part = text(arguments[0], "lastIndexOf"), text(arguments[1], "lastIndexOf")
    index = value.rfind(part)
    return index if index < 0 else byte_length(value[:index])


def _has_prefix(_call: Call, arguments: Sequence[Any]) -> bool:
    return text(arguments[0], "hasPrefix").startswith(text(arguments[1], "hasPrefix"))


def _has_suffix(_call: Call, arguments: Sequence[Any]) -> bool:
    return text(arguments[0], "hasSuffix").endswith(text(arguments[1], "hasSuffix"))


def _max(call: Call, arguments: Sequence[Any]) -> Any:
    return max(_numbers("max", arguments, call.budget), default=None)


def _min(call: Call, arguments: Sequence[Any]) -> Any:
    return min(_numbers("min", arguments, call.budget), default=None)


def _mean(call: Call, arguments: Sequence[Any]) -> float:
    numbers = _numbers("mean", arguments, call.budget)
    return float(sum(map(float, numbers))) / len(numbers) if numbers else 0.0


def _median(call: Call, arguments: Sequence[Any]) -> float:
    numbers = sorted(float(number) for number in _numbers("median", arguments, call.budget))
    if not numbers:
        return 0.0
    middle = len(numbers) // 2
    return numbers[middle] if len(numbers) % 2 else (numbers[middle - 1] + numbers[middle]) / 2


def _to_json_lines(call: Call, arguments: Sequence[Any]) -> str:
    return values.json_text(arguments[0], call.budget, indent=2)


def _to_json(call: Call, arguments: Sequence[Any]) -> str:
    return values.json_text(arguments[0], call.budget)


def _from_json(call: Call, arguments: Sequence[Any]) -> Any:
    return values.read_json(text(arguments[0], "fromJSON"), call.budget)


def _json_path(call: Call, arguments: Sequence[Any]) -> Any:
    document = values.read_json(text(arguments[0], "jsonpath"), call.budget)
    return query(text(arguments[1], "jsonpath"), document, call.budget)


def _to_base64(_call: Call, arguments: Sequence[Any]) -> str:
    return values.base64_text(text(arguments[0], "toBase64").encode())


def _from_base64(_call: Call, arguments: Sequence[Any]) -> str:
    return from_base64(text(arguments[0], "fromBase64"), "fromBase64")


def from_base64(encoded: str, name: str) -> str:
    """Decode base64 of UTF-8 text. Raises TextError with the name of the function."""
    try:
        return base64.b64decode(encoded.replace("\n", "").replace("\r", ""), validate=True).decode(
            "utf-8", "replace"
        )
    except (binascii.Error, ValueError) as exc:
        raise TextError(f"{name}: {shown(encoded)} is not base64: {exc}") from exc


def _now(call: Call, arguments: Sequence[Any]) -> datetime:
    moment = moment_now(call, "now")
    if not arguments:
        return moment
    if not isinstance(arguments[0], tzinfo):
        raise TextError(f"now: {shown(arguments[0])} is not a time zone; use timezone('Europe/Zurich')")
    return moment.astimezone(arguments[0])


def _duration(_call: Call, arguments: Sequence[Any]) -> Duration:
    return Duration(go_nanoseconds(text(arguments[0], "duration")))


def _date(_call: Call, arguments: Sequence[Any]) -> datetime:
    where: tzinfo = moments.zone("UTC")
    if isinstance(arguments[0], tzinfo):
        where, arguments = arguments[0], arguments[1:]
    if not arguments:
        raise TextError("date: the text of the date is missing")
    value, *rest = (text(argument, "date") for argument in arguments)
    if len(rest) > 1:
        where = moments.zone(rest[1])
    if rest:
        return moments.parse_moment(value, rest[0], where)
    for layout in DATE_LAYOUTS:
        try:
            return moments.parse_moment(value, layout, where)
        except TextError:
            continue
    raise TextError(f"date: {shown(value)} has no known form; use 2006-01-02, 2006-01-02 15:04:05 or RFC 3339")


def _timezone(_call: Call, arguments: Sequence[Any]) -> tzinfo:
    return moments.zone(text(arguments[0], "timezone"))


def _first(_call: Call, arguments: Sequence[Any]) -> Any:
    return get(arguments[0], 0)


def _last(_call: Call, arguments: Sequence[Any]) -> Any:
    return get(arguments[0], -1)


def _get(_call: Call, arguments: Sequence[Any]) -> Any:
    return get(arguments[0], arguments[1])


def get(owner: Any, key: Any) -> Any:
    """Return an element of a list, map or string; None if it does not exist."""
    if is_map(owner):
        return owner.get(key) if _is_key(key) else None
    if is_list(owner) or isinstance(owner, (str, bytes)):
        elements = owner.encode("utf-8", "surrogatepass") if isinstance(owner, str) else owner
        index = values.whole(key)
        return elements[index] if -len(elements) <= index < len(elements) else None
    return None


def _is_key(key: Any) -> bool:
    return isinstance(key, (str, int, float, bool, bytes)) or key is None


def _take(call: Call, arguments: Sequence[Any]) -> Sequence[Any]:
    elements = items(arguments[0], "take")
    count = values.whole(arguments[1])
    if count < 0:
        raise TextError(f"take: the count is {count}; use 0 or more")
    call.budget.items(min(count, len(elements)))
    return elements[:count]


def _keys(_call: Call, arguments: Sequence[Any]) -> list[Any]:
    return sorted(_map(arguments[0], "keys"), key=str)


def _values(_call: Call, arguments: Sequence[Any]) -> list[Any]:
    mapping = _map(arguments[0], "values")
    return [mapping[key] for key in sorted(mapping, key=str)]


def _to_pairs(_call: Call, arguments: Sequence[Any]) -> list[list[Any]]:
    mapping = _map(arguments[0], "toPairs")
    return [[key, mapping[key]] for key in sorted(mapping, key=str)]


def _from_pairs(_call: Call, arguments: Sequence[Any]) -> dict[Any, Any]:
    mapping: dict[Any, Any] = {}
    for pair in items(arguments[0], "fromPairs"):
        if not is_list(pair) or len(pair) != 2 or not _is_key(pair[0]):
            raise TextError(f"fromPairs: {shown(pair)} is not a pair; use lists of a key and a value")
        mapping[pair[0]] = pair[1]
    return mapping


def _reverse(_call: Call, arguments: Sequence[Any]) -> list[Any]:
    return list(reversed(items(arguments[0], "reverse")))


def _uniq(call: Call, arguments: Sequence[Any]) -> list[Any]:
    kept: list[Any] = []
    for element in items(arguments[0], "uniq"):
        if not any(values.equal(element, other, call.budget) for other in kept):
            kept.append(element)
    return kept


def _concat(call: Call, arguments: Sequence[Any]) -> list[Any]:
    call.budget.items(sum(len(items(argument, "concat")) for argument in arguments))
    return [element for argument in arguments for element in argument]


def _flatten(call: Call, arguments: Sequence[Any]) -> list[Any]:
    return flattened(items(arguments[0], "flatten"), call.budget)


def _sort(call: Call, arguments: Sequence[Any]) -> list[Any]:
    elements = items(arguments[0], "sort")
    descending = is_descending(arguments[1], "sort") if len(arguments) > 1 else False
    return sorted_list(elements, elements, descending=descending, budget=call.budget)


def _type(_call: Call, arguments: Sequence[Any]) -> str:
    return values.type_name(arguments[0])


def _int(_call: Call, arguments: Sequence[Any]) -> int:
    return values.to_integer(arguments[0])


def _float(_call: Call, arguments: Sequence[Any]) -> float:
    return values.to_float(arguments[0])


def _string(call: Call, arguments: Sequence[Any]) -> str:
    return values.go_text(arguments[0], call.budget)


def _bits(name: str, operation: Callable[[int, int], int], *, shifts: bool = False) -> Function:
    def bits(_call: Call, arguments: Sequence[Any]) -> int:
        left, right = arguments
        if not values.is_integer(left) or not values.is_integer(right):
            raise TextError(f"{name}: {shown(right if values.is_integer(left) else left)} is not a whole number")
        if shifts and right < 0:
            raise TextError(f"{name}: the count is {right}; use 0 or more")
        return values.wrapped(operation(left, min(right, 64) if shifts else right))

    return bits


def _bit_not(_call: Call, arguments: Sequence[Any]) -> int:
    if not values.is_integer(arguments[0]):
        raise TextError(f"bitnot: {shown(arguments[0])} is not a whole number")
    return ~arguments[0]


BUILTINS: dict[str, Signature] = {
    "len": Signature(_len, 1, 1),
    "type": Signature(_type, 1, 1),
    "abs": Signature(_abs, 1, 1),
    "ceil": Signature(_rounding("ceil", math.ceil), 1, 1),
    "floor": Signature(_rounding("floor", math.floor), 1, 1),
    "round": Signature(_rounding("round", half_away), 1, 1),
    "int": Signature(_int, 1, 1),
    "float": Signature(_float, 1, 1),
    "string": Signature(_string, 1, 1),
    "trim": Signature(_trim, 1, 2),
    "trimPrefix": Signature(_trim_prefix, 1, 2),
    "trimSuffix": Signature(_trim_suffix, 1, 2),
    "upper": Signature(_upper, 1, 1),
    "lower": Signature(_lower, 1, 1),
    "split": Signature(_splitting("split", keep=False), 2, 3),
    "splitAfter": Signature(_splitting("splitAfter", keep=True), 2, 3),
    "replace": Signature(_replace, 3, 4),
    "repeat": Signature(_repeat, 2, 2),
    "join": Signature(_join, 1, 2),
    "indexOf": Signature(_index_of, 2, 2),
    "lastIndexOf": Signature(_last_index_of, 2, 2),
    "hasPrefix": Signature(_has_prefix, 2, 2),
    "hasSuffix": Signature(_has_suffix, 2, 2),
    "max": Signature(_max, 1, None),
    "min": Signature(_min, 1, None),
    "mean": Signature(_mean, 1, None),
    "median": Signature(_median, 1, None),
    "toJSON": Signature(_to_json_lines, 1, 1),
    "fromJSON": Signature(_from_json, 1, 1),
    "toBase64": Signature(_to_base64, 1, 1),
    "fromBase64": Signature(_from_base64, 1, 1),
    "now": Signature(_now, 0, 1),
    "duration": Signature(_duration, 1, 1),
    "date": Signature(_date, 1, 4),
    "timezone": Signature(_timezone, 1, 1),
    "first": Signature(_first, 1, 1),
    "last": Signature(_last, 1, 1),
    "get": Signature(_get, 2, 2),
    "take": Signature(_take, 2, 2),
    "keys": Signature(_keys, 1, 1),
    "values": Signature(_values, 1, 1),
    "toPairs": Signature(_to_pairs, 1, 1),
    "fromPairs": Signature(_from_pairs, 1, 1),
    "reverse": Signature(_reverse, 1, 1),
    "uniq": Signature(_uniq, 1, 1),
    "concat": Signature(_concat, 1, None),
    "flatten": Signature(_flatten, 1, 1),
    "sort": Signature(_sort, 1, 2),
    "bitand": Signature(_bits("bitand", lambda left, right: left & right), 2, 2),
    "bitor": Signature(_bits("bitor", lambda left, right: left | right), 2, 2),
    "bitxor": Signature(_bits("bitxor", lambda left, right: left ^ right), 2, 2),
    "bitnand": Signature(_bits("bitnand", lambda left, right: left & ~right), 2, 2),
    "bitshl": Signature(_bits("bitshl", lambda left, right: left << right, shifts=True), 2, 2),
    "bitshr": Signature(_bits("bitshr", lambda left, right: left >> right, shifts=True), 2, 2),
    "bitushr": Signature(_bits("bitushr", lambda left, right: (left % 2**64) >> right, shifts=True), 2, 2),
    "bitnot": Signature(_bit_not, 1, 1),
    # Argo's own
    "asInt": Signature(_int, 1, 1),
    "asFloat": Signature(_float, 1, 1),
    "jsonpath": Signature(_json_path, 2, 2),
    "toJson": Signature(_to_json, 1, 1),
}
