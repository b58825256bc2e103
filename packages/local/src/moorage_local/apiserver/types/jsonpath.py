"""The part of JSONPath that printer columns use: `.a.b`, `['a']`, `[0]`, `[*]` and `[?(@.type=="Ready")]`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from moorage_kube.integers import INT64_MAX, integer_or, is_digits

_FILTER = re.compile(r"\?\(\s*@\.([A-Za-z0-9_.\-]+)\s*(==|!=)(.*)\)")
Step = Callable[[Any], list[Any]]


def find(path: str, obj: Any) -> list[Any]:
    """Return all values that match the path; empty if nothing matches or the path is invalid."""
    values = [obj]
    for step in _steps(path):
        values = [more for value in values for more in step(value)]
    return values


@lru_cache(maxsize=1024)
def _steps(path: str) -> tuple[Step, ...]:
    steps: list[Step] = []
    at = 0
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    while at < len(text):
        if text[at] == ".":
            at += 1
            name = ""
            while at < len(text) and text[at] not in ".[":
                if text[at] == "\\" and at + 1 < len(text):
                    at += 1
                name += text[at]
                at += 1
            if name:
                steps.append(_every if name == "*" else _key(name))
        elif text[at] == "[":
            end = _closing(text, at)
            if end < 0:
                return (lambda _: [],)
            steps.append(_bracket(text[at + 1 : end]))
            at = end + 1
        else:
            return (lambda _: [],)
    return tuple(steps)


def _closing(text: str, start: int) -> int:
    quote = ""
    for at in range(start + 1, len(text)):
        char = text[at]
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "]":
            return at
    return -1


def _bracket(inner: str) -> Step:
    inner = inner.strip()
    if inner == "*":
        return _every
    if is_digits(inner.removeprefix("-")):
        return _index(integer_or(inner, INT64_MAX, minimum=-INT64_MAX))
    if len(inner) > 1 and inner[0] == inner[-1] and inner[0] in "'\"":
        return _key(inner[1:-1])
    if matched := _FILTER.fullmatch(inner):
        value = matched[3].strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        return _filter(matched[1].split("."), matched[2] == "==", value)
    return lambda _: []


def _key(name: str) -> Step:
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else []


def _index(at: int) -> Step:
    return lambda value: [value[at]] if isinstance(value, list) and -len(value) <= at < len(value) else []


def _every(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return list(value.values()) if isinstance(value, dict) else []


def _filter(keys: list[str], equal: bool, wanted: str) -> Step:
    def step(value: Any) -> list[Any]:
        if not isinstance(value, list):
            return []
        return [item for item in value if (_text(item, keys) == wanted) is equal]

    return step


def _text(item: Any, keys: list[str]) -> str | None:
    for key in keys:
        if not isinstance(item, dict) or key not in item:
            return None
        item = item[key]
    if isinstance(item, bool):
        return "true" if item else "false"
    return str(item)
