"""Functions of sprig for numbers, lists, maps, JSON and types. https://masterminds.github.io/sprig/

Functions that change a map in Go return a changed copy here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Context, Decimal, DecimalException
from typing import Any

from moorage.decide.evaluation import Budget, TextError
from moorage_workflows.decide.workflows.text import functions, values
from moorage_workflows.decide.workflows.text.functions import Call, Signature, items, text
from moorage_workflows.decide.workflows.text.limits import DEPTH
from moorage_workflows.decide.workflows.text.sprigtexts import sprig_text
from moorage_workflows.decide.workflows.text.values import Duration, is_list, is_map, is_number, shown, wrapped

_CONTEXT = Context(prec=60)
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]{1,16}|0[bB][01]{1,64}|0[oO]?[0-7]{1,22}|0|[1-9][0-9]{0,18})")


def number(value: Any) -> int:
    """Convert a value to a whole number as sprig does: 0 for a string that is not a number."""
    if isinstance(value, bool):
        return int(value)
    if is_number(value):
        return values.whole(value) if math.isfinite(value) else 0
    if isinstance(value, Duration):
        return value.nanoseconds
    if not isinstance(value, str) or not _INTEGER.fullmatch(value):
        return 0
    sign, digits = (-1, value[1:]) if value[0] == "-" else (1, value.removeprefix("+"))
    octal = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
    result = sign * (int(digits, 8) if octal else int(digits, 0))
    return result if -(2**63) <= result < 2**63 else 0


def fraction(value: Any) -> float:
    """Convert a value to a float as sprig does: 0 for a string that is not a number."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        try:
            return values.to_float(value)
        except TextError:
            return 0.0
    return float(value) if is_number(value) else 0.0


def is_empty(value: Any) -> bool:
    """Whether a value is empty in sprig: nil, false, 0, "", an empty list or map."""
    if isinstance(value, (datetime, Duration)):
        return value == Duration(0)
    return not value


def _atoi(value: str) -> int:
    try:
        return values.to_integer(value)
    except TextError:
        return 0


def _chain(operation: Callable[[int, int], int], start: int) -> Signature:
    def called(_call: Call, arguments: Sequence[Any]) -> int:
        result = start
        for argument in arguments:
            result = wrapped(operation(result, number(argument)))
        return result

    return Signature(called, 0, None)


def _mul(_call: Call, arguments: Sequence[Any]) -> int:
    result = number(arguments[0])
    for argument in arguments[1:]:
        result = wrapped(result * number(argument))
    return result


def _div(_call: Call, arguments: Sequence[Any]) -> int:
    left, right = number(arguments[0]), number(arguments[1])
    if right == 0:
        raise TextError(f"sprig.div: {left} cannot be divided by zero")
    return wrapped(abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1))


def _decimals(operation: Callable[[Decimal, Decimal], Decimal], start: int | None) -> Signature:
    def called(_call: Call, arguments: Sequence[Any]) -> float:
        parts = [Decimal(repr(fraction(argument))) for argument in arguments]
        result = Decimal(start) if start is not None else parts.pop(0)
        try:
            for part in parts:
                result = operation(result, part)
            return float(result)
        except (DecimalException, OverflowError) as exc:
            raise TextError("sprig: a number cannot be divided by zero, or is too large") from exc

    return Signature(called, 1, None)


def _extreme(choose: Callable[[Any, Any], Any], read: Callable[[Any], Any]) -> Signature:
    def called(_call: Call, arguments: Sequence[Any]) -> Any:
        result = read(arguments[0])
        for argument in arguments[1:]:
            result = choose(result, read(argument))
        return result

    return Signature(called, 1, None)


def _rounded(rounding: Callable[[float], int]) -> Signature:
    def called(_call: Call, arguments: Sequence[Any]) -> float:
        value = fraction(arguments[0])
        return float(rounding(value)) if math.isfinite(value) else value

    return Signature(called, 1, 1)


def _round(_call: Call, arguments: Sequence[Any]) -> float:
    value, places = fraction(arguments[0]), values.whole(arguments[1])
    limit = fraction(arguments[2]) if len(arguments) > 2 else 0.5
    if not math.isfinite(value) or not -300 <= places <= 300:
        raise TextError(f"sprig.round: {shown(value)} cannot be rounded to {places} places")
    shifted = value * 10.0**places
    if not math.isfinite(shifted):
        return value
    rest = math.modf(shifted)[0]
    return (math.ceil(shifted) if rest >= limit else math.floor(shifted)) / 10.0**places


def _steps(start: int, stop: int, step: int, budget: Budget) -> list[int]:
    if (stop < start) != (step < 0) or step == 0:
        return []
    row = range(start, stop, step)
    budget.items(len(row))
    return list(row)


def _until(call: Call, arguments: Sequence[Any]) -> list[int]:
    count = values.whole(arguments[0])
    return _steps(0, count, -1 if count < 0 else 1, call.budget)


def _until_step(call: Call, arguments: Sequence[Any]) -> list[int]:
    start, stop, step = (values.whole(argument) for argument in arguments)
    return _steps(start, stop, step, call.budget)


def _seq(call: Call, arguments: Sequence[Any]) -> str:
    """Return numbers as the shell's `seq` does, including the last."""
    numbers = [values.whole(argument) for argument in arguments]
    match numbers:
        case []:
            return ""
        case [stop]:
            start, step = 1, -1 if stop < 1 else 1
        case [start, stop]:
            step = -1 if stop < start else 1
        case [start, step, stop]:
            if (step > 0) == (stop < start):
                return ""
        case _:
            return ""
    row = _steps(start, stop + (1 if step > 0 else -1), step, call.budget)
    return functions.join([str(value) for value in row], " ", call.budget)


def _to_decimal(call: Call, arguments: Sequence[Any]) -> int:
    digits = sprig_text(arguments[0], call)
    return int(digits, 8) if re.fullmatch(r"[+-]?[0-7]{1,21}", digits) else 0


def _default(_call: Call, arguments: Sequence[Any]) -> Any:
    return arguments[0] if len(arguments) < 2 or is_empty(arguments[1]) else arguments[1]


def _coalesce(_call: Call, arguments: Sequence[Any]) -> Any:
    return next((argument for argument in arguments if not is_empty(argument)), None)


def _compact(_call: Call, arguments: Sequence[Any]) -> list[Any]:
    return [element for element in items(arguments[0], "sprig.compact") if not is_empty(element)]


def _ternary(_call: Call, arguments: Sequence[Any]) -> Any:
    if not isinstance(arguments[2], bool):
        raise TextError(f"sprig.ternary: {shown(arguments[2])} is neither true nor false")
    return arguments[0] if arguments[2] else arguments[1]


def _json(*, indent: int = 0, escapes_html: bool = True) -> Signature:
    def called(call: Call, arguments: Sequence[Any]) -> str:
        return values.json_text(arguments[0], call.budget, indent=indent, escapes_html=escapes_html)

    return Signature(called, 1, 1)


def _from_json(call: Call, arguments: Sequence[Any]) -> Any:
    try:
        return values.read_json(text(arguments[0], "sprig.fromJson"), call.budget)
    except TextError:
        return None


def _must_from_json(call: Call, arguments: Sequence[Any]) -> Any:
    return values.read_json(text(arguments[0], "sprig.mustFromJson"), call.budget)


def _kind(value: Any) -> str:
    match value:
        case None:
            return "invalid"
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float64"
        case str():
            return "string"
        case Mapping():
            return "map"
        case Duration():
            return "int64"
        case datetime():
            return "struct"
    return "slice"


_TYPES = {"invalid": "<nil>", "map": "map[string]interface {}", "slice": "[]interface {}"}


def _type(value: Any) -> str:
    if isinstance(value, (datetime, Duration)):
        return values.type_name(value)
    kind = _kind(value)
    return "[]uint8" if isinstance(value, bytes) else _TYPES.get(kind, kind)


def _deep_equal(call: Call, arguments: Sequence[Any]) -> bool:
    return values.equal(arguments[0], arguments[1], call.budget)


def _copied(value: Any, budget: Budget, depth: int = 0) -> Any:
    budget.spend()
    if depth > DEPTH:
        raise TextError(f"a value is nested more than {DEPTH} deep")
    if is_map(value):
        return {key: _copied(element, budget, depth + 1) for key, element in value.items()}
    return [_copied(element, budget, depth + 1) for element in value] if is_list(value) else value


def _mapping(value: Any, name: str) -> Mapping[Any, Any]:
    if not is_map(value):
        raise TextError(f"{name}: {shown(value)} is not a map")
    return value


def _dict(call: Call, arguments: Sequence[Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for index in range(0, len(arguments), 2):
        made[sprig_text(arguments[index], call)] = arguments[index + 1] if index + 1 < len(arguments) else ""
    return made


def _get(_call: Call, arguments: Sequence[Any]) -> Any:
    return _mapping(arguments[0], "sprig.get").get(text(arguments[1], "sprig.get"), "")


def _set(call: Call, arguments: Sequence[Any]) -> dict[Any, Any]:
    mapping = _mapping(arguments[0], "sprig.set")
    call.budget.items(len(mapping) + 1)
    return {**mapping, text(arguments[1], "sprig.set"): arguments[2]}


def _unset(call: Call, arguments: Sequence[Any]) -> dict[Any, Any]:
    return _omit(call, arguments)


def _has_key(_call: Call, arguments: Sequence[Any]) -> bool:
    return text(arguments[1], "sprig.hasKey") in _mapping(arguments[0], "sprig.hasKey")


def _pluck(_call: Call, arguments: Sequence[Any]) -> list[Any]:
    key = text(arguments[0], "sprig.pluck")
    return [mapping[key] for mapping in arguments[1:] if key in _mapping(mapping, "sprig.pluck")]


def _keys(_call: Call, arguments: Sequence[Any]) -> list[Any]:
    return [key for mapping in arguments for key in sorted(_mapping(mapping, "sprig.keys"), key=str)]


def _values(_call: Call, arguments: Sequence[Any]) -> list[Any]:
    mapping = _mapping(arguments[0], "sprig.values")
    return [mapping[key] for key in sorted(mapping, key=str)]


def _pick(_call: Call, arguments: Sequence[Any]) -> dict[Any, Any]:
    mapping = _mapping(arguments[0], "sprig.pick")
    return {key: mapping[key] for key in (text(key, "sprig.pick") for key in arguments[1:]) if key in mapping}


def _omit(call: Call, arguments: Sequence[Any]) -> dict[Any, Any]:
    mapping = _mapping(arguments[0], "sprig.omit")
    call.budget.items(len(mapping))
    left_out = {text(key, "sprig.omit") for key in arguments[1:]}
    return {key: value for key, value in mapping.items() if key not in left_out}


def _merging(name: str, *, overwrites: bool) -> Signature:
    def called(call: Call, arguments: Sequence[Any]) -> Any:
        result: Any = _mapping(arguments[0], name)
        for argument in arguments[1:]:
            result = _merged(result, _mapping(argument, name), overwrites, call.budget, 0)
        return result

    return Signature(called, 1, None)


def _merged(
    mine: Mapping[Any, Any], other: Mapping[Any, Any], overwrites: bool, budget: Budget, depth: int
) -> Any:
    if depth > DEPTH:
        raise TextError(f"a value is nested more than {DEPTH} deep")
    budget.items(len(mine) + len(other))
    result = dict(mine)
    for key, value in other.items():
        before = result.get(key)
        if is_map(before) and is_map(value):
            result[key] = _merged(before, value, overwrites, budget, depth + 1)
        elif is_empty(before) or (overwrites and not is_empty(value)):
            result[key] = value
    return result


def _dig(_call: Call, arguments: Sequence[Any]) -> Any:
    *keys, default, level = arguments
    for key in keys:
        mapping = _mapping(level, "sprig.dig")
        if text(key, "sprig.dig") not in mapping:
            return default
        level = mapping[key]
    return level


def _push(_call: Call, arguments: Sequence[Any]) -> list[Any]:
    return [*items(arguments[0], "sprig.append"), arguments[1]]


def _prepend(_call: Call, arguments: Sequence[Any]) -> list[Any]:
    return [arguments[1], *items(arguments[0], "sprig.prepend")]


def _element(name: str, index: int) -> Signature:
    def called(_call: Call, arguments: Sequence[Any]) -> Any:
        elements = items(arguments[0], name)
        return elements[index] if elements else None

    return Signature(called, 1, 1)


def _part(name: str, part: slice) -> Signature:
    def called(_call: Call, arguments: Sequence[Any]) -> Any:
        return list(items(arguments[0], name))[part]

    return Signature(called, 1, 1)


def _uniq(call: Call, arguments: Sequence[Any]) -> list[Any]:
    kept: list[Any] = []
    for element in items(arguments[0], "sprig.uniq"):
        if not _holds(kept, element, call.budget):
            kept.append(element)
    return kept


def _holds(elements: Sequence[Any], wanted: Any, budget: Budget) -> bool:
    return any(values.equal(wanted, element, budget) for element in elements)


def _without(call: Call, arguments: Sequence[Any]) -> list[Any]:
    elements = items(arguments[0], "sprig.without")
    return [element for element in elements if not _holds(arguments[1:], element, call.budget)]


def _has(call: Call, arguments: Sequence[Any]) -> bool:
    return arguments[1] is not None and _holds(items(arguments[1], "sprig.has"), arguments[0], call.budget)


def _slice(_call: Call, arguments: Sequence[Any]) -> Any:
    elements = items(arguments[0], "sprig.slice")
    start = values.whole(arguments[1]) if len(arguments) > 1 else 0
    stop = values.whole(arguments[2]) if len(arguments) > 2 else len(elements)
    if not 0 <= start <= stop <= len(elements):
        raise TextError(f"sprig.slice: {start} to {stop} is outside a list of {len(elements)} items")
    return list(elements[start:stop])


def _concat(call: Call, arguments: Sequence[Any]) -> list[Any]:
    call.budget.items(sum(len(items(argument, "sprig.concat")) for argument in arguments))
    return [element for argument in arguments for element in argument]


def _chunk(call: Call, arguments: Sequence[Any]) -> list[Any]:
    size, elements = values.whole(arguments[0]), items(arguments[1], "sprig.chunk")
    if size < 1:
        raise TextError(f"sprig.chunk: the size is {size}; use 1 or more")
    call.budget.items(len(elements))
    return [list(elements[start : start + size]) for start in range(0, len(elements), size)]


def _any(function: Callable[[Any], Any]) -> Signature:
    return Signature(lambda _call, arguments: function(arguments[0]), 1, 1)


DATA: dict[str, Signature] = {
    "atoi": Signature(lambda _call, arguments: _atoi(text(arguments[0], "sprig.atoi")), 1, 1),
    "int64": _any(number),
    "int": _any(number),
    "float64": _any(fraction),
    "toDecimal": Signature(_to_decimal, 1, 1),
    "seq": Signature(_seq, 0, None),
    "until": Signature(_until, 1, 1),
    "untilStep": Signature(_until_step, 3, 3),
    "add1": _any(lambda value: wrapped(number(value) + 1)),
    "add": _chain(lambda left, right: left + right, 0),
    "sub": Signature(lambda _call, arguments: wrapped(number(arguments[0]) - number(arguments[1])), 2, 2),
    "div": Signature(_div, 2, 2),
    "mod": Signature(lambda _call, arguments: values.remainder(number(arguments[0]), number(arguments[1])), 2, 2),
    "mul": Signature(_mul, 1, None),
    "add1f": _decimals(lambda left, right: _CONTEXT.add(left, right), 1),
    "addf": _decimals(lambda left, right: _CONTEXT.add(left, right), 0),
    "subf": _decimals(lambda left, right: _CONTEXT.subtract(left, right), None),
    "divf": _decimals(lambda left, right: _CONTEXT.divide(left, right), None),
    "mulf": _decimals(lambda left, right: _CONTEXT.multiply(left, right), None),
    "biggest": _extreme(max, number),
    "max": _extreme(max, number),
    "min": _extreme(min, number),
    "maxf": _extreme(max, fraction),
    "minf": _extreme(min, fraction),
    "ceil": _rounded(math.ceil),
    "floor": _rounded(math.floor),
    "round": Signature(_round, 2, 3),
    "default": Signature(_default, 1, 2),
    "empty": _any(is_empty),
    "coalesce": Signature(_coalesce, 0, None),
    "all": Signature(lambda _call, arguments: not any(is_empty(argument) for argument in arguments), 0, None),
    "any": Signature(lambda _call, arguments: any(not is_empty(argument) for argument in arguments), 0, None),
    "compact": Signature(_compact, 1, 1),
    "ternary": Signature(_ternary, 3, 3),
    "toJson": _json(),
    "toPrettyJson": _json(indent=2),
    "toRawJson": _json(escapes_html=False),
    "fromJson": Signature(_from_json, 1, 1),
    "typeOf": _any(_type),
    "typeIs": Signature(lambda _call, arguments: arguments[0] == _type(arguments[1]), 2, 2),
    "typeIsLike": Signature(
        lambda _call, arguments: arguments[0] in (_type(arguments[1]), "*" + _type(arguments[1])), 2, 2
    ),
    "kindOf": _any(_kind),
    "kindIs": Signature(lambda _call, arguments: arguments[0] == _kind(arguments[1]), 2, 2),
    "deepEqual": Signature(_deep_equal, 2, 2),
    "deepCopy": Signature(lambda call, arguments: _copied(arguments[0], call.budget), 1, 1),
    "tuple": Signature(lambda _call, arguments: list(arguments), 0, None),
    "list": Signature(lambda _call, arguments: list(arguments), 0, None),
    "dict": Signature(_dict, 0, None),
    "get": Signature(_get, 2, 2),
    "set": Signature(_set, 3, 3),
    "unset": Signature(_unset, 2, 2),
    "hasKey": Signature(_has_key, 2, 2),
    "pluck": Signature(_pluck, 1, None),
    "keys": Signature(_keys, 1, None),
    "values": Signature(_values, 1, 1),
    "pick": Signature(_pick, 1, None),
    "omit": Signature(_omit, 1, None),
    "merge": _merging("sprig.merge", overwrites=False),
    "mergeOverwrite": _merging("sprig.mergeOverwrite", overwrites=True),
    "dig": Signature(_dig, 3, None),
    "append": Signature(_push, 2, 2),
    "push": Signature(_push, 2, 2),
    "prepend": Signature(_prepend, 2, 2),
    "first": _element("sprig.first", 0),
    "last": _element("sprig.last", -1),
    "rest": _part("sprig.rest", slice(1, None)),
    "initial": _part("sprig.initial", slice(None, -1)),
    "reverse": _part("sprig.reverse", slice(None, None, -1)),
    "uniq": Signature(_uniq, 1, 1),
    "without": Signature(_without, 1, None),
    "has": Signature(_has, 2, 2),
    "slice": Signature(_slice, 1, 3),
    "concat": Signature(_concat, 1, None),
    "chunk": Signature(_chunk, 2, 2),
}
MUST_FROM_JSON = Signature(_must_from_json, 1, 1)
