"""The items of a loop: withItems, withParam, withSequence."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from moorage.decide.evaluation import OBJECT_NODES, TextError, current

_VERB = re.compile(r"%(%|[-+ 0#]*[0-9]{0,3}(?:\.[0-9]{1,3})?[dxXo])")


def has_loop(step: Mapping[str, Any]) -> bool:
    return any(step.get(key) is not None for key in ("withItems", "withParam", "withSequence"))


def items_of(step: Mapping[str, Any]) -> list[Any]:
    """Return the items of a step's loop. Its tags must be replaced already. Raises TextError."""
    if step.get("withItems") is not None:
        items = step["withItems"]
    elif step.get("withParam") is not None:
        items = _parsed(str(step["withParam"]))
    else:
        items = _sequence(step["withSequence"])
    if not isinstance(items, list):
        raise TextError(f"the items of a loop must be a list, not {type(items).__name__}")
    if len(items) > OBJECT_NODES:
        raise TextError(f"a loop has {len(items):,} items; at most {OBJECT_NODES:,} are allowed")
    return items


def item_scope(item: Any) -> dict[str, str]:
    """The values of `{{item}}` and `{{item.key}}`."""
    scope = {"item": _text(item)}
    if isinstance(item, dict):
        scope |= {f"item.{key}": _text(value) for key, value in item.items()}
    return scope


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def _parsed(text: str) -> Any:
    current().spend(len(text) // 16)
    try:
        return json.loads(text)
    except ValueError as error:
        raise TextError(f"withParam must be a JSON list, and is {text[:100]!r}: {error}") from error


def literal_count(step: Mapping[str, Any]) -> int:
    """Return the number of items of a step's loop if it is known before the run, else 0."""
    if isinstance(items := step.get("withItems"), list):
        return len(items)
    if not isinstance(sequence := step.get("withSequence"), Mapping):
        return 0
    try:
        return _count(_numbers(sequence))
    except TextError:
        return 0


def _sequence(sequence: Mapping[str, Any]) -> list[str]:
    form = sequence.get("format") or ""
    numbers = _numbers(sequence)
    if (count := _count(numbers)) > OBJECT_NODES:
        raise TextError(f"withSequence has {count:,} items; at most {OBJECT_NODES:,} are allowed")
    return [_formatted(form, number) for number in numbers]


def _count(numbers: range) -> int:
    """Return the length of a range. `len` fails for more than 63 bits."""
    return abs(numbers.stop - numbers.start) if numbers else 0


def _numbers(sequence: Mapping[str, Any]) -> range:
    if sequence.get("count") is not None:
        start = _whole(sequence.get("start") or 0, "start")
        return range(start, start + _whole(sequence["count"], "count"))
    start, end = _whole(sequence.get("start") or 0, "start"), _whole(sequence.get("end") or 0, "end")
    return range(start, end + 1) if start <= end else range(start, end - 1, -1)


def _whole(value: Any, field: str) -> int:
    try:
        return int(str(value).strip())
    except ValueError:
        raise TextError(f"withSequence.{field} must be a whole number, and is {value!r}") from None


def _formatted(form: str, number: int) -> str:
    if not form:
        return str(number)
    return _VERB.sub(lambda match: "%" if match[1] == "%" else match[0] % number, form)
