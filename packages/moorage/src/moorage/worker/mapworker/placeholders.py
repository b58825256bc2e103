"""The words {item}, {item.FIELD} and {index} of a command: checked when a map is created, replaced by workers."""

from __future__ import annotations

import json
import re
from typing import Any

PLACEHOLDER = re.compile(r"\{(item|index)((?:\.[^.{}]+)*)\}")


def fill(command: list[str], index: int, value: Any) -> list[str]:
    """Return the command of one item. Raises ValueError for a field that the item does not have."""

    def put(match: re.Match[str]) -> str:
        if match.group(1) == "index" and not match.group(2):
            return str(index)
        if match.group(1) == "index":
            raise ValueError(f"{match.group(0)}: the index is a number without fields: use {{index}}")
        field = _field(value, match.group(2)[1:], match.group(0))
        return field if isinstance(field, str) else json.dumps(field)

    return [PLACEHOLDER.sub(put, word) for word in command]


def _field(value: Any, path: str, placeholder: str) -> Any:
    """The field at a path such as `model.layers.0`; a name with dots is one field where the item has it."""
    while path:
        if isinstance(value, dict) and path in value:
            return value[path]
        name, _, path = path.partition(".")
        try:
            value = value[int(name)] if isinstance(value, list) else value[name]
        except (KeyError, IndexError, TypeError, ValueError):
            raise ValueError(f"{placeholder}: this item has {_fields(value)}") from None
    return value


def _fields(value: Any) -> str:
    if isinstance(value, dict) and value:
        return "the fields " + ", ".join(map(str, value))
    return f"the fields 0 to {len(value) - 1}" if isinstance(value, list) and value else "no fields"
