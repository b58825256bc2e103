"""The columns of a table of a map's items and results."""

from __future__ import annotations

import json
from typing import Any

_OWN = ("item", "key", "path")  # columns before those of the value; of the last two only those in use


class Columns:
    """The columns of a results table: the fields of items and of results that are objects.

    Other items are in `input`, other results in `value`.
    """

    def __init__(self) -> None:
        self._own = {"item"}
        self._fields: dict[str, dict[str, None]] = {"input": {}, "value": {}}
        self._bare: set[str] = set()

    def see(self, result: dict[str, Any]) -> None:
        self._own.update(name for name in _OWN if result.get(name) is not None)
        for part, fields in self._fields.items():
            value = result.get(part)
            if isinstance(value, dict):
                fields.update(dict.fromkeys(value))
            elif value is not None:
                self._bare.add(part)

    @property
    def names(self) -> list[str]:
        names = [name for name in _OWN if name in self._own]
        for part, fields in self._fields.items():
            names += [*([part] if part in self._bare else []), *(self._named(part, field) for field in fields)]
        return names

    def row(self, result: dict[str, Any]) -> dict[str, Any]:
        made = {name: result.get(name) for name in _OWN if name in self._own}
        for part in self._fields:
            value = result.get(part)
            if isinstance(value, dict):
                made |= {self._named(part, name): field for name, field in value.items()}
            elif part in self._bare:
                made[part] = value
        return made

    def _named(self, part: str, field: str) -> str:
        """Return the column of a field: its name, or `input.FIELD` or `value.FIELD` if that name is in use."""
        in_use = field in _OWN or field in self._bare or (part == "value" and field in self._fields["input"])
        return f"{part}.{field}" if in_use else field


def cell(value: Any) -> Any:
    """Return the content of a cell: text as it is, other values as JSON, nothing for null."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
