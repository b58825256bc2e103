"""Read fields by their paths, and set them in a copy.

The functions do not fail on unexpected types: a step of another type counts as a missing field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moorage_kube.resources import Obj

Path = tuple[str | int, ...]


def field_of(path: Path) -> str:
    """Format a path: `("spec", "containers", 0, "name")` → `spec.containers[0].name`.

    Keys that contain a dot or a slash are written in brackets.
    """
    out = ""
    for step in path:
        if isinstance(step, int) or "." in step or "/" in step:
            out += f"[{step}]"
        else:
            out += f".{step}" if out else step
    return out


def at(obj: Any, path: Path) -> Any:
    """The value at a path. None if a step of the path is missing or has another type."""
    for key in path:
        if type(obj) is dict or isinstance(obj, Mapping):  # asking an abstract class costs ten times as much
            obj = obj.get(key)
        elif isinstance(key, int) and isinstance(obj, list) and key < len(obj):
            obj = obj[key]
        else:
            return None
    return obj


def with_values(obj: Mapping[str, Any], values: Iterable[tuple[Path, Any]]) -> Obj:
    """A copy of the object with a value at each path; mappings that are missing on the path are added.

    Unchanged parts are shared with the original, which is not modified.
    """
    made = dict(obj)
    copied: dict[int, Any] = {id(made): made}  # by identity: each table on the way is copied once
    step: Any
    for path, value in values:
        table: Any = made
        for step in path[:-1]:
            inner = table[step] if type(table) is list else table.get(step)
            if id(inner) not in copied:
                inner = inner.copy() if type(inner) is dict or (type(inner) is list and inner) else {}
                copied[id(inner)] = table[step] = inner
            table = inner
        table[path[-1]] = value
    return made


def mapping(value: Any) -> Mapping[str, Any]:
    return value if type(value) is dict or isinstance(value, Mapping) else {}


def sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def shown_value(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def or_none(value: Any) -> str:
    return "none" if value is None else str(value)


def listed(values: Iterable[str]) -> str:
    return ", ".join(sorted(values)) or "none"
